# shellcheck shell=bash
# What ./run, ./test and the scripts in tools/ share: finding and installing missing packages, quiet steps, builds.
# The sourcing script sets `root` to the repository's root first.

: "${root:?}"
missing=() # Debian packages that a check found missing

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# need PACKAGE CHECK...: remembers PACKAGE when CHECK fails.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

# Whether a compiler, given with its options, turns the program $1 into an executable: finds a missing library or run-time part too.
compiles() {
    local program=$1 out status=0
    shift
    out=$(mktemp) || return 1
    printf '#include <math.h>\n#include <stdlib.h>\n%s\n' "$program" | "$@" -x c - -o "$out" -lm || status=1
    rm -f "$out"
    return "$status"
}

empty_program='int main(void) { return 0; }'
fuzz_program='int LLVMFuzzerTestOneInput(const unsigned char *d, size_t n) { return n > 9 && d[9] ? 0 : 0; }'

need_build() {
    need build-essential compiles "$empty_program" cc -pthread
    need cmake have cmake
    need ninja-build have ninja
    need pkg-config have pkg-config
    need libjansson-dev pkg-config --exists 'jansson >= 2.13'
    need libevent-dev pkg-config --exists 'libevent >= 2.1'
    need libxxhash-dev pkg-config --exists 'libxxhash >= 0.8'
}

need_tests() {
    need libcmocka-dev pkg-config --exists cmocka
    need python3 test -x /usr/bin/python3
    need python3-jinja2 /usr/bin/python3 -c 'import jinja2'
    need mandoc have mandoc
}

need_clang() { need clang compiles "$empty_program" clang -pthread; }

# The fuzzer's run-time library is packaged per clang version, so clang is installed first.
need_fuzzer() {
    need_clang
    install_missing
    local version package
    version=$(clang -dumpversion)
    package=libclang-rt-${version%%.*}-dev
    if have apt-cache && ! apt-cache show "$package" >/dev/null 2>&1; then
        package=libclang-common-${version%%.*}-dev
    fi
    need "$package" compiles "$fuzz_program" clang -fsanitize=fuzzer,address,undefined
}

# Runs a command with its output in build/log/NAME.log, and prints that only when the command fails.
quietly() {
    local log=$root/build/log/$1.log
    shift
    mkdir -p "$root/build/log"
    "$@" >"$log" 2>&1 || {
        cat "$log" >&2
        die "failed: $*"
    }
}

# Installs what the checks found missing; without anything missing, touches neither root nor network.
install_missing() {
    ((${#missing[@]})) || return 0
    have apt-get || die "Missing: ${missing[*]} (Debian's names). This system has no apt-get; please install them and run this again."
    local as_root=()
    if ((EUID != 0)); then
        have sudo || die "Missing: ${missing[*]}. Installing needs root; as root, run: apt-get install ${missing[*]}"
        as_root=(sudo)
        echo "Root is needed once, to install packages; sudo may ask for your password."
    fi
    echo "Installing ${missing[*]}"
    "${as_root[@]}" true || die "Not installed: ${missing[*]}"
    quietly apt-update "${as_root[@]}" apt-get -q update
    quietly apt-install "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -q install -y --no-install-recommends "${missing[@]}"
    missing=()
}

# Installs uPlot, which draws the page's charts, into web/node_modules. Everything else works without it, so a failure (no network) is
# told and is not the end. It is tried once per build directory, so that later starts neither wait nor ask for a password.
need_page() {
    local library=$root/web/node_modules/uplot/dist/uPlot.iife.min.js log=$root/build/log/npm.log tried=$root/build/without-charts
    [ -f "$library" ] && return 0
    if [ ! -f "$tried" ]; then
        mkdir -p "$root/build/log"
        have npm || (missing=(npm) && install_missing) || true
        if have npm; then
            (cd "$root/web" && npm ci --ignore-scripts --no-audit --no-fund --fetch-retries=0) >"$log" 2>&1 || true
        fi
        [ -f "$library" ] && return 0
        touch "$tried"
    fi
    echo "warning: uPlot is not in web/node_modules and could not be installed: the page is built WITHOUT CHARTS." \
        "With a network, run \"npm ci\" in web/ and start again; build/log/npm.log says what failed." >&2
}

# Installs what tests/e2e needs: node, npm and Chromium from Debian, and the clients by npm. Without a network the other tests still run:
# a failure is told here, and the tests that need it say that they were skipped.
need_e2e() {
    need npm have npm
    need chromium have chromium
    (install_missing) || true
    missing=()
    local folder=$root/tests/e2e log=$root/build/log/npm-e2e.log
    cmp -s "$folder/package-lock.json" "$folder/node_modules/.installed" && return 0
    mkdir -p "$root/build/log"
    if have npm && (cd "$folder" && npm ci --ignore-scripts --no-audit --no-fund --fetch-retries=0) >"$log" 2>&1; then
        cp "$folder/package-lock.json" "$folder/node_modules/.installed"
    else
        echo "warning: the packages of tests/e2e could not be installed with npm; the end-to-end tests are skipped." \
            "What npm said is in build/log/npm-e2e.log." >&2
    fi
}

# configure PRESET OPTION...
configure() {
    local preset=$1
    shift
    cd "$root" && quietly "configure-$preset" cmake --preset "$preset" "$@"
}

# build PRESET OPTION...
build() {
    local preset=$1
    shift
    cd "$root" && quietly "build-$preset" cmake --build --preset "$preset" --parallel "$(nproc)" "$@"
}
