#!/bin/bash
# Proves that LLANE_AB=alternate sends calls both ways on all ranks alike, with right results however
# they are issued, and reports what it timed, at the end and on a signal. TAP.
set -u
# shellcheck source=tests/emu/common.bash
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
out=$folder/out
export NCCL_TUNER_PLUGIN=llane NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT
export LLANE_WAIT=1 LLANE_AB=alternate
unset LLANE_STATS LLANE_REPORT_SIGNAL

# ---- turns ----
run -e "*:LLANE_STATS=$folder/%r.json" 3 "$programs/prog_allreduce" --counts 1,3,1000,70000 --iters 24
status=$?
check() {
    python3 - "$folder" >>"$out" 2>&1 <<'PYTHON'
import json, sys
turns = []
for rank in range(3):
    with open(f"{sys.argv[1]}/{rank}.json", encoding="utf-8") as file:
        comm, = json.load(file)["communicators"]
    sizes = {s["up_to_bytes"]: s for s in comm["ab"]}
    assert sorted(sizes) == [4, 16, 4096], sizes
    for s in sizes.values():
        for path in ("lane", "nccl"):
            assert s[path]["timed"] == s[path]["calls"] >= 4, s
            assert 0 < s[path]["median_us"] <= s[path]["p99_us"], s
        assert s["lane"]["calls"] + s["nccl"]["calls"] == 24, s
        assert abs(s["ratio"] - s["nccl"]["median_us"] / s["lane"]["median_us"]) < 0.01 + 0.01 * s["ratio"], s
        saved = s["lane"]["calls"] * (s["nccl"]["median_us"] - s["lane"]["median_us"])
        assert abs(s["saved_us"] - saved) < 1 + 0.001 * abs(saved), s
    turns.append([(b, s["lane"]["calls"]) for b, s in sorted(sizes.items())])
    reasons = {r["route"] for s in comm["sizes"] for r in s["routes"]}
    assert reasons == {"lane", "NCCL's turn by LLANE_AB", "above LLANE_MAX_BYTES"}, reasons
assert turns[0] == turns[1] == turns[2], turns
PYTHON
}
[ $status = 0 ] && check
report $? alternate__every_size__both_ways_timed_and_the_same_on_all_ranks

# right NAME N PROG_RANKS_OPTIONS -- CLIENT_OPTIONS: results right, every rank reports.
right() {
    local name=$1 ranks=$2
    shift 2
    all_reduce "$ranks" "$@"
    local status=$?
    [ $status = 0 ] && [ "$(grep -c 'llane ab: .* in all' "$out")" -ge "$ranks" ]
    report $? "$name"
}
right alternate__groups__right_and_none_timed 3 -- --group --batch 5 --iters 6
grep -q 'lane [0-9]* calls, none timed; NCCL [0-9]* calls, none timed;' "$out"
report $? alternate__groups__said_to_be_untimed
right alternate__two_streams_in_turns__right 3 -- --streams 2 --batch 6 --iters 6 --types float32,int64
right alternate__two_communicators_in_turns__right 3 -- --comms 2 --batch 6 --iters 6
right alternate__graph_beside_eager_calls__right 3 -- --graph --mix --streams 2 --batch 3 --iters 6
right alternate__in_place__right 2 -- --in-place 2 --iters 8 --batch 4
right alternate__nonblocking__right 3 -- --kind nonblocking --iters 12
right alternate__goes_live_in_mid_run__right 3 -e '*:LLANE_WAIT=0' -- --iters 60 --sleep-ms 4 --counts 1,100
right alternate__on_rank_0_alone__holds_for_all 3 -u 1:LLANE_AB -u 2:LLANE_AB -- --iters 8
right alternate__communicator_aborted__reported 2 -- --iters 8 --end abort
run -u 0:LLANE_AB 3 "$programs/prog_allreduce" --counts 9 && ! grep -q 'llane ab' "$out" && grep -q "A/B) here differ from rank 0's" "$out"
report $? alternate__on_other_ranks_than_0__off_and_said

# ---- shadow ----
# shadowed NAME N CLIENT_OPTIONS: results right and NCCL's, some compared on every rank, none differs.
shadowed() {
    local name=$1 ranks=$2
    shift 2
    run -e '*:LLANE_AB=shadow' -e '*:LLANE_STATS=1' "$ranks" "$programs/prog_allreduce" "$@"
    local status=$?
    [ $status = 0 ] && [ "$(grep -c ': 0 results differ by more than rounding' "$out")" -ge "$ranks" ] &&
        [ "$(grep -Ec 'llane stats: .*: lane 0 calls .*with the lane beside it' "$out")" -ge "$ranks" ] &&
        ! grep -q ' [1-9][0-9]* beyond it' "$out"
    report $? "$name"
}
shadowed shadow__all_types_and_operations__no_difference 3 --types all --ops all --counts 1,31,1000 --iters 2
[ "$(grep -Ec 'calls, [1-9][0-9]* compared' "$out")" -ge 3 ]
report $? shadow__all_types_and_operations__compared
shadowed shadow__groups_on_two_communicators__no_difference 3 --group --comms 2 --batch 6 --iters 6 --counts 100
[ "$(grep -Ec 'calls, [1-9][0-9]* compared' "$out")" -ge 3 ]
report $? shadow__groups_on_two_communicators__compared
shadowed shadow__in_place_on_two_streams__no_difference 3 --in-place 1 --streams 2 --batch 4 --iters 6
shadowed shadow__graph_beside_eager_calls__no_difference 2 --graph --mix --batch 3 --iters 6
grep -q 'captured, under LLANE_AB=shadow: [1-9]' "$out"
report $? shadow__captured_calls__said_to_be_NCCLs
shadowed shadow__nonblocking__no_difference 2 --kind nonblocking --iters 4
shadowed shadow__communicator_aborted__ends 2 --iters 4 --end abort

# A lane whose stores go wrong some time after the probe: NCCL's results stand, and it is found.
run -e '*:LLANE_AB=shadow' -e '*:EMU_FAULTS=flip_late:1>0=2000' 2 "$programs/prog_allreduce" --counts 1000 \
    --iters 30 --sleep-ms 10 && [ "$(grep -Ec ', [1-9][0-9]* beyond it' "$out")" -ge 1 ] &&
    grep -q 'differ by more than rounding, the first at' "$out"
report $? shadow__lane_goes_wrong__found_and_results_stay_NCCLs

# What NCCL allows ranks to do differently hangs in neither mode: cases.md 32.
for mode in alternate shadow; do
    run -e "*:LLANE_AB=$mode" 2 "$programs/prog_conformance" groups group_errors simulated_group \
        receive_with_sum_against_sum_then_send order_across_streams any_device graphs_and_eager_calls ends &&
        [ "$(grep -c '^rank .: ok' "$out")" = 2 ]
    report $? "${mode}__calls_as_ranks_may_differ_in_them__as_nccl"
done

# ---- the signal ----
# signaled BEFORE: one process of three ranks, in a shell that ran BEFORE, gets SIGUSR1 in mid run.
signaled() {
    local pid i
    : >"$out"
    (
        eval "$1"
        exec "$programs/prog_allreduce" --threads 3 --counts 100 --iters 80 --sleep-ms 20
    ) >"$out" 2>&1 &
    pid=$!
    for ((i = 0; i < 500; i++)); do
        [ "$(grep -c 'active from all-reduce' "$out")" -lt 3 ] || break
        sleep 0.02
    done
    kill -USR1 "$pid"
    wait "$pid"
}
reports() { grep -c 'llane ab: .* in all' "$out"; }
export LLANE_REPORT_SIGNAL=USR1
signaled : && [ "$(reports)" = 6 ]
report $? signal__program_has_no_action__report_in_mid_run_and_at_the_end
signaled "trap '' USR1" && [ "$(reports)" = 3 ] && grep -q 'the program has an action of its own' "$out"
report $? signal__program_ignores_it__stays_ignored
echo "1..$n"
