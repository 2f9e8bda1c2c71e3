"""What the tests of the server share: starting and stopping it, and plain HTTP by the standard library."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import harness

LIMIT = 600 if harness.SANITIZED else 120  # seconds until a test gives up; no test measures time


def eventually(holds, what, seconds=LIMIT):
    """The first true value of holds()."""
    end = time.monotonic() + seconds
    while True:
        value = holds()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


class Reply:
    def __init__(self, response):
        self.status, self.headers, self.bytes = response.status, response.headers, response.read()

    @property
    def json(self):
        return json.loads(self.bytes)

    def __repr__(self):
        return f"{self.status} {self.bytes[:2000].decode(errors='replace')}"


class Server:
    """A running drawbridge serve. Its words are collected in `said`."""

    def __init__(self, *options, **environment):
        command = [harness.BINARY, "serve", "--port", "0", *map(str, options)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        env={**os.environ, **environment})
        self.said = ""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        try:
            self.port = int(eventually(self._listening, "the server's address").group(1))
            eventually(lambda: self.get("/readyz").status == 200, "/readyz says 200")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _read(self):
        for line in self.process.stderr:
            self.said += line.decode(errors="replace")

    def _listening(self):
        if self.process.poll() is not None:
            self.reader.join()
            self.process.stderr.close()
            raise AssertionError(f"the server ended: {self.said}")
        return re.search(r"listening on http://\S+:(\d+)", self.said)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM if kind is None else signal.SIGKILL)
        code = self.process.wait(LIMIT)
        self.reader.join()
        self.process.stderr.close()
        if kind is None and code != 0:
            raise AssertionError(f"exit code {code}: {self.said}")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)

    def request(self, method, path, body=None, headers=()):
        connection = self.connect()
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection.request(method, path, body, {"Content-Type": "application/json", **dict(headers)})
        reply = Reply(connection.getresponse())
        connection.close()
        return reply

    def get(self, path, headers=()):
        return self.request("GET", path, None, headers)

    def post(self, path, body, headers=()):
        return self.request("POST", path, body, headers)

    @contextlib.contextmanager
    def open(self, path, body, headers=()):
        """A reply that is still coming: the response, to be read with events() or broken off."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **dict(headers)})
        try:
            yield connection.getresponse()
        finally:
            connection.close()

    def stream(self, path, body, headers=()):
        """All events of a stream, the [DONE] left out."""
        with self.open(path, {**body, "stream": True}, headers) as response:
            if response.status != 200:
                raise AssertionError(f"{response.status} {response.read()}")
            return list(events(response))

    def raw(self, data, until_closed=True):
        """What comes back for these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT) as s:
            s.sendall(data)
            out = b""
            while until_closed or b"\r\n\r\n" not in out:
                block = s.recv(65536)
                if not block:
                    break
                out += block
            return out

    def load(self, headers=()):
        return self.get("/v1/loads", headers).json["loads"][0]

    def in_flight(self, headers=()):
        load = self.load(headers)
        return load["num_running_reqs"] + load["num_waiting_reqs"]

    def becomes_idle(self, headers=()):
        eventually(lambda: self.in_flight(headers) == 0, "no request is left in the engine")

    def metric(self, name, labels="", headers=()):
        """The value of a sample; labels: a part of its labels that must be there."""
        text = self.get("/metrics", headers).bytes.decode()
        found = [line for line in text.splitlines() if re.match(re.escape(name) + r"[{ ]", line) and labels in line]
        if len(found) != 1:
            raise AssertionError(f"{name} {labels}: {found}")
        return float(found[0].split()[-1])


def events(response, comments=None):
    """The events of a stream as they come: JSON values, or (event, JSON value) where an event has a name. Comments are appended to
    the list."""
    name = None
    for line in response:
        line = line.decode().rstrip("\r\n")
        if line.startswith(":") and comments is not None:
            comments.append(line)
        elif line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: ") and line != "data: [DONE]":
            value = json.loads(line[6:])
            yield (name, value) if name else value
            name = None


def user(words):
    return [{"role": "user", "content": words}]


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the current weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}}, "required": ["city"]}}}
ASK_WEATHER = user("What is the weather in Paris?")
