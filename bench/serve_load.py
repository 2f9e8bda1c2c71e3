#!/usr/bin/env python3
"""Measures drawbridge serve under load, and prints the tables of docs/serving_measurements.md.

    bench/serve_load.py [batching] [overload] [accounting] [connections] [--build build] [--json FILE] [--quick]

Without a name all four are run, some 20 minutes on 2 cores. Each starts a server of its own with the built-in model; the load comes
from bench_serve (bench/bench_serve.c), on the same machine. --quick is for trying the script out: its figures mean nothing.

    batching      tokens per second of 32 streams at a time against those of one stream, in one run
    overload      10 times the requests that the server can answer: what it still answers, how fast it refuses, its memory
    accounting    10,000 requests, most of them broken off at some stage: pages, file descriptors and memory afterwards
    connections   10,000 idle connections and 1,024 streams at the same time
"""
import argparse
import json
import os
import pathlib
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
STORY = {"prompt": "@I@ Once upon a time", "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


class Server:
    """A running server whose process is looked at from outside."""

    def __init__(self, build, *options):
        self.folder = tempfile.TemporaryDirectory(prefix="drawbridge-load-")
        self.log = pathlib.Path(self.folder.name) / "log"
        self.options = " ".join(map(str, options))
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([build / "drawbridge", "serve", "--port", "0", *map(str, options)], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=log)
        self.port = None
        end = time.monotonic() + 60
        while not self.port:
            found = re.search(r"listening on http://\S+:(\d+)", self.log.read_text())
            self.port = found and int(found.group(1))
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"the server did not start: {self.log.read_text()}")
            time.sleep(0.05)
        self.peak_rss = 0
        self.watching = True
        self.watcher = threading.Thread(target=self._watch, daemon=True)
        self.watcher.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.watching = False
        self.watcher.join()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code != 0:
            print(f"# the server ended with code {code}: {self.log.read_text()[-500:]}", file=sys.stderr)
        self.folder.cleanup()

    def _watch(self):
        while self.watching:
            self.peak_rss = max(self.peak_rss, self.rss())
            time.sleep(0.2)

    def rss(self):
        """Megabytes."""
        try:
            text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0.0
        found = re.search(r"VmRSS:\s+(\d+)", text)
        return int(found.group(1)) / 1024 if found else 0.0

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as reply:
            return reply.read()

    def post(self, path, body=b""):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, method="POST")
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.loads(reply.read())

    def load(self):
        return json.loads(self.get("/v1/loads"))["loads"][0]

    def settle(self):
        """Until nothing runs or waits and all clients are gone. Returns seconds."""
        started = time.monotonic()
        while time.monotonic() - started < 60:
            load = self.load()
            if load["num_running_reqs"] + load["num_waiting_reqs"] == 0:
                break
            time.sleep(0.05)
        return time.monotonic() - started

    def metric(self, name):
        return sum(float(line.split()[-1]) for line in self.get("/metrics").decode().splitlines() if line.startswith(name))

    def used_pages(self):
        memory = self.load()["memory"]
        return memory["pages"] - memory["free_pages"] - memory["cached_pages"]


def generate(a, server, bodies, *options):
    """One run of bench_serve."""
    with tempfile.TemporaryDirectory() as folder:
        words = []
        for i, body in enumerate(bodies):
            path = pathlib.Path(folder) / f"{i}.json"
            path.write_text(json.dumps(body))
            words += ["--body", str(path)]
        command = [a.build / "bench" / "bench_serve", "--port", str(server.port), *words, *map(str, options)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(c) for c in row) + " |")
    print(flush=True)


def ms(series, part):
    return f"{series[part]:.1f}" if part in series else "-"


def batching(a):
    seconds, rows, out = (2 if a.quick else 12), [], []
    body = {**STORY, "max_tokens": 128, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    for spec in ("off", "auto"):
        with Server(a.build, "--spec", spec) as s:
            def measure(clients):
                return generate(a, s, [body], "--clients", clients, "--seconds", seconds, "--warm-up", seconds / 4)["flow_tokens_per_s"]
            before, many, after = measure(1), measure(32), measure(1)
            one = (before + after) / 2
            out.append({"spec": spec, "one": [before, after], "streams": 32, "many": many, "ratio": many / one if one else None})
            rows.append([spec, f"{before:.0f}, {after:.0f}", f"{many:.0f}", f"{many / one:.2f}" if one else "-"])
    print("## Batching\n")
    table(["drafts", "one stream, tok/s (before, after)", "32 streams, tok/s", "ratio"], rows)
    return out


def overload(a):
    seconds = 3 if a.quick else 20
    body = {**STORY, "max_tokens": 128}
    # A small cache is full, and its memory touched, before the overload begins.
    with Server(a.build, "--max-running", 32, "--max-queue", 64, "--kv-tokens", 8192, "--context", 1024) as s:
        # 64 clients keep a queue and are never refused: when all end at the same step, all of them fit in the queue.
        peak = generate(a, s, [body], "--clients", 64, "--seconds", seconds, "--warm-up", seconds / 4)
        s.settle()
        rate = max(10 * peak["good"] / peak["seconds"], 1)
        before, s.peak_rss = s.rss(), 0
        over = generate(a, s, [body], "--rate", rate, "--seconds", seconds, "--warm-up", seconds / 4, "--first", 100000)
        rss = [before, s.peak_rss, s.rss()]
        s.settle()
        after = generate(a, s, [body], "--clients", 64, "--seconds", seconds, "--warm-up", seconds / 4, "--first", 200000)
    share = over["tokens_per_s"] / max(peak["tokens_per_s"], after["tokens_per_s"], 1e-9)
    print("## Overload\n")
    rows = []
    runs = (("64 clients, before", "-", peak), ("10 times as much", f"{rate:.0f}", over), ("64 clients, after", "-", after))
    for name, offered, r in runs:
        refused = r["refused_ms"]
        rows.append([name, offered, f"{r['good'] / r['seconds']:.1f}", f"{refused['count'] / r['seconds']:.1f}", f"{r['tokens_per_s']:.0f}",
                     f"{ms(refused, 'p50')} / {ms(refused, 'p99')} / {ms(refused, 'max')}",
                     f"{ms(r['first_ms'], 'p50')} / {ms(r['first_ms'], 'p99')}"])
    table(["load", "requests/s offered", "answered/s", "refused/s", "tok/s of whole answers", "refusal p50 / p99 / max, ms",
           "first token p50 / p99, ms"], rows)
    print(f"Goodput under overload: {100 * share:.1f} % of the better of the two other runs. Statuses: {over['statuses']}. "
          f"Memory in MB before, most, after: {rss[0]:.1f}, {rss[1]:.1f}, {rss[2]:.1f}. "
          f"The generator took {over['generator_cpu_s']:.1f} s of CPU time in {1.25 * seconds:.0f} s.\n", flush=True)
    return {"peak": peak, "rate": rate, "overload": over, "after": after, "goodput_share": share, "rss_mb": rss}


def accounting(a):
    total = 400 if a.quick else 10000
    part = total // 10
    long = "The bridge is down and the river is wide. " * 20
    streams = [{**STORY, "max_tokens": 80, "rid": "r@I@"},
               {**STORY, "max_tokens": 12, "rid": "r@I@", "prompt": long + "@I@"},
               {"prompt": "@I@ Hello", "max_tokens": 8, "rid": "r@I@", "n": 2},
               {**STORY, "max_tokens": 16, "rid": "r@I@", "prompt": "@I@ " + long, "temperature": 1}]
    rows, parts = [], []
    # A cache that is too small for all that run, so that sequences are preempted, too.
    with Server(a.build, "--max-running", 32, "--max-queue", 1024, "--kv-tokens", 2048, "--context", 1024) as s:
        files = s.files()
        rows.append([0, "-", "-", 0, files, f"{s.rss():.1f}", "-"])
        for i in range(10):
            r = generate(a, s, streams, "--clients", 64, "--requests", part, "--first", i * part, "--aborts", 0.75)
            last = {"requests": part, "result": r, "settle_s": s.settle(), "used_pages": s.used_pages(),
                    "preemptions": s.metric("drawbridge_preemptions_total")}
            deadline = time.monotonic() + 10
            while s.files() > files and time.monotonic() < deadline:
                time.sleep(0.05)
            last.update(files=s.files(), rss_mb=s.rss())
            parts.append(last)
            rows.append([(i + 1) * part, r["good"], json.dumps(r["stages"]).strip("{}").replace('"', ""), last["used_pages"], last["files"],
                         f"{last['rss_mb']:.1f}", f"{last['preemptions']:.0f}"])
        s.post("/flush_cache")
        load = s.load()["memory"]
        leaked = load["pages"] - load["free_pages"]
    print("## Accounting\n")
    table(["requests so far", "whole answers", "broken off at", "pages in use", "open files", "RSS, MB", "preemptions so far"], rows)
    print(f"Pages that are not free after the cache was flushed: {leaked} of {load['pages']}.\n", flush=True)
    return {"parts": parts, "files_at_start": files, "leaked_pages": leaked}


def connections(a):
    idle, streams = (200, 64) if a.quick else (10000, 1024)
    health = []
    with Server(a.build, "--max-running", streams, "--max-queue", streams, "--kv-tokens", streams * 128, "--idle-timeout", 3600) as s:
        before = s.rss(), s.files()
        going = True

        def ask():
            while going:
                started = time.monotonic()
                s.get("/health")
                health.append(1000 * (time.monotonic() - started))
                time.sleep(0.1)
        asker = threading.Thread(target=ask)
        asker.start()
        r = generate(a, s, [{**STORY, "max_tokens": 48}], "--clients", streams, "--hold", "--idle", idle)
        going = False
        asker.join()
        peak = s.peak_rss
    health.sort()
    print("## Connections\n")
    table(["idle connections: opened, alive at the end", "streams: sent, whole", "tok/s", "first token p50 / p99, s", "gap p50 / p99, ms",
           "/health meanwhile p50 / max, ms", "RSS before, most, MB"],
          [[f"{r['idle_open']}, {r['idle_alive']}", f"{streams}, {r['good']}", f"{r['tokens_per_s']:.0f}",
            f"{r['first_ms']['p50'] / 1000:.2f} / {r['first_ms']['p99'] / 1000:.2f}",
            f"{ms(r['gap_ms'], 'p50')} / {ms(r['gap_ms'], 'p99')}",
            f"{health[len(health) // 2]:.1f} / {health[-1]:.1f}", f"{before[0]:.1f}, {peak:.1f}"]])
    return {"result": r, "health_ms": health, "rss_mb": [before[0], peak]}


def machine():
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=10"], stdout=subprocess.PIPE, check=False)
    return {"cpu": cpu.group(1) if cpu else platform.machine(), "cores": os.cpu_count(), "commit": commit.stdout.decode().strip(),
            "load_average": os.getloadavg()[0], "time": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}


def main():
    parts = {f.__name__: f for f in (batching, overload, accounting, connections)}
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    p.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="directory with drawbridge and bench/bench_serve")
    p.add_argument("--json", type=pathlib.Path, help="write everything to this file, too")
    p.add_argument("--quick", action="store_true", help="a try-out of seconds")
    a = p.parse_args()
    unknown = [name for name in a.parts if name not in parts]
    if unknown:
        p.error(f"unknown: {', '.join(unknown)}; known are {', '.join(parts)}")
    for program in ("drawbridge", "bench/bench_serve"):
        if not (a.build / program).exists():
            sys.exit(f"{a.build / program} is not there; build it: cmake --build --preset release --target {program.split('/')[-1]}")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    out = {"machine": machine(), "quick": a.quick}
    m = out["machine"]
    print(f"{m['cpu']}, {m['cores']} cores, commit {m['commit']}, {m['time']} UTC, load average before {m['load_average']:.1f}"
          f"{', QUICK: the figures mean nothing' if a.quick else ''}\n", flush=True)
    for name in a.parts or parts:
        out[name] = parts[name](a)
        if a.json:
            a.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
