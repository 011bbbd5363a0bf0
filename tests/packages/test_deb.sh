#!/bin/bash
# Proves that `make deb` makes a package that dpkg installs into an empty root, that lintian has nothing
# against, that works from there, and that leaves nothing when it is removed; and that the same bytes
# come out twice. TAP.
set -u
# shellcheck source=tests/packages/common.bash
. "$(dirname "$0")/common.bash"

if ! command -v dpkg-shlibdeps >/dev/null; then
    echo "no dpkg-dev"
    exit 77
fi

# unpack PACKAGE ROOT: by dpkg itself, with a database of its own.
debian() { # debian ROOT DPKG_OPTION...
    mkdir -p "$1/var/lib/dpkg/info" "$1/var/lib/dpkg/updates" && touch "$1/var/lib/dpkg/status" &&
        dpkg --root="$1" --force-not-root --force-depends --force-bad-path --force-script-chrootless \
            --no-triggers --log=/dev/null "${@:2}" >"$out/said" 2>&1
}

llane_make emu deb PACKAGE_DIR="$out/emu"
report $? deb__emulation__is_made
package=$(echo "$out"/emu/*.deb) root=$out/root
debian "$root" -i "$package"
report $? dpkg__empty_root__takes_it

llane() { "$root/usr/bin/llane" "$@" >"$out/said" 2>&1; }
llane demo --emulate 2 && has_routes
report $? demo__from_the_package__lane_and_nccl_carry
llane doctor --no-measure
[ $? -le 1 ]
report $? doctor__from_the_package__reports
libdir=$(readlink -f "$root/usr/lib/"*-linux-gnu)
[ "$("$root/usr/bin/llane" env)" = "export NCCL_TUNER_PLUGIN=$libdir/libnccl-tuner-llane.so" ]
report $? env__names_the_package_s_plugin

dpkg-deb -f "$package" Version Depends >"$out/said"
grep -qx "Version: ${PACKAGE_VERSION:?}" "$out/said" && grep -q '^Depends: libc6 (>= 2[.0-9]*)' "$out/said"
report $? control__version_and_what_it_loads

debian "$root" --purge llane && ! names "$root" | grep -v '^./var/lib/dpkg/' && [ ! -d "$root/usr" ]
report $? dpkg__purge__leaves_nothing

(
    umask 077
    export TZ=Asia/Tokyo LC_ALL=C.UTF-8
    llane_make emu deb PACKAGE_DIR="$out/again"
) && cmp "$package" "$out"/again/*.deb >"$out/said" 2>&1
report $? deb__made_again__the_same_bytes

device=emu
if [ -n "${PACKAGE_HAS_CUDA:-}" ]; then
    device=cuda
    llane_make cuda deb PACKAGE_DIR="$out/cuda"
    report $? deb__for_GPUs__is_made
    package=$(echo "$out"/cuda/*.deb)
    dpkg-deb -f "$package" Depends >"$out/said" && [ "$(cat "$out/said")" = "libc6 (>= 2.34)" ]
    report $? deb__for_GPUs__needs_the_C_library_alone
fi
if ! command -v lintian >/dev/null; then
    report 77 "lintian has nothing against it" "no lintian"
elif [ $device = emu ]; then
    # The emulation carries an NCCL of the tests, which no one would give away.
    report 77 "lintian has nothing against it" "no nvcc, so no package for GPUs"
else
    lintian --allow-root --fail-on error,warning "$package" >"$out/said" 2>&1 && ! grep -q '^[EW]:' "$out/said"
    report $? lintian__has_nothing_against_it
fi
echo "1..$n"
