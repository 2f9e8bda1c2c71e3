#!/usr/bin/env python3
"""Quantizes a BF16 checkpoint by every recipe, evaluates each result, and prints the table of docs/accuracy.md.

    bench/accuracy.py MASTER WORK_DIR [--binary build/drawbridge] [--quick] [--only NAME,...]

MASTER is a BF16 checkpoint directory (of the built-in model: tests/fixtures/README.md says where it is), WORK_DIR receives the quantized
checkpoints and one JSON file per measurement. A measurement whose file exists is not repeated, so an interrupted run goes on. Standard
library only.
"""
import argparse
import json
import os
import subprocess
import sys
import time

VARIANTS = {  # name: arguments of quantize; None: the master itself
    "bf16": None,
    "fp8": ["--to", "fp8"],
    "mxfp4 amd": ["--to", "mxfp4", "--recipe", "amd"],
    "mxfp4 amd, search": ["--to", "mxfp4", "--recipe", "amd", "--search"],
    "mxfp4 amd, importance": ["--to", "mxfp4", "--recipe", "amd", "--search", "--importance", "{importance}"],
    "mxfp4 amd-attn-fp8": ["--to", "mxfp4", "--recipe", "amd-attn-fp8"],
    "mxfp4 all": ["--to", "mxfp4", "--recipe", "all"],
    "mxfp4 all, search": ["--to", "mxfp4", "--recipe", "all", "--search"],
    "mxfp4 all, importance": ["--to", "mxfp4", "--recipe", "all", "--search", "--importance", "{importance}"],
    "nvfp4": ["--to", "nvfp4"],
}
ACCURACY = {  # task name: (arguments of eval, items, items with --quick)
    "arithmetic": (["--task", "gsm8k"], 200, 40),
    "arithmetic, 5-shot": (["--task", "gsm8k", "--shots", "5"], 200, 20),
    "choice": (["--task", "choice"], 200, 40),
    "needle": (["--task", "needle"], 96, 16),
    "tools": (["--task", "tools"], 150, 30),
}


def run(command):
    started = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    print(f"# {time.time() - started:5.0f} s  {' '.join(command[1:])}", file=sys.stderr, flush=True)
    return done.stdout.decode()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("master")
    p.add_argument("work")
    p.add_argument("--binary", default="build/drawbridge")
    p.add_argument("--data", default="models/nano/eval", help="the evaluation sets")
    p.add_argument("--quick", action="store_true", help="few items: to try the script")
    p.add_argument("--only", default="", help="comma-separated names of variants")
    p.add_argument("--tasks", default="", help="comma-separated names of tasks; 'kl' and 'report' are always measured")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    only = [n.strip() for n in a.only.split(";") if n.strip()]
    tasks = [n.strip() for n in a.tasks.split(";") if n.strip()]
    importance = os.path.join(a.work, "importance.safetensors")
    if not os.path.exists(importance):
        run([a.binary, "eval", a.master, "--task", "ppl", "--data", f"{a.data}/text_long.txt", "--importance-out", importance, "-q"])
    results = {}
    for name, arguments in VARIANTS.items():
        if only and name not in only:
            continue
        folder = a.master
        row = results[name] = {}
        if arguments is not None:
            folder = os.path.join(a.work, name.replace(",", "").replace(" ", "-"))
            report = folder + ".report.json"
            if not os.path.exists(report):
                run([a.binary, "quantize", a.master, folder, "-q", "--report", report]
                    + [x.format(importance=importance) for x in arguments])
            row["report"] = json.load(open(report))
        for text in ("text", "plain"):
            out = os.path.join(a.work, f"{os.path.basename(folder)}.kl_{text}.json")
            if not os.path.exists(out) and arguments is not None:
                open(out + ".tmp", "w").write(run([a.binary, "eval", folder, "--task", "kl", "--against", a.master, "--data", f"{a.data}/{text}.txt", "--json", "-q"]))
                os.rename(out + ".tmp", out)
            if arguments is not None:
                row["kl_" + text] = json.load(open(out))
        for task, (extra, items, quick) in ACCURACY.items():
            if tasks and task not in tasks:
                continue
            out = os.path.join(a.work, f"{os.path.basename(folder)}.{task.replace(',', '').replace(' ', '-')}.json")
            n = quick if a.quick else items
            data = [x for f in ("needle_500", "needle_1000", "needle_2000", "needle_4000") for x in ("--data", f"{a.data}/{f}.jsonl")] if task == "needle" else \
                ["--data", f"{a.data}/{ {'choice': 'choice', 'tools': 'tools'}.get(task, 'arith') }.jsonl"]
            if "--shots" in extra:
                data += ["--shots-file", f"{a.data}/arith_train.jsonl"]
            run([a.binary, "eval", folder, *extra, *data, "--limit", str(n), "--out", out, "-q"])
            row[task] = json.load(open(out))
    json.dump(results, open(os.path.join(a.work, "all.json"), "w"))


if __name__ == "__main__":
    main()
