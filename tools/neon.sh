#!/bin/bash
# The tests of the NEON kernels on another machine, cross-compiled and under qemu's user-mode emulation:  tools/neon.sh [CTEST_OPTION...]
# They show that results are right, not how fast they come.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)

if ! command -v aarch64-linux-gnu-gcc >/dev/null; then
    echo "tools/neon.sh: there is no cross compiler aarch64-linux-gnu-gcc; on Debian: apt-get install gcc-aarch64-linux-gnu" >&2
    exit 1
fi
if ! command -v qemu-aarch64-static >/dev/null; then
    echo "tools/neon.sh: there is no qemu-aarch64-static to run the tests with; on Debian: apt-get install qemu-user-static" >&2
    exit 1
fi
exec "$root/tools/aarch64.sh" --only test_formats test_matmul "$@"
