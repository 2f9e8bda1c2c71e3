"""bench --local: what it measures, counts and prints. How fast anything is does not matter here."""
import json
import os
import re
import signal
import subprocess
import time

from harness import BINARY, NANO, Case, main, run

QUICK = ["bench", "--local", "--threads", "1", "-q"]


class Bench(Case):
    def measure(self, *options):
        return json.loads(self.succeed(*QUICK, "--json", *options))

    def test_table(self):
        lines = self.succeed(*QUICK, "-p", "8", "-n", "2", "-b", "1,3", "-d", "0,20", "-r", "2").splitlines()
        cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line.startswith("|")]
        self.assertEqual(cells[0], ["model", "size", "params", "kernels", "cache", "threads", "test", "tok/s", "ms/step", "read", "arith"])
        self.assertEqual([row[6] for row in cells[2:]], ["pp8", "tg2", "tg2 b3", "pp8 @ d20", "tg2 @ d20", "tg2 b3 @ d20"])
        for row in cells[2:]:
            self.assertEqual((row[0], row[1], row[2], row[4], row[5]), ("nano", "0.03 GB", "0.03 B", "bf16", "1"))
            self.assertRegex(row[7], r"^\d+\.\d\d ± +\d+\.\d\d$")
            self.assertRegex(row[8] + row[9] + row[10], r"^\d+\.\d\d\d+%\d+%$")
        self.assertEqual(len({len(line) for line in lines[:len(cells)]}), 1, lines)
        self.assertRegex(lines[-2], r"^1 thread; reading .* GB/s .*, fused f32 .* GFLOP/s \(.+\), bytes .* Gop/s \(.+\)$")
        self.assertRegex(lines[-1], r"^dispatch: \d+ shapes, ")

    def test_json(self):
        found = self.measure("-p", "70", "-n", "3", "-b", "2", "-d", "5", "-r", "2", "--chunk", "32", "--kv-dtype", "fp8")
        self.assertEqual((found["mode"], found["threads"], found["chunk"], found["kv_dtype"], found["exact"], found["fill"]),
                         ("local", 1, 32, "fp8", False, "mixed"))
        self.assertEqual((found["model"]["name"], found["model"]["directory"]), ("nano", str(NANO)))
        described = json.loads(self.succeed("inspect", "--json"))
        self.assertEqual(found["model"]["parameters"], described["parameters"]["total"])
        self.assertEqual(found["version"], json.loads(self.succeed("version", "--json"))["version"])
        dispatch = found["dispatch"]
        self.assertEqual(dispatch["shapes"], dispatch["tuned"] + dispatch["only"] + dispatch["heuristic"])
        self.assertTrue(all(found["ceilings"][k] > 0 for k in ("read_gb_s", "read_one_thread_gb_s", "fused_f32_gflop_s", "bytes_gop_s")))
        prompt, generation = found["tests"]
        self.assertEqual((prompt["test"], prompt["tokens"], prompt["steps"], prompt["must"]["logit_rows"]), ("pp70 @ d5", 70, 3, 1))
        self.assertEqual((generation["test"], generation["tokens"], generation["steps"], generation["must"]["logit_rows"]),
                         ("tg3 b2 @ d5", 6, 3, 6))
        for test in found["tests"]:
            self.assertEqual((len(test["seconds"]), len(test["processor_seconds"])), (2, 2))
            speeds = [test["tokens"] / s for s in test["seconds"]]
            self.assertAlmostEqual(test["tokens_per_second"], sum(speeds) / 2, places=6)
            self.assertAlmostEqual(test["best_tokens_per_second"], max(speeds), places=6)
            self.assertAlmostEqual(test["step_ms"], 1e3 * sum(test["seconds"]) / 2 / test["steps"], places=6)
            must, seconds, top = test["must"], sum(test["seconds"]) / 2, found["ceilings"]
            read = (must["weight_bytes"] + must["expert_bytes"] + must["key_bytes"]) / top["read_gb_s"] / 1e9
            arithmetic = must["byte_operations"] / top["bytes_gop_s"] / 1e9 + must["f32_operations"] / top["fused_f32_gflop_s"] / 1e9
            self.assertAlmostEqual(test["read_share"], read / seconds, places=9)
            self.assertAlmostEqual(test["arithmetic_share"], arithmetic / seconds, places=9)

    def test_what_is_counted_does_not_depend_on_how(self):
        """The same work by other kernels and threads; without 8-bit rows with --exact."""
        options = ["-p", "16", "-n", "2", "-d", "300", "-r", "1"]
        first = [t["must"] for t in self.measure(*options)["tests"]]
        forced = self.measure(*options, "--kernels", "generic")
        self.assertEqual([t["must"] for t in forced["tests"]], first)
        self.assertEqual(forced["dispatch"]["forced"], "generic")
        exact = self.measure(*options, "--exact")
        self.assertEqual((exact["exact"], exact["kv_dtype"]), (True, "f32"))
        for a, b in zip(first, (t["must"] for t in exact["tests"])):
            self.assertGreater(a["byte_operations"], 0)
            self.assertEqual(b["byte_operations"], 0)
            self.assertEqual(b["f32_operations"], a["byte_operations"] + a["f32_operations"])

    def test_depth_computed(self):
        """The work is the same; which positions the rows of a prompt share shows that the keys are not."""
        options = ["-p", "32", "-n", "2", "-d", "1000", "-r", "1"]
        mixed, computed = (self.measure(*options, "--fill", f) for f in ("mixed", "computed"))
        self.assertEqual((mixed["fill"], computed["fill"]), ("mixed", "computed"))
        (prompt, generation), (other_prompt, other_generation) = ([t["must"] for t in m["tests"]] for m in (mixed, computed))
        for key in ("weight_bytes", "byte_operations", "f32_operations"):
            self.assertEqual((prompt[key], generation[key]), (other_prompt[key], other_generation[key]), key)
        self.assertEqual(generation["key_bytes"], other_generation["key_bytes"])
        self.assertNotEqual(prompt["key_bytes"], other_prompt["key_bytes"])

    def test_made_up_weights_leave_nothing(self):
        folder = self.folder / "tmp"
        folder.mkdir()
        environment = {**os.environ, "TMPDIR": str(folder)}
        name = f"synth:{NANO / 'config.json'}:fp8"
        found = json.loads(self.succeed(*QUICK, name, "--layers", "2", "-p", "4", "-n", "0", "-r", "1", "--json", env=environment))
        self.assertEqual(found["model"]["name"], name)
        self.assertEqual(found["tests"][0]["must"]["byte_operations"], 0)
        self.assertEqual(list(folder.iterdir()), [])
        self.refuse(3, "is neither a config.json", *QUICK, "synth:nosuch", env=environment)
        self.refuse(2, 'the format is "fp9", expected one of mxfp4, ', *QUICK, f"{name[:-3]}fp9", env=environment)
        self.refuse(2, "expected synth:CONFIG", *QUICK, "synth:", env=environment)
        self.assertEqual(list(folder.iterdir()), [])
        environment["TMPDIR"] = str(self.folder / "missing")
        self.refuse(1, "TMPDIR says where", *QUICK, name, env=environment)

    def test_interrupted(self):
        """Tests that are done are printed."""
        process = subprocess.Popen([BINARY, *QUICK[:-1], "-p", "1", "-n", "4000", "-r", "1", "--json"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        while process.poll() is None and not re.search(rb"tg4000", self.seen(process)):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn(b"interrupted after 1 of 2 tests", err)
        self.assertEqual([t["test"] for t in json.loads(out)["tests"]], ["pp1"])

    def seen(self, process):
        """Progress so far: a line of standard error every ten seconds."""
        os.set_blocking(process.stderr.fileno(), False)
        got = process.stderr.read() or b""
        os.set_blocking(process.stderr.fileno(), True)
        return got

    def test_refusals(self):
        for sentence, options in [("only --local exists so far", ["bench"]),
                                  ('--prompt must be numbers from 0 to 16777216, separated by commas, found "x"', [*QUICK, "-p", "x"]),
                                  ("--generate must be numbers", [*QUICK, "-n", "1,,2"]),
                                  ("--batch must be numbers from 1 to 4096", [*QUICK, "-b", "0"]),
                                  ("--depth must be numbers", [*QUICK, "-d", "99999999999"]),
                                  ("--prompt has more than 16 numbers", [*QUICK, "-p", ",".join(["1"] * 17)]),
                                  ("more than 256 tests", [*QUICK, "-n", ",".join(["1"] * 16), "-b", ",".join(["1"] * 16), "-d", "0,1"]),
                                  ("leave nothing to measure", [*QUICK, "-p", "0", "-n", "0"]),
                                  ("--layers is for a MODEL of the form synth:CONFIG", [*QUICK, "--layers", "2"]),
                                  ("--repetitions must be", [*QUICK, "-r", "0"])]:
            with self.subTest(sentence):
                self.refuse(2, sentence, *options)
        self.refuse(4, "8192; use less", *QUICK, "-d", "8192")
        shapes = json.loads((NANO / "config.json").read_text())
        long = self.file("long.json", json.dumps({**shapes, "max_position_embeddings": 1 << 24}))
        self.refuse(4, "GB of memory are free; use a smaller --batch or --depth", *QUICK, f"synth:{long}:bf16", "--layers", "1", "-p", "0",
                    "-d", "16000000", "-b", "4096", "-n", "1")
        self.refuse(3, "cannot open the model", *QUICK, self.folder / "missing")


if __name__ == "__main__":
    main()
