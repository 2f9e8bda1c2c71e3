#!/bin/bash
# Wraps the lines of C files that tests/layers.py finds too long, and only those, with clang-format:  tools/wrap.sh
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
# shellcheck source=tools/common.sh
. "$root/tools/common.sh"
need clang-format have clang-format
install_missing
cd "$root"

# .clang-format keeps line breaks as they are; here the same style with a limit.
style="{$(sed '/^#/d; s/ColumnLimit: 0/ColumnLimit: 130/' .clang-format | paste -sd, -)}"
long_lines() { /usr/bin/python3 tests/layers.py | sed -n 's/^\([^:]*\.[ch]\):\([0-9]*\): has [0-9]* columns.*/\1 \2/p'; }

for file in $(long_lines | cut -d' ' -f1 | sort -u); do
    mapfile -t ranges < <(long_lines | awk -v f="$file" '$1 == f { print "--lines=" $2 ":" $2 }')
    clang-format -i --style="$style" "${ranges[@]}" "$file"
    echo "wrapped $file"
done
/usr/bin/python3 tests/layers.py
