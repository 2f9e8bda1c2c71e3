#!/bin/bash
# Builds the GPU device and its tests with nothing but nvcc and gcc, for machines without the libraries that CMake looks for, and runs
# them on the GPU.
#   tests/gpu/remote.sh pack                 here: the libraries and the generated page to build/gpu-carry
#   tests/gpu/remote.sh build                there: from build/gpu-carry to build/gpu-remote
#   tests/gpu/remote.sh test_all | speed | memcheck    there
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
carry=build/gpu-carry out=build/gpu-remote
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")

pack() {
    local library=/usr/lib/x86_64-linux-gnu
    mkdir -p $carry/include $carry/lib
    cp -r /usr/include/jansson*.h /usr/include/xxh*.h /usr/include/cmocka*.h /usr/include/event.h /usr/include/ev*.h /usr/include/event2 \
        $carry/include/
    cp $library/libjansson.a $library/libevent.a $library/libxxhash.a $carry/lib/
    cp -L $library/libcmocka.so.0 $carry/lib/
    cp build/page_files.c $carry/
}

# Objects are made when they are missing or older than their source; headers count as changed with every pack.
compile_all() {
    local c_flags="-std=c17 -O2 -g -Isrc -Iinclude -I$carry/include -isystem $cuda/include -D_POSIX_C_SOURCE=200809L -D_FILE_OFFSET_BITS=64
        -DDRAWBRIDGE_VERSION=\"0.1.0\" -ffp-contract=off -fno-math-errno"
    export c_flags nvcc out
    mkdir -p $out/objects
    one() {
        local source=$1 object
        object=$out/objects/$(echo "$source" | tr / _).o
        [ "$object" -nt "$source" ] && return 0
        case $source in
        *.cu) "$nvcc" -std=c++17 -gencode arch=compute_90a,code=sm_90a -O3 --fmad=false -lineinfo -Xptxas -v -Isrc -c "$source" -o "$object" \
            >"$object.log" 2>&1 || { grep -i error "$object.log" | head -5; return 1; } ;;
        # shellcheck disable=SC2086
        *) gcc $c_flags -c "$source" -o "$object" ;;
        esac
    }
    export -f one
    { find src/device/gpu -name '*.cu'; find src -name '*.c' ! -name main.c ! -name gpu_absent.c; echo $carry/page_files.c; } |
        xargs -P "$(nproc)" -I{} bash -c 'one {}'
}

program() { # name, sources and definitions
    local name=$1
    shift
    # shellcheck disable=SC2086
    gcc $c_flags -Itests/unit -DSOURCE_DIR="\"$PWD\"" -DNANO_BF16_DIR="\"/nonexistent\"" "$@" -o "$out/$name" "$out/libcore.a" \
        $carry/lib/libjansson.a $carry/lib/libevent.a $carry/lib/libxxhash.a -L"$cuda/lib64" -lcudart_static -lstdc++ -ldl -lrt -lpthread -lm \
        $carry/lib/libcmocka.so.0 -Wl,-rpath,"$PWD/$carry/lib"
}

build() {
    compile_all || return 1
    rm -f $out/libcore.a
    ar rcs $out/libcore.a $out/objects/*.o
    local test="-DRIG_DEVICE=gpu_device_create"
    program drawbridge src/main.c &
    for name in golden_nano golden_random same_bytes; do
        program "gpu_$name" "tests/unit/test_$name.c" $test &
    done
    program gpu_same_engine bench/bench_same_bytes.c $test &
    program gpu_batch bench/bench_batch.c $test &
    wait
    ls -la $out | grep -v objects
}

# Each part with a limit of its own; the end of its output is shown, all of it goes to $OUT.
part() { # name, seconds, command...
    local name=$1 seconds=$2 status started=$SECONDS
    shift 2
    timeout "$seconds" "$@" >"$logs/$name.log" 2>&1
    status=$?
    echo "== $name: $([ $status = 0 ] && echo passed || echo "FAILED ($status)"), $((SECONDS - started)) s"
    tail -n "${lines:-12}" "$logs/$name.log" | cut -c1-160
}

test_all() {
    lines=4 part random 30 $out/gpu_golden_random
    lines=24 part nano 60 $out/gpu_golden_nano
    lines=12 part same_bytes 60 $out/gpu_same_bytes
    lines=14 part same_engine 60 $out/gpu_same_engine 24
}

speed() {
    lines=12 part batch 40 $out/gpu_batch
    lines=6 part run 60 $out/drawbridge run models/nano --device cuda --verbose --temperature 0 --max-tokens 64 -p "What is 2 + 3?"
    lines=6 part run_cpu 60 $out/drawbridge run models/nano --exact --temperature 0 --max-tokens 64 -p "What is 2 + 3?"
    lines=6 part run_exact 60 $out/drawbridge run models/nano --device cuda --exact --temperature 0 --max-tokens 64 -p "What is 2 + 3?"
}

memcheck() {
    lines=8 part memcheck 90 compute-sanitizer --tool memcheck --error-exitcode 9 $out/gpu_golden_random
    lines=8 part racecheck 90 compute-sanitizer --tool racecheck --error-exitcode 9 $out/gpu_golden_random
}

logs=${OUT:-/tmp}
case ${1:-} in
pack | build | test_all | speed | memcheck) "$1" ;;
*)
    sed -n '2,7s/^# \?//p' "$0"
    exit 2
    ;;
esac
