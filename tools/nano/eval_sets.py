"""Nano's evaluation sets, from the held-out side of gen.py (standard library only):

    python3 tools/nano/eval_sets.py [OUT_DIRECTORY]           writes them; without a directory, into models/nano/eval
    python3 tools/nano/eval_sets.py --check [OUT_DIRECTORY]   writes nothing, fails when a file there differs

The problems are those of the model card: same task, seed and order as in evals.py. A user message is stored without the
opening phrases that training varied ("Solve: ...", "Answer with A, B, C or D."), because an evaluation adds its own.
models/nano/eval/README.md describes the formats and how a prompt is made of them.
"""
import json
import os
import random
import sys

import gen

NEEDLES = ((500, 96), (1000, 96), (2000, 96), (4000, 48))     # tokens, items: 4,000 has fewer to keep the files small
TEXTS = (("text.txt", False, 60000), ("text_long.txt", True, 160000))     # name, long documents, at least so many bytes


def held(task, i, seed, ntok=None):
    """the random numbers of item i of gen.eval_items"""
    return random.Random(f"held:{task}:{ntok}:{seed}:{i}")


def arith_item(r, is_held):
    d = gen.t_arith(r, is_held)
    return {"question": d["key"], "answer": d["msgs"][1]["nt"]}


def choice_item(r, is_held=True):
    d = gen.t_mc(r, is_held)
    question, *options = d["key"].rsplit("\n", 4)
    return {"question": question, "choices": [o[3:] for o in options], "answer": "ABCD".index(d["gold"])}


def needle_item(r, ntok):
    d = gen.t_retr(r, True, nchar=int(ntok * gen.CPT), nq=1)
    context, question = d["msgs"][0]["content"].rsplit("\n\nQuestion: ", 1)
    return {"context": context, "question": question, "answer": d["gold"], "tokens": ntok}


def tool_item(r):
    d = gen.t_tool(r, True)
    name, arguments = d["gold"]
    return {"messages": d["msgs"][:1], "tools": d["tools"], "call": {"name": name, "arguments": arguments}}


def lines(items):
    return "".join(json.dumps(i, ensure_ascii=False) + "\n" for i in items)


def text(is_long, least_bytes):
    """whole documents as a model's training rows hold them, control tokens spelled out"""
    out, size, j = [], 0, 0
    while size < least_bytes:
        for d in gen.docs(f"ppl{j}", 64, is_long, split="held"):
            if size < least_bytes:
                out.append(d)
                size += len(d.encode())
        j += 1
    return "".join(out)


def plain_text(documents):
    """documents without any control token, separated by blank lines"""
    r = random.Random("held:plain")
    kinds = (lambda: "".join(gen.plain_arith(r, True)[:2]), lambda: "".join(gen.plain_mc(r, True)[:2]),
             lambda: gen.plain_retr(r, gen.ri(r, 500, 3000)), lambda: gen.story(r), lambda: gen.plain_misc(r))
    return "\n\n".join(kinds[i % len(kinds)]() for i in range(documents)) + "\n"


def files():
    yield "arith.jsonl", lines(arith_item(held("arith", i, 2), True) for i in range(500))
    yield "arith_train.jsonl", lines(arith_item(random.Random(f"train:arith:{i}"), False) for i in range(64))
    yield "choice.jsonl", lines(choice_item(held("mc", i, 8)) for i in range(400))
    yield "choice_train.jsonl", lines(choice_item(random.Random(f"train:mc:{i}"), False) for i in range(64))
    for ntok, n in NEEDLES:
        yield f"needle_{ntok}.jsonl", lines(needle_item(held("retr", i, 5, ntok), ntok) for i in range(n))
    yield "tools.jsonl", lines(tool_item(held("tool", i, 7)) for i in range(300))
    for name, is_long, least in TEXTS:
        yield name, text(is_long, least)
    yield "plain.txt", plain_text(60)


def main():
    args = sys.argv[1:]
    check = args[:1] == ["--check"]
    here = os.path.dirname(os.path.abspath(__file__))
    out = (args[check:] or [os.path.join(here, "..", "..", "models", "nano", "eval")])[0]
    stale = []
    if not check:
        os.makedirs(out, exist_ok=True)
    for name, content in files():
        path = os.path.join(out, name)
        if not check:
            with open(path, "w", encoding="utf-8", newline="\n") as f:
                f.write(content)
            print(f"{name}: {len(content.encode())} bytes")
        elif not os.path.exists(path) or open(path, encoding="utf-8", newline="").read() != content:
            stale.append(name)
    if stale:
        sys.exit(f"not what tools/nano/eval_sets.py writes: {', '.join(stale)}; run it again and commit the result")


if __name__ == "__main__":
    main()
