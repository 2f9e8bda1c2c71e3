"""inspect, logits, run and chat on the built-in model."""
import json
import os
import pty
import select
import signal
import subprocess
import time

from harness import BINARY, NANO, SANITIZED, SOURCE, Case, floats, integers, main, read_safetensors, run

SUM = "What is 17 + 25?"
# The same checks on less work where every step is several times slower.
SLOW = SANITIZED
# Forbids the tokens that end an answer.
# Greedy, so that every run is alike; the end-of-turn tokens are never chosen.
ENDLESS = ["--temperature", "0", "--logit-bias", "4075=-100", "--logit-bias", "4082=-100", "--logit-bias", "4084=-100"]


class Inspect(Case):
    def test_built_in(self):
        out = self.succeed("inspect")
        self.assertIn("GlmMoeDsaForCausalLM", out)
        self.assertIn("mxfp4", out)
        self.assertEqual(json.loads(self.succeed("inspect", "--json")), json.loads(self.succeed("inspect", NANO, "--json")))

    def test_bad_models(self):
        self.refuse(3, "No such file or directory", "inspect", "nowhere")
        self.refuse(3, "has no config.json", "inspect", self.folder)
        self.refuse(3, "is a file, expected a model directory", "inspect", self.file("x"))
        self.file("config.json", "[]")
        self.refuse(3, "config.json", "inspect", self.folder)
        self.refuse(2, "the model is given twice", "inspect", "a", "-m", "b")


class Logits(Case):
    def golden(self, name, limit=None):
        path = SOURCE / "tests/fixtures/golden_mxfp4" / (name + ".safetensors")
        g = read_safetensors(path)
        ids = list(integers(g["ids"][2]))[:limit]
        return g, self.file("ids.txt", " ".join(map(str, ids)) + "\n"), len(ids)

    def logits(self, ids, *arguments):
        out = self.folder / "out.safetensors"
        self.succeed("logits", "--tokens", ids, "--out", out, *arguments)
        return read_safetensors(out)

    def test_against_the_reference(self):
        """The bound is the project's promise: 1e-3 of the largest logit; the run is HF's in float32."""
        g, ids, count = self.golden("chat" if SLOW else "arith")
        dtype, shape, data = self.logits(ids, "--exact")["logits"]
        self.assertEqual((dtype, shape), ("F32", [count, 4096]))
        mine, top, which = floats(data), floats(g["top_logits"][2]), integers(g["top_ids"][2])
        width = g["top_ids"][1][1]
        largest = max(map(abs, top))
        for i, (value, token) in enumerate(zip(top, which)):
            self.assertLess(abs(mine[i // width * 4096 + token] - value), 1e-3 * largest)

    def test_same_bytes(self):
        _, ids, count = self.golden("retr1200", 16 if SLOW else 72)
        expected = self.logits(ids)["logits"]
        for arguments in (["--chunk", "1"], ["--chunk", "7"], ["--chunk", "4096"], ["--one-by-one"], ["--threads", "1"],
                          ["--kv-dtype", "bf16"], ["-t", "3", "--chunk", "100"]):
            self.assertEqual(self.logits(ids, *arguments)["logits"], expected, arguments)
        self.assertNotEqual(self.logits(ids, "--kv-dtype", "fp8")["logits"], expected)
        exact = self.logits(ids, "--exact", "--one-by-one")["logits"]
        self.assertTrue(exact == self.logits(ids, "--exact", "--chunk", "7", "-t", "3")["logits"])
        self.assertTrue(exact != self.logits(ids, "--kv-dtype", "f32", "--latent-eps", "1e-6")["logits"])  # activations in 8 bits

    def test_taps(self):
        g, ids, count = self.golden("chat")
        out = self.logits(ids, "--exact", "--tap", "router_experts", "--tap", "layer_out:7", "--tap", "hidden", "--chunk", "4")
        self.assertEqual(sorted(out), sorted(["logits", "hidden", "layer_out.7"] + [f"router_experts.{i}" for i in range(1, 8)]))
        self.assertEqual(out["layer_out.7"][:2], ("F32", [count, 384]))
        experts = integers(g["router_experts"][2])
        for i in range(7):
            mine = integers(out[f"router_experts.{i + 1}"][2])
            for row in range(count):
                at = (i * count + row) * 4
                self.assertEqual(sorted(mine[row * 4:row * 4 + 4]), sorted(experts[at:at + 4]))

    def test_tap_errors(self):
        ids, out = self.file("ids", "1 2 3"), self.folder / "o"
        self.refuse(2, '--tap nonsense: "nonsense" is not one of embed, ', "logits", "--tokens", ids, "--out", out, "--tap", "nonsense")
        self.refuse(2, "the layer must be from 0 to 7", "logits", "--tokens", ids, "--out", out, "--tap", "q:8")
        self.refuse(2, "the layer must be from 0 to 7", "logits", "--tokens", ids, "--out", out, "--tap", "q:")
        self.refuse(2, "belongs to no layer", "logits", "--tokens", ids, "--out", out, "--tap", "embed:0")
        self.refuse(2, "computes no such value there", "logits", "--tokens", ids, "--out", out, "--tap", "index_q:3")
        self.assertEqual(os.listdir(self.folder), ["ids"])

    def test_bad_input(self):
        out = self.folder / "o"
        self.refuse(2, "--tokens FILE is missing", "logits", "--out", out)
        self.refuse(2, "-o, --out FILE is missing", "logits", "--tokens", "x")
        self.refuse(3, "standard input is empty", "logits", "--tokens", "-", "--out", out)
        self.refuse(3, "standard input holds no token ids", "logits", "--tokens", "-", "--out", out, stdin=" \n")
        self.refuse(3, "token id 4096 is outside the vocabulary", "logits", "--tokens", "-", "--out", out, stdin="4096")
        self.refuse(3, '"x" at byte 2 is not a token id', "logits", "--tokens", "-", "--out", out, stdin="1 x")
        self.refuse(3, "is not a token id", "logits", "--tokens", "-", "--out", out, stdin=b"1 \x00 2")
        self.refuse(4, "8193 tokens are needed, the model's context has 8192", "logits", "--tokens", "-", "--out", out, stdin="1 " * 8193)
        self.refuse(1, "No such file or directory", "logits", "--tokens", "-", "--out", self.folder / "no" / "o", stdin="1")
        self.refuse(2, "--one-by-one and --chunk exclude each other", "logits", "--tokens", "-", "--out", out, "--one-by-one",
                    "--chunk", "2")
        self.refuse(2, "--exact needs an f32 cache, found --kv-dtype fp8", "logits", "--tokens", "-", "--out", out, "--exact",
                    "--kv-dtype", "fp8", stdin="1")
        self.assertEqual(os.listdir(self.folder), [])

    def test_interrupt_leaves_nothing(self):
        ids = self.file("ids", "1 2 3 4 " * 1000)
        process = subprocess.Popen([BINARY, "logits", "--tokens", ids, "--out", self.folder / "o", "--one-by-one"], stderr=subprocess.PIPE)
        while not any(".tmp." in name for name in os.listdir(self.folder)):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        message = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"interrupted after", message)
        self.assertEqual(os.listdir(self.folder), ["ids"])

    def test_memory_is_the_model_and_little_more(self):
        """Weights are mapped, not copied: resident memory stays within the model's size and 64 MB."""
        if SANITIZED:
            self.skipTest("sanitizers need memory of their own")
        _, ids, _ = self.golden("retr1200", 400)
        model_bytes = sum(f.stat().st_size for f in NANO.glob("*.safetensors"))
        process = subprocess.Popen([BINARY, "logits", "-q", "--tokens", ids, "--out", self.folder / "o"])
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        self.assertLess(usage.ru_maxrss * 1024, model_bytes + 64_000_000)


class Run(Case):
    def test_arithmetic(self):
        if not SLOW:
            self.assertIn("42", self.succeed("run", "-p", SUM, "--temperature", "0"))
        o = json.loads(self.succeed("run", "-f", self.file("q", SUM), "--temperature", "0", "--json"))
        self.assertIn("42", o["text"])
        self.assertEqual(o["finish_reason"], "stop")
        self.assertEqual(len(o["ids"]), o["completion_tokens"])
        quick = json.loads(self.succeed("run", "--temperature", "0", "--json", "--no-thinking", stdin=SUM))
        self.assertIn("42", quick["text"])
        self.assertNotIn("reasoning", quick)

    def test_greedy_matches_the_reference(self):
        g = read_safetensors(SOURCE / "tests/fixtures/golden_mxfp4/chat.safetensors")
        prompt = self.succeed("tokenize", "--decode", " ".join(map(str, integers(g["ids"][2]))))
        o = json.loads(self.succeed("run", "--raw", "--json", "--exact", "--temperature", "0", "-n", "16" if SLOW else "64", stdin=prompt))
        expected = list(integers(g["greedy"][2]))
        self.assertGreater(len(o["ids"]), 4)
        self.assertEqual(o["ids"], expected[:len(o["ids"])])

    def test_seed(self):
        def ids(*arguments):
            out = self.succeed("run", "--json", "-p", "Tell me a story.", "-n", "8" if SLOW else "24", "--temperature", "1.5", *arguments)
            return json.loads(out)["ids"]
        first = ids("--seed", "1")
        self.assertEqual(first, ids("--seed", "1", "--threads", "1", "--chunk", "3"))
        self.assertNotEqual(first, ids("--seed", "2"))
        again = json.loads(self.succeed("run", "--json", "-p", SUM, "-n", "8"))
        repeated = json.loads(self.succeed("run", "--json", "-p", SUM, "-n", "8", "--seed", again["seed"]))
        self.assertEqual(again["ids"], repeated["ids"])

    def test_generation_config_can_ask_for_greedy(self):
        for path in NANO.iterdir():
            if path.name != "generation_config.json":
                (self.folder / path.name).symlink_to(path)
        self.file("generation_config.json", '{"do_sample": false, "temperature": 1.5}')
        answers = [json.loads(self.succeed("run", self.folder, "--json", "-p", "Tell me a story.", "-n", "8", "--seed", s))["ids"]
                   for s in ("1", "2")]
        self.assertEqual(answers[0], answers[1])

    def test_limits(self):
        o = json.loads(self.succeed("run", "--json", "-p", SUM, "-n", "3"))
        self.assertEqual((o["finish_reason"], o["completion_tokens"]), ("length", 3))
        done = run("run", "-p", SUM, "-n", "3")
        self.assertIn(b"cut at 3 tokens", done.stderr)
        self.assertEqual(run("run", "-q", "-p", SUM, "-n", "3").stderr, b"")
        self.refuse(4, "the context has room for 8", "run", "-p", SUM, "--context", "8")
        o = json.loads(self.succeed("run", "--json", "--raw", "-p", "Once", "--context", "16", *ENDLESS))
        self.assertEqual((o["finish_reason"], o["prompt_tokens"] + o["completion_tokens"]), ("length", 16))

    def test_logprobs_and_bias(self):
        o = json.loads(self.succeed("run", "--json", "--raw", "-p", "Once upon a", "-n", "2", "--temperature", "0", "--logprobs", "3"))
        self.assertEqual([p["id"] for p in o["logprobs"]], o["ids"])
        self.assertEqual([len(p["top"]) for p in o["logprobs"]], [3, 3])
        self.assertEqual(o["logprobs"][0]["top"][0]["id"], o["ids"][0])
        other = o["logprobs"][0]["top"][2]["id"]
        forced = self.succeed("run", "--json", "--raw", "-p", "Once upon a", "-n", "1", "--temperature", "0", "--logit-bias",
                              f"{other}=100")
        self.assertEqual(json.loads(forced)["ids"], [other])

    def test_tool_call(self):
        tools = self.file("tools.json", json.dumps([{"type": "function", "function": {
            "name": "get_weather", "description": "Get the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]))
        o = json.loads(self.succeed("run", "--json", "--temperature", "0", "--tools", tools, "-p", "What is the weather in Paris?"))
        self.assertEqual(o["finish_reason"], "tool_calls", o)
        self.assertEqual(o["tool_calls"][0]["name"], "get_weather")
        self.assertIsInstance(o["tool_calls"][0]["arguments"], dict)
        if not SLOW:
            plain = self.succeed("run", "--temperature", "0", "--tools", tools, "-p", "What is the weather in Paris?")
            self.assertIn("[call] get_weather {", plain)

    def test_bad_input(self):
        self.refuse(3, "standard input is empty", "run")
        self.refuse(3, "--prompt is not valid UTF-8", "run", "-p", b"\xff".decode(errors="surrogateescape"))
        self.refuse(3, "standard input is not valid UTF-8", "run", stdin=b"\xff")
        self.refuse(3, "No such file", "run", "-f", self.folder / "missing")
        self.refuse(3, "the prompt is empty", "run", "--raw", "-p", "")
        self.refuse(2, "--prompt, --file and --messages exclude each other", "run", "-p", "x", "-f", "y")
        self.refuse(2, "--raw uses no chat template", "run", "--raw", "--system", "x", "-p", "y")
        self.refuse(2, "--logprobs needs --json", "run", "-p", "x", "--logprobs", "1")
        self.refuse(2, "--temperature must be from 0 to 100, found -1", "run", "-p", "x", "--temperature", "-1")
        self.refuse(2, "--logit-bias needs ID=X", "run", "-p", "x", "--logit-bias", "7")
        self.refuse(2, "the model's tokens go from 0 to 4095", "run", "-p", "x", "--logit-bias", "4096=1")
        self.refuse(3, "", "run", "--messages", self.file("m", '[{"role": "nobody"}]'))

    def test_interrupt_while_the_prompt_is_read(self):
        t = Terminal("run", "--file", "-")
        t.expect("reading standard input")
        time.sleep(0.3)
        t.type("\x03")
        t.expect("interrupted while reading standard input")
        self.assertEqual(t.end(), 130)

    def test_reader_that_leaves(self):
        with subprocess.Popen([BINARY, "run", "-p", "Tell me a story.", *ENDLESS], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            process.stdout.read(1)
            process.stdout.close()
            message = process.stderr.read()
            self.assertEqual((process.wait(60), message), (0, b""))


class Terminal:
    """A chat on a pseudo terminal."""

    def __init__(self, *arguments):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.pop("NO_COLOR", None)
            os.environ["TERM"] = "xterm"
            os.execv(BINARY, [BINARY, *map(str, arguments)])
        self.seen = ""

    def expect(self, text, seconds=120):
        """What came up to and with the text."""
        end = time.time() + seconds
        while text not in self.seen:
            ready = select.select([self.fd], [], [], max(0, end - time.time()))[0]
            data = b""
            if ready:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    pass
            if not data:
                raise AssertionError(f"{text!r} did not come; seen: {self.seen!r}")
            self.seen += data.decode(errors="replace")
        before, self.seen = self.seen.split(text, 1)
        return before + text

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self, seconds=60):
        """The exit status; what is left unread is dropped. A program that stays is killed."""
        limit = time.time() + seconds
        try:
            while select.select([self.fd], [], [], max(0, limit - time.time()))[0] and os.read(self.fd, 65536):
                pass
        except OSError:
            pass
        if time.time() >= limit:
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return status


class Chat(Case):
    def test_pipe(self):
        turns = SUM + "\n\n/thinking off\nWhat is 3 + 4?\n"
        done = run("chat", "--temperature", "0", stdin=turns)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout.decode(), r"(?s)42.*7")
        self.assertNotIn(b"\x1b", done.stdout)
        self.assertNotIn(b"> ", done.stdout)
        self.assertEqual(run("chat", stdin="").returncode, 0)

    def test_pipe_errors_end(self):
        self.refuse(2, "/nonsense is not a command", "chat", stdin="/nonsense\nHi\n")
        self.refuse(2, "/thinking needs on or off", "chat", stdin="/thinking maybe\n")
        self.refuse(3, "the line is not valid UTF-8", "chat", stdin=b"\xff\n")
        self.assertEqual(run("chat", stdin="/exit\n" + SUM + "\n").stdout, b"")

    def test_terminal(self):
        t = Terminal("chat", "--temperature", "0")
        t.expect("> ")
        t.type("/help\n")
        t.expect("/system TEXT")
        t.expect("> ")
        t.type(SUM + "\n")
        answer = t.expect("> \x1b[0m")
        self.assertIn("\x1b[2m", answer)
        self.assertIn("42", answer)
        t.type("/nonsense\n")
        t.expect("is not a command")
        t.type("/status\n")
        t.expect("2 messages")
        t.type("/clear\n/status\n")
        t.expect("0 messages")
        t.type("/exit\n")
        self.assertEqual(t.end(), 0)

    def test_end_of_input_leaves(self):
        t = Terminal("chat")
        t.expect("> ")
        t.type("\x04")
        self.assertEqual(t.end(), 0)

    def test_interrupt_stops_then_leaves(self):
        t = Terminal("chat", *ENDLESS)
        t.expect("> ")
        t.type("Tell me a story.\n")
        t.expect("\x1b[2m")
        time.sleep(0.3)
        t.type("\x03")
        t.expect("(stopped")
        t.expect("> ")
        t.type("\x03")
        self.assertEqual(t.end(), 130)


if __name__ == "__main__":
    main()
