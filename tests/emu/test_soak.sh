#!/bin/bash
# Proves that `llane soak` passes a lane that is right, stops at a single wrong word wherever it comes
# from, says how to run that case again, does not take NCCL's results for the lane's, and gives ranks that
# share a GPU what real NCCL needs for that. TAP.
set -u
# shellcheck source=tests/tap.bash
. "$(dirname "$0")/../tap.bash"
build=${LLANE_BUILD:?run it through make test}
out=$(mktemp) envs=$(mktemp -d)
trap 'rm -rf "$out" "$out.log" "$envs"' EXIT
export LLANE_BUILD=$build

# soak STATUS OPTION...
soak() {
    local wanted=$1
    shift
    tools/llane soak --emulate "$@" >"$out" 2>&1
    [ $? = "$wanted" ]
}

soak 0 --ranks 3 --cases 60 --seed 11 && grep -Eq '^60 cases, [1-9][0-9]* elements on 3 ranks compared, none wrong \(seed 11\); calls of rank 0: lane [1-9][0-9]*, NCCL 0$' "$out"
report $? soak__right_lane__passes
soak 0 --ranks 4 --cases 40 --seed 5 --memory host && grep -q 'over host memory' "$out"
report $? soak__host_memory__passes
EMU_FAULTS='no_peer:0>1' soak 0 --ranks 3 --cases 40 --seed 6 && grep -q 'some pairs over host memory' "$out"
report $? soak__mixed_pairs__passes
start=$SECONDS
soak 0 --seconds 1 && [ $((SECONDS - start)) -ge 1 ] && grep -Eq '^[1-9][0-9]* cases' "$out"
report $? soak__seconds__runs_that_long
soak 1 --ranks 3 --gpus 2 --cases 9 --seed 77 --plant-error 2 &&
    grep -q '^WRONG: rank 2 of 3, element [0-9]* of [0-9]*: 0x[0-9a-f]*, not 0x' "$out" &&
    grep -q 'case 1 of seed 77: ' "$out" && [ "$(grep -c 'contribution 0x' "$out")" = 3 ]
report $? soak__one_wrong_word__stops_and_describes_it
again=$(sed -n 's/.*again: llane soak --emulate //p' "$out")
# shellcheck disable=SC2086
[ "$again" = '--ranks 3 --gpus 2 --max-bytes 16384 --seed 77 --from 1 --cases 1' ] && soak 0 $again
report $? soak__one_wrong_word__command_runs_that_case_alone
NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=NET NCCL_DEBUG_FILE="$out.log" LLANE_STATS=0 \
    soak 0 --ranks 2 --cases 9 --seed 3 && grep -q 'active from ' "$out" && grep -Eq 'rank 0: lane [1-9]' "$out"
report $? soak__nccl_is_to_log_otherwise__no_matter
# environments OPTION...: what 3 ranks have in theirs, in $envs/RANK.
environments() {
    local pid soak_pid rank
    rm -f "$envs"/*
    tools/llane soak --emulate --ranks 3 --seconds 60 "$@" >"$out" 2>&1 &
    soak_pid=$!
    for _ in $(seq 200); do
        for pid in $(pgrep -P $soak_pid); do
            { tr '\0' '\n' <"/proc/$pid/environ" >"$envs/new"; } 2>/dev/null || continue
            rank=$(sed -n 's/^SOAK_RANK=//p' "$envs/new")
            [ -z "$rank" ] || mv "$envs/new" "$envs/$rank"
        done
        [ ! -e "$envs/0" ] || [ ! -e "$envs/1" ] || [ ! -e "$envs/2" ] || break
        sleep 0.05
    done
    kill -TERM $soak_pid
    wait $soak_pid
    [ $? = $((128 + 15)) ]
}
each_has() { [ "$(cat "$envs"/[0-2] | grep -Exc "$1")" = 3 ]; }
environments --gpus 1 && each_has 'NCCL_HOSTID=llane-rank-[0-2]' && each_has NCCL_NET=Socket &&
    [ "$(cat "$envs"/[0-2] | grep ^NCCL_HOSTID= | sort -u | wc -l)" = 3 ]
report $? soak__ranks_share_a_gpu__each_has_a_host_id
FAKE_NCCL_VERSION=2.30.7 NCCL_MAX_CTAS=4 environments --gpus 1 &&
    each_has NCCL_MULTI_RANK_GPU_ENABLE=1 && each_has NCCL_MAX_CTAS=4 && ! grep -q ^NCCL_HOSTID= "$envs"/[0-2]
report $? soak__ranks_share_a_gpu_newer_nccl__told_so_and_settings_stay
environments && ! grep -Eq '^NCCL_(HOSTID|NET|MULTI_RANK_GPU_ENABLE)=' "$envs"/[0-2]
report $? soak__a_gpu_each__nothing_set
soak 0 --ranks 3 --gpus 1 --cases 20 --seed 4 && grep -Eq 'rank 0: lane [1-9]' "$out"
report $? soak__ranks_share_a_gpu__lane_carries
for memory in p2p host; do # cases.md 4: the probe passes, later packets are damaged
    to=0
    [ $memory = p2p ] || to=host
    # A damaged flag never comes: no end instead of a wrong word.
    EMU_FAULTS="flip_late:1>$to=2000" tools/llane soak --emulate --ranks 2 --cases 2000 --seed 8 \
        --memory $memory --timeout 6 >"$out" 2>&1
    grep -Eq '^WRONG: |no progress for 6 s in case [0-9]+ of seed 8' "$out"
    report $? "soak__${memory}_damages_packets_after_the_probe__found"
done
LLANE_ENABLE=0 soak 3 --cases 3
report $? soak__lane_carries_nothing__status_3
soak 2 --memory floppy && grep -q 'auto, p2p or host' "$out"
report $? soak__bad_option__named
echo "1..$n"
