#!/bin/bash
# Builds for 64-bit ARM on another machine and runs the tests under emulation:  tools/aarch64.sh [--only TEST...] [CTEST_OPTION...]
# --only builds and runs unit tests by name alone; their names end with the arguments or with an option.
# The ARM libraries are unpacked below build/aarch64/root with a package list of their own; the machine's package
# database and its architectures stay as they are. Needs Debian or Ubuntu and, once, the network.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
# shellcheck source=tools/common.sh
. "$root/tools/common.sh"

targets=()
if [ "${1:-}" = --only ]; then
    shift
    while [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; do
        targets+=("$1")
        shift
    done
fi

need_build
need_tests
need gcc-aarch64-linux-gnu have aarch64-linux-gnu-gcc
need libc6-dev-arm64-cross test -e /usr/aarch64-linux-gnu/include/stdio.h
need qemu-user-static have qemu-aarch64-static
install_missing

directory=$root/build/aarch64
apt_directory=$directory/apt

# apt-get with its own lists, cache and (empty) database of installed packages.
arm_apt() {
    apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= -o Dir::State="$apt_directory" \
        -o Dir::State::status="$apt_directory/status" -o Dir::Cache="$apt_directory/cache" "$@"
}

if [ ! -e "$directory/root/usr/include/jansson.h" ] || [ ! -e "$directory/root/usr/include/cmocka.h" ] ||
    [ ! -e "$directory/root/usr/include/event2/http.h" ] || [ ! -e "$directory/root/usr/include/xxhash.h" ]; then
    mkdir -p "$apt_directory/lists/partial" "$apt_directory/cache/archives/partial" "$directory/packages"
    touch "$apt_directory/status"
    quietly aarch64-update arm_apt update
    cd "$directory/packages"
    quietly aarch64-download arm_apt download libjansson-dev libjansson4 libcmocka-dev libcmocka0 \
        libevent-dev libevent-2.1-7 libevent-core-2.1-7 libevent-extra-2.1-7 libxxhash-dev libxxhash0
    for package in *.deb; do
        dpkg-deb -x "$package" "$directory/root"
    done
fi

cd "$root"
quietly configure-aarch64 cmake -G Ninja -B "$directory/build" --toolchain "$root/tools/aarch64.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DDRAWBRIDGE_WERROR=ON -DDRAWBRIDGE_ARM_ROOT="$directory/root"
if [ "${#targets[@]}" -eq 0 ]; then
    quietly build-aarch64 cmake --build "$directory/build" --parallel "$(nproc)"
    ctest --test-dir "$directory/build" --output-on-failure "$@"
    exit
fi
quietly build-aarch64 cmake --build "$directory/build" --parallel "$(nproc)" --target "${targets[@]}"
ctest --test-dir "$directory/build" --output-on-failure -R "^($(IFS='|'; echo "${targets[*]}"))\$" "$@"
