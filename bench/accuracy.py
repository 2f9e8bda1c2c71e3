#!/usr/bin/env python3
"""Quantizes a BF16 checkpoint by every recipe, measures each result, and prints the tables of docs/accuracy.md.

    bench/accuracy.py MASTER WORK_DIR [--binary build/drawbridge] [--quick]
    bench/accuracy.py MASTER WORK_DIR --fast [--kernels NAME] ...

The second form compares the default arithmetic with --exact, on the same checkpoints. What was measured by another build is measured
again only when it is removed: give such a run a WORK_DIR of its own.

MASTER is the BF16 checkpoint of the built-in model (tests/fixtures/README.md says where it is). WORK_DIR receives the quantized
checkpoints and one JSON file per measurement; what is there already is not measured again, so an interrupted run goes on.
"""
import argparse
import json
import os
import subprocess
import sys
import time

VARIANTS = [  # name, arguments of quantize (None: the master itself), whether tasks are run besides the divergence
    ("bf16", None, True),
    ("fp8", ["--to", "fp8"], True),
    ("mxfp4 amd", ["--to", "mxfp4", "--recipe", "amd"], True),
    ("mxfp4 all", ["--to", "mxfp4", "--recipe", "all"], True),
    ("nvfp4", ["--to", "nvfp4"], True),
    ("mxfp4 amd-attn-fp8", ["--to", "mxfp4", "--recipe", "amd-attn-fp8"], False),
    ("mxfp4 amd, search", ["--to", "mxfp4", "--recipe", "amd", "--search"], False),
    ("mxfp4 amd, importance", ["--to", "mxfp4", "--recipe", "amd", "--search", "--importance", "{importance}"], False),
    ("mxfp4 all, search", ["--to", "mxfp4", "--recipe", "all", "--search"], False),
    ("mxfp4 all, importance", ["--to", "mxfp4", "--recipe", "all", "--search", "--importance", "{importance}"], False),
    ("nvfp4, search", ["--to", "nvfp4", "--search"], False),
]
NEEDLES = ["needle_500", "needle_1000", "needle_2000"]
TASKS = [  # name, arguments of eval, data files, items, items with --quick
    ("arithmetic", ["--task", "gsm8k"], ["arith"], 120, 8),
    ("arithmetic, 5-shot", ["--task", "gsm8k", "--shots", "5", "--shots-file", "{data}/arith_train.jsonl"], ["arith"], 30, 4),
    ("choice", ["--task", "choice"], ["choice"], 120, 8),
    ("needle", ["--task", "needle"], NEEDLES, 18, 3),
    ("tools", ["--task", "tools"], ["tools"], 40, 4),
]
KL_WINDOWS, PPL_WINDOWS = 4, 8  # of 1,024 tokens


def run(command):
    started = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    print(f"# {time.time() - started:5.0f} s  {' '.join(command[1:])}", file=sys.stderr, flush=True)
    return done.stdout.decode()


def file_name(words):
    return words.replace(",", "").replace(" ", "-")


def quantize(a, name, arguments, importance):
    """The directory of a variant, made when it is not there."""
    if arguments is None:
        return a.master
    folder = os.path.join(a.work, file_name(name))
    if not os.path.exists(os.path.join(folder, "config.json")):
        run([a.binary, "quantize", a.master, folder, "-q", "--report", folder + ".report.json"] +
            [x.format(importance=importance) for x in arguments])
    return folder


def divergence(a, name, folder):
    out = os.path.join(a.work, file_name(name) + ".kl.json")
    run([a.binary, "eval", folder, "--task", "kl", "--against", a.master, "--data", f"{a.data}/text.txt", "--limit",
         str(1 if a.quick else KL_WINDOWS), "--out", out, "-q"])
    return json.load(open(out))["summary"]


def accuracy(a, name, folder, task):
    words, arguments, files, items, quick = task
    out = os.path.join(a.work, f"{file_name(name)}.{file_name(words)}.json")
    run([a.binary, "eval", folder, *(x.format(data=a.data) for x in arguments), "--limit", str(quick if a.quick else items),
         "--out", out, "-q"] + [x for f in files for x in ("--data", f"{a.data}/{f}.jsonl")])
    return out, json.load(open(out))["summary"]


def perplexity(a, name, folder):
    out = os.path.join(a.work, file_name(name) + ".ppl.json")
    run([a.binary, "eval", folder, "--task", "ppl", "--data", f"{a.data}/text.txt", "--limit", str(1 if a.quick else PPL_WINDOWS),
         "--out", out, "-q"])
    return json.load(open(out))["summary"]


def print_divergence(rows, sizes):
    print("| recipe | bytes | relative error of what was quantized | mean KL (95 % interval) | 99th percentile | top-1 agreement |\n"
          "|---|---|---|---|---|---|")
    for name, s in rows:
        size, error = sizes[name]
        print(f"| {name} | {size / 1e6:.1f} MB | {error} | {s['mean_kl']:.6f} ({s['interval'][0]:.6f} .. {s['interval'][1]:.6f}) | "
              f"{s['p99_kl']:.5f} | {100 * s['top1_agreement']:.2f} % |")


def print_accuracy(results, perplexities, a):
    names = [n for n, _ in results]
    print("\n| task | items | " + " | ".join(names) + " |\n|---|---|" + "---|" * len(names))
    for words, *_ in TASKS:
        summaries = [r[words][1] for _, r in results]
        cells = ["{:.1f} % ({:.1f} .. {:.1f})".format(*(100 * x for x in (s["accuracy"], *s["interval"]))) for s in summaries]
        print(f"| {words} | {results[0][1][words][1]['items']} | " + " | ".join(cells) + " |")
    cells = ["{:.4f} ({:.4f} .. {:.4f})".format(s["perplexity"], *s["interval"]) for s in perplexities]
    print(f"| perplexity | {perplexities[0]['windows']} windows | " + " | ".join(cells) + " |")
    baseline = dict(results)["fp8"]
    print("\nAgainst fp8, item by item:\n\n```")
    for name, r in results:
        for words, *_ in TASKS if name.startswith("mxfp4") or name == "nvfp4" else []:
            print(f"{words}: " + run([a.binary, "eval", "--compare", baseline[words][0], r[words][0]]).strip())
    print("```")


# ---- the default arithmetic against --exact ----

FAST = ["bf16", "fp8", "mxfp4 amd", "mxfp4 all", "nvfp4"]
FAST_TASKS = "mxfp4 amd"  # the recipe of the built-in model: the tasks are asked of this one
ARITHMETIC = ["--kv-dtype", "f32", "--latent-eps", "1e-6"]  # with this, --exact differs in the arithmetic alone
FAST_WINDOWS, CONTINUATIONS, LENGTH = 4, 64, 64


def against_exact(a, name, folder, words, options):
    out = os.path.join(a.work, f"{file_name(name)}.exact.{words}.kl.json")
    run([a.binary, "eval", folder, "--task", "kl", "--against-exact", "--data", f"{a.data}/text.txt", "--limit",
         str(2 if a.quick else FAST_WINDOWS), "--out", out, "-q", *options])
    document = json.load(open(out))
    return {**document["summary"], "max_kl": max(max(x["kl"]) for x in document["items"])}


def prompts(a):
    """Texts to go on with: those of the references, and pieces of a text that begin at a line."""
    golden = json.load(open(os.path.join(a.fixtures, "golden.json")))
    texts = [p["text"] for p in golden.values() if p["text"]]
    lines = open(f"{a.data}/text_long.txt", encoding="utf-8").read().split("\n")
    while len(texts) < (8 if a.quick else CONTINUATIONS):
        first = 7919 * len(texts) % len(lines)
        piece = "\n".join(lines[first:first + 12])
        texts += [piece[:1000]] if piece.strip() else ["\n".join(lines[:1 + len(texts)])]
    return texts


def continuation(a, folder, words, *options):
    """Greedy tokens behind a text, as ids."""
    done = subprocess.run([a.binary, "run", folder, "--raw", "--file", "-", "-n", str(LENGTH), "--temperature", "0", "--json", "-q",
                           *options], input=words.encode(), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["ids"]


def greedy_agreement(a, name, folder):
    """How many continuations are equal, and where the others part, on average: the arithmetic alone, and as served."""
    out = os.path.join(a.work, f"{file_name(name)}.exact.greedy.json")
    if not os.path.exists(out):
        started, found = time.time(), []
        for words in prompts(a):
            exact = continuation(a, folder, words, "--exact")
            found.append([parting(exact, continuation(a, folder, words, *options, *a.kernels)) for options in (ARITHMETIC, [])])
        with open(out, "w", encoding="utf-8") as f:
            json.dump(found, f)
        print(f"# {time.time() - started:5.0f} s  {len(found)} continuations of {folder}", file=sys.stderr, flush=True)
    found = json.load(open(out))
    return [f"{sum(x is None for x in ways)} of {len(ways)}" + mean_parting([x for x in ways if x is not None]) for ways in zip(*found)]


def parting(x, y):
    """The first position where two lists differ; None: nowhere."""
    return None if x == y else next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))


def mean_parting(places):
    return f" (others part at token {sum(places) / len(places):.0f})" if places else ""


def answers(path):
    return [x["answer"] for x in json.load(open(path))["items"]]


def print_tasks_against_exact(a, folder):
    print("\n| task | items | exact | default | difference | answers that are the same text |\n|---|---|---|---|---|---|")
    for words, arguments, files, items, quick in TASKS:
        out = os.path.join(a.work, f"fast.{file_name(words)}.json")
        run([a.binary, "eval", folder, *(x.format(data=a.data) for x in arguments), "--against-exact", "--limit",
             str(quick if a.quick else items), "--out", out, "-q", *a.kernels] +
            [x for f in files for x in ("--data", f"{a.data}/{f}.jsonl")])
        fast, exact = (json.load(open(p))["summary"] for p in (out, out + ".against"))
        n, same = fast["items"], sum(x == y for x, y in zip(answers(out), answers(out + ".against")))
        cells = ["{:.1f} % ({:.1f} .. {:.1f})".format(*(100 * x for x in (s["accuracy"], *s["interval"]))) for s in (exact, fast)]
        print(f"| {words} | {n} | {cells[0]} | {cells[1]} | {100 * (fast['accuracy'] - exact['accuracy']):+.1f} | {same} of {n} |")
    out = os.path.join(a.work, "fast.ppl.json")
    run([a.binary, "eval", folder, "--task", "ppl", "--against-exact", "--data", f"{a.data}/text.txt", "--limit",
         str(1 if a.quick else PPL_WINDOWS), "--out", out, "-q", *a.kernels])
    fast, exact = (json.load(open(p))["summary"]["perplexity"] for p in (out, out + ".against"))
    print(f"| perplexity | {1 if a.quick else PPL_WINDOWS} windows | {exact:.5f} | {fast:.5f} | {fast - exact:+.5f} | |")


def print_fast(a, folders):
    print("| weights | mean KL (95 % interval) | 99th percentile | largest | top-1 agreement | equal continuations | mean KL, as served | "
          "top-1, as served | equal continuations, as served |\n|---|---|---|---|---|---|---|---|---|")
    for name, folder in folders.items():
        s = against_exact(a, name, folder, "arithmetic", ARITHMETIC + a.kernels)
        served = against_exact(a, name, folder, "served", a.kernels)
        alone, together = greedy_agreement(a, name, folder)
        print(f"| {name} | {s['mean_kl']:.2e} ({s['interval'][0]:.1e} .. {s['interval'][1]:.1e}) | {s['p99_kl']:.1e} | {s['max_kl']:.1e} | "
              f"{100 * s['top1_agreement']:.2f} % | {alone} | {served['mean_kl']:.2e} | {100 * served['top1_agreement']:.2f} % | "
              f"{together} |", flush=True)
    print_tasks_against_exact(a, folders[FAST_TASKS])


def weight_error(folder):
    """Relative L2 error over all quantized tensors, from the report of quantize."""
    report = json.load(open(folder + ".report.json"))
    worst = [c for c in report.get("classes", []) if c.get("relative_l2")]
    return ", ".join(f"{c['class']} {c['relative_l2']:.4f}" for c in worst if not c.get("draft")) or "exact"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("master")
    p.add_argument("work")
    p.add_argument("--binary", default="build/drawbridge")
    p.add_argument("--data", default="models/nano/eval", help="the evaluation sets")
    p.add_argument("--fixtures", default="tests/fixtures/golden_mxfp4", help="where the prompts of the references are")
    p.add_argument("--quick", action="store_true", help="few items: to try the script")
    p.add_argument("--fast", action="store_true", help="compare the default arithmetic with --exact")
    p.add_argument("--kernels", help="with --fast: force kernels; the figures do not depend on it")
    a = p.parse_args()
    a.kernels = ["--kernels", a.kernels] if a.kernels else []
    os.makedirs(a.work, exist_ok=True)
    if a.fast:
        print_fast(a, {n: quantize(a, n, arguments, None) for n, arguments, _ in VARIANTS if n in FAST})
        return
    importance = os.path.join(a.work, "importance.safetensors")
    if not os.path.exists(importance):
        run([a.binary, "eval", a.master, "--task", "ppl", "--data", f"{a.data}/text_long.txt", "--importance-out", importance, "-q"] +
            (["--limit", "1"] if a.quick else []))
    folders = {name: quantize(a, name, arguments, importance) for name, arguments, _ in VARIANTS}
    sizes = {n: (sum(os.path.getsize(os.path.join(f, x)) for x in os.listdir(f) if x.endswith(".safetensors")),
                 weight_error(f) if f != a.master else "exact") for n, f in folders.items()}
    print_divergence([(n, divergence(a, n, folders[n])) for n, arguments, _ in VARIANTS if arguments is not None], sizes)
    sys.stdout.flush()
    asked = [n for n, _, tasks in VARIANTS if tasks]
    results = [(n, {t[0]: accuracy(a, n, folders[n], t) for t in TASKS}) for n in asked]
    print_accuracy(results, [perplexity(a, n, folders[n]) for n in asked], a)


if __name__ == "__main__":
    main()
