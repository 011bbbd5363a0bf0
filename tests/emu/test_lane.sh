#!/bin/bash
# Proves the whole path without a GPU: door -> redirect -> set-up -> lane -> fallback, with an ordinary
# NCCL client, one process a rank. TAP.
set -u
# shellcheck source=tests/emu/common.bash
. "$(dirname "$0")/common.bash"
out=$(mktemp)
trap 'rm -rf "$out" "$out.d"' EXIT

export LLANE_STATS=1 LLANE_WAIT=1 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT
export NCCL_TUNER_PLUGIN=llane

# lane NAME N PROG_RANKS_OPTIONS -- CLIENT_OPTIONS: right, and every rank used the lane.
lane() {
    local name=$1 ranks=$2
    shift 2
    all_reduce "$ranks" "$@"
    local status=$?
    [ $status = 0 ] && [ "$(n_carried "$out")" -ge "$ranks" ]
    report $? "$name"
}

# nccl NAME N REASON PROG_RANKS_OPTIONS -- CLIENT_OPTIONS: right, no rank used the lane, and the reason
# (a pattern) stands in the log.
nccl() {
    local name=$1 ranks=$2 reason=$3
    shift 3
    all_reduce "$ranks" "$@"
    local status=$?
    [ $status = 0 ] && [ "$(n_carried "$out")" = 0 ] && grep -Eq "$reason" "$out"
    report $? "$name"
}

# ---- sizes, types, ranks ----
for ranks in 2 3 5 8; do # cases.md 7
    lane "lane__${ranks}_ranks__right_sums" $ranks -- --types all --ops all \
        --counts 1,3,4,31,1024,4097 --iters 2
done
lane lane__in_place__right_sums 4 -- --in-place 1 --types all --ops all --iters 1
lane lane__threshold__each_side_right 3 -e '*:LLANE_MAX_BYTES=4K' -- --counts 1023,1024,1025,70000
grep -q "above LLANE_MAX_BYTES" "$out"
report $? lane__threshold__larger_calls_counted_with_reason
lane lane__ranks_differ_in_alignment__same_geometry 3 -- --offsets 0,1,3 --types float16,float32 # cases.md 12
lane lane__all_ranks_on_one_gpu__right_sums 4 -- --device 0
lane lane__each_rank_sees_one_gpu_as_device_0__right_sums 4 -v -- --device 0 # cases.md 21
lane lane__ranks_are_threads__right_sums 1 -- --threads 4
lane lane__one_thread_drives_all__right_sums 1 -- --all 4 --iters 4
# Made in a group, or by ncclCommInitAll; without a tuner only llane's hooks give an id.
for door in "NCCL_TUNER_PLUGIN=llane" "LD_PRELOAD=$preloaded"; do
    for kind in config rank; do
        run -u '*:NCCL_TUNER_PLUGIN' -e "*:$door" 1 "$programs/prog_allreduce" --all 4 --kind $kind --comms 2 --batch 2
        status=$?
        [ $status = 0 ] && [ "$(n_carried "$out")" = 8 ] &&
            [ "$(sed -n 's/^llane stats: .* rank .* id \([0-9a-f]*\):.*/\1/p' "$out" | sort | uniq -c | awk '{ print $1 }' | xargs)" = '4 4' ]
        report $? "lane__one_thread_made_all_by_${kind}__a_lane_for_each_by_${door%%=*}"
    done
done
lane lane__one_thread_drives_all__goes_live_in_mid_run 1 -e '*:LLANE_WAIT=0' -- --all 4 --iters 40 --sleep-ms 5
lane lane__one_thread_drives_all__graphs_and_eager_calls_in_order 1 -- --all 4 --graph --mix --batch 3 --iters 5

# ---- calls as programs make them ----
lane lane__groups__right_sums 3 -- --group --batch 6 --iters 4
lane lane__groups_of_several_threads__right_sums 1 -e '*:LLANE_WAIT=0' -- --threads 4 --group --batch 6 --comms 2 \
    --streams 2 --iters 40 --sleep-ms 5 --counts 9,70000
lane lane__streams_take_turns__issue_order_kept 3 -- --streams 3 --batch 9 --iters 4
lane lane__several_communicators__right_sums 3 -- --comms 3 --batch 6 --iters 4
lane lane__16_communicators_at_once__right_sums 2 -- --comms 16 --batch 32 --iters 4 --counts 9,1000
[ "$(n_carried "$out")" = 32 ]
report $? lane__16_communicators_at_once__a_lane_for_each
lane lane__graph_replayed__right_sums 3 -- --graph --batch 5 --iters 6 # cases.md 11
lane lane__graph_and_eager_mixed__in_order 3 -- --graph --mix --batch 3 --iters 5
lane lane__captured_group_of_ncclS_on_two_streams__right_sums 2 -e '*:LLANE_MAX_BYTES=4' -- \
    --group --mix --streams 2 --batch 3 --counts 1,100
for kind in config nonblocking scalable split halves; do
    lane "lane__communicator_by_${kind}__right_sums" 4 -- --kind $kind
done
lane lane__no_wait__goes_live_in_mid_run 3 -e '*:LLANE_WAIT=0' -- --iters 40 --sleep-ms 5 --counts 1,100
grep -q "lane not live yet" "$out"
report $? lane__no_wait__first_calls_were_ncclS
lane lane__ranks_far_apart_in_time__right_sums 3 -e '*:LLANE_WAIT=0' -- --iters 30 --skew-ms 5 --counts 7

# ---- one line says what happened: cases.md 25 ----
lane lane__two_ranks__active 2 -- --counts 5
[ "$(grep -c 'llane 0.*door tuner, NCCL 2.28.9 at .*libnccl.so.2, .* call sites redirected' "$out")" = 2 ]
report $? log__start__one_line_a_process
[ "$(grep -c 'active from all-reduce' "$out")" = 2 ]
report $? log__active__one_line_a_communicator
! grep -E 'LLANE .*0x[0-9a-f]{5}|LLANE .*\b7f[0-9a-f]{10}\b' "$out"
report $? log__info__no_pointers
nccl log__one_rank__inactive_with_reason 1 "inactive: one rank" -- --counts 5
nccl log__17_ranks__inactive_with_reason 17 "inactive: more than 16 ranks" -- --counts 5 --iters 1

# ---- NCCL versions ----
for version in 2.28.9 2.30.7; do
    lane "version_${version}__first_communicator__active" 2 -e "*:FAKE_NCCL_VERSION=$version" -- --counts 9
done
for version in 2.19.3 2.20.5 2.21.5 2.23.4 2.27.7; do
    plugin=llane
    case $version in 2.19.* | 2.20.*) plugin=libnccl-tuner-llane.so ;; esac
    run -e "*:FAKE_NCCL_VERSION=$version" -e "*:NCCL_TUNER_PLUGIN=$plugin" 2 "$programs/prog_allreduce" \
        --counts 9 --comms 2 --batch 2
    # The first communicator has no id under this door, the second one has.
    status=$?
    [ $status = 0 ] && [ "$(grep -c 'inactive: no communicator id' "$out")" = 2 ] &&
        [ "$(grep -c 'active from all-reduce' "$out")" = 2 ]
    report $? "version_${version}__first_inactive_with_reason_second_active"
    lane "version_${version}__preload__first_communicator_active" 2 -e "*:FAKE_NCCL_VERSION=$version" \
        -e "*:LD_PRELOAD=$preloaded" -u '*:NCCL_TUNER_PLUGIN' -- --counts 9
done

# ---- doors ----
lane door__tuner_by_path__active 2 -e "*:NCCL_TUNER_PLUGIN=$build/emu/libnccl-tuner-llane.so" -- --counts 9
file=$build/emu/libnccl-tuner-llane.so
lane door__NET__active 2 -u '*:NCCL_TUNER_PLUGIN' -e "*:NCCL_NET_PLUGIN=$file" -- --counts 9 --comms 2 --batch 2
[ "$(grep -c 'llane 0.*: door net, NCCL 2.28.9' "$out")" = 2 ]
report $? door__NET__one_line_a_process
profiler=(-u '*:NCCL_TUNER_PLUGIN' -e "*:NCCL_PROFILER_PLUGIN=$file")
for version in 2.23.4 2.25.1 2.26.6 2.27.7 2.28.9 2.29.7 2.30.7; do
    case $version in 2.2[3-6].*) active=2 ;; *) active=4 ;; esac # an id for the first one too
    lane "door__profiler_of_${version}__right_sums" 2 "${profiler[@]}" -e "*:FAKE_NCCL_VERSION=$version" -- \
        --counts 9 --comms 2 --batch 2
    [ "$(grep -c 'active from all-reduce' "$out")" = $active ] &&
        [ "$(grep -c 'inactive: no communicator id' "$out")" = $((4 - active)) ] &&
        [ "$(grep -c "door profiler, NCCL $version" "$out")" = 2 ] && ! grep -q 'asks for events' "$out"
    report $? "door__profiler_of_${version}__${active}_of_4_active"
done
for kind in config nonblocking split halves; do
    lane "door__profiler__communicator_by_${kind}__right_sums" 4 "${profiler[@]}" -e '*:FAKE_NCCL_VERSION=2.27.7' -- \
        --kind $kind
done
lane door__profiler_and_tuner_of_2.27.7__first_communicator_active 2 -e "*:NCCL_PROFILER_PLUGIN=$file" \
    -e '*:FAKE_NCCL_VERSION=2.27.7' -- --counts 9
lane door__tuner_on_one_rank_profiler_on_the_other__first_communicator_active 2 -u 1:NCCL_TUNER_PLUGIN \
    -e "1:NCCL_PROFILER_PLUGIN=$file" -- --counts 9
nccl door__profiler_of_2.27.7_on_one_rank_preload_on_the_other__NCCL 2 "no verdict within 300 ms" \
    -u '*:NCCL_TUNER_PLUGIN' -e "0:NCCL_PROFILER_PLUGIN=$file" -e "1:LD_PRELOAD=$preloaded" \
    -e '*:FAKE_NCCL_VERSION=2.27.7' -e '*:LLANE_WAIT_TIMEOUT_MS=300' -- --counts 9
# Rank 0 loads it before its first communicator is created (ncclGetUniqueId), the others while: only
# later communicators have an id on all ranks.
lane door__ENV__second_communicator_active 2 -u '*:NCCL_TUNER_PLUGIN' -e '*:LLANE_WAIT=0' \
    -e "*:NCCL_ENV_PLUGIN=$build/emu/libnccl-tuner-llane.so" -- --counts 9 --comms 2 --batch 2 --iters 40 --sleep-ms 5
run -u '*:NCCL_TUNER_PLUGIN' 2 "$programs/prog_dlopen" "$build/emu/libnccl-llane.so"
status=$?
[ $status = 0 ] && [ "$(n_carried "$out")" = 2 ]
report $? door__drop_in_by_ctypes_like_program__active
lane door__several_at_once__active 2 -e "*:NCCL_NET_PLUGIN=$build/emu/libnccl-tuner-llane.so" \
    -e "*:LD_PRELOAD=$preloaded" -- --counts 9
lane door__all_at_once__active 2 -e "*:NCCL_NET_PLUGIN=$file" -e "*:NCCL_ENV_PLUGIN=$file" \
    -e "*:NCCL_PROFILER_PLUGIN=$file" -e "*:LD_PRELOAD=$preloaded" -- --counts 9 --comms 2 --batch 2
[ "$(grep -c 'llane 0.*: door' "$out")" = 2 ] && [ "$(grep -c 'active from all-reduce' "$out")" = 4 ]
report $? door__all_at_once__one_line_a_process_and_every_communicator_active

# ---- what keeps a communicator with NCCL, on all its ranks ----
nccl off__LLANE_ENABLE_0__inert 2 "" -e '*:LLANE_ENABLE=0' -- --counts 9
! grep -Eq 'LLANE |llane \[|llane stats' "$out"
report $? off__LLANE_ENABLE_0__silent
nccl off__LLANE_ENABLE_0__profiler__inert 2 "" "${profiler[@]}" -e '*:LLANE_ENABLE=0' -- --counts 9
! grep -Eq 'LLANE |llane \[|llane stats|NCCL WARN' "$out"
report $? off__LLANE_ENABLE_0__profiler__silent
nccl partial__one_rank_has_no_llane__others_go_on 3 "lane not live yet" -u 1:NCCL_TUNER_PLUGIN \
    -e '*:LLANE_WAIT=0' -- --counts 9,1000 --iters 20
nccl partial__one_rank_disabled__others_go_on 3 "lane not live yet" -e 2:LLANE_ENABLE=0 \
    -e '*:LLANE_WAIT=0' -- --counts 9,1000 --iters 20
[ "$(grep -cE 'LLANE rank [01] of 3: inactive: (it ended before its lane was live|a rank ended the comm)' "$out")" = 2 ]
report $? partial__one_rank_disabled__others_say_at_the_end_that_no_lane_went_live
nccl partial__LLANE_WAIT_and_no_llane_on_one_rank__ends_by_its_deadline 3 "no verdict within 300 ms" \
    -u 1:NCCL_TUNER_PLUGIN -e '*:LLANE_WAIT_TIMEOUT_MS=300' -- --counts 9
nccl failure__peer_memory_does_not_open_on_one_rank__all_inactive 3 "a peer's memory does not open" \
    -e 1:EMU_FAIL=ipc_open -e '*:LLANE_MEMORY=p2p' -- --counts 9 # cases.md 8
[ "$(grep -c "inactive: a peer's memory does not open" "$out")" = 3 ]
report $? failure__peer_memory_does_not_open_on_one_rank__reason_on_all
nccl failure__kernel_does_not_load_on_one_rank__all_inactive 3 "a kernel does not load" \
    -e 2:EMU_FAIL=kernel_load -- --counts 9
nccl failure__gpu_does_not_answer_on_one_rank__all_inactive 3 "a rank's GPU does not answer" \
    -e 1:EMU_FAIL=identify -- --counts 9
[ "$(grep -c "inactive: a rank's GPU does not answer" "$out")" = 3 ]
report $? failure__gpu_does_not_answer_on_one_rank__reason_on_all
nccl failure__no_device_memory_on_one_rank__all_inactive 3 "no device memory for staging" \
    -e 2:EMU_FAIL=host_register,host_alloc -- --counts 9
mkdir "$out.d"
other_build "$out.d/libnccl-tuner-llane.so"
nccl refused__another_build_on_one_rank__all_inactive 3 "ranks run different builds of llane" \
    -e "1:NCCL_TUNER_PLUGIN=$out.d/libnccl-tuner-llane.so" -e '*:LLANE_WAIT_TIMEOUT_MS=3000' -- --counts 9
[ "$(grep -c 'inactive: ranks run different builds of llane' "$out")" = 3 ]
report $? refused__another_build_on_one_rank__reason_on_all
nccl failure__staging_cap__all_inactive 3 "LLANE_MAX_STAGING reached" -e 0:LLANE_MAX_STAGING=1M -- --counts 9
for fault in mirror drop flip; do # cases.md 1, 2, 3
    nccl "failure__${fault}_from_one_peer__probe_refuses_on_all" 3 "the probe of peer memory failed" \
        -e '*:LLANE_MEMORY=p2p' -e "*:EMU_FAULTS=$fault:1>0" -e '*:LLANE_PROBE_TIMEOUT_MS=500' -- --counts 9,300
    [ "$(grep -c 'inactive: the probe of peer memory failed' "$out")" = 3 ]
    report $? "failure__${fault}_from_one_peer__reason_on_all"
done
lane failure__slow_writes__right_sums 3 -e '*:EMU_FAULTS=delay_us:1>0=3000' -- --counts 9,300

# ---- settings: cases.md 29 ----
lane settings__rank_0_holds__right_sums 3 -e '0:LLANE_MAX_BYTES=1K' -e '1:LLANE_MAX_BYTES=64' -- \
    --counts 10,200,300
grep -q "LLANE_MAX_BYTES=64 .* here differ from rank 0's, whose 0 and 1024 hold" "$out"
report $? settings__rank_0_holds__others_say_so
[ "$(grep -Eo 'above LLANE_MAX_BYTES: [0-9]+' "$out" | sort -u | wc -l)" = 1 ]
report $? settings__rank_0_holds__same_routes
lane settings__ring_by_rank_0__right_sums 5 -e 0:LLANE_ALGO=ring -e 0:LLANE_CHUNK_BYTES=256 \
    -e 0:LLANE_POLL=sleep -- --types all --ops all --counts 1,31,4097 --iters 1
[ "$(grep -c "llane stats: .*ring LL" "$out")" -ge 5 ] && ! grep -q "llane stats: .*-shot" "$out"
report $? settings__ring_by_rank_0__on_all_ranks
lane settings__islands_by_rank_0__right_sums 5 -e 0:LLANE_ALGO=islands -- --types all --ops all \
    --counts 1,31,4097 --iters 1
[ "$(grep -c "llane stats: .*islands LL" "$out")" -ge 5 ] && ! grep -q "llane stats: .*-shot" "$out"
report $? settings__islands_by_rank_0__on_all_ranks
for packet in ll:LL:sentinel sentinel:sentinel:LL; do
    IFS=: read -r setting used unused <<<"$packet"
    lane "settings__packet_${setting}_by_rank_0__right_sums" 3 -e "0:LLANE_PACKET=$setting" -- --counts 9,3000 --iters 2
    [ "$(grep -Ec "llane stats: .*launched .* $used [0-9]" "$out")" = 6 ] && ! grep -Eq "llane stats: .* $unused [0-9]" "$out"
    report $? "settings__packet_${setting}_by_rank_0__on_all_ranks"
done
lane settings__min_bytes_by_rank_0__right_sums 2 -e 0:LLANE_MIN_BYTES=100 -- --counts 9,25,300 --iters 4
[ "$(grep -Ec 'llane stats: .* rank .*: lane 8 calls .*; NCCL 4 calls .*below LLANE_MIN_BYTES: 4' "$out")" = 2 ]
report $? settings__min_bytes_by_rank_0__smaller_calls_are_nccls
# 3000 B are 375 packets of LL; a chunk of 256 B is 32 of them.
lane settings__geometry_by_rank_0__right_sums 3 -e 0:LLANE_ALGO=ring -e 0:LLANE_BLOCKS=2 -e 0:LLANE_THREADS=64 \
    -e 0:LLANE_POLL=sleep -e 0:LLANE_CHUNK_BYTES=256 -e '*:EMU_LAUNCHES=1' -- --counts 750 --iters 4
[ "$(grep -c 'launch of 2 blocks, 64 threads, chunks of 32 packets, sleeping$' "$out")" = 12 ] &&
    [ "$(grep -c 'launch of' "$out")" = 12 ]
report $? settings__geometry_by_rank_0__of_every_launch
lane settings__odd_number_of_threads__rounded 2 -e '*:LLANE_THREADS=70' -e '*:EMU_LAUNCHES=1' -- --counts 9,3000
grep -q 'launch of .* 64 threads, .*, spinning$' "$out" && ! grep -q 'launch of .* 70 threads' "$out"
report $? settings__odd_number_of_threads__rounded_down
lane settings__bad_value__warned_and_default_used 2 -e '*:LLANE_MAX_BYTES=many' -- --counts 9
grep -q 'LLANE_MAX_BYTES=many is not accepted: it takes 0 to 64M' "$out"
report $? settings__bad_value__names_variable_value_and_range

# ---- ends ----
for end in finalize abort leave; do
    lane "end__${end}__clean" 3 -- --counts 9 --end $end
done
export FAKE_NCCL_SHM_TAG=$$
run -g -t 5 -k 1:300 3 "$programs/prog_allreduce" --counts 9 --iters 200 --sleep-ms 5 --end abort
! compgen -G "/dev/shm/*-$$-*" >>"$out"
report $? end__rank_killed__no_file_left # cases.md 19
echo "1..$n"
