#!/bin/bash
# Runs fuzz targets:  tools/fuzz.sh TARGET|all SECONDS
# TARGET is the SUBJECT of tests/fuzz/fuzz_SUBJECT.c; SECONDS are per target. Starts from the committed corpus; new inputs are kept
# in build/fuzz-corpus/SUBJECT, inputs that fail in build/fuzz-failures/SUBJECT-*. Copy an input worth keeping into
# tests/fuzz/corpus/SUBJECT, where every build replays it.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
# shellcheck source=tools/common.sh
. "$root/tools/common.sh"

[[ $# -eq 2 && $2 =~ ^[1-9][0-9]*$ ]] || die "usage: tools/fuzz.sh TARGET|all SECONDS"
seconds=$2

subjects=()
for source in "$root"/tests/fuzz/fuzz_*.c; do
    [ -f "$source" ] || die "there is no fuzz target in tests/fuzz yet"
    subject=$(basename "$source" .c)
    subjects+=("${subject#fuzz_}")
done
if [ "$1" != all ]; then
    [[ " ${subjects[*]} " == *" $1 "* ]] || die "no fuzz target $1; there are: ${subjects[*]}"
    subjects=("$1")
fi

need_build
need_tests
need_fuzzer
install_missing
(configure fuzz && build fuzz)

failed=0
for subject in "${subjects[@]}"; do
    found=$root/build/fuzz-corpus/$subject
    mkdir -p "$found" "$root/build/fuzz-failures" "$root/build/log"
    options=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1
        -artifact_prefix="$root/build/fuzz-failures/$subject-")
    dictionary=$root/tests/fuzz/$subject.dict
    [ -f "$dictionary" ] && options+=(-dict="$dictionary")
    log=$root/build/log/fuzz-$subject.log
    if "$root/build/fuzz/tests/fuzz_$subject" "${options[@]}" "$found" "$root/tests/fuzz/corpus/$subject" >"$log" 2>&1; then
        printf '%-16s clean, %s inputs in %s s\n' "$subject" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$seconds"
    else
        tail -n 40 "$log"
        printf '%-16s FAILED, see %s\n' "$subject" "build/log/fuzz-$subject.log"
        failed=1
    fi
done
exit "$failed"
