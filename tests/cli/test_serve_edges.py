"""drawbridge serve at its edges: names that are cut, requests that would take long to check, tenants and their requests, names of models,
addresses, and the order of things when the engine is busy."""
import http.client
import json
import os
import signal
import threading

import harness
from serving import LIMIT, Server, eventually, user

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = {"messages": user("Hi"), "max_tokens": 2, "temperature": 0}
ENDLESS = {"prompt": "Once upon a time", "max_tokens": 8000, "ignore_eos": True, "temperature": 0}
ODD_NAME = 'a "model"\\ of ünusual näme ' + "é" * 100


def tool(name):
    return {"type": "function", "function": {"name": name}}


class Requests(harness.Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--model-name", ODD_NAME, "--max-body", 64)
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def refused(self, path, body, words, status=400):
        reply = self.server.post(path, body)
        self.assertEqual(reply.status, status, reply)
        self.assertIn(words, reply.json["error"]["message"])
        return reply.json["error"]

    def test_long_names_are_cut_to_characters(self):
        for shift in ("", "x"):  # the cut falls into a character for one of the two
            long = shift + "é" * 300
            begin = long[:20]
            self.assertIn(begin, self.refused(CHAT, {**HI, long: 1}, begin)["param"])
            self.refused(CHAT, {**HI, "model": long}, begin, 404)
            self.refused(CHAT, {**HI, "logit_bias": {long: 1}}, begin[:10])
            self.refused(CHAT, {**HI, "stream": True, "stream_options": {long: True}}, begin)
            self.refused(CHAT, {**HI, "chat_template_kwargs": {long: True}}, begin)
            self.refused(CHAT, {**HI, "tools": [tool("a")], "tool_choice": {"type": "function", "function": {"name": long}}}, begin)
            self.refused("/generate", {"text": "a", long: 1}, begin)
            self.refused("/v1/messages", {"model": "default", "max_tokens": 1, "messages": user("a"), long: 1}, begin)

    def test_checks_take_no_time(self):
        """Each of these kept the server busy for minutes."""
        self.refused(CHAT, {**HI, "q" * (30 << 20): 1}, "unknown field")
        self.refused(CHAT, {**HI, "tools": [tool(f"t{i}") for i in range(200000)]}, "at most 1024 tools")
        self.refused(CHAT, {**HI, "tools": [tool(f"t{i}") for i in range(1000)] + [tool("t0")]}, "tools[1000].function.name")
        self.refused("/generate", {"text": "a", "sampling_params": {"stop_token_ids": [5] * 100000}}, "at most 256 ids")
        self.refused(CHAT, {**HI, "logit_bias": {"5": 1, "05": 1}}, "logit_bias")

    def test_refusal_of_a_later_prompt(self):
        """The first prompt was accepted by then; that must not become the status."""
        self.refused("/generate", {"text": ["a", "a b " * 4040], "sampling_params": {"min_new_tokens": 128}}, "min_new_tokens")
        self.server.becomes_idle()

    def test_text_offset_without_special_tokens(self):
        end = self.server.post("/tokenize", {"prompt": "<|endoftext|>"}).json["tokens"]
        self.assertEqual(len(end), 1)
        reply = self.server.post(COMPLETIONS, {"prompt": "Once upon a time", "max_tokens": 4, "logprobs": 0, "ignore_eos": True,
                                               "temperature": 0, "logit_bias": {str(end[0]): 100}}).json["choices"][0]
        self.assertEqual(reply["logprobs"]["tokens"], ["<|endoftext|>"] * 4)
        self.assertEqual((reply["text"], reply["logprobs"]["text_offset"]), ("", [0] * 4))

    def test_name_of_the_model(self):
        s = self.server
        self.assertEqual([m["id"] for m in s.get("/v1/models").json["data"]], [ODD_NAME])
        reply = s.post(CHAT, {**HI, "model": ODD_NAME}).json
        self.assertEqual(reply["model"], ODD_NAME)
        self.assertIn(ODD_NAME, reply["system_fingerprint"])
        escaped = ODD_NAME.replace("\\", "\\\\").replace('"', '\\"')
        self.assertIn(f'model_name="{escaped}"', s.get("/metrics").bytes.decode())

    def test_host_without_its_bracket(self):
        reply = self.server.raw(b"GET /v1/models HTTP/1.1\r\nHost: [::1\r\nConnection: close\r\n\r\n")
        self.assertTrue(reply.startswith(b"HTTP/1.1 421 "), reply)

    def test_advice_names_options(self):
        options = harness.run("serve", "--help").stdout.decode()
        elsewhere = {"Host": ("elsewhere.example", "--allow-host"), "Origin": ("http://elsewhere.example", "--allow-origin")}
        for header, (value, option) in elsewhere.items():
            reply = self.server.get("/v1/models", {header: value})
            self.assertIn(option + " ", reply.json["error"]["message"])
            self.assertIn(option, options)


class Life(harness.Case):
    def test_flush_does_not_stop_the_loop(self):
        """While the engine computes, a flush is answered by it and everything else goes on; a client that leaves is no problem."""
        with Server("--max-running", 8) as s:
            with s.open(COMPLETIONS, {**ENDLESS, "stream": True}) as stream:
                stream.readline()
                gone = s.connect()
                gone.request("POST", "/flush_cache")
                gone.close()
                replies = []
                flushes = [threading.Thread(target=lambda: replies.append(s.post("/flush_cache", {}).json)) for _ in range(4)]
                for f in flushes:
                    f.start()
                for f in flushes:
                    f.join()
                self.assertEqual([r["success"] for r in replies], [True] * 4)
            s.becomes_idle()
            self.assertEqual(s.post("/flush_cache", {}).json["pages_in_use"], 0)
            self.assertEqual(s.load()["memory"]["cached_pages"], 0)

    def test_requests_of_others(self):
        keys = self.file("keys", "alice key-of-alice\nbob key-of-bob\nroot key-of-root admin\n")
        alice, bob, root = ({"x-api-key": f"key-of-{name}"} for name in ("alice", "bob", "root"))
        with Server("--api-keys", keys) as s:
            def abort(who, rid="mine"):
                return s.post("/abort_request", {"rid": rid}, who).json["aborted"]
            for ender in (alice, root):
                with s.open(COMPLETIONS, {**ENDLESS, "stream": True, "rid": "mine"}, alice) as stream:
                    stream.readline()
                    self.assertEqual(abort(bob), 0)
                    self.assertEqual(abort(ender), 1)
                    self.assertIn(b"aborted", stream.read())

    def test_more_than_a_key_may_ever_have(self):
        """Trying again would not help, so it is not 429."""
        keys = self.file("keys", "alice key-of-alice in-flight=2\nbob key-of-bob per-minute=3\n")
        with Server("--api-keys", keys) as s:
            for name, n in (("alice", 3), ("bob", 4)):
                who = {"x-api-key": f"key-of-{name}"}
                reply = s.post(CHAT, {**HI, "n": n}, who)
                self.assertEqual((reply.status, reply.json["error"]["param"]), (400, "n"), reply)
                self.assertEqual(s.post(CHAT, {**HI, "n": n - 1}, who).status, 200)

    def test_log_as_json(self):
        """Counts of every API are there, as numbers."""
        with Server("--log-json") as s:
            for path, body in ((CHAT, HI), ("/v1/messages", {"model": "default", "max_tokens": 2, "messages": user("Hi")}),
                               ("/generate", {"text": "Hi", "sampling_params": {"max_new_tokens": 2}})):
                self.assertEqual(s.post(path, body, {"X-Request-Id": path.replace("/", "-")}).status, 200)
            eventually(lambda: s.said.count('"POST"') == 3 and s.said.endswith("\n"), "3 lines")
            lines = [json.loads(line) for line in s.said.splitlines() if '"POST"' in line]
        self.assertEqual([line["output"] for line in lines], [2, 2, 2])
        self.assertTrue(all(line["prompt"] > 0 and line["cached"] >= 0 for line in lines), lines)
        self.assertEqual([line["id"] for line in lines], ["-v1-chat-completions", "-v1-messages", "-generate"])

    def test_no_time_for_draining(self):
        with Server("--drain", 0) as s:
            with s.open(COMPLETIONS, {**ENDLESS, "stream": True}) as stream:
                stream.readline()
                s.process.send_signal(signal.SIGTERM)
                self.assertIn(b"aborted", stream.read())

    def test_names_that_cannot_be(self):
        for name in ("", "a\nb", os.fsdecode(b"\xff"), "x" * 257):
            done = harness.run("serve", "--port", "0", "--model-name", name, timeout=LIMIT)
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(b"--model-name", done.stderr)

    def test_address_in_the_banner(self):
        """The address can be used as it stands."""
        keys = self.file("keys", "alice key-of-alice\n")
        for host in ("::1", "[::1]", "127.0.0.5", "::", "0.0.0.0"):
            with Listening("--host", host, "--api-keys", keys) as s:
                where = s.url.removeprefix("http://")
                name, port = where.rsplit(":", 1)
                c = http.client.HTTPConnection(name.strip("[]"), int(port), timeout=LIMIT)
                c.request("GET", "/health", headers={"Host": where})
                self.assertEqual(c.getresponse().status, 200, s.url)
                c.close()
                self.assertIn(f"curl {s.url}/v1/chat/completions", s.said)


class Listening(Server):
    """One that need not be at 127.0.0.1, so that nobody looks whether it is ready."""

    status = 200

    def get(self, path, headers=()):
        return self

    @property
    def url(self):
        return eventually(lambda: next((line.split()[2] for line in self.said.splitlines() if line.startswith("listening on ")), None),
                          "the address")


if __name__ == "__main__":
    harness.main()
