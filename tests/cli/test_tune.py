"""tune, and what its tables do to the other commands. Times are tiny: what is measured does not matter here, what is written does."""
import csv
import json
import os
import re
import signal
import subprocess
import time

from harness import BINARY, NANO, SOURCE, Case, main, run
from serving import Server

COLUMNS = ["operation", "format", "n", "k", "rows", "variant", "us", "baseline_variant", "baseline_us", "version"]
QUICK = ["--time", "0.0001", "--threads", "1"]
ANSWER = ["run", "-p", "What is 2 + 3?", "-n", "8", "--temperature", "0", "--threads", "1"]

AITER = "token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,doweight_stage1\n"
TAIL = ",ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0\n"


class Tune(Case):
    def setUp(self):
        super().setUp()
        self.tuned = self.folder / "tuned"

    def tune(self, *options):
        done = run("tune", "--tuned", self.tuned, *QUICK, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode(), done.stderr.decode()

    def table(self):
        files = list(self.tuned.iterdir())
        self.assertEqual(len(files), 1, files)
        self.assertRegex(files[0].name, r"^[a-z0-9-]+-1t\.csv$")
        with open(files[0], newline="") as f:
            rows = list(csv.DictReader(f))
        self.assertEqual(list(rows[0]), COLUMNS)
        return files[0], rows

    def dispatch(self, *options):
        return json.loads(self.succeed("inspect", "--dispatch", "--threads", "1", "--json", *options))

    def choices(self):
        """Shapes with more than one kernel, in steps of up to 4 rows."""
        return [r for r in self.dispatch("--chunk", "4")["rows"] if r["choices"] > 1]

    def expect_warnings(self, done, count):
        found = [line for line in done.stderr.decode().splitlines() if line.startswith("warning: ")]
        self.assertEqual(len(found), count, done.stderr)
        return found

    def test_every_shape_once(self):
        out, _ = self.tune("--rows", "1,4")
        path, rows = self.table()
        want = sorted((r["operation"], r["format"], r["n"], r["k"], r["rows"]) for r in self.choices())
        self.assertEqual(sorted((r["operation"], r["format"], int(r["n"]), int(r["k"]), r["rows"]) for r in rows), want)
        self.assertIn(f"{len(want)} measured, 0 in the table before", out)
        self.assertIn("before", out.splitlines()[0])
        report = self.dispatch("--chunk", "4", "--tuned", self.tuned)
        self.assertEqual((report["tuned"], report["heuristic"], report["table"]), (len(want), 0, str(path)))
        self.assertEqual(report["shapes"], report["tuned"] + report["only"])
        for row in report["rows"]:
            self.assertEqual(row["us"] is not None, row["source"] == "tuned")
        text = self.succeed("inspect", "--dispatch", "--threads", "1", "--chunk", "4", "--tuned", self.tuned)
        self.assertIn(f"{report['shapes']} shapes, {report['tuned']} tuned", text)
        self.assertIn(str(path), text)

    def test_table_is_completed_and_kept(self):
        self.tune("--rows", "1")
        path, rows = self.table()
        before = path.read_bytes()
        out, _ = self.tune("--rows", "1")
        self.assertIn(f" 0 measured, {len(rows)} in the table before", out)
        self.assertEqual(path.read_bytes(), before)
        path.write_bytes(b"\n".join(before.split(b"\n")[:4]) + b"\n")  # as an interrupted run leaves it
        out, _ = self.tune("--rows", "1")
        self.assertIn(f" {len(rows) - 3} measured, 3 in the table before", out)
        self.assertEqual([r["n"] for r in self.table()[1]], [r["n"] for r in rows])
        out, _ = self.tune("--rows", "1", "--force")
        self.assertIn(f" {len(rows)} measured, 0 in the table before", out)

    def test_ctrl_c_keeps_what_is_done(self):
        process = subprocess.Popen([BINARY, "tune", "--tuned", self.tuned, "--time", "0.3", "--threads", "1"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        while not (self.tuned.is_dir() and list(self.tuned.glob("*.csv"))) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, err)
        self.assertRegex(err.decode(), r"interrupted after \d+ of \d+ shapes; they are in .*, and the same command goes on")
        done = int(re.search(r"interrupted after (\d+)", err.decode())[1])
        self.assertEqual(len(self.table()[1]), done)
        self.assertIn(f" {done} measured", out.decode())

    def test_a_killed_run_leaves_a_whole_table(self):
        process = subprocess.Popen([BINARY, "tune", "--tuned", self.tuned, *QUICK, "-q"], stdout=subprocess.DEVNULL)
        while not (self.tuned.is_dir() and list(self.tuned.glob("*.csv"))) and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.wait()
        for path in self.tuned.iterdir():
            if path.suffix != ".csv":
                path.unlink()  # the unfinished one
        self.assertGreaterEqual(len(self.table()[1]), 1)
        self.dispatch("--tuned", self.tuned)

    def test_require_tuned(self):
        self.tune("--rows", "1,4")
        answer = self.succeed(*ANSWER, "--chunk", "4", "--tuned", self.tuned, "--require-tuned", "-q")
        self.assertEqual(answer, self.succeed(*ANSWER, "--chunk", "4", "-q"))
        self.refuse(5, "--require-tuned: ", *ANSWER, "--chunk", "16", "--tuned", self.tuned, "--require-tuned")
        done = run(*ANSWER, "--chunk", "16", "--tuned", self.tuned, "--require-tuned")
        self.assertRegex(done.stderr.decode(), r"\d+ of \d+ shapes have no tuned kernel for \S+-1t: absorb bf16 \d+ x \d+, 16 rows; .* and "
                         rf'\d+ more; to measure them, run "drawbridge tune --threads 1 --tuned {self.tuned}"')
        self.refuse(2, "leave one out", *ANSWER, "--kernels", "generic", "--require-tuned")
        self.table()[0].unlink()
        self.refuse(5, "--require-tuned: ", *ANSWER, "--chunk", "4", "--tuned", self.tuned, "--require-tuned")

    def test_warnings_name_shapes(self):
        self.tune("--rows", "1,4")
        self.expect_warnings(run(*ANSWER, "--chunk", "4", "--tuned", self.tuned), 0)
        found = self.expect_warnings(run(*ANSWER, "--chunk", "16", "--tuned", self.tuned), 4)
        self.assertRegex(found[0], r'no tuned kernel for absorb bf16 \d+ x \d+, 16 rows: ".+" is used, by rule')
        self.assertRegex(found[3], r"^warning: \d+ more shapes have no tuned kernel")
        path, rows = self.table()
        whole = path.read_text()
        path.write_text("\n".join(line for i, line in enumerate(whole.split("\n")) if i != 2))
        found = self.expect_warnings(run(*ANSWER, "--chunk", "4", "--tuned", self.tuned), 1)
        self.assertIn(f"{rows[1]['operation']} {rows[1]['format']} {rows[1]['n']} x {rows[1]['k']}, {rows[1]['rows']} row", found[0])
        path.unlink()
        self.assertIn("has no table for this device", self.expect_warnings(run(*ANSWER, "--tuned", self.tuned), 1)[0])

    def test_every_shape_of_a_model(self):
        """A small model with the steps of a server, as a user does it: refused, tuned, started, and without its table again."""
        small = self.folder / "small"
        self.succeed("synth", SOURCE / "tests/small_model.json", small, "--format", "mxfp4-attn8", "-q")
        self.tuned.mkdir()
        question = ["logits", small, "--tokens", self.file("ids", "1 2 3 4 5"), "--out", self.folder / "out", "--threads", "1", "--tuned",
                    self.tuned, "--require-tuned"]
        message = run(*question).stderr.decode()
        self.assertRegex(message, r"--require-tuned: (\d+) of \1 shapes have no tuned kernel for \S+-1t: absorb fp8_block 64 x 16, 1 row; ")
        words = re.search(r'to measure them, run "drawbridge (tune .*)"', message)[1].split()
        self.assertEqual(words, ["tune", str(small), "--threads", "1", "--tuned", str(self.tuned)])
        self.succeed(*words, "--time", "0.0001", "-q")
        self.succeed(*question, "-q")
        look = ["inspect", small, "--dispatch", "--threads", "1", "--tuned", self.tuned]
        report = json.loads(self.succeed(*look, "--json"))
        self.assertEqual({r["source"] for r in report["rows"] if r["choices"] > 1}, {"tuned"})
        self.assertEqual({r["rows"] for r in report["rows"]}, {"1", "4", "16", "64", "256"})
        self.assertNotIn("heuristic\n", self.succeed(*look).replace(", 0 heuristic\n", ""))
        self.table()[0].unlink()
        report = json.loads(self.succeed(*look, "--json"))
        self.assertEqual((report["tuned"], report["table"]), (0, None))
        self.assertEqual({r["source"] for r in report["rows"] if r["choices"] > 1}, {"heuristic"})
        named = [line for line in self.succeed(*look).splitlines() if line.endswith(" heuristic")]
        self.assertEqual(len(named), report["heuristic"])
        self.refuse(5, "--require-tuned: ", *question)

    def test_commands_that_are_named(self):
        """The refusal names the command with what the table depends on."""
        for options in (["--exact"], ["--kv-dtype", "fp8"]):
            done = run(*ANSWER, *options, "--tuned", self.folder, "--require-tuned")
            self.assertIn(f'run "drawbridge tune --threads 1 {" ".join(options)} --tuned {self.folder}"'.encode(), done.stderr)
        done = run("logits", "--tokens", self.file("ids", "7 " * 600), "--out", "x", "--chunk", "300", "--tuned", self.folder,
                   "--require-tuned")
        self.assertIn(f'run "drawbridge tune --tuned {self.folder} --rows 1,4,16,64,256,300"'.encode(), done.stderr)

    def test_exact_has_a_table_of_its_own(self):
        self.tune("--rows", "1", "--exact")
        path = next(self.tuned.iterdir())
        self.assertRegex(path.name, r"-1t-exact\.csv$")
        report = self.dispatch("--chunk", "1", "--exact", "--tuned", self.tuned)
        self.assertEqual((report["heuristic"], report["table"]), (0, str(path)))
        self.assertEqual(json.loads(self.succeed("inspect", "--dispatch", "--json", "--threads", "1", "--chunk", "1"))["tuned"], 0)
        self.refuse(2, "--exact needs an f32 cache, found --kv-dtype fp8", "inspect", "--dispatch", "--exact", "--kv-dtype", "fp8")
        self.refuse(2, "--exact means something with --dispatch only", "inspect", "--exact")

    def test_stale_rows(self):
        self.tune("--rows", "1")
        path, rows = self.table()
        whole = path.read_text()
        path.write_text(whole.replace(",0.1.0\n", ",0.0.7\n", 1))
        found = self.expect_warnings(run(*ANSWER, "--chunk", "1", "--tuned", self.tuned), 2)
        self.assertRegex(found[0], r"line 2 \(.*\) was measured by version 0.0.7, this is [0-9.]+; this shape uses the heuristic")
        path.write_text(re.sub(r",([^,]+),([0-9.e+-]+),([^,]+),([0-9.e+-]+),0.1.0\n", r",gone,\2,\3,\4,0.1.0\n", whole))
        found = self.expect_warnings(run(*ANSWER, "--chunk", "1", "--tuned", self.tuned), 5)
        self.assertRegex(found[0], r'line 2 \(.*\) names the kernel "gone", which is not there; \d+ more rows cannot be used either')
        report = self.dispatch("--chunk", "1", "--tuned", self.tuned)
        self.assertEqual((report["tuned"], report["stale"], report["heuristic"]), (0, len(rows), len(rows)))

    def test_damaged_tables_are_refused(self):
        self.tune("--rows", "1")
        path, _ = self.table()
        path.write_text(path.read_text().replace(",0.1.0\n", "\n", 1))
        self.refuse(3, f"{path} line 2: expected 10 fields", *ANSWER, "--tuned", self.tuned)
        self.refuse(3, f"{path} line 2: expected 10 fields", "tune", "--tuned", self.tuned, *QUICK, "-q")
        self.refuse(3, "there is no such directory; drawbridge tune makes one", *ANSWER, "--tuned", self.folder / "nowhere")

    def test_kernels_give_the_same_answer(self):
        answer = self.succeed(*ANSWER, "-q")
        for name in ["generic"] + [r["variant"] for r in self.choices()][:1]:
            done = run(*ANSWER, "--kernels", name, "-v")
            self.assertEqual(done.stdout.decode(), answer)
            self.assertIn(f"FORCED to {name} by --kernels", done.stderr.decode())
        report = self.dispatch("--kernels", "generic")
        self.assertEqual({r["variant"] for r in report["rows"]}, {"generic"})
        self.assertEqual((report["forced"], report["only"]), ("generic", report["shapes"]))
        self.refuse(2, 'there are no kernels "quantum" on this machine; there are "generic"', *ANSWER, "--kernels", "quantum")

    def test_server_reports(self):
        self.tune("--rows", "1,4")
        with Server("--tuned", self.tuned, "--threads", "1", "--chunk", "4", "--max-running", "4", "--require-tuned") as server:
            report = self.dispatch("--chunk", "4", "--tuned", self.tuned)
            self.assertRegex(server.said, rf"  dispatch {report['shapes']} shapes, {report['tuned']} tuned.*, 0 heuristic")
            self.assertEqual(server.metric('drawbridge_dispatch_shapes{source="tuned"}'), report["tuned"])
            self.assertEqual(server.metric('drawbridge_dispatch_shapes{source="heuristic"}'), 0)
            info = server.get("/server_info").json["dispatch"]
            self.assertEqual(info, {k: report[k] for k in ("shapes", "tuned", "only", "heuristic")})

    def test_import(self):
        facts = json.loads(self.succeed("inspect", "--json"))["architecture"]
        hidden, width, experts, topk = (facts[k] for k in ("hidden_size", "expert_intermediate", "experts", "experts_per_token"))
        aiter = self.file("tuned_fmoe.csv", AITER + f"1,{hidden},{width},{experts},{topk}" + TAIL + f"1,6144,2048,257,9{TAIL}" +
                          f"2,{hidden},{width // 2},{experts},{topk}" + TAIL)
        _, said = self.tune("--import", aiter)
        self.assertIn("3 shapes in the form of aiter", said)
        self.assertIn("gate_up and down with 1 row per expert", said)
        self.assertIn(f"hidden 6144: not this model: its hidden width is 6144, this model's {hidden}", said)
        self.assertIn("one of 2 tensor-parallel parts, and there is no tensor parallelism here", said)
        self.assertIn("this model has 1 of them; their kernel names and tile sizes are not used", said)
        shapes = {(int(r["n"]), int(r["k"]), r["rows"], r["operation"]) for r in self.table()[1]}
        self.assertEqual(shapes, {(width, hidden, "1", "experts"), (hidden, width, "1", "experts")})
        triton = self.file(f"E={experts},N={width},device_name=AMD_Instinct_MI355X,dtype=fp8_w8a8_down.json",
                           json.dumps({"64": {"BLOCK_SIZE_M": 16}}))
        _, said = self.tune("--import", triton)
        self.assertIn(f": down with {-(-64 * topk // experts)} rows per expert", said)
        self.assertIn("the form does not say the hidden width", said)
        other = self.file("E=256,N=2048,device_name=x.json", json.dumps({"1": {}}))
        done = run("tune", "--tuned", self.tuned, *QUICK, "--import", other)
        self.assertEqual(done.returncode, 3)
        self.assertIn(b"has no shape of this model; nothing is measured", done.stderr)
        self.refuse(3, "expected a .csv of aiter or a .json of Triton", "tune", "--import", NANO / "config.txt", "--tuned", self.tuned)

    def test_export(self):
        self.refuse(3, "run drawbridge tune first", "tune", "--tuned", self.folder, "--export", "aiter", "--threads", "1", "-q")
        self.tune("--rows", "1,4")
        done = run("tune", "--tuned", self.tuned, "--threads", "1", "--export", "aiter")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.decode().splitlines()
        self.assertEqual(lines[0], AITER.strip() + ",_tag")
        self.assertTrue(all(re.search(r",drawbridge \S+ gate_up=.+ down=.+$", line) for line in lines[1:]), lines)
        self.assertIn(b"note: ", done.stderr)
        again = self.file("back.csv", done.stdout)
        _, said = self.tune("--import", again)
        self.assertIn(f"this model has {len(lines) - 1} of them", said)
        triton = json.loads(self.succeed("tune", "--tuned", self.tuned, "--threads", "1", "--export", "triton", "-q"))
        self.assertEqual(set(triton["1"]), {"drawbridge_gate_up", "drawbridge_down"})

    def test_wrong_options(self):
        self.refuse(2, "--tp 2: a model runs on one device so far", "tune", "--tp", "2")
        self.refuse(2, "--rows: 3 and 4 are in the same bucket (rows 4)", "tune", "--rows", "3,4", "--tuned", self.tuned)
        for rows in ("", "1,", "0", "5000", "1;4", "x"):
            self.refuse(2, "--rows must be numbers from 1 to 4096", "tune", "--rows", rows, "--tuned", self.tuned)
        self.refuse(2, "give one of them", "tune", "--import", "a.csv", "--export", "aiter")
        self.refuse(2, "--threads means something with --dispatch only", "inspect", "--threads", "2")
        self.refuse(2, "ask one at a time", "inspect", "--verify", "--dispatch")
        if os.geteuid() != 0:
            self.refuse(1, "cannot make the directory", "tune", "--tuned", "/nowhere/tuned", *QUICK)


if __name__ == "__main__":
    main()
