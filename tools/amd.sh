#!/bin/bash
# Compiles the GPU kernels for AMD with clang alone: no ROCm, no GPU (docs/amd.md). Prints registers, shared memory and spills of every
# kernel; fails when one does not compile, or spills more than a budget of vector registers.
#   tools/amd.sh [--check] [ARCHITECTURE...]     gfx950 and gfx942 by default; --check: fail on spills, too
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
check=0 architectures=()
for argument in "$@"; do
    case $argument in
    --check) check=1 ;;
    gfx*) architectures+=("$argument") ;;
    *)
        sed -n '2,4s/^# \?//p' "$0"
        exit 2
        ;;
    esac
done
((${#architectures[@]})) || architectures=(gfx950 gfx942)
clang=$(command -v clang++-22) || {
    echo "clang++-22 is not installed; on Debian 12: apt-get install clang-22 lld-22 llvm-22" >&2
    exit 77
}
out=${AMD_OUT:-$root/build/amd}
mkdir -p "$out"
failed=0
printf '%-8s %-44s %5s %5s %7s %7s\n' target kernel vgpr sgpr lds spills
for architecture in "${architectures[@]}"; do
    for source in "$root"/src/device/gpu/*.cu; do
        name=$(basename "$source" .cu)
        assembly=$out/$name.$architecture.s
        if ! "$clang" -x hip --cuda-device-only --offload-arch="$architecture" -nogpulib -nogpuinc --no-gpu-bundle-output -std=c++17 -O3 \
            -ffp-contract=off -DGPU_DEVICE_ONLY -I"$root/src" -S -o "$assembly" "$source" 2>"$out/$name.$architecture.log"; then
            echo "$architecture $name: does not compile"
            grep -m5 'error' "$out/$name.$architecture.log"
            failed=1
            continue
        fi
        python3 - "$architecture" "$assembly" "$check" <<'PYTHON' || failed=1
import re, subprocess, sys
architecture, path, check = sys.argv[1], sys.argv[2], sys.argv[3] == "1"
text = open(path).read()
bad = 0
for block in re.split(r"\n  - \.agpr_count", text)[1:]:
    get = lambda key: int(re.search(r"\." + key + r":\s+(\d+)", block)[1])
    symbol = re.search(r"\.name:\s+(\S+)", block)[1]
    name = subprocess.run(["c++filt", "-p", symbol], capture_output=True, text=True).stdout.strip() or symbol
    spills = get("vgpr_spill_count")
    print(f"{architecture:8} {name[:44]:44} {get('vgpr_count'):5} {get('sgpr_count'):5} {get('group_segment_fixed_size'):7} {spills:7}")
    bad += spills > 0
sys.exit(1 if check and bad else 0)
PYTHON
    done
done
exit "$failed"
