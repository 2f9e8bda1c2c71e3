#!/bin/bash
# Runs one end-to-end test:  tests/e2e/run.sh DRAWBRIDGE NAME [ARGUMENT OF NODE...]
# NAME is openai, anthropic or page. What is missing is told, and the exit code is 77 (skipped).
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)

skip() {
    echo "skipped: $*"
    exit 77
}

[ $# -ge 2 ] || { echo "usage: $0 DRAWBRIDGE NAME" >&2; exit 2; }
DRAWBRIDGE=$(readlink -f "$1")
export DRAWBRIDGE
name=$2
shift 2
command -v node >/dev/null || skip "node is not installed; ./test installs it (Debian's package npm)"
major=$(node -p 'process.versions.node.split(".")[0]')
((major >= 18)) || skip "node $(node --version) is too old; the clients need 18 or newer"
[ -d "$here/node_modules/openai" ] || skip "the clients are not installed; ./test does it, or: cd tests/e2e && npm ci"
[ "$name" != page ] || command -v chromium >/dev/null || skip "chromium is not installed; ./test installs it"
cd "$here"
exec node --test "$@" "$name.test.mjs"
