"""What comes from the option tables: help, manual pages, docs/commands.md, completion; and the program's own behaviour."""
import os
import re
import subprocess

from harness import BINARY, SOURCE, Case, have, main, run

COMPLETE = r"""
source /dev/stdin
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_drawbridge
printf '%s\n' "${COMPREPLY[@]}"
"""


def commands():
    listed = run("help").stdout.decode().split("\nCommands:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in listed.splitlines()]


class Tables(Case):
    def complete(self, *words):
        script = run("completion", "bash").stdout
        done = subprocess.run(["bash", "-c", COMPLETE, "bash", "drawbridge", *words], input=script, capture_output=True, cwd=self.folder)
        self.assertEqual(done.stderr, b"", words)
        return sorted(done.stdout.decode().split())

    def test_every_option_is_in_help_and_manual(self):
        markdown = self.succeed("man", "--markdown")
        for command in commands():
            options = self.complete(command, "-")
            self.assertIn("--help", options)
            short, full, page = self.succeed(command, "-h"), self.succeed(command, "--help"), self.succeed("man", command)
            for option in options:
                found = re.compile(r"(?<![\w-])" + re.escape(option) + r"(?![\w-])")
                self.assertRegex(short, found, command)
                self.assertRegex(full, found, command)
                self.assertRegex(markdown, found, command)
                self.assertRegex(page, re.compile(r"Fl " + re.escape(option[1:]) + r"(?![\w-])"), command)
            self.assertEqual(full, self.succeed("help", command))
            for part in ("Usage: drawbridge " + command, "Examples:", "Exit codes:"):
                self.assertIn(part, full)
            self.assertLess(len(short), len(full))
            self.assertLessEqual(max(len(line) for line in full.splitlines() if "drawbridge " not in line), 80, command)

    def test_manual_pages_are_clean(self):
        if not have("mandoc"):
            self.skipTest("mandoc is not installed")
        for command in [None, *commands()]:
            page = run("man", *([command] if command else [])).stdout
            done = subprocess.run(["mandoc", "-Tlint"], input=page, capture_output=True)
            self.assertEqual(done.stdout.decode(), "", command)

    def test_documentation_is_fresh(self):
        stored = (SOURCE / "docs" / "commands.md").read_text()
        self.assertEqual(stored, self.succeed("man", "--markdown"), "run: build/drawbridge man --markdown > docs/commands.md")

    def test_bash_completion(self):
        self.assertEqual(subprocess.run(["bash", "-n"], input=run("completion", "bash").stdout, capture_output=True).stderr, b"")
        self.assertEqual(self.complete("rend"), ["render"])
        self.assertEqual(self.complete("completion", ""), ["bash", "fish", "zsh"])
        self.assertEqual(self.complete("help", "tok"), ["tokenize"])
        self.assertEqual(self.complete("logits", "--kv-dtype", "f"), ["f32", "fp8"])
        self.assertEqual(self.complete("logits", "--kv-dtype", "=", "f"), ["f32", "fp8"])
        self.assertEqual(self.complete("logits", "--kv-dtype", "="), ["auto", "bf16", "f32", "fp8"])
        self.assertEqual(self.complete("tokenize", "--no-s"), ["--no-special"])
        self.file("ids.txt")
        (self.folder / "model").mkdir()
        self.assertEqual(self.complete("logits", "--tokens", ""), ["ids.txt", "model"])
        self.assertEqual(self.complete("logits", ""), ["model"])
        self.assertEqual(self.complete("run", "-n", ""), [])

    def test_other_shells_read_their_scripts(self):
        for shell in ("zsh", "fish"):
            script = self.file(shell, run("completion", shell).stdout)
            if have(shell):
                done = subprocess.run([shell, "-n", script], capture_output=True)
                self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_fish_completion(self):
        if not have("fish"):
            self.skipTest("fish is not installed")
        script = self.file("drawbridge.fish", run("completion", "fish").stdout)

        def complete(line):
            done = subprocess.run(["fish", "-c", f"source {script}; complete -C'{line}'"], capture_output=True, text=True, cwd=self.folder)
            return [row.split("\t")[0] for row in done.stdout.splitlines()]
        self.assertIn("tokenize", complete("drawbridge "))
        self.assertEqual(sorted(complete("drawbridge logits --kv-dtype ")), ["auto", "bf16", "f32", "fp8"])
        self.assertIn("--no-special", complete("drawbridge tokenize --no"))


class Program(Case):
    def test_without_arguments(self):
        out = self.succeed()
        self.assertEqual(out.count("\n  drawbridge "), 4)

    def test_wrong_commands(self):
        self.refuse(2, 'drawbridge: unknown command "tokenise"; did you mean tokenize?', "tokenise")
        self.refuse(2, 'drawbridge: unknown command "frobnicate"', "frobnicate")
        self.refuse(2, "drawbridge: options come after a command, found --json", "--json")
        self.refuse(2, 'drawbridge help: unknown command "rnder"; did you mean render?', "help", "rnder")
        self.refuse(2, "drawbridge completion: bash|zsh|fish is missing", "completion")
        self.refuse(2, 'SHELL must be one of bash, zsh, fish, found "tcsh"', "completion", "tcsh")
        self.refuse(2, "--quiet and --verbose exclude each other", "version", "-q", "-v")

    def test_control_characters_do_not_reach_the_terminal(self):
        done = run("help", "\x1b[31mred\n")
        self.assertNotIn(b"\x1b", done.stderr)
        self.assertEqual(done.stderr.count(b"\n"), 2)

    def test_version(self):
        self.assertRegex(self.succeed("version"), r"^drawbridge \d+\.\d+\.\d+ ")
        self.assertEqual(self.succeed("version"), self.succeed("--version"))
        self.assertEqual(self.succeed("help"), self.succeed("--help"))

    def test_full_disk_is_an_error(self):
        for arguments in (["help"], ["completion", "zsh"], ["tokenize", "hi"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([BINARY, *arguments], stdout=full, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"drawbridge {arguments[0]}: cannot write standard output".encode(), done.stderr)

    def test_closed_streams(self):
        done = subprocess.run(["bash", "-c", f'"{BINARY}" help >&-'], capture_output=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot write standard output", done.stderr)
        done = subprocess.run(["bash", "-c", f'"{BINARY}" tokenize <&-'], capture_output=True)
        self.assertEqual(done.returncode, 3)
        self.assertIn(b"cannot read standard input", done.stderr)
        done = subprocess.run(["bash", "-c", f'"{BINARY}" tokenize hi 2>&- | "{BINARY}" tokenize -d'], capture_output=True)
        self.assertEqual((done.returncode, done.stdout), (0, b"hi"))

    def test_reader_that_leaves(self):
        lines = self.file("lines", b'"some words to encode"\n' * 20000)
        reader, writer = os.pipe()
        with open(lines, "rb") as source, subprocess.Popen([BINARY, "tokenize", "--jsonl"], stdin=source, stdout=writer,
                                                           stderr=subprocess.PIPE) as process:
            os.close(writer)
            os.read(reader, 100)
            os.close(reader)
            message = process.stderr.read()
            self.assertEqual((process.wait(60), message), (0, b""))


if __name__ == "__main__":
    main()
