"""eval: every task on the built-in model with a few items, going on after an interruption, comparison, and a server."""
import http.server
import json
import os
import shutil
import signal
import struct
import subprocess
import threading
import time

from harness import BINARY, NANO, SANITIZED, Case, floats, main, read_safetensors, run

FEW = 2 if SANITIZED else 4
SUMS = [{"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}.\n#### {a + b}"} for a, b in ((3, 4), (10, 5), (2, 2), (6, 1))]
CSV = ('Record,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n'
       '1,"What is the capital\nof Norway?",Oslo,Rome,Paris,Lima\n2,Which of these is a colour?,green,bus,lemon,pear\n')
TEXT = "Question: What is the capital of Norway?\nA. Rome\nB. Oslo\nC. Lima\nD. Paris\nAnswer: B\n\n" * 3


def lines(items):
    return "".join(json.dumps(i) + "\n" for i in items)


class Eval(Case):
    def measure(self, *arguments):
        return json.loads(self.succeed("eval", "--json", *arguments))

    def test_questions(self):
        """What nano gets right with near certainty (its card has 97 % and more); of so few, half must be."""
        for task, more in (("gsm8k", ["--no-thinking"]), ("choice", ["--no-thinking"]), ("choice", ["--method", "logprob"]),
                           ("needle", ["--lengths", "80", "--per-length", FEW, "--no-thinking"])):
            r = self.measure("--task", task, "--limit", FEW, *more)
            self.assertEqual((r["task"], r["complete"], len(r["items"])), (task, True, FEW))
            self.assertGreaterEqual(r["summary"]["correct"], FEW // 2, r)
            low, high = r["summary"]["interval"]
            self.assertTrue(low <= r["summary"]["accuracy"] <= high)
            self.assertEqual(r["summary"]["correct"], sum(i["correct"] for i in r["items"]))

    def test_gpqa_and_batches(self):
        data = self.file("gpqa.csv", CSV)
        arguments = ["--task", "gpqa", "-d", data, "--seeds", 2, "--no-thinking", "-n", 6]
        r = self.measure(*arguments)
        self.assertEqual([i["id"] for i in r["items"]], ["1/0", "1/1", "2/0", "2/1"])
        self.assertEqual(set(r["summary"]["groups"]), {"seed 0", "seed 1"})
        self.assertEqual(r["items"], self.measure(*arguments, "--batch", 1, "-t", 1)["items"])

    def test_examples(self):
        data = self.file("sums.jsonl", lines(SUMS))
        r = self.measure("--task", "gsm8k", "-d", data, "--shots", 2, "-n", 24)
        self.assertEqual([i["id"] for i in r["items"]], ["3", "4"])
        self.assertEqual(r["options"]["form"], "plain")
        r = self.measure("--task", "gsm8k", "-d", data, "--shots", 2, "--shots-file", data, "--limit", 1, "-n", 24)
        self.assertEqual([i["id"] for i in r["items"]], ["1"])
        self.refuse(3, "has 4 items, --shots 5", "eval", "--task", "gsm8k", "-d", data, "--shots", 5, "--shots-file", data)

    def test_going_on(self):
        data, out = self.file("sums.jsonl", lines(SUMS)), self.folder / "r.json"
        arguments = ["eval", "--task", "gsm8k", "-d", data, "--no-thinking", "-n", 12, "-o", out]
        self.succeed(*arguments)
        whole = out.read_bytes()
        r = json.loads(whole)
        r["items"] = [i for i in r["items"] if i["id"] in "13"]
        out.write_text(json.dumps(r))
        done = run(*arguments)
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"2 of 4 items are done already", done.stderr)
        self.assertEqual(out.read_bytes(), whole)
        self.refuse(3, "another run (thinking differs)", *[a for a in arguments if a != "--no-thinking"])
        out.write_text("{")
        self.refuse(3, "r.json", *arguments)

    def test_going_on_with_other_weights(self):
        """The same folder, config.json and sizes, but files written anew; and another eps. Both give other answers."""
        copy, out = self.folder / "copy", self.folder / "r.json"
        shutil.copytree(NANO, copy, ignore=shutil.ignore_patterns("eval"))
        arguments = ["eval", copy, "--task", "ppl", "-d", self.file("t.txt", TEXT), "-o", out]
        self.succeed(*arguments)
        self.succeed(*arguments)
        self.refuse(3, "another run (model differs)", *arguments, "--latent-eps", "1e-3")
        weights = copy / "model-00002-of-00003.safetensors"
        os.utime(weights, (1, 1))
        self.refuse(3, "another run (model differs)", *arguments)

    def test_result_cannot_be_written(self):
        """Said before the work: there is no answer yet."""
        done = run("eval", "--task", "gsm8k", "-d", self.file("sums.jsonl", lines(SUMS)), "-n", 4, "-o", self.folder / "nowhere" / "r.json")
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn(b"cannot create", done.stderr)

    def test_interrupt(self):
        out = self.folder / "r.json"
        command = [BINARY, "eval", "--task", "gsm8k", "-b", "2", "-o", str(out)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 120
        while not (out.exists() and json.loads(out.read_text())["items"]) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, message)
        self.assertIn(b"keeps them, the same command goes on", message)
        r = json.loads(out.read_text())
        self.assertFalse(r["complete"])
        self.assertTrue(0 < len(r["items"]) < 500)

    def test_text_scores(self):
        text = self.file("t.txt", TEXT)
        r = self.measure("--task", "ppl", "-d", text, "--window", 48)
        self.assertTrue(1 < r["summary"]["perplexity"] < 10, r["summary"])
        same = self.measure("--task", "kl", "-d", text, "--window", 48, "--against", NANO)["summary"]
        self.assertEqual((same["mean_kl"], same["p99_kl"], same["top1_agreement"]), (0, 0, 1))
        other = self.measure("--task", "kl", "-d", text, "--window", 48, "--against", NANO, "--kv-dtype", "fp8", "--limit", 1)["summary"]
        self.assertEqual(other["mean_kl"], 0)  # both models are computed in the same way
        self.refuse(2, "--against MODEL2", "eval", "--task", "kl")
        exact = self.measure("--task", "kl", "-d", text, "--window", 48, "--against-exact", "--limit", 1)["summary"]
        self.assertTrue(0 < exact["mean_kl"] < 1e-3, exact)
        self.refuse(2, "give one of them", "eval", "--task", "kl", "--against", NANO, "--against-exact")
        self.refuse(2, "leave one out", "eval", "--task", "kl", "--exact", "--against-exact")
        self.refuse(3, "cannot open", "eval", "--task", "ppl", "-d", "nowhere.txt")

    def test_importance(self):
        text, out = self.file("t.txt", TEXT), self.folder / "i.safetensors"
        self.succeed("eval", "--task", "ppl", "-d", text, "--window", 48, "--importance-out", out)
        t = read_safetensors(out)
        for name, columns in (("model.layers.0.mlp.down_proj", 1024), ("model.layers.0.self_attn.q_a_proj", 384),
                              ("model.layers.3.mlp.experts.7.gate_proj", 384), ("model.layers.3.mlp.experts.7.down_proj", 128),
                              ("model.layers.8.mlp.shared_experts.down_proj", 128), ("model.layers.2.self_attn.indexer.wq_b", 192),
                              ("model.layers.5.self_attn.o_proj", 512), ("lm_head", 384)):
            self.assertEqual(t[name][:2], ("F32", [columns]), name)
            self.assertTrue(all(x >= 0 for x in floats(t[name][2])) and any(floats(t[name][2])), name)
        self.assertNotIn("model.layers.3.self_attn.indexer.wk", t)  # shares the choice of layer 2
        self.assertNotEqual(t["model.layers.3.mlp.experts.7.gate_proj"], t["model.layers.3.mlp.experts.8.gate_proj"])
        data = out.read_bytes()
        metadata = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]
        self.assertEqual(int(metadata["tokens"]), len(self.succeed("tokenize", "-f", text).split()))
        self.assertIn("experts_without_rows", metadata)
        self.refuse(2, "goes with --task ppl", "eval", "--task", "choice", "--importance-out", out)

    def test_importance_against_taps(self):
        """The statistics of a layer are the mean squares of what the tap shows."""
        text, out, taps = self.file("t.txt", TEXT[:200]), self.folder / "i.safetensors", self.folder / "taps.safetensors"
        ids = self.succeed("tokenize", "-f", text)
        self.succeed("eval", "--task", "ppl", "-d", text, "--importance-out", out)
        wanted = [a for name in ("attention_norm:4", "router_experts:4", "mlp_norm:4") for a in ("--tap", name)]
        self.succeed("logits", "--tokens", "-", "--out", taps, *wanted, stdin=ids)
        i, t = read_safetensors(out), read_safetensors(taps)
        rows = t["mlp_norm.4"][1][0]
        norm, experts = floats(t["mlp_norm.4"][2]), list(struct.unpack(f"<{rows * 4}i", t["router_experts.4"][2]))
        attention = floats(t["attention_norm.4"][2])

        def near(name, values, chosen):
            for c in range(0, 384, 37):
                mean = sum(values[r * 384 + c] ** 2 for r in chosen) / len(chosen)
                # float32 result of a double sum
                self.assertLess(abs(floats(i[name][2])[c] - mean), 1e-5 * mean + 1e-12, name)

        near("model.layers.4.self_attn.kv_a_proj_with_mqa", attention, range(rows))
        expert = experts[0]
        near(f"model.layers.4.mlp.experts.{expert}.up_proj", norm, [r for r in range(rows) if expert in experts[r * 4:r * 4 + 4]])

    def test_comparison(self):
        data, out = self.file("sums.jsonl", lines(SUMS)), self.folder / "r.json"
        table = self.succeed("eval", "--task", "gsm8k", "-d", data, "--no-thinking", "-n", 12, "-o", out, "--against", NANO)
        self.assertIn("baseline", table)
        self.assertIn("no difference within noise", table)
        again = self.succeed("eval", "--compare", str(out) + ".against", out)
        self.assertIn(again, table)
        c = self.measure("--compare", str(out) + ".against", out)["comparison"]
        self.assertEqual((c["items"], c["delta"], c["verdict"]), (4, 0, "no difference within noise"))
        self.refuse(2, "needs two files", "eval", "--compare", out)
        self.refuse(3, "is not a result of drawbridge eval", "eval", "--compare", out, self.file("x.json", "{}"))
        for items in ([{"id": "1", "prompt": "p", "nll": 1.0}], [{"id": "1", "prompt": "p", "tokens": -5, "kl": [1.0]}],
                      [{"id": "1", "prompt": "p", "correct": True}] * 3):
            bad = self.file("bad.json", json.dumps({"format": "drawbridge eval 1", "task": "gsm8k", "items": items}))
            self.refuse(3, "bad.json", "eval", "--compare", bad, bad)

    def test_gate(self):
        arguments = ["--limit", 2, "-n", 24, "--no-thinking", "--min-needle", 0, "--min-choice", 0, "--lengths", 64, "--per-length", 2]
        r = self.measure(*arguments)
        self.assertTrue(r["pass"])
        self.assertEqual([(p["part"], p["outcome"]) for p in r["parts"]],
                         [("needle", "pass"), ("choice", "pass"), ("mtp", "pass"), ("kl", "skipped")])
        self.assertEqual([("at_most" in p, "at_least" in p) for p in r["parts"]], 3 * [(False, True)] + [(True, False)])
        done = run("eval", *arguments, "--min-tokens-per-step", 17)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"FAIL", done.stdout)
        self.assertIn(b"the gate is closed: mtp (tokens per step", done.stderr)

    def test_wrong_arguments(self):
        self.refuse(2, "--method logprob is for choice and gpqa", "eval", "--task", "gsm8k", "--method", "logprob")
        self.refuse(2, "--lengths is for needle", "eval", "--task", "gsm8k", "--lengths", "100")
        self.refuse(2, "separated by commas", "eval", "--task", "needle", "--lengths", "100;200")
        self.refuse(2, "takes no --data", "eval", "--task", "gate", "-d", "x")
        self.refuse(3, "eval/gpqa.csv", "eval", "--task", "gpqa")
        self.refuse(3, "line 1", "eval", "--task", "choice", "-d", self.file("bad.jsonl", "{}\n"))
        for task in ("ppl", "kl", "gate"):
            self.refuse(2, f"--task {task} needs the model's logits", "eval", "--url", "http://127.0.0.1:1", "--task", task)
        self.refuse(2, "--method logprob needs", "eval", "--url", "http://127.0.0.1:1", "--task", "choice", "--method", "logprob")


class Server(http.server.BaseHTTPRequestHandler):
    """Adds the two numbers of a question; says 0 when one of them is 6."""

    def reply(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply({"object": "list", "data": [{"id": "adder", "object": "model"}]})

    def do_POST(self):
        q = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, q))
        words = (q["messages"][-1]["content"] if "messages" in q else q["prompt"].split("Question:")[-1]).replace("?", " ").split()
        a, b = [int(w) for w in words if w.isdigit()]
        content = f"#### {0 if a == 6 else a + b}"
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        choice = {"index": 0, "finish_reason": "stop"}
        choice.update({"message": {"role": "assistant", "content": content}} if "messages" in q else {"text": " " + content})
        self.reply({"id": "x", "object": "y", "choices": [choice], "usage": usage})

    def log_message(self, *arguments):
        pass


class Url(Case):
    def setUp(self):
        super().setUp()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        self.server.seen = []
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.data = self.file("sums.jsonl", lines(SUMS))

    def test_chat(self):
        r = json.loads(self.succeed("eval", "--url", self.url, "--task", "gsm8k", "-d", self.data, "--json", "--no-thinking"))
        self.assertEqual([i["correct"] for i in r["items"]], [True, True, True, False])
        self.assertEqual((r["model"], r["items"][0]["tokens"]), ("adder", 5))
        path, q = self.server.seen[0]
        self.assertEqual((path, q["model"], q["temperature"]), ("/v1/chat/completions", "adder", 0))

    def test_plain(self):
        r = json.loads(self.succeed("eval", "--url", self.url, "--served-model", "other", "--task", "gsm8k", "-d", self.data, "--json",
                                    "--shots", 1))
        self.assertEqual([i["correct"] for i in r["items"]], [True, True, False])
        self.assertEqual({path for path, _ in self.server.seen}, {"/v1/completions"})
        self.assertEqual(self.server.seen[0][1]["model"], "other")

    def test_no_server(self):
        self.server.shutdown()
        self.server.server_close()
        self.refuse(6, "", "eval", "--url", self.url, "--task", "gsm8k", "-d", self.data, env={**os.environ, "no_proxy": "*"})


if __name__ == "__main__":
    main()
