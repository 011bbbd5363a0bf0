#!/bin/bash
# Proves that ranks which calibrate in real processes adopt one table, find it again in the cache, and
# do without a cache where there is none, one that is damaged, or one they may not write. TAP.
set -u
# shellcheck source=tests/emu/common.bash
. "$(dirname "$0")/common.bash"
work=$(mktemp -d)
out=$work/out
trap 'rm -rf "$work"' EXIT

export LLANE_STATS=1 LLANE_WAIT=1 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT
export NCCL_TUNER_PLUGIN=llane XDG_CACHE_HOME=$work/cache HOME=$work
export LLANE_CALIBRATE_MS=60000 LLANE_PROBE_TIMEOUT_MS=30000 LLANE_WAIT_TIMEOUT_MS=120000

# tables N: N ranks are active, by one and the same table.
tables() {
    [ "$(grep -c 'active from all-reduce' "$out")" = "$1" ] &&
        [ "$(grep -o 'table [0-9a-f]*' "$out" | sort -u | wc -l)" = 1 ]
}
file() { echo "$work"/cache/llane/tuning-*.txt; }
# edit FILE LINE: adds an entry, with the sum that belongs to it.
edit() {
    python3 - "$1" "$2" <<'PY'
import sys
path, line = sys.argv[1:]
text = open(path).read()
text = text[:text.index("\nsum ") + 1]
text += "" if line + "\n" in text else line + "\n"
sum = 0xcbf29ce484222325
for byte in text.encode():
    sum = (sum ^ byte) * 0x100000001b3 % 2**64
open(path, "w").write(text + "sum %016x\n" % sum)
PY
}

all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -- --counts 9,100,300 && tables 3 && [ ! -e "$work/cache" ]
report $? auto__emulation__not_measured

all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -e '0:LLANE_CALIBRATE=force' -- --counts 9,100,300 --types float32,int32 &&
    tables 3 && grep -q 'calibration: 2 of 2 sizes in .* kept for later runs' "$out"
report $? force__rank_0_alone_asks__all_measure_and_adopt_one_table
[ -f "$(file)" ] && [ "$(stat -c %a "$(file)")" = 600 ] && grep -q '^= ranks 3$' "$(file)" &&
    [ "$(grep -c '^= gpu ' "$(file)")" = 3 ]
report $? force__table__in_a_file_of_its_own

edit "$(file)" 'float 1024 nccl' && all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -- --counts 9,100,200 &&
    tables 3 && [ "$(grep -c 'NCCL is faster at this size: ' "$out")" = 3 ] &&
    [ "$(grep -Eo 'NCCL is faster at this size: [0-9]+' "$out" | sort -u | wc -l)" = 1 ]
report $? auto__entry_of_the_cache_says_NCCL__same_calls_on_all_ranks

# Times of one NCCL, or of one build of llane, say nothing of another's.
all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -e '*:FAKE_NCCL_VERSION=2.30.7' -- --counts 200 && tables 3 &&
    ! grep -q 'NCCL is faster' "$out"
report $? auto__another_NCCL__other_table
other_build "$work/libnccl-tuner-llane.so"
all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -e "*:NCCL_TUNER_PLUGIN=$work/libnccl-tuner-llane.so" -- --counts 200 &&
    tables 3 && ! grep -q 'NCCL is faster' "$out"
report $? auto__another_build__other_table

# with_driver RELEASE OPTION...: as all_reduce 2, on a machine whose driver is of that release.
with_driver() {
    # shellcheck disable=SC2016 # the inner shell expands
    unshare -m bash -c 'mount -t tmpfs none /sys/module && mkdir /sys/module/nvidia &&
        echo "$0" >/sys/module/nvidia/version && exec "$@"' "$1" \
        "$programs/prog_ranks" -e '*:LLANE_MAX_BYTES=1K' "${@:2}" 2 "$programs/prog_allreduce" --counts 200 >"$out" 2>&1
}
if unshare -m true 2>/dev/null; then
    export XDG_CACHE_HOME=$work/drivers
    with_driver 580.65.06 -e '*:LLANE_CALIBRATE=force' && edit "$(echo "$XDG_CACHE_HOME"/llane/tuning-*.txt)" 'float 1024 nccl' &&
        with_driver 580.65.06 && tables 2 && grep -q 'NCCL is faster' "$out" &&
        with_driver 580.95.05 && tables 2 && ! grep -q 'NCCL is faster' "$out"
    report $? auto__another_driver__other_table
    export XDG_CACHE_HOME=$work/cache
else
    report 77 auto__another_driver__other_table "no mount namespaces here"
fi

all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -e '0:XDG_CACHE_HOME=/nonexistent' -- --counts 200 && tables 3 &&
    ! grep -q 'NCCL is faster' "$out"
report $? auto__other_ranks_have_a_table__rank_0s_none_holds

all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -e '0:LLANE_CALIBRATE=off' -- --counts 200 && tables 3 &&
    ! grep -q 'NCCL is faster' "$out"
report $? off__table_in_the_cache__not_read

all_reduce 2 -e '*:LLANE_MAX_BYTES=1K' -- --counts 200 && tables 2 && ! grep -q 'NCCL is faster' "$out"
report $? auto__other_ranks__other_table

echo garbage >"$(file)"
all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -- --counts 9,200 && tables 3 && [ "$(grep -c 'is damaged; ignored' "$out")" = 1 ]
report $? auto__damaged_file__said_once_and_ignored

all_reduce 2 -e '*:LLANE_MAX_BYTES=256' -e '*:LLANE_CALIBRATE=force' -e '*:XDG_CACHE_HOME=/proc' -- --counts 9 &&
    tables 2 && grep -q 'calibration: 1 of 1 sizes in .* not kept' "$out"
report $? force__cache_cannot_be_written__adopted_all_the_same

all_reduce 2 -e '*:LLANE_MAX_BYTES=64K' -e '*:LLANE_CALIBRATE=force' -e '*:LLANE_CALIBRATE_MS=1' -- --counts 9 &&
    tables 2 && grep -q 'calibration: [0-4] of 5 sizes in .* for want of time' "$out"
report $? force__no_time__the_rest_by_default

all_reduce 1 -e '*:LLANE_MAX_BYTES=256' -e '*:LLANE_CALIBRATE=force' -- --all 3 --comms 2 --batch 2 --counts 9 &&
    tables 6 && [ "$(grep -c 'calibration: 1 of 1 sizes' "$out")" = 1 ]
report $? force__two_communicators__one_table

for memory in host p2p; do
    all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -e '*:LLANE_CALIBRATE=force' -e "*:LLANE_MEMORY=$memory" -- \
        --counts 9,100 --types float32,int8 --ops sum,max && tables 3 && grep -q 'calibration: 2 of 2 sizes' "$out"
    report $? "force__memory_${memory}__right_sums_by_one_table"
done
grep -q '^= memory host$' "$work"/cache/llane/tuning-*.txt && grep -q '^= memory peer$' "$work"/cache/llane/tuning-*.txt
report $? force__kinds_of_memory__each_a_table

all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -e '*:LLANE_CALIBRATE=force' -- --device 0 --counts 9,100 && tables 3 &&
    grep -q '^= memory one-gpu$' "$work"/cache/llane/tuning-*.txt
report $? force__all_on_one_gpu__right_sums_by_one_table

all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -e '*:LLANE_CALIBRATE=force' -e '1:EMU_FAIL=capture_begin' -- --counts 9,100 &&
    tables 3 && grep -q 'calibration: 2 of 2 sizes' "$out"
report $? force__one_rank_cannot_capture__measures_without_graphs

# ---- llane calibrate: NCCL's side too ----
rm -rf "$work/cache"
# What the tool's tables say, and what it wrote: sizes of a median at which NCCL is clearly ahead are its.
is_as_measured() {
    python3 - "$1" "$out" <<'PY'
import re, sys
entries = set(re.findall(r"^(float|integer) (\d+) nccl$", open(sys.argv[1]).read(), re.M))
expected, sizes, of = set(), [], None
for line in open(sys.argv[2]):
    if re.match("(float32|int32) sum, mode", line):
        of, before = "float" if line[0] == "f" else "integer", 4
    row = re.match(r" +(\d+) +([\d.]+) +\S+ +\S+ +([\d.]+) .* lane", line)
    if row:
        bytes, lane, nccl = int(row[1]), float(row[2]), float(row[3])
        sizes.append(bytes)
        while before < bytes:
            before *= 2
            if nccl < 0.95 * lane and nccl < lane - 0.1:
                expected.add((of, str(before)))
assert sizes == [256, 1024] * 2, sizes
assert entries == expected, (entries, expected)
PY
}
LLANE_MAX_BYTES=1K tools/llane calibrate --emulate --ranks 3 --reps 4 --ops 4 >"$out" 2>&1 &&
    is_as_measured "$(file)" 2>>"$out"
report $? tool__entries__are_what_it_measured
edit "$(file)" 'float 1024 nccl' && edit "$(file)" 'integer 1024 nccl'
all_reduce 3 -e '*:LLANE_MAX_BYTES=1K' -- --counts 200 --types float32,int32 && tables 3 &&
    [ "$(grep -c '^llane stats: .* rank ./3 .*: lane 0 calls .*NCCL is faster at this size' "$out")" = 3 ]
report $? tool__table__used_by_a_later_job
tools/llane calibrate --emulate --plot=x.svg >"$out" 2>&1
[ $? = 2 ] && grep -q 'calibrate: --plot=x.svg is for llane bench' "$out"
report $? tool__option_of_one_bench_run__refused
LLANE_MAX_BYTES=1K XDG_CACHE_HOME=/proc tools/llane calibrate --emulate --ranks 2 --reps 1 --ops 2 >"$out" 2>&1
[ $? = 3 ] && [ "$(grep -c 'no table to write to' "$out")" = 3 ] # tried again, as it may be noise
report $? tool__nowhere_to_write__fails_and_says_so

# Its peer's kernel waits for it meanwhile.
all_reduce 2 -e '*:LLANE_MAX_BYTES=256' -e '*:LLANE_CALIBRATE=force' -e '*:LLANE_PROBE_TIMEOUT_MS=1500' \
    -e '1:EMU_FAIL=timed_event_create' -- --counts 9,33 --iters 20 --sleep-ms 20 &&
    [ "$(grep -c 'inactive: calibration did not come to its end' "$out")" = 2 ] && ! grep -q ncclRemoteError "$out"
report $? force__one_rank_cannot__NCCL_carries_on

for end in abort leave; do
    all_reduce 3 -e '*:LLANE_MAX_BYTES=64K' -e '*:LLANE_CALIBRATE=force' -e '*:LLANE_WAIT=0' -- --counts 9 --iters 3 \
        --end $end
    report $? "force__communicator_ends_meanwhile_by_${end}__clean"
done
echo "1..$n"
