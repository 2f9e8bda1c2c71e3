#!/bin/bash
# Builds the GPU device and its tests with nothing but nvcc and gcc, for machines without the libraries that CMake looks for, and runs
# them on the GPU.
#   tests/gpu/remote.sh pack                              here: the libraries and the generated page to build/gpu-carry
#   tests/gpu/remote.sh build                             there: from build/gpu-carry to build/gpu-remote
#   tests/gpu/remote.sh test_all | speed | sanitize       there; logs go to $OUT
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
carry=build/gpu-carry out=build/gpu-remote logs=${OUT:-/tmp}
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
c_flags=(-std=c17 -O2 -g -Isrc -Iinclude "-I$carry/include" -isystem "$cuda/include" -D_POSIX_C_SOURCE=200809L -D_FILE_OFFSET_BITS=64
    '-DDRAWBRIDGE_VERSION="0.1.0"' -ffp-contract=off -fno-math-errno)

pack() {
    local library=/usr/lib/x86_64-linux-gnu
    mkdir -p $carry/include $carry/lib
    cp -r /usr/include/jansson*.h /usr/include/xxh*.h /usr/include/cmocka*.h /usr/include/ev*.h /usr/include/event2 $carry/include/
    cp $library/libjansson.a $library/libevent.a $library/libxxhash.a $carry/lib/
    cp -L $library/libcmocka.so.0 $carry/lib/
    cp build/page_files.c $carry/
}

# One object, unless it is newer than its source and all headers.
compile() {
    local source=$1 object
    object=$out/objects/${source//\//_}.o
    [ "$object" -nt "$source" ] && [ "$object" -nt "$(cat $out/newest_header)" ] && return 0
    case $source in
    *.cu)
        "$nvcc" -std=c++17 -gencode arch=compute_90a,code=sm_90a -O3 --fmad=false -lineinfo -Xptxas -v -Isrc -c "$source" -o "$object" \
            >"$object.log" 2>&1 || { grep -i error "$object.log" | head -5 && return 1; }
        ;;
    *) gcc "${c_flags[@]}" -c "$source" -o "$object" ;;
    esac
}

program() { # name, then sources and definitions
    local name=$1
    shift
    gcc "${c_flags[@]}" -Itests/unit -DSOURCE_DIR="\"$PWD\"" '-DNANO_BF16_DIR="/nonexistent"' "$@" -o "$out/$name" $out/libcore.a \
        $carry/lib/libjansson.a $carry/lib/libevent.a $carry/lib/libxxhash.a $carry/lib/libcmocka.so.0 -Wl,-rpath,"$PWD/$carry/lib" \
        -L"$cuda/lib64" -lcudart_static -lstdc++ -ldl -lrt -lpthread -lm
}

build() {
    local device=-DRIG_DEVICE=gpu_device_create name
    mkdir -p $out/objects
    find src -name '*.h' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2 >$out/newest_header
    {
        find src/device/gpu -name '*.cu'
        find src -name '*.c' ! -name main.c ! -name gpu_absent.c
        echo $carry/page_files.c
    } | xargs -P "$(nproc)" -I{} bash "$0" compile {} || return 1
    rm -f $out/libcore.a
    ar rcs $out/libcore.a $out/objects/*.o
    program drawbridge src/main.c &
    for name in golden_nano golden_random same_bytes; do
        program gpu_$name tests/unit/test_$name.c $device &
    done
    program gpu_kernels tests/gpu/test_kernels.c &
    program gpu_same_engine bench/bench_same_bytes.c $device &
    program gpu_batch bench/bench_batch.c $device &
    program gpu_linear bench/gpu/bench_linear.c &
    wait
    ls -l $out
}

# Each part with a limit of its own; the end of its output is shown, all of it is kept.
part() { # name, seconds, lines to show, command...
    local name=$1 seconds=$2 lines=$3 status started=$SECONDS
    shift 3
    timeout "$seconds" "$@" >"$logs/$name.log" 2>&1
    status=$?
    echo "== $name: $([ $status = 0 ] && echo passed || echo "FAILED ($status)"), $((SECONDS - started)) s"
    tail -n "$lines" "$logs/$name.log" | cut -c1-160
}

test_all() {
    part kernels 30 30 $out/gpu_kernels
    part random 30 3 $out/gpu_golden_random
    part nano 60 24 $out/gpu_golden_nano
    part same_bytes 60 4 $out/gpu_same_bytes
    part same_engine 60 13 $out/gpu_same_engine 24
}

speed() {
    part linear 60 14 $out/gpu_linear
    part batch 40 12 $out/gpu_batch
    part run 60 4 $out/drawbridge run models/nano --device cuda --verbose --temperature 0 -n 64 -p "What is 2 + 3?"
}

sanitize() {
    part memcheck 90 6 compute-sanitizer --tool memcheck --error-exitcode 9 $out/gpu_golden_random
    part memcheck_kernels 60 6 compute-sanitizer --tool memcheck --error-exitcode 9 $out/gpu_kernels
    part racecheck_kernels 60 6 compute-sanitizer --tool racecheck --error-exitcode 9 $out/gpu_kernels
    part initcheck_kernels 60 6 compute-sanitizer --tool initcheck --error-exitcode 9 $out/gpu_kernels
}

case ${1:-} in
pack | build | test_all | speed | sanitize) "$1" ;;
compile) compile "$2" ;;
*)
    sed -n '2,6s/^# \?//p' "$0"
    exit 2
    ;;
esac
