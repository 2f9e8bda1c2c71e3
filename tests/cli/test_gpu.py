"""--device cuda: what it says without a GPU, and the same answers with one."""
import json
import unittest

from harness import NANO, Case, main, run

PROMPT = ["--temperature", "0", "-n", "40", "--json", "-p", "What is 17 + 25?"]


def missing():
    """Why there is no GPU here; None: there is one."""
    done = run("inspect", NANO, "--dispatch", "--device", "cuda")
    return None if done.returncode == 0 else done.stderr.decode()


MISSING = missing()


class Options(Case):
    def test_refused(self):
        self.refuse(2, "--threads is for --device cpu", "run", "--device", "cuda", "--threads", "2", "-p", "x")
        self.refuse(2, "--device means something with --dispatch only", "inspect", "--device", "cuda")
        self.refuse(2, "--device", "run", "--device", "tpu", "-p", "x")

    @unittest.skipIf(MISSING is None, "there is a GPU")
    def test_without_a_gpu(self):
        for command in (["run", "-p", "x"], ["tune", "--rows", "1"], ["inspect", "--dispatch"]):
            done = run(*command, "--device", "cuda")
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertRegex(done.stderr.decode(), "no GPU found|this build has no GPU support")
            self.assertIn("use --device cpu", done.stderr.decode())


@unittest.skipIf(MISSING, MISSING)
class Answers(Case):
    def answer(self, *options):
        return json.loads(self.succeed("run", *options, *PROMPT))

    def test_exact_answers_are_those_of_the_cpu(self):
        self.assertEqual(self.answer("--exact", "--device", "cuda")["text"], self.answer("--exact")["text"])

    def test_chunks_do_not_matter(self):
        whole = self.answer("--device", "cuda")
        self.assertEqual(self.answer("--device", "cuda", "--chunk", "3")["text"], whole["text"])


if __name__ == "__main__":
    main()
