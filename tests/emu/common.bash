# shellcheck shell=bash
# Sourced by the tests here that run ranks: where programs are, TAP, and the client's runs, whose output
# goes to the file $out.
# shellcheck source=tests/tap.bash
. "$(dirname "${BASH_SOURCE[0]}")/../tap.bash"
build=${LLANE_BUILD:?run it through make test}
programs=$build/tests/emu
export LD_LIBRARY_PATH=$build/emu
# For LD_PRELOAD: a sanitizer's own library has to come first.
preloaded=$build/emu/libnccl-tuner-llane.so
[ "${LLANE_V:-}" != asan ] || preloaded=$(gcc -print-file-name=libasan.so):$preloaded

run() { "$programs/prog_ranks" "$@" >"$out" 2>&1; }

# all_reduce RANKS PROG_RANKS_OPTIONS -- CLIENT_OPTIONS
all_reduce() {
    local ranks=$1 options=()
    shift
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    run "${options[@]}" "$ranks" "$programs/prog_allreduce" "$@"
}

# other_build FILE: a build of its own, the same object with another build id.
other_build() {
    python3 - "$build/emu/libnccl-tuner-llane.so" "$1" <<'END'
import sys
data = open(sys.argv[1], "rb").read()
at = data.index(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0") + 16
open(sys.argv[2], "wb").write(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
END
}

# Communicators' ranks whose statistics in FILE show calls on the lane. n_carried FILE
n_carried() { grep -Ec 'llane stats: .*: lane [1-9]' "$1"; }
