"""quantize and inspect --verify on the built-in model: killed, interrupted and out of space, the result is always the same."""
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import time

from harness import BINARY, NANO, SANITIZED, Case, main, read_safetensors, run

KILLS = 3 if SANITIZED else 10
SMALL = ["--to", "fp8", "--shard-bytes", "4000000"]


def contents(folder):
    """{file: digest}"""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def tensors(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        found.update(read_safetensors(path))
    return found


class Quantize(Case):
    def test_to_bf16_and_back(self):
        """Decoded values are exact in bf16, and quantizing them again must decode to the same values."""
        out = self.succeed("quantize", NANO, self.folder / "bf16", "--to", "bf16", "-q")
        self.assertIn("exact", out)
        description = json.loads(self.succeed("inspect", self.folder / "bf16", "--json"))
        self.assertEqual(description["disagreements"], [])
        self.succeed("quantize", self.folder / "bf16", self.folder / "again", "--to", "mxfp4", "-q")
        self.succeed("quantize", self.folder / "again", self.folder / "bf16-again", "--to", "bf16", "-q")
        self.assertEqual(tensors(self.folder / "bf16"), tensors(self.folder / "bf16-again"))
        self.assertEqual(set(tensors(self.folder / "again")), set(tensors(NANO)))

    def test_files(self):
        report = self.folder / "report.json"
        done = run("quantize", NANO, self.folder / "out", *SMALL, "--report", report)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"draft layer (MTP): quantized", done.stderr)
        out = self.folder / "out"
        index = json.loads((out / "model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"]), set(tensors(out)))
        self.assertEqual(index["metadata"]["total_size"], sum(len(t[2]) for t in tensors(out).values()))
        self.assertEqual((out / "tokenizer.json").read_bytes(), (NANO / "tokenizer.json").read_bytes())
        config = json.loads((out / "config.json").read_text())
        self.assertEqual(config["quantization_config"]["weight_block_size"], [128, 128])
        self.assertEqual({k: v for k, v in config.items() if k != "quantization_config"},
                         {k: v for k, v in json.loads((NANO / "config.json").read_text()).items() if k != "quantization_config"})
        self.assertIn("\"rms_norm_eps\": 1e-5,", (out / "config.json").read_text())
        classes = {(c["class"], c["draft"]): c for c in json.loads(report.read_text())["classes"]}
        attention = classes["attention", False]
        self.assertLess(attention["relative_l2"], 0.04)  # half a step of e4m3 is 1/16 of a value, on average far less
        self.assertGreater(attention["cosine"], 0.999)
        self.assertFalse((out / "quantize.journal").exists())
        self.assertIn("all as written", self.succeed("inspect", out, "--verify"))
        self.assertTrue(json.loads(self.succeed("inspect", out, "--verify", "--json"))["verified"])
        self.refuse(3, "has no drawbridge-manifest.json", "inspect", NANO, "--verify")

    def test_dry_run(self):
        out = self.succeed("quantize", NANO, self.folder / "out", "--to", "nvfp4", "--dry-run", "-v", "--exclude", "*.experts.3.*")
        self.assertIn("draft layer (MTP): kept in bf16", out)
        self.assertIn("model.layers.1.mlp.experts.3.up_proj: mxfp4 -> bf16 (--exclude *.experts.3.*)", out)
        self.assertFalse((self.folder / "out").exists())

    def test_refusals(self):
        out = self.folder / "out"
        self.refuse(2, "--to", "quantize", NANO, out)
        self.refuse(2, "use it with --to mxfp4", "quantize", NANO, out, "--to", "fp8", "--recipe", "amd-attn-fp8")
        self.refuse(2, "--scale-rule is for --to mxfp4", "quantize", NANO, out, "--to", "fp8", "--scale-rule", "ceil")
        self.refuse(2, "matches no matrix", "quantize", NANO, out, "--to", "fp8", "--exclude", "nothing")
        self.refuse(2, "is the source itself", "quantize", "-q", NANO, NANO, "--to", "fp8")
        self.refuse(3, "is not empty and holds no conversion", "quantize", "-q", NANO, self.file("x").parent, "--to", "fp8")
        self.refuse(1, "cannot create directory", "quantize", "-q", NANO, "/proc/nowhere", "--to", "fp8")
        self.refuse(3, "No such file", "quantize", "nowhere", out, "--to", "fp8")

    def test_damage(self):
        out = self.folder / "out"
        self.succeed("quantize", NANO, out, *SMALL, "-q")
        path = sorted(out.glob("*.safetensors"))[2]
        data = bytearray(path.read_bytes())
        data[-1] ^= 0x10
        path.write_bytes(data)
        last = list(read_safetensors(path))[-1]
        self.refuse(3, "damaged: tensor " + last, "inspect", out, "--verify")
        path.unlink()
        self.refuse(3, "is missing", "inspect", out, "--verify")

    def start(self, out, *more):
        return subprocess.Popen([BINARY, "quantize", NANO, out, *SMALL, "-q", *more], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)

    def test_killed(self):
        """Killed at random points, any number of times: the same bytes, and finished files are not written again."""
        started = time.monotonic()
        self.succeed("quantize", NANO, self.folder / "whole", *SMALL, "-q")
        seconds, expected = time.monotonic() - started, contents(self.folder / "whole")
        dice = random.Random(52)
        for i in range(KILLS):
            out = self.folder / f"killed{i}"
            for _ in range(dice.randint(1, 3)):
                process = self.start(out, "--threads", str(dice.randint(1, 3)))
                time.sleep(dice.uniform(0, seconds))
                process.kill()
                process.wait()
                finished = {p: p.stat().st_mtime_ns for p in out.glob("*.safetensors")} if out.exists() else {}
            self.succeed("quantize", NANO, out, *SMALL, "-q")
            self.assertEqual(contents(out), expected)
            again = [p for p, t in finished.items() if p.stat().st_mtime_ns != t]
            self.assertLessEqual(len(again), 1, "at most one file is redone")

    def test_other_options(self):
        out = self.folder / "out"
        process = self.start(out)
        while not list(out.glob("*.safetensors")) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if not (out / "quantize.journal").exists():
            self.skipTest("it was over before it could be killed")
        self.refuse(3, "unfinished conversion with other options", "quantize", "-q", NANO, out, "--to", "nvfp4")
        self.succeed("quantize", "-q", NANO, out, "--to", "nvfp4", "--force")
        self.assertIn("all as written", self.succeed("inspect", out, "--verify"))
        self.refuse(3, "complete result of another conversion", "quantize", "-q", NANO, out, *SMALL)
        done = run("quantize", NANO, out, "--to", "nvfp4")
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"nothing to do", done.stderr)

    def test_interrupted(self):
        out = self.folder / "out"
        process = subprocess.Popen([BINARY, "quantize", NANO, out, *SMALL, "-q"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        while not list(out.glob("*.safetensors")) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        message = process.communicate()[1].decode()
        if process.returncode == 0:
            self.skipTest("it was over before it could be interrupted")
        self.assertEqual(process.returncode, 130, message)
        self.assertIn("run the same command again", message)
        self.assertEqual(list(out.glob("*.tmp.*")), [])

    def test_full_disk(self):
        """A limit on file sizes fails writes as a full disk does."""
        out = self.folder / "out"
        limit = 2000000
        done = run("quantize", NANO, out, *SMALL, "-q", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        message = done.stderr.decode()
        self.assertEqual(done.returncode, 1, message)
        self.assertIn("File too large", message)
        self.assertIn("the same command again", message)
        self.assertEqual([p.name for p in out.iterdir() if p.name != "quantize.journal" and p.stat().st_size > limit], [])
        self.assertEqual(list(out.glob("*.tmp.*")), [])
        self.assertFalse((out / "config.json").exists())
        self.succeed("quantize", NANO, out, *SMALL, "-q")
        self.succeed("quantize", NANO, self.folder / "whole", *SMALL, "-q")
        self.assertEqual(contents(out), contents(self.folder / "whole"))

    def test_no_space(self):
        """A destination with too little space is refused before anything is written."""
        if os.geteuid() != 0:
            self.skipTest("mounting needs root")
        small = self.folder / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", small], capture_output=True).returncode:
            self.skipTest("mounting is not allowed here")
        self.addCleanup(subprocess.run, ["umount", small])
        self.refuse(4, "GB free", "quantize", "-q", NANO, small, "--to", "fp8")
        self.assertEqual(list(small.iterdir()), [])

    def test_read_only(self):
        out = self.folder / "out"
        out.mkdir()
        out.chmod(0o555)
        self.folder.chmod(0o755)

        def nobody():
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)

        try:
            reachable = run("inspect", NANO, preexec_fn=nobody).returncode == 0
        except PermissionError:
            reachable = False
        if not reachable:
            self.skipTest("another user cannot reach the program")
        self.refuse(1, "Permission denied", "quantize", "-q", NANO, out, "--to", "fp8", preexec_fn=nobody)
        self.assertEqual(list(out.iterdir()), [])


if __name__ == "__main__":
    main()
