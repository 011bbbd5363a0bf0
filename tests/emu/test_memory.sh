#!/bin/bash
# Proves what memory each pair of ranks gets: peer memory where the probe proves it, host memory where
# peer access is missing, half there or lying, the same on all ranks, with the reason in the log; and
# sums that are right over each. TAP.
set -u
# shellcheck source=tests/emu/common.bash
. "$(dirname "$0")/common.bash"
work=$(mktemp -d)
out=$work/out
trap 'rm -rf "$work"' EXIT

export LLANE_STATS=1 LLANE_WAIT=1 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT
export NCCL_TUNER_PLUGIN=llane

count() { grep -Ec "$1" "$out"; }
fast=(-e '*:LLANE_PROBE_TIMEOUT_MS=400')

# over NAME N MEMORY PROG_RANKS_OPTIONS -- CLIENT_OPTIONS: right, carried by the lane of every rank, all of
# which say that it goes over MEMORY.
over() {
    local name=$1 ranks=$2 memory=$3
    shift 3
    all_reduce "$ranks" "$@"
    local status=$?
    [ $status = 0 ] && [ "$(n_carried "$out")" -ge "$ranks" ] &&
        [ "$(count "active from all-reduce [0-9]+ over $memory,")" = "${threads:-$ranks}" ]
    report $? "$name"
}

# inactive NAME N REASON ...: right, carried by NCCL, and each rank says why.
inactive() {
    local name=$1 ranks=$2 reason=$3
    shift 3
    all_reduce "$ranks" "$@"
    local status=$?
    [ $status = 0 ] && [ "$(n_carried "$out")" = 0 ] && [ "$(count "inactive: $reason")" = "$ranks" ]
    report $? "$name"
}

said() { # said TIMES PATTERN NAME
    [ "$(count "$2")" = "$1" ]
    report $? "$3"
}

mixed="peer memory, some pairs over host memory"
host=(-e '*:LLANE_MEMORY=host')

# ---- host memory alone: cases.md 5, 23 ----
for ranks in 2 3 5 8; do
    over "host__${ranks}_ranks__right_sums" $ranks "host memory" "${host[@]}" -- --types all --ops all \
        --counts 1,3,31,1024,4097 --iters 2
done
over host__16_ranks__right_sums 16 "host memory" "${host[@]}" -- --device 0 --counts 1,5000 --iters 2
over host__up_to_max_bytes__right_sums 3 "host memory" "${host[@]}" -- --counts 65535,65536 --iters 2
for algorithm in one-shot two-shot; do
    for packet in ll sentinel; do
        over "host__${algorithm}_${packet}_forced__right_sums" 3 "host memory" "${host[@]}" \
            -e "*:LLANE_ALGO=$algorithm" -e "*:LLANE_PACKET=$packet" -- --counts 1,7,3000 --iters 9
    done
done
threads=4 over host__ranks_are_threads__right_sums 1 "host memory" "${host[@]}" -- --threads 4
over host__graphs_and_eager_mixed__in_order 3 "host memory" "${host[@]}" -- --graph --mix --batch 3 --iters 5
over host__several_communicators__right_sums 2 "host memory" "${host[@]}" -- --comms 1 --batch 6 --iters 4
run "${host[@]}" -e '*:EMU_FAIL=ipc_open,ipc_export,peer_enable' 2 "$programs/prog_allreduce" --counts 9 &&
    [ "$(n_carried "$out")" = 2 ] && [ "$(count 'EMU_FAIL')" = 0 ]
report $? host__asked_for__no_peer_memory_is_tried
over host__asked_for_by_rank_0__holds_for_all 3 "host memory" -e 0:LLANE_MEMORY=host -- --counts 9
over p2p__asked_for_by_rank_0__holds_for_all 3 "peer memory" -e 0:LLANE_MEMORY=p2p \
    -e 1:LLANE_MEMORY=host -- --counts 9

# ---- pairs without peer access: cases.md 8, 20, 24 ----
over pair__no_peer_access_one_way__host_memory_for_it 3 "$mixed" -e '*:EMU_FAULTS=no_peer:0>1' -- \
    --types all --ops all --counts 1,31,4097 --iters 2
said 2 'rank [01]: host memory for the pair with rank [01].*its memory does not open' \
    pair__no_peer_access_one_way__both_ranks_say_so
over pair__none_has_peer_access__host_memory_for_all 4 "host memory" -e '*:EMU_FAULTS=no_peer:*>*' -- \
    --counts 9,3000
over pair__handle_does_not_open_on_one_rank__host_memory_for_its_pairs 3 "$mixed" \
    -e 1:EMU_FAIL=ipc_open -- --counts 9,300
over pair__memory_is_not_exported_by_one_rank__host_memory_for_its_pairs 3 "$mixed" \
    -e 2:EMU_FAIL=ipc_export -- --counts 9,300
over pair__too_many_peers__host_memory_beyond_the_limit 5 "$mixed" -e '*:EMU_MAX_PEERS=2' -- \
    --types float32,int64 --counts 1,300,9000
grep -q 'too many peers' "$out"
report $? pair__too_many_peers__said
threads=4 over pair__too_many_peers_among_threads__host_memory_beyond_the_limit 1 "$mixed" \
    -e '*:EMU_MAX_PEERS=1' -- --threads 4

# ---- peer memory that lies: cases.md 1, 2, 3, 4, 6 ----
for fault in mirror:1\>0 drop:1\>0 flip:1\>0 torn:1\>0 delay_us:1\>0=900000 drop:0\>2; do
    name=${fault%%:*}_${fault#*:}
    over "probe__${name}__host_memory_for_the_pair" 3 "$mixed" "${fast[@]}" \
        -e "*:EMU_FAULTS=$fault" -- --types float32,int32 --counts 1,300,9000 --iters 3
    said 2 'host memory for the pair with rank .*: its writes (do not arrive|arrive damaged)' \
        "probe__${name}__both_ranks_say_so"
done
over probe__two_pairs_fail_in_two_ways__host_memory_for_both 4 "$mixed" "${fast[@]}" \
    -e '*:EMU_FAULTS=mirror:1>0,drop:2>3' -- --types all --counts 1,300 --iters 2
over probe__all_writes_dropped__host_memory_for_all 3 "host memory" "${fast[@]}" \
    -e '*:EMU_FAULTS=drop:*>*' -- --counts 1,300,9000
over probe__writes_are_slow__peer_memory_stays 3 "peer memory" -e '*:EMU_FAULTS=delay_us:1>0=3000' -- \
    --counts 9,300
start=$SECONDS
over probe__drops_and_the_default_deadline__ends 2 "host memory" -e '*:EMU_FAULTS=drop:*>*' -- --counts 9
[ $((SECONDS - start)) -le 20 ] # cases.md 9
report $? probe__drops_and_the_default_deadline__soon

# ---- host memory that fails ----
for fault in drop mirror torn; do
    inactive "host__${fault}_from_one_rank__inactive_on_all" 3 "the probe of peer memory failed" \
        "${host[@]}" "${fast[@]}" -e "*:EMU_FAULTS=$fault:1>host" -- --counts 9
    grep -Eq 'what rank 1 writes to host memory (does not arrive|arrives damaged)' "$out"
    report $? "host__${fault}_from_one_rank__said"
done
inactive host__not_pinned_on_one_rank__inactive_on_all 3 "no host memory for the pairs" \
    "${host[@]}" -e 1:EMU_FAIL=host_register -- --counts 9
(
    ulimit -l 64
    run "${host[@]}" -e 1:EMU_FAIL=host_register 2 "$programs/prog_allreduce" --counts 9
) && grep -Eq 'pinning host memory: .* [0-9]+ KiB are to be pinned and the limit of locked memory is 64 KiB: raise it .*memlock=-1' "$out"
report $? host__limit_of_locked_memory__named_with_what_to_change
# Found before any of it is taken.
if unshare -m true 2>/dev/null; then
    echo 'MemAvailable: 100 kB' >"$work/meminfo"
    # shellcheck disable=SC2016 # the inner shell expands
    unshare -m bash -c 'mount --bind "$0" /proc/meminfo && exec "$@"' "$work/meminfo" \
        "$programs/prog_ranks" "${host[@]}" 2 "$programs/prog_allreduce" --counts 9 >"$out" 2>&1
    status=$?
    [ $status = 0 ] && [ "$(count 'inactive: no host memory for the pairs')" = 2 ] &&
        grep -Eq 'no host memory: [0-9]+ KiB are needed and the machine has 100 KiB available' "$out"
    report $? host__machine_is_short__inactive_on_all_and_said
else
    report 77 host__machine_is_short__inactive_on_all_and_said "no mount namespaces here"
fi
inactive host__beyond_the_cap__inactive_on_all 2 "LLANE_MAX_STAGING reached" "${host[@]}" \
    -e 1:LLANE_MAX_STAGING=3M -- --counts 9
inactive p2p__one_pair_without_peer_access__inactive_on_all 3 "a peer's memory does not open" \
    -e '*:LLANE_MEMORY=p2p' -e '*:EMU_FAULTS=no_peer:0>1' -- --counts 9
inactive p2p__probe_fails__inactive_on_all 3 "the probe of peer memory failed" \
    -e '*:LLANE_MEMORY=p2p' "${fast[@]}" -e '*:EMU_FAULTS=mirror:0>1' -- --counts 9

# ---- where host memory lies ----
mkdir "$work/numa"
ln -s "$(realpath "$programs/lib_numa.so")" "$work/numa/libnuma.so.1"
export NUMA_RECORD=$work/record
numa=(-e "*:LD_LIBRARY_PATH=$work/numa:$build/emu" -e '*:EMU_NODES=0011')
# placed NODE...: the nodes that parts were placed on, one each, sorted; and each was looked at.
placed() {
    local nodes
    nodes=$(grep '^place' "$NUMA_RECORD" | cut -d' ' -f3 | sort | xargs)
    [ "$nodes" = "$*" ] && [ "$(grep -c '^look' "$NUMA_RECORD")" = $# ]
}
over numa__two_ranks_on_two_nodes__right_sums 2 "host memory" "${host[@]}" "${numa[@]}" \
    -e 0:CUDA_VISIBLE_DEVICES=0 -e 1:CUDA_VISIBLE_DEVICES=2 -- --device 0 --counts 9
placed 0 1 && grep -q 'rank 0: .* on node 1 (64 of 64 pages there)' "$out" &&
    grep -q 'rank 1: .* on node 0 (64 of 64 pages there)' "$out"
report $? numa__one_reader__memory_on_the_readers_node
rm -f "$NUMA_RECORD"
over numa__four_ranks_on_two_nodes__right_sums 4 "host memory" "${host[@]}" "${numa[@]}" -- --counts 9
placed 0 0 1 1 && grep -q 'rank 1: .* on node 0 ' "$out" && grep -q 'rank 2: .* on node 1 ' "$out"
report $? numa__several_readers__memory_on_the_writers_node
rm -f "$NUMA_RECORD"
over numa__mixed_pairs__right_sums 4 "$mixed" "${numa[@]}" -e '*:EMU_FAULTS=no_peer:0>3' -- --counts 9
placed 0 1 && grep -q 'rank 0: .* on node 1 ' "$out" && grep -q 'rank 3: .* on node 0 ' "$out"
report $? numa__mixed_pairs__parts_of_these_ranks_alone
for how in 'NUMA_ONE_NODE:the machine has one node' 'NUMA_NONE:the kernel does not tell' \
    'NUMA_REFUSE:the kernel refuses'; do
    over "numa__${how%%:*}__right_sums" 2 "host memory" "${host[@]}" "${numa[@]}" -e "*:${how%%:*}=1" -- \
        --counts 9
    said 2 "not placed: ${how#*:}" "numa__${how%%:*}__said"
done
over numa__node_of_the_gpu_unknown__right_sums 2 "host memory" "${host[@]}" "${numa[@]}" \
    -u '*:EMU_NODES' -e '*:EMU_NODES=' -- --counts 9
said 2 "not placed: the GPU's node is not known" numa__node_of_the_gpu_unknown__said

# ---- ends: cases.md 19 ----
export FAKE_NCCL_SHM_TAG=$$
for ms in 8 60; do
    run -g -t 2 -k 1:$ms "${host[@]}" 3 "$programs/prog_allreduce" --counts 9 --iters 200 --sleep-ms 5 --end abort
    # shellcheck disable=SC2010
    ! ls /dev/shm | grep -e "-$$-" -e llane
    report $? "end__rank_killed_after_${ms}_ms__no_file_left"
done
echo "1..$n"
