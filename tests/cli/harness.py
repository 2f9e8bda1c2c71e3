"""What the command-line tests share: running the binary, a directory for their files, and a reader of safetensors.

Each test program is called as  test_X.py DRAWBRIDGE SOURCE_DIR [--sanitized] [arguments of unittest]
"""
import array
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

if len(sys.argv) < 3:
    sys.exit(f"usage: {sys.argv[0]} DRAWBRIDGE SOURCE_DIR [--sanitized]")
BINARY = os.path.abspath(sys.argv[1])
SOURCE = pathlib.Path(sys.argv[2]).resolve()
SANITIZED = "--sanitized" in sys.argv
NANO = SOURCE / "models" / "nano"


def run(*arguments, stdin=b"", **options):
    """The finished process; stdin is bytes or text, output is bytes."""
    if isinstance(stdin, str):
        stdin = stdin.encode()
    options.setdefault("timeout", 300)
    return subprocess.run([BINARY, *map(str, arguments)], input=stdin, capture_output=True, **options)


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}"""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[8 + size + v["data_offsets"][0]:8 + size + v["data_offsets"][1]]) for k, v in header.items()}


def floats(data):
    a = array.array("f")
    a.frombytes(data)
    return a


def integers(data):
    a = array.array("i")
    a.frombytes(data)
    return a


def have(tool):
    return shutil.which(tool) is not None


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="drawbridge-cli-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, name, content=b""):
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def succeed(self, *arguments, **options):
        """Standard output of a run that must succeed, as text."""
        done = run(*arguments, **options)
        self.assertEqual(done.returncode, 0, (arguments, done.stderr.decode(errors="replace")))
        return done.stdout.decode()

    def refuse(self, code, sentence, *arguments, **options):
        """A run that must end with a code and one sentence (plus a pointer to help for usage errors)."""
        done = run(*arguments, **options)
        message = done.stderr.decode(errors="replace")
        self.assertEqual(done.returncode, code, (arguments, message))
        self.assertIn(sentence, message, arguments)
        lines = [line for line in message.splitlines() if not line.startswith("note: ")]
        self.assertEqual(len(lines), 2 if code == 2 else 1, (arguments, message))
        self.assertTrue(lines[0].startswith("drawbridge"), message)
        self.assertEqual(code == 2, lines[-1].startswith("see drawbridge "), message)


def main():
    unittest.main(argv=sys.argv[:1] + [a for a in sys.argv[3:] if a != "--sanitized"])
