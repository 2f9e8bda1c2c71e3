"""Line coverage of src/ after a run of the tests in a --coverage build:  python3 tools/coverage.py BUILD_DIRECTORY

Reads gcov's JSON (gcov comes with gcc) for every object, run or not, merges the counts and prints one line per file, least
covered first.
"""
import collections
import json
import os
import subprocess
import sys


def counts(build, source_root):
    """{file below src/: {line: largest count}}"""
    lines = collections.defaultdict(dict)
    notes = [os.path.join(d, f) for d, _, files in os.walk(build) for f in files if f.endswith(".gcno")]
    for path in notes:
        command = ["gcov", "--json-format", "--stdout", path]
        out = subprocess.run(command, cwd=os.path.dirname(path), check=True, capture_output=True).stdout
        for document in out.splitlines():
            parsed = json.loads(document)
            for f in parsed["files"]:
                name = os.path.relpath(os.path.join(parsed["current_working_directory"], f["file"]), source_root)
                if name.startswith("src" + os.sep):
                    for line in f["lines"]:
                        n = line["line_number"]
                        lines[name][n] = max(lines[name].get(n, 0), line["count"])
    return lines


def main():
    build = os.path.abspath(sys.argv[1])
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    lines = counts(build, root)
    if not lines:
        sys.exit(f"no coverage data below {build}: configure with the coverage preset and run the tests first")
    rows = sorted((sum(c > 0 for c in v.values()) / len(v), len(v), name) for name, v in lines.items())
    for share, total, name in rows:
        print(f"{100 * share:6.1f} %  {total:5d} lines  {name}")
    hit = sum(c > 0 for v in lines.values() for c in v.values())
    total = sum(len(v) for v in lines.values())
    print(f"{100 * hit / total:6.1f} %  {total:5d} lines  in total")


if __name__ == "__main__":
    main()
