"""A mock of a server for tests of the HTTP client: it answers by path, on loopback, and is no model server.

  python3 tests/http_mock.py      prints its port, serves until standard input ends

  /echo          200, JSON: method, path, headers, body       /parallel/N   200 once N requests wait here at the same time
  /busy/N/K      429 to the first N requests with key K       /wait/S/K     503 with Retry-After: S to the first one, then 200
  /status/N      that status, a JSON error message            /sleep/S      200 after S seconds
  /chunked       200, body in chunks                          /peak         200, the most requests at a time so far
  /drop/N/K      first N: the connection is cut in the body   /garbage      bytes that are not HTTP
  /size/N        200, N bytes with a length                   /endless      200, chunks until the client goes away
  /redirect      302 to another place                         /plain        500, a text with control characters
"""
import collections
import http.server
import json
import sys
import threading
import time

lock = threading.Lock()
seen = collections.Counter()
barriers = {}
running = peak = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def reply(self, status, body, headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def is_among_first(self, n, key):
        with lock:
            seen[key] += 1
            return seen[key] <= n

    def do_GET(self):
        self.answer(b"")

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, body):
        global running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        try:
            parts = self.path.split("/")[1:]
            getattr(self, "path_" + parts[0])(body, *parts[1:])
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with lock:
                running -= 1

    def path_echo(self, body, *rest):
        self.reply(200, {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body.decode()})

    def path_parallel(self, body, n):
        with lock:
            barrier = barriers.setdefault(n, threading.Barrier(int(n)))
        barrier.wait(20)
        self.reply(200, {})

    def path_busy(self, body, n, key):
        if self.is_among_first(int(n), key):
            self.reply(429, {"error": {"message": "too many requests"}})
        else:
            self.reply(200, {"key": key})

    def path_wait(self, body, seconds, key):
        if self.is_among_first(1, key):
            self.reply(503, {"error": "loading"}, [("Retry-After", seconds)])
        else:
            self.reply(200, {})

    def path_status(self, body, status):
        self.reply(int(status), {"error": {"message": f"this is the reason of {status}", "type": "x"}})

    def path_plain(self, body):
        self.reply(500, b"line one\n\x1b[31mred\x00 end")

    def path_sleep(self, body, seconds):
        time.sleep(float(seconds))
        self.reply(200, {})

    def path_peak(self, body):
        self.reply(200, {"peak": peak})

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def begin_chunks(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def path_chunked(self, body):
        self.begin_chunks()
        for piece in (b'{"a": ', b"1", b"2", b"3}"):
            self.chunk(piece)
            time.sleep(0.01)
        self.chunk(b"")

    def path_endless(self, body):
        self.begin_chunks()
        while True:
            self.chunk(b"x" * 4096)

    def path_drop(self, body, n, key):
        if not self.is_among_first(int(n), key):
            self.reply(200, {})
            return
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"half")
        self.close_connection = True

    def path_garbage(self, body):
        self.wfile.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        self.close_connection = True

    def path_size(self, body, n):
        self.reply(200, b"y" * int(n))

    def path_redirect(self, body):
        self.reply(302, b"", [("Location", "http://elsewhere.example/v1")])


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


server = Server(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
