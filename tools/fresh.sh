#!/bin/bash
# Proves on a bare Debian 12 that ./test installs what it needs:  tools/fresh.sh [ARGUMENT of ./test ...]   (default: --quick)
# Needs root, debootstrap and the network. The bare system lives in a temporary directory; its mounts are in a mount namespace
# of their own, so that they disappear with the run, however it ends. What is tested is the last commit, not the working tree.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
# shellcheck source=tools/common.sh
. "$root/tools/common.sh"
((EUID == 0)) || die "tools/fresh.sh needs root, for debootstrap and chroot"
need debootstrap have debootstrap
install_missing
[ $# -gt 0 ] || set -- --quick

system=$(mktemp -d /var/tmp/drawbridge-fresh-XXXXXX)
trap 'rm -rf --one-file-system "$system"' EXIT
echo "Bare system in $system"
quietly debootstrap debootstrap --variant=minbase bookworm "$system"
cp /etc/resolv.conf /etc/hosts "$system/etc/"
# npm trusts what this machine trusts, such as the certificate of a company's proxy.
mkdir -p "$system/etc/ssl" && cp -L /etc/ssl/certs/ca-certificates.crt "$system/etc/ssl/machine.crt"
mkdir "$system/root/drawbridge"
git -C "$root" archive HEAD | tar -x -C "$system/root/drawbridge"
SECONDS=0
# shellcheck disable=SC2016 # expanded by the inner shell
unshare --mount --propagation private bash -c '
    mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" &&
    exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        NODE_EXTRA_CA_CERTS=/etc/ssl/machine.crt /root/drawbridge/test "$@"' "$system" "$@"
echo "passed on a bare system in $SECONDS s"
