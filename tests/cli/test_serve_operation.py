"""drawbridge serve in operation: keys, hosts and origins, limits, overload, deadlines, drain, disconnects, logs, the prefix cache."""
import json
import re
import signal
import socket
import time

import harness
from serving import Server, eventually, events, user

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ENDLESS = {"prompt": "Once upon a time", "max_tokens": 8000, "ignore_eos": True, "temperature": 0}
SHORT = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class Operation(harness.Case):
    def serve(self, *options):
        server = Server(*options)
        self.addCleanup(lambda: server.process.poll() is None and server.__exit__(RuntimeError, None, None))
        return server

    def secret(self, name, content):
        path = self.file(name, content)
        path.chmod(0o600)
        return path

    def status(self, expected, reply):
        self.assertEqual(reply.status, expected, reply)
        return reply

    def code(self, server):
        """How the server ended."""
        code = server.process.wait(300)
        server.reader.join()
        server.process.stderr.close()
        return code


class Keys(Operation):
    def setUp(self):
        super().setUp()
        keys = ("# who may come in\nalice alice-key-0123456789abcdef in-flight=1\nbob bob-key-0123456789abcdef per-minute=3\n"
                "root root-key-0123456789abcdef admin\nalice alice-second-0123456789abcdef in-flight=1\n")
        self.server = self.serve("--api-keys", self.secret("keys", keys))
        self.alice, self.bob, self.root = (bearer(f"{name}-key-0123456789abcdef") for name in ("alice", "bob", "root"))

    def test_keys(self):
        s = self.server
        for headers in ({}, bearer("wrong"), bearer("alice-key-0123456789abcde"), bearer("alice-key-0123456789abcdef0"), {"x-api-key": ""},
                        {"Authorization": "alice-key-0123456789abcdef"}, {"Authorization": "Basic YTpi"}):
            for path in (COMPLETIONS, "/v1/messages", "/generate", "/tokenize"):
                reply = self.status(401, s.post(path, SHORT, headers))
                self.assertNotIn("alice-key", repr(reply))
            self.status(401, s.get("/v1/models", headers))
        self.assertIn("WWW-Authenticate", s.post(COMPLETIONS, SHORT).headers)
        for headers in (self.alice, bearer("alice-second-0123456789abcdef"), {"x-api-key": "bob-key-0123456789abcdef"}, self.root):
            self.status(200, s.get("/v1/models", headers))
        self.status(200, s.post(COMPLETIONS, SHORT, self.alice))
        for path in ("/health", "/readyz"):
            self.status(200, s.get(path))

    def test_admin(self):
        s = self.server
        for method, path in (("POST", "/flush_cache"), ("GET", "/server_info")):
            self.status(401, s.request(method, path))
            self.status(403, s.request(method, path, headers=self.alice))
            self.status(200, s.request(method, path, headers=self.root))

    def test_one_tenant_cannot_abort_the_request_of_another(self):
        s = self.server
        with s.open(COMPLETIONS, {**ENDLESS, "stream": True, "rid": "of-alice"}, self.alice) as response:
            response.readline()
            self.assertEqual(s.post("/abort_request", {"rid": "of-alice"}, self.bob).json["aborted"], 0)
            self.status(403, s.post("/abort_request", {"abort_all": True}, self.bob))
            self.assertEqual(s.in_flight(self.root), 1)
            self.assertEqual(s.post("/abort_request", {"rid": "of-alice"}, self.root).json["aborted"], 1)
        s.becomes_idle(self.root)

    def test_limits_per_tenant(self):
        s = self.server
        with s.open(COMPLETIONS, {**ENDLESS, "stream": True}, self.alice) as response:
            response.readline()
            reply = self.status(429, s.post(COMPLETIONS, SHORT, self.alice))
            self.assertGreaterEqual(int(reply.headers["Retry-After"]), 1)
            self.status(200, s.post(COMPLETIONS, SHORT, self.bob))
        s.becomes_idle(self.root)
        self.status(200, s.post(COMPLETIONS, SHORT, self.alice))
        statuses = [s.post(COMPLETIONS, SHORT, self.bob).status for _ in range(4)]
        self.assertEqual(statuses[0], 200)
        self.assertIn(429, statuses)

    def test_tenants_do_not_share_prefixes(self):
        body = {"prompt": "A sentence that is long enough to fill a good part of a page with its tokens. " * 3, "max_tokens": 1}

        def cached(who):
            return self.server.post(COMPLETIONS, body, who).json["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual([cached(self.alice), cached(self.root)], [0, 0])
        self.assertGreater(cached(bearer("alice-second-0123456789abcdef")), 0)

    def test_files_that_are_wrong(self):
        for content in ("alice\n", "alice alice-key-0123456789abcdef unknown=1\n", ""):
            done = harness.run("serve", "--port", 0, "--api-keys", self.file("wrong", content), timeout=60)
            self.assertNotEqual(done.returncode, 0, content)
            self.assertIn("wrong", done.stderr.decode(), content)


class Network(Operation):
    def test_only_loopback_without_keys(self):
        for host in ("0.0.0.0", "::"):
            done = harness.run("serve", "--port", 0, "--host", host, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("--api-keys", done.stderr.decode())
        with self.serve("--host", "0.0.0.0", "--api-keys", self.secret("keys", "alice alice-key-0123456789abcdef\n")) as s:
            self.status(401, s.get("/v1/models"))

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            done = harness.run("serve", "--port", taken.getsockname()[1], timeout=60)
            self.assertEqual(done.returncode, 6, done.stderr)
            self.assertIn(str(taken.getsockname()[1]), done.stderr.decode())

    def test_hosts_and_origins(self):
        with self.serve("--allow-host", "models.example", "--allow-origin", "https://good.example") as s:
            own = f"http://127.0.0.1:{s.port}"
            for host, expected in (("evil.example", 421), (f"evil.example:{s.port}", 421), ("localhost.evil.example", 421),
                                   ("localhost", 200), (f"127.0.0.1:{s.port}", 200), (f"localhost:{s.port}", 200), ("[::1]", 200),
                                   ("models.example", 200), ("MODELS.example:80", 200)):
                reply = self.status(expected, s.get("/v1/models", {"Host": host}))
                self.assertEqual("--allow-host" in repr(reply), expected == 421)
            for origin, expected in (("https://evil.example", 403), ("null", 403), ("https://good.example.evil", 403), (own, 200),
                                     ("https://good.example", 200)):
                reply = self.status(expected, s.post(COMPLETIONS, SHORT, {"Origin": origin}))
                if origin == "https://good.example":
                    self.assertEqual(reply.headers["Access-Control-Allow-Origin"], origin)
                elif origin != own:
                    self.assertNotIn("Access-Control-Allow-Origin", reply.headers)
            preflight = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST",
                         "Access-Control-Request-Headers": "content-type"}
            reply = s.request("OPTIONS", COMPLETIONS, headers=preflight)
            self.assertIn(reply.status, (200, 204))
            self.assertIn("POST", reply.headers["Access-Control-Allow-Methods"])
            self.status(403, s.request("OPTIONS", COMPLETIONS, headers={**preflight, "Origin": "https://evil.example"}))

    def test_idle_connections_are_closed(self):
        with self.serve("--idle-timeout", 1) as s, socket.create_connection(("127.0.0.1", s.port), timeout=60) as c:
            c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while c.recv(65536):
                pass


class Limits(Operation):
    def test_sizes(self):
        with self.serve("--max-body", 1, "--max-tokens", 20, "--max-choices", 2, "--default-max-tokens", 5, "--context", 512) as s:
            head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
            self.assertTrue(s.raw(head + b"X: " + b"x" * 70000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431"))
            self.status(413, s.post(COMPLETIONS, b'{"prompt": "' + b"x" * (1 << 20) + b'"}'))
            chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            self.assertTrue(s.raw(chunked + (b"80000\r\n" + b"x" * 0x80000 + b"\r\n") * 3 + b"0\r\n\r\n").startswith(b"HTTP/1.1 413"))
            long = self.status(400, s.post(COMPLETIONS, {"prompt": "word " * 600}))
            self.assertEqual(long.json["error"]["code"], "context_length_exceeded")
            for name, value in (("max_tokens", 21), ("max_tokens", 600), ("n", 3)):
                self.assertEqual(self.status(400, s.post(COMPLETIONS, {**SHORT, name: value})).json["error"]["param"], name)
            usage = s.post(COMPLETIONS, {"prompt": "Once", "ignore_eos": True}).json["usage"]
            self.assertEqual(usage["completion_tokens"], 5)

    def test_requests_that_are_not_http(self):
        with self.serve() as s:
            for data, expected in ((b"hello\r\n\r\n", 400), (b"GET / HTTP/3.0\r\n\r\n", 505), (b"GET /health HTTP/1.1\r\n\r\n", 400),
                                   (b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
                                   (b"\x16\x03\x01\x02\x00\x01\x00", 400)):
                self.assertTrue(s.raw(data).startswith(b"HTTP/1.1 %d" % expected), data)
            self.status(200, s.get("/health"))

    def test_a_full_queue(self):
        with self.serve("--max-running", 1, "--max-queue", 1, "--spec", "off") as s:
            with s.open(COMPLETIONS, {**ENDLESS, "stream": True}) as first:
                first.readline()
                second = s.connect()
                second.request("POST", COMPLETIONS, json.dumps(SHORT), {"Content-Type": "application/json"})
                eventually(lambda: s.load()["num_waiting_reqs"] == 1, "a request waits")
                reply = self.status(503, s.post(COMPLETIONS, SHORT))
                self.assertGreaterEqual(int(reply.headers["Retry-After"]), 1)
                self.status(503, s.post("/v1/messages", {"model": "nano", "max_tokens": 5, "messages": user("Hello")}))
                self.status(200, s.get("/health"))
            self.assertEqual(second.getresponse().status, 200)
            second.close()
            s.becomes_idle()

    def test_deadlines(self):
        with self.serve("--spec", "off") as s:
            started = time.monotonic()
            chunks = s.stream(COMPLETIONS, {**ENDLESS, "timeout": 0.5})
            self.assertGreaterEqual(time.monotonic() - started, 0.4)
            self.assertRegex(json.dumps(chunks[-1]), "timeout|deadline")
            reply = s.post(COMPLETIONS, {**ENDLESS, "timeout": 0.5})
            self.assertRegex(repr(reply), "timeout|deadline")
            s.becomes_idle()
        with self.serve("--timeout", 0.5) as s:
            self.assertRegex(repr(s.post(COMPLETIONS, ENDLESS)), "timeout|deadline")


class Ends(Operation):
    def test_drain(self):
        s = self.serve("--spec", "off", "--drain", 600)
        body = {**ENDLESS, "max_tokens": 150 if harness.SANITIZED else 800}
        whole = s.post(COMPLETIONS, body).json["choices"][0]["text"]
        waiting = s.connect()  # open before the signal
        waiting.request("GET", "/health")
        waiting.getresponse().read()
        with s.open(COMPLETIONS, {**body, "stream": True}) as response:
            first = response.readline().decode()
            s.process.send_signal(signal.SIGTERM)
            eventually(lambda: s.get("/readyz").status == 503, "/readyz says 503")
            self.status(503, s.post(COMPLETIONS, SHORT))
            self.status(200, s.get("/health"))
            text = json.loads(first[6:])["choices"][0]["text"] + "".join(c["choices"][0]["text"] for c in events(response))
        waiting.close()
        self.assertEqual(text, whole)
        self.assertEqual(self.code(s), 0, s.said)

    def test_drain_has_an_end(self):
        s = self.serve("--drain", 0.3, "--spec", "off")
        with s.open(COMPLETIONS, {**ENDLESS, "stream": True}) as response:
            response.readline()
            s.process.send_signal(signal.SIGTERM)
            self.assertIn(b"abort", response.read())
        self.assertEqual(self.code(s), 0, s.said)

    def test_a_second_signal(self):
        for first, second in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT)):
            s = self.serve("--spec", "off")
            with s.open(COMPLETIONS, {**ENDLESS, "stream": True}) as response:
                response.readline()
                s.process.send_signal(first)
                eventually(lambda: s.get("/readyz").status == 503, "/readyz says 503")
                s.process.send_signal(second)
                response.read()
            self.assertLess(self.code(s), 128, s.said)

    def test_an_idle_server_ends_at_once(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            s = self.serve("--drain", 600)
            s.process.send_signal(number)
            self.assertEqual(self.code(s), 0, s.said)

    def test_a_client_that_goes_away(self):
        with self.serve("--max-running", 2, "--spec", "off") as s:
            for streams in (True, False):
                for n in (1, 2, 4):  # running, and waiting too
                    with self.subTest(streams=streams, n=n):
                        c = s.connect()
                        c.request("POST", COMPLETIONS, json.dumps({**ENDLESS, "stream": streams, "n": n}))
                        eventually(lambda: s.in_flight() == n, "it is in the engine")
                        c.close()
                        s.becomes_idle()
            self.assertEqual(s.metric("drawbridge_kv_pages", 'state="used"'), 0)


class Streams(Operation):
    TOKENS = 500 if harness.SANITIZED else 3000  # of the long prompt, at least
    LONG = "The quick brown fox jumps over the lazy dog and looks for a place to sleep. " * (TOKENS // 21)

    def test_comments_while_a_prompt_is_computed(self):
        with self.serve("--keep-alive", 0.05, "--no-prefix-cache") as s:
            comments, seen = [], []
            with s.open(COMPLETIONS, {"prompt": self.LONG[:3000], "max_tokens": 2, "stream": True}) as response:
                for event in events(response, comments):
                    seen.append((len(comments), event))
            self.assertGreater(seen[0][0], 0, "no comment before the first token")
            self.assertTrue(all(re.match(r":[ -~]*$", c) for c in comments), comments)

    def test_a_prompt_that_was_seen_before(self):
        with self.serve() as s:
            messages = user(self.LONG)
            fields = {"temperature": 0, "max_tokens": 20, "chat_template_kwargs": {"enable_thinking": False}}
            first = s.post(CHAT, {"messages": messages, **fields}).json
            prompt = first["usage"]["prompt_tokens"]
            self.assertGreaterEqual(prompt, self.TOKENS)
            messages += [first["choices"][0]["message"], *user("Hello")]
            before = s.metric("drawbridge_computed_rows_total"), s.metric("drawbridge_cached_tokens_total")
            second = s.post(CHAT, {"messages": messages, **fields, "max_tokens": 1}).json
            computed = s.metric("drawbridge_computed_rows_total") - before[0]
            usage = second["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            self.assertGreaterEqual(cached, prompt, usage)
            self.assertEqual(s.metric("drawbridge_cached_tokens_total") - before[1], cached)
            self.assertLessEqual(computed, usage["prompt_tokens"] - cached + 1)
            self.assertLess(computed, 60)


class Logs(Operation):
    def test_lines(self):
        for options in ((), ("--log-json",)):
            with self.serve(*options) as s:
                reply = s.post(COMPLETIONS, {"prompt": "SECRETWORD " * 3, "max_tokens": 3}, {"X-Request-Id": "my-request-7"})
                self.assertEqual(reply.headers["X-Request-Id"], "my-request-7")
                s.post(COMPLETIONS, {"prompt": "SECRETWORD", "no_such_field": 1})
                eventually(lambda: s.said.count(COMPLETIONS) >= 2, "two lines of the log")
            lines = [line for line in s.said.splitlines() if "my-request-7" in line]
            self.assertEqual(len(lines), 1, s.said)
            self.assertNotIn("SECRETWORD", s.said)
            if options:
                record = json.loads(lines[0][lines[0].index("{"):])
                self.assertEqual((record["path"], record["status"]), (COMPLETIONS, 200))
            else:
                self.assertRegex(lines[0], r"status=200")

    def test_banner(self):
        with self.serve() as s:
            for words in ("nano", "mxfp4", "context", "curl ", "ready"):
                self.assertIn(words, s.said)


if __name__ == "__main__":
    harness.main()
