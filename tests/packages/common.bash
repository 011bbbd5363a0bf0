# shellcheck shell=bash
# Sourced by the tests here: reporting, and make for a package or an installation of its own.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/tap.bash
explain() { cat "$out/said"; }
build=${LLANE_BUILD:?run it through make test-packages}
out=$build/tests/packages/$(basename "$0" .sh)
rm -rf "$out" && mkdir -p "$out" || exit 1
unset NCCL_TUNER_PLUGIN LD_LIBRARY_PATH LD_PRELOAD MAKEFLAGS MAKELEVEL LLANE_ENABLE LLANE_BUILD
llane_make() { # llane_make DEVICE WORD...: quiet; what it says is in $out/said.
    make --no-print-directory ARCHS="${PACKAGE_ARCHS:-}" V="$LLANE_V" BUILD="$(dirname "$build")" \
        INSTALL_DEVICE="$1" "${@:2}" >"$out/said" 2>&1
}
names() { (cd "$1" && find . ! -type d | LC_ALL=C sort); }
# has_routes LINES: the demo's table in $out/said has sizes of the lane and one of NCCL.
has_routes() {
    [ "$(grep -c ' lane: ' "$out/said")" -ge 5 ] && grep -q 'NCCL, above LLANE_MAX_BYTES' "$out/said"
}
