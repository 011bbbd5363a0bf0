#!/bin/bash
# Proves that LLANE_STATS counts the calls that a program made, by size, route and kernel, as text and
# as JSON, from a program started by `llane run`. TAP.
set -u
# shellcheck source=tests/emu/common.bash
. "$(dirname "$0")/common.bash"
explain() { tail -n 30 "$folder/out"; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset NCCL_TUNER_PLUGIN LD_PRELOAD LLANE_STATS

# run OPTIONS_OF_LLANE_RUN... -- PROG_RANKS_OPTIONS_AND_COMMAND...
run() {
    local options=()
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    tools/llane run --emulate "${options[@]}" -- "$programs/prog_ranks" "$@" >"$folder/out" 2>&1
}

# 3 iterations of float32 sums of 1, 4 and 1000 elements on the lane and of 70000 on NCCL, in turns.
check() {
    python3 - "$folder" >>"$folder/out" 2>&1 <<'PYTHON'
import json, sys
for rank in range(3):
    with open(f"{sys.argv[1]}/s-{rank}.json", encoding="utf-8") as file:
        stats = json.load(file)
    comm, = stats["communicators"]
    assert comm["rank"] == rank and comm["ranks"] == 3 and comm["errors"] == 0, comm
    assert comm["inactive"] == "" and comm["setup_ms"] >= 0, comm
    assert comm["lane"] == {"calls": 9, "bytes": 3 * (4 + 16 + 4000)}, comm
    assert comm["nccl"] == {"calls": 3, "bytes": 3 * 280000}, comm
    sizes = {s["up_to_bytes"]: s for s in comm["sizes"]}
    assert sorted(sizes) == [4, 16, 4096, 524288], sizes
    assert sizes[4]["routes"] == [{"route": "lane", "calls": 3, "bytes": 12}]
    assert sizes[524288]["routes"] == [
        {"route": "above LLANE_MAX_BYTES", "calls": 3, "bytes": 840000}]
    assert sizes[524288]["kernels"] == []
    assert sum(k["launches"] for k in sizes[4096]["kernels"]) == 3, sizes
    assert stats["staging_bytes"] > 0
PYTHON
}
run --wait --stats="$folder/s-%r.json" -- 3 "$programs/prog_allreduce" --counts 1,4,1000,70000 && check
report $? json__calls_of_each_size_route_and_kernel__counted
[ "$(find "$folder" -type f | wc -l)" = 4 ]
report $? json__one_file_a_rank__and_no_other

# The kernels take 20 ms to load.
SECONDS=0
run --wait --stats="$folder/setup.json" -- -e '*:EMU_LOAD_US=20000' -e '1:LLANE_STATS=0' 2 "$programs/prog_allreduce" --counts 5 &&
    python3 - "$folder/setup.json" $((SECONDS + 1)) >>"$folder/out" 2>&1 <<'PYTHON'
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    comm, = json.load(file)["communicators"]
assert 20 <= comm["setup_ms"] <= 1000 * int(sys.argv[2]), comm
PYTHON
report $? json__time_of_set_up__is_what_it_took

run --wait --stats --set ALGO=two-shot -- 2 "$programs/prog_allreduce" --counts 1000 --types int32 --group &&
    [ "$(grep -Ec 'to 4K bytes, lane 2; lane not live yet 1; launched two-shot LL 2;$' "$folder/out")" = 2 ]
report $? text__launched_kernels_of_a_group__counted

run --wait --stats="$folder/all" -- 2 "$programs/prog_allreduce" --counts 5 --comms 2 --batch 2 &&
    grep -q 'every rank writes this file' "$folder/out" &&
    [ "$(grep -c 'llane stats: .* rank ./2 id' "$folder/all")" = 2 ]
report $? text__one_name_for_all_ranks__warned_about_and_whole

run --wait --stats="$folder/none/s" -- 2 "$programs/prog_allreduce" --counts 5 &&
    grep -q 'LLANE_STATS=.*No such file or directory' "$folder/out"
report $? file__cannot_be_written__program_ends_well_and_it_is_said

# names KIND NAMES: the communicators' names in rank 1's file, in the order of their ends.
names() {
    run --wait --stats="$folder/n-%r.json" -- 2 "$programs/prog_allreduce" --kind "$1" --name 'tp "0"' --counts 5 --comms 2 --batch 2 &&
        python3 - "$folder/n-1.json" "$2" >>"$folder/out" 2>&1 <<'PYTHON'
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    comms = json.load(file)["communicators"]
print(comms)
assert sorted(comm["name"] for comm in comms) == sys.argv[2].split(","), comms
assert all(comm["rank"] == 1 and comm["ranks"] == 2 for comm in comms)
PYTHON
}
names config ",tp ?0?"
report $? json__names_that_creation_hooks_saw__reported
export NCCL_PROFILER_PLUGIN=$build/emu/libnccl-tuner-llane.so FAKE_NCCL_VERSION=2.27.7
names config "tp ?0?,tp ?0?"
report $? json__profiler__first_communicator_has_its_name_too
names rank ","
report $? json__no_name_given__empty
NCCL_DEBUG=INFO run --wait --stats -- 2 "$programs/prog_allreduce" --kind config --name tp --counts 5 &&
    [ "$(grep -Ec 'llane stats: .* rank [01]/2 id [0-9a-f]{8} "tp": lane [1-9]' "$folder/out")" = 2 ] &&
    [ "$(grep -Ec 'rank [01] of 2: active from .*, name "tp"$' "$folder/out")" = 2 ]
report $? text__name__in_the_communicators_line_and_the_log
unset NCCL_PROFILER_PLUGIN FAKE_NCCL_VERSION

run --stats="$folder/unused" -- 1 true
[ ! -e "$folder/unused" ]
report $? file__process_without_a_communicator__none

# ---- ranges for profilers ----
export EMU_RANGES=1
run --wait --set NVTX=1 --set ALGO=one-shot --set PACKET=ll -- 2 "$programs/prog_allreduce" --counts 5 --iters 4 &&
    [ "$(grep -c 'range one-shot LL$' "$folder/out")" = 8 ] && [ "$(grep -c 'range ends' "$folder/out")" = 8 ]
report $? nvtx__each_launch__is_a_range_named_by_its_kernel
run --wait -- 2 "$programs/prog_allreduce" --counts 5 && ! grep -q range "$folder/out"
report $? nvtx__not_asked_for__no_ranges
echo "1..$n"
