#!/usr/bin/env python3
"""Compares the chat renderer with Jinja2 on generated conversations.

usage: chat_jinja.py DRIVER [--tokenizer FILE] [--count N] [--seed S] [--also FORMAT=FILE]...

Renders the templates of tests/fixtures/templates and of models/nano the way Hugging Face does (sandbox, trim_blocks,
lstrip_blocks, loop controls, its tojson filter) and compares every byte with the output of DRIVER (tests/chat_driver.c).
--also compares a further template text for a format, such as a model's own file. With --tokenizer the driver also checks
each prompt's tokens. What a template would print as nonsense or leave out is not generated here: tests/unit/test_chat.c
checks that it is refused. Deterministic for one seed.
"""
import argparse
import json
import math
import os
import random
import struct
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))
FORMATS = ("glm-5.2", "glm-5.3", "glm-5", "nano")
MEDIA = ("image", "image_url", "video", "video_url", "audio", "audio_url", "input_audio")
WORDS = ["Hi", "what is", "the weather", "in", "北京", "مرحبا", "😀", "e\u0301", "ﬀ", "\u200b", "\u00a0", "\u3000", "\u2028",
         "\x1c", "\x85", "\x00", "\x07", "\x7f", "\t", "\n", "\n\n", "\r\n", " ", "   ", "\"quoted\"", "\\n", "'", "<b>&amp;</b>",
         "{{ x }}", "{% if %}", "a\u0000b", "\U0001F468\u200d\U0001F469", "0", "null", "True", "/", "<", ">", "<|", "think", "\ufeff",
         "\uffff"]
CONTROL = ["<think>", "</think>", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>", "[gMASK]", "<sop>", "<tool_call>",
           "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_response>", "/nothink",
           "<|endoftext|>"]


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


class Generator:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def text(self, most=6):
        pool = WORDS + CONTROL if self.r.random() < 0.3 else WORDS
        return "".join(self.r.choice(pool) for _ in range(self.r.randint(0, most)))

    def float(self):
        kind = self.r.randrange(6)
        if kind == 0:
            return self.r.choice([0.0, -0.0, 1.0, -1.0, 1e-07, 1e16, 1e15, 123456789012345680.0, 5e-324, 1.7976931348623157e308,
                                  0.1, 1e-4, 1e-5, 9007199254740993.0, 2.0 ** -44, 1e22, 1e23, 9.5, 100.0])
        if kind == 1:
            return math.ldexp(1.0, self.r.randint(-1074, 1023)) * self.r.choice([1, -1])
        if kind == 2:
            return round(self.r.uniform(-1000, 1000), self.r.randint(0, 6))
        if kind == 3:
            return float(self.r.randint(-10 ** 18, 10 ** 18))
        while True:
            x = struct.unpack("<d", struct.pack("<Q", self.r.getrandbits(64)))[0]
            if math.isfinite(x):
                return x

    def int(self):
        return self.r.choice([0, 1, -1, 42, 2 ** 53 + 1, 2 ** 63 - 1, -2 ** 63, self.r.randint(-10 ** 6, 10 ** 6)])

    def value(self, depth=0):
        kind = self.r.randrange(8 if depth < 3 else 6)
        if kind == 0:
            return self.r.choice([None, True, False])
        if kind == 1:
            return self.int()
        if kind in (2, 3):
            return self.float()
        if kind in (4, 5):
            return self.text()
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.r.randint(0, 3))]
        return self.object(depth + 1)

    def key(self):
        return self.r.choice(["city", "q", "items", "名前", "a b", "", "x\"y", "type", "keys", "get", "n\n",
                              self.text(2).replace("\0", "")])

    def object(self, depth=0):
        return {self.key(): self.value(depth) for _ in range(self.r.randint(0, 4))}

    def tool(self):
        f = {"name": self.r.choice(["get_weather", "add", "调用", "f<g"]), "description": self.text()}
        if self.r.random() < 0.8:
            f["parameters"] = {"type": "object", "properties": self.object(), "required": [self.key()]}
        if self.r.random() < 0.3:
            f["strict"] = self.r.choice([True, False])
        if self.r.random() < 0.2:
            f["defer_loading"] = self.r.choice([True, False, 0, 1, None, "", "x"])
        if self.r.random() < 0.2:
            f["extra\"key"] = self.value()
        items = list(f.items())
        self.r.shuffle(items)
        f = dict(items)
        return f if self.r.random() < 0.15 else {"type": "function", "function": f}

    def content(self):
        if self.r.random() < 0.75:
            return self.text()
        parts = []
        for _ in range(self.r.randint(0, 3)):
            kind = self.r.random()
            if kind < 0.6:
                parts.append({"type": "text", "text": self.text()})
            elif kind < 0.8:
                parts.append(self.text())
            else:
                parts.append({"type": self.r.choice(MEDIA), "image_url": {"url": self.text()}})
        return parts

    def call(self):
        f = {"name": self.r.choice(["get_weather", "add", "调用"]), "arguments": self.object()}
        return f if self.r.random() < 0.15 else {"id": "call_1", "type": "function", "function": f}

    def assistant(self):
        m = {"role": "assistant"}
        kind = self.r.random()
        if kind < 0.2:
            m["content"] = "".join([self.r.choice(["", "<think>", "\n", "x<think>"]), self.text(),
                                    self.r.choice(["", "\n", "\n\n"]), "</think>", self.r.choice(["", "\n", " </think>"]),
                                    self.text()])
        elif kind < 0.9:
            m["content"] = self.content()
        elif kind < 0.95:
            m["content"] = None
        if self.r.random() < 0.5:
            m["reasoning_content"] = self.r.choice([self.text(), self.text(), "", " ", "\n", " \n thought \n ", None])
        if self.r.random() < 0.4 or "content" not in m or m["content"] is None:
            m["tool_calls"] = [self.call() for _ in range(self.r.randint(1, 3))]
        elif self.r.random() < 0.2:
            m["tool_calls"] = self.r.choice([None, []])
        return m

    def tool_message(self, tools):
        kind = self.r.random()
        content = self.text()
        names = [t.get("function", t)["name"] for t in tools or []]
        if kind < 0.1:
            content = [{"output": self.text()} for _ in range(self.r.randint(1, 3))]
        elif kind < 0.2:
            content = [{"type": "text", "text": self.text()} for _ in range(self.r.randint(1, 3))]
        elif kind < 0.3:
            content = [self.text() for _ in range(self.r.randint(1, 3))]
        elif kind < 0.4 and names:
            content = [{"type": "tool_reference", "name": self.r.choice(names)} for _ in range(self.r.randint(1, 3))]
        return {"role": "tool", "tool_call_id": "call_1", "content": content}

    def conversation(self):
        tools = [self.tool() for _ in range(self.r.randint(1, 3))] if self.r.random() < 0.4 else self.r.choice([None, []])
        messages = []
        for _ in range(self.r.randint(1, 7)):
            role = self.r.choice(["system", "user", "user", "assistant", "assistant", "tool"])
            if role == "assistant":
                messages.append(self.assistant())
            elif role == "tool":
                messages.extend(self.tool_message(tools) for _ in range(self.r.randint(1, 2)))
            else:
                messages.append({"role": role, "content": self.content()})
        options = {"add_generation_prompt": self.r.random() < 0.7}
        for name, values in (("enable_thinking", [True, False]), ("clear_thinking", [True, False]),
                             ("reasoning_effort", ["high", "low", "max", "medium", ""])):
            if self.r.random() < 0.5:
                options[name] = self.r.choice(values)
        return {"messages": messages, "tools": tools, **options}


def joined(content):
    return "".join(p if isinstance(p, str) else p["text"] for p in content)


def fit(request, name):
    """The conversation without what this format refuses (the refusals have their own tests)."""
    request = json.loads(json.dumps(request))
    media = name in ("glm-5.2", "glm-5.3")
    for m in request["messages"]:
        content = m.get("content")
        if isinstance(content, list):
            if not media:
                content = [p for p in content if isinstance(p, str) or p.get("type") not in MEDIA + ("tool_reference",)]
            if name == "nano":
                content = [p for p in content if isinstance(p, str) or "output" not in p]
            m["content"] = content
            if m["role"] == "tool" and not content:
                m["content"] = ""
    if name == "glm-5.3" and request.get("enable_thinking") is False:
        del request["enable_thinking"]
    if name == "nano" and request.get("clear_thinking") is False:
        del request["clear_thinking"]
    return request


def for_jinja(request, name):
    """What the renderer does on purpose before the template's own rules: null content of an assistant is no content, and
    text parts where the template would print a Python object are joined (docs/chat.md). Changes the request."""
    for m in request["messages"]:
        content = m.get("content")
        if m["role"] == "assistant" and content is None:
            m.pop("content", None)
        text_parts = isinstance(content, list) and all(isinstance(p, str) or p.get("type") == "text" for p in content)
        if name == "nano" and text_parts:
            m["content"] = joined(content)
        if name == "glm-5" and m["role"] == "tool" and text_parts and not isinstance(content[0], str):
            m["content"] = joined(content)
    return request


def for_driver(request, name, r):
    """The same request, some arguments given as JSON text."""
    messages = []
    for m in request["messages"]:
        calls = []
        for c in m.get("tool_calls") or []:
            f = c.get("function", c)
            if r.random() < 0.5:
                given = json.dumps(f["arguments"], ensure_ascii=r.random() < 0.5, indent=r.choice([None, 1]))
                f = {**f, "arguments": "" if given == "{}" and r.random() < 0.5 else given}
            calls.append({**c, "function": f} if "function" in c else f)
        messages.append({**m, "tool_calls": calls} if calls else m)
    return {"format": name, **request, "messages": messages}


def drive(command, requests):
    lines = "".join(json.dumps(q) + "\n" for q in requests)
    out = subprocess.run(command, input=lines.encode(), stdout=subprocess.PIPE, check=True).stdout
    answers = [json.loads(line) for line in out.split(b"\n") if line]
    if len(answers) != len(requests):
        sys.exit("the driver answered %d of %d requests" % (len(answers), len(requests)))
    return answers


def compare_floats(command, count, seed):
    g = Generator(seed)
    values = [math.ldexp(1.0, e) for e in range(-1074, 1024)] + [g.float() for _ in range(count)]
    for x, found in zip(values, drive(command, [{"float": x} for x in values])):
        if found != repr(x):
            sys.exit("float %r was printed as %s" % (x, found))
    return len(values)


def compare_template(command, name, path, count, seed):
    """Ends with an error at the first difference; otherwise the line to print."""
    with open(path, encoding="utf-8", newline="") as f:  # newline="": the bytes that are hashed
        template = environment().from_string(f.read())
    g, r = Generator(seed), random.Random(seed)
    conversations = [fit(g.conversation(), name) for _ in range(count)]
    answers = drive(command, [for_driver(c, name, r) for c in conversations])
    for conversation, found in zip(conversations, answers):
        expected = template.render(**for_jinja(conversation, name))
        if expected != found:
            raise ValueError("%s differs\nrequest:  %s\nexpected: %r\nfound:    %r" %
                             (name, json.dumps(conversation), expected, found))
    return "%d conversations equal with %s: %s" % (len(conversations), name, os.path.basename(path))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--tokenizer")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--also", action="append", default=[])
    a = parser.parse_args()
    command = [a.driver] + ([a.tokenizer] if a.tokenizer else [])
    print("%d floats equal repr()" % compare_floats(command, 20000, a.seed))
    cases = [(n, os.path.join(HERE, "fixtures", "templates", n + ".jinja")) for n in FORMATS if n != "nano"]
    cases.append(("nano", os.path.join(HERE, "..", "models", "nano", "chat_template.jinja")))
    cases += [tuple(s.split("=", 1)) for s in a.also]
    with ProcessPoolExecutor(max_workers=min(len(cases), os.cpu_count() or 1)) as pool:
        runs = [pool.submit(compare_template, command, name, path, a.count, a.seed) for name, path in cases]
        for run in runs:
            try:
                print(run.result())
            except ValueError as e:
                sys.exit(str(e))


if __name__ == "__main__":
    main()
