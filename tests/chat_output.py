#!/usr/bin/env python3
"""Compares the streaming parser of chat output with a regular-expression reading of the whole output.

usage: chat_output.py DRIVER [--count N] [--seed S]

Random token streams over the tokenizer of tests/tiny_tokenizer.h, most of them nearly well-formed, go through the parser
(tests/chat_driver.c) twice, with events taken after every token and in larger groups. Both must give the same concatenated
events, and those that the reference below finds. Deterministic for one seed.
"""
import argparse
import json
import math
import random
import re
import subprocess
import sys

LONG = [b" a ", b"\n\nB\n", b"x\n", b" \n", b"\xe5\x8c", b"\x97z", b"\xf0\x9f\x98", b'"a": 1', b"tr", b"ue", b"12"]
NAMES = ["[gMASK]", "<sop>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<think>", "</think>",
         "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_response>",
         "</tool_response>"]
CONTROL = 256 + len(LONG)
ID = {n: CONTROL + i for i, n in enumerate(NAMES)}
SPECIAL = CONTROL + len(NAMES)
ADDED = SPECIAL + 1
MARK = {n: chr(0xF0000 + i) for i, n in enumerate(NAMES)}  # stands for a control token in the reference's text
MARKS = "".join(MARK.values())
SPACE = " \t\r\n"
END_OF_TURN = ("<|endoftext|>", "<|user|>", "<|observation|>")
FRAME = ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>")

TYPES = {"text": {"type": "string"}, "count": {"type": "integer"}, "ratio": {"type": "number"}, "flag": {"type": "boolean"},
         "list": {"type": "array"}, "map": {"type": "object"}, "either": {"type": ["string", "null"]},
         "choice": {"enum": ["a", "b"]}, "union": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
         "named": {"$ref": "#/$defs/word"}, "open": {}, "maybe": {"oneOf": [{"type": "number"}, {"type": "null"}]}}
ALLOWED = {"text": {"string"}, "count": {"integer"}, "ratio": {"integer", "number"}, "flag": {"boolean"}, "list": {"array"},
           "map": {"object"}, "either": {"string", "null"}, "choice": {"string"}, "union": {"integer", "boolean"},
           "named": {"string"}, "maybe": {"integer", "number", "null"}}
ANY = {"string", "integer", "number", "boolean", "null", "object", "array"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": TYPES,
                                                                      "$defs": {"word": {"type": "string"}}}}},
         {"name": "g"}]


# ---- the reference ----

def strict(text):
    """json.loads with the rules of base/json.h. Raises ValueError."""
    def pairs(items):
        if len({k for k, _ in items}) != len(items) or any("\0" in k for k, _ in items):
            raise ValueError
        return dict(items)

    def integer(s):
        if not -2 ** 63 <= int(s) < 2 ** 63:
            raise ValueError
        return int(s)

    def real(s):
        if math.isinf(float(s)):
            raise ValueError
        return float(s)

    def refuse(_):
        raise ValueError
    value = json.loads(text, object_pairs_hook=pairs, parse_int=integer, parse_float=real, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()  # no lone surrogates
    return value


def types_of(value):
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, float):
        return {"number", "integer"} if abs(value) <= 9e15 and value.is_integer() else {"number"}
    return {{type(None): "null", int: "integer", str: "string", list: "array", dict: "object"}[type(value)]}


def quoted(text):
    return json.dumps(text, ensure_ascii=False)


def value_json(raw, allowed):
    if allowed == {"string"}:
        return quoted(raw)
    s = raw.strip(SPACE)
    words = {"True": ("boolean", "true"), "False": ("boolean", "false"), "None": ("null", "null")}
    if "string" not in allowed and s in words and words[s][0] in allowed:
        return words[s][1]
    try:
        value = strict(s)
    except ValueError:
        return quoted(raw)
    if types_of(value) & allowed:
        return s
    if isinstance(value, str):
        inner = value.strip(SPACE)
        try:
            return inner if types_of(strict(inner)) & allowed else s
        except ValueError:
            return s
    return quoted(raw) if "string" in allowed else s


def any_of(*names):
    return "[" + "".join(MARK[n] for n in names) + "]"


def none_of(*names):
    return "[^" + "".join(MARK[n] for n in names) + "]"


CALL = re.compile(
    MARK["<tool_call>"] + "(?P<name>" + none_of("<tool_call>", "</tool_call>", "<arg_key>") + "*)"
    "(?P<items>(?:" + MARK["<arg_key>"] + "(?:" +
    none_of("<arg_key>", "</arg_key>", "<arg_value>", "<tool_call>", "</tool_call>") + "*"
    "(?:" + MARK["</arg_key>"] + none_of("<arg_key>", "<arg_value>", "<tool_call>", "</tool_call>") + "*)?"
    "(?:" + MARK["<arg_value>"] + none_of("</arg_value>", "</tool_call>") + "*"
    "(?:" + MARK["</arg_value>"] + none_of("<arg_key>", "<tool_call>", "</tool_call>") + "*)?)?))*)"
    "(?P<end>" + MARK["</tool_call>"] + "?)", re.S)
ITEM = re.compile(
    MARK["<arg_key>"] + "(?P<key>" + none_of("<arg_key>", "</arg_key>", "<arg_value>", "<tool_call>", "</tool_call>") + "*)"
    "(?:" + MARK["</arg_key>"] + none_of("<arg_key>", "<arg_value>", "<tool_call>", "</tool_call>") + "*)?"
    "(?P<has>" + MARK["<arg_value>"] + "(?P<value>" + none_of("</arg_value>", "</tool_call>") + "*)"
    "(?P<closed>" + MARK["</arg_value>"] + "?)" + none_of("<arg_key>", "<tool_call>", "</tool_call>") + "*)?", re.S)


def literal(text):
    return "".join(NAMES[ord(c) - 0xF0000] if c in MARKS else c for c in text)


def without_marks(text):
    return "".join(c for c in text if c not in MARKS)


def read_call(m, observed):
    """None, or (name, arguments, complete). observed: <|observation|> follows where the match ends the text."""
    name = without_marks(m["name"]).strip(SPACE)
    items = list(ITEM.finditer(m["items"]))
    last_is_whole = not items or bool(items[-1]["closed"])
    followed = m.end() < len(m.string)  # by another call
    complete = bool(m["end"]) or (last_is_whole and (followed or observed))
    if not name or not (items or complete or followed):
        return None
    arguments, seen = "", set()
    for item in items:
        if item["has"] is None:
            continue
        key = without_marks(item["key"]).strip(SPACE).replace("\0", "\ufffd")
        if key in seen:
            continue
        arguments += (", " if seen else "{") + quoted(key) + ": "
        seen.add(key)
        allowed = ALLOWED.get(key, ANY) if name == "f" else ANY
        raw = literal(item["value"])
        if item["closed"] or m["end"]:
            arguments += value_json(raw, allowed)
        elif allowed == {"string"}:
            arguments += quoted(raw)[:-1]
    if complete:
        arguments += "}" if seen else "{}"
    return name, arguments, complete


def marked_text(tokens):
    """The text with marks for control tokens, and the name of the token that ended the turn (None: cut)."""
    out, run = "", b""
    for t in tokens:
        if t == SPECIAL:
            continue
        if CONTROL <= t < SPECIAL:
            out, run = out + run.decode("utf-8", "replace"), b""
            if NAMES[t - CONTROL] in END_OF_TURN:
                return out, NAMES[t - CONTROL]
            if NAMES[t - CONTROL] not in FRAME:
                out += MARK[NAMES[t - CONTROL]]
        else:
            run += bytes([t]) if t < 256 else LONG[t - 256] if t < CONTROL else b"<|begin_of_box|>"
    return out + run.decode("utf-8", "replace"), None


def reference(tokens, in_thinking):
    text, ended = marked_text(tokens)
    reasoning, runs, calls = "", [""], []
    boundary = re.compile(any_of("<think>", "</think>", "<tool_call>"))
    thinking, at = in_thinking, 0
    while at < len(text):
        m = boundary.search(text, at)
        piece = literal(text[at:m.start() if m else len(text)])
        if thinking:
            reasoning += piece
        else:
            runs[-1] += piece
        if not m:
            break
        at = m.end()
        runs.append("")
        if m[0] != MARK["<tool_call>"]:
            thinking = m[0] == MARK["<think>"]
            continue
        call = CALL.match(text, m.start())
        calls.append(read_call(call, ended == "<|observation|>"))
        thinking, at = False, call.end()
        last_in_call = not call["end"] and at == len(text)
        if last_in_call:
            runs.append("")
    visible = [r for r in runs if r.strip(SPACE)]
    content = "".join(visible).lstrip(SPACE)
    if ended or not runs[-1].strip(SPACE):
        content = content.rstrip(SPACE)
    calls = [c for c in calls if c]
    finish = "cut" if not ended else "calls" if any(c[2] for c in calls) else "stop"
    return {"reasoning": reasoning, "content": content, "calls": [list(c) for c in calls], "finish": finish}


# ---- streams ----

class Streams:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def bytes(self, data):
        return list(data)

    def text(self, most=5):
        out = []
        for _ in range(self.r.randint(0, most)):
            kind = self.r.random()
            if kind < 0.35:
                out.append(self.r.randrange(256, CONTROL))
            elif kind < 0.45:
                out.append(self.r.randrange(256))
            elif kind < 0.5:
                out.append(self.r.choice([SPECIAL, ADDED]))
            else:
                out += self.bytes(self.r.choice(["hello", " ", "\n", "\n\n", "\t", "é", "北京", "😀", "\"", "\\", "\0", "\x1f", "a b",
                                                 "<think>", "</tool_call>", "\u00a0"]).encode())
        return out

    def value(self):
        if self.r.random() < 0.3:
            return self.text()
        return self.bytes(self.r.choice([
            "1", "-7", "1.5", "2.0", "1e3", "1e400", "99999999999999999999", "true", "false", "null", "True", "False", "None", "NaN",
            "[1, 2]", "[]", "{}", "{\"a\": 1}", "{\"a\": 1, \"a\": 2}", "{\"a\\u0000\": 1}", "\"quoted\"", "\"5\"", "\"true\"", "\" 7 \"",
            "\"\\ud800\"", " 3 ", "\n4\n", "01", "-", "[1,", "plain text", "北京", "  padded  ", "a", "b", "", " ", "{'a': 1}", "1 2",
            "\"\"", "-0", "-0.0", "\ufeff1"]).encode())

    def call(self):
        out = [ID["<tool_call>"]] + self.bytes(self.r.choice(["f", "f", "f", "g", "unknown", "f\n", " f ", "", "na me"]).encode())
        gap = self.r.choice([[], [], [10]])
        out += gap
        for _ in range(self.r.choice([0, 1, 1, 2, 3])):
            key = self.r.choice(list(TYPES) + ["other", " text ", "", "k\0", "日"])
            out += [ID["<arg_key>"]] + self.bytes(key.encode()) + [ID["</arg_key>"]] + gap
            out += [ID["<arg_value>"]] + self.value() + [ID["</arg_value>"]] + gap
        return out + [ID["</tool_call>"]]

    def stream(self):
        out = self.text()
        if self.r.random() < 0.8:
            out += [ID["</think>"]] + self.r.choice([[], [10]]) + self.text()
        for _ in range(self.r.choice([0, 0, 1, 1, 2, 3])):
            out += self.call() + self.r.choice([[], [10], self.text(2)])
        if self.r.random() < 0.8:
            out.append(ID[self.r.choice(END_OF_TURN)])
        if self.r.random() < 0.5:
            for _ in range(self.r.randint(1, 3)):
                self.damage(out)
        if self.r.random() < 0.05:
            out = [self.r.choice(list(ID.values()) + [97, 10]) for _ in range(self.r.randint(0, 30))]
        return out

    def damage(self, out):
        at = self.r.randint(0, len(out))
        kind = self.r.randrange(4)
        if kind == 0:
            del out[at:at + 1]
        elif kind == 1:
            out.insert(at, ID[self.r.choice(NAMES)])
        elif kind == 2:
            controls = [i for i, t in enumerate(out) if t >= CONTROL]
            if controls:
                del out[self.r.choice(controls)]
        else:
            del out[at:]


# ---- comparison ----

def collect(events):
    found = {"reasoning": "", "content": "", "calls": [], "finish": None}
    for e in events:
        if e["text"] is None:
            return "an event is not valid UTF-8"
        if found["finish"]:
            return "an event after the last one"
        if e["kind"] in ("reasoning", "content"):
            found[e["kind"]] += e["text"]
        elif e["kind"] == "begin":
            found["calls"].append([e["text"], "", None])
        elif e["kind"] == "finish":
            found["finish"] = e["finish"]
        elif not found["calls"] or e["call"] != len(found["calls"]) - 1 or found["calls"][-1][2] is not None:
            return "an event of a call that is not open"
        elif e["kind"] == "arguments":
            found["calls"][-1][1] += e["text"]
        else:
            found["calls"][-1][2] = e["complete"]
    for _, arguments, complete in found["calls"]:
        try:
            whole = not complete or isinstance(strict(arguments), dict)
        except ValueError:
            whole = False
        if not whole:
            return "the arguments of a complete call are not a JSON object: " + arguments
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    s = Streams(a.seed)
    cases = [(s.stream(), s.r.random() < 0.7, s.r.choice([0, 2, 3, 7])) for _ in range(a.count)]
    lines = ""
    for tokens, in_thinking, every in cases:
        for step in (1, every):
            lines += json.dumps({"output": tokens, "tools": TOOLS, "in_thinking": in_thinking, "every": step}) + "\n"
    answers = subprocess.run([a.driver], input=lines.encode(), stdout=subprocess.PIPE, check=True).stdout.splitlines()
    if len(answers) != 2 * len(cases):
        sys.exit("the driver answered %d of %d requests" % (len(answers), 2 * len(cases)))
    complete = 0
    for i, (tokens, in_thinking, every) in enumerate(cases):
        expected = reference(tokens, in_thinking)
        for answer in answers[2 * i:2 * i + 2]:
            found = collect(json.loads(answer))
            if found != expected:
                sys.exit("stream %d differs (in_thinking %s)\ntokens:   %s\ntext:     %s\nexpected: %s\nfound:    %s" %
                         (i, in_thinking, tokens, literal(marked_text(tokens)[0]), expected, found))
        complete += sum(c[2] for c in expected["calls"])
    print("%d streams equal, %d complete calls" % (len(cases), complete))


if __name__ == "__main__":
    main()
