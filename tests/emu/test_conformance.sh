#!/bin/bash
# Proves that a program cannot tell the lane from NCCL: one client runs without and with llane, return
# codes are those that NCCL is known to give, results are right, and both runs print the same. TAP.
set -u
# shellcheck source=tests/emu/common.bash
. "$(dirname "$0")/common.bash"
explain() { grep -hE 'WRONG|expected|prog_|LLANE|fake nccl' "$out"/[dw]* | head -n 40; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

export LLANE_WAIT=1 LLANE_STATS=1 NCCL_DEBUG=WARN

said() { grep -E '^[a-z0-9_-]+: ' "$1" | sort; }

# same NAME N OPTIONS_FOR_PROG_RANKS... -- SECTIONS...: right without and with llane, and alike.
same() {
    local name=$1 ranks=$2 options=()
    shift 2
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    "$programs/prog_ranks" "${options[@]}" "$ranks" "$programs/prog_conformance" "$@" >"$out/without" 2>&1
    report $? "${name}__without_llane__as_nccl"
    "$programs/prog_ranks" -e '*:NCCL_TUNER_PLUGIN=llane' "${options[@]}" "$ranks" \
        "$programs/prog_conformance" "$@" >"$out/with" 2>&1
    report $? "${name}__with_llane__as_nccl"
    diff <(said "$out/without") <(said "$out/with") >"$out/difference"
    report $? "${name}__alike"
}
carried() { grep -Eq 'llane stats: .*: lane [1-9]' "$out/with"; }

# ---- everything, with a live lane: cases.md 14, 15, 28, 32, 36 ----
same two_ranks 2 --
carried
report $? two_ranks__the_lane_carried_calls
same three_ranks_one_gpu 3 -e '*:CUDA_VISIBLE_DEVICES=0' --
carried
report $? three_ranks_one_gpu__the_lane_carried_calls

"$programs/prog_ranks" -t 20 -e '*:NCCL_TUNER_PLUGIN=llane' 1 "$programs/prog_conformance" \
    destroyed_in_turns >"$out/with" 2>&1 && carried
report $? destroyed_in_turns__one_thread__last_end_waits_for_both

# The communicator, its reversed child, and a child that alone asks to share: it does where llane has
# not seen what the parent asked for, which is as it would be.
same children_seen 2 -e "*:LD_PRELOAD=$preloaded" -- children
[ "$(n_carried "$out/with")" = 6 ]
report $? children_seen__a_lane_for_each_of_three
same children_guessed 2 -- children
[ "$(n_carried "$out/with")" = 4 ]
report $? children_guessed__none_for_the_one_that_may_share

# Each of its four sums was the lane's.
same refused_ends 2 -e '*:FAKE_NCCL_VERSION=2.30.7' -- refused_ends
[ "$(grep -c 'lane 4 calls 1600 bytes; NCCL 0 calls' "$out/with")" = 2 ]
report $? refused_ends__the_lane_goes_on

# LLANE_STATS counts what was refused: six of the calls there are of this communicator.
same arguments 2 -- arguments
[ "$(grep -c ', errors 6$' "$out/with")" = 2 ]
report $? arguments__refused_calls__counted

# Captures in global mode: every thread's calls could break them. As a watchdog's, while others capture.
same global_captures 2 -e '*:EMU_CAPTURE=global' --
carried
report $? global_captures__the_lane_carried_calls

# What waits for an operation waits until its stream says that it has ended.
same ends_late 2 -e '*:EMU_END_US=3000' -- ends ends_wait

same abort 2 -- abort_beside_a_spinning_kernel # cases.md 34

# ---- nothing waits inside a call: cases.md 33 ----
same first_calls 2 -e '*:LLANE_WAIT=0' -- first_calls
# Going live in mid-run changes nothing either.
same no_wait 2 -e '*:LLANE_WAIT=0' --

same graph_before_the_lane 2 -e '*:LLANE_WAIT=0' -- graph_before_the_lane
carried
report $? graph_before_the_lane__the_lane_carried_calls

same graph_after_its_communicator 2 -- graph_after_its_communicator
carried
report $? graph_after_its_communicator__the_lane_carried_calls

same sharing_shrunk_child 3 -- sharing_shrunk_child
[ "$(grep -c 'lane 0 calls.*shares its parent' "$out/with")" = 2 ] && carried
report $? sharing_shrunk_child__with_nccl_and_the_parent_on_its_lane

# Children to which NCCL gives one id stay apart, also where only llane's hooks give them one.
same shrunk_children 4 -e '*:LLANE_WAIT=0' -- shrunk_children
same shrunk_children_preload 4 -e '*:LLANE_WAIT=0' -e "*:FAKE_NCCL_VERSION=2.27.7" \
    -e "*:LD_PRELOAD=$preloaded" -- shrunk_children
# Two children of three ranks and two of two have a lane, as has what all come of.
same children_of_halves 6 -- children_of_halves
[ "$(n_carried "$out/with")" = 16 ]
report $? children_of_halves__a_lane_for_each_of_four
same children_of_halves_preload 6 -e "*:FAKE_NCCL_VERSION=2.27.7" \
    -e "*:LD_PRELOAD=$preloaded" -- children_of_halves

comm_id=(-t 20 -e '*:NCCL_COMM_ID=127.0.0.1:23456' -e '*:LLANE_WAIT=0')
same one_id_for_two 2 "${comm_id[@]}" -- one_id_for_two
! carried && grep -q 'NCCL_COMM_ID is set on one of its ranks' "$out/with"
report $? one_id_for_two__no_lane
same one_id_for_two_preload 2 "${comm_id[@]}" -e '*:FAKE_NCCL_VERSION=2.27.7' \
    -e "*:LD_PRELOAD=$preloaded" -- one_id_for_two

same simulated_on_one_rank 2 -e '*:LLANE_WAIT=0' -- simulated_on_one_rank
carried
report $? simulated_on_one_rank__the_lane_carried_calls

# The lane goes live behind NCCL's last call on another stream; 20 times, since it is a race.
status=0
for _ in {1..20}; do
    "$programs/prog_ranks" -e '*:NCCL_TUNER_PLUGIN=llane' -e '*:LLANE_WAIT=0' 2 \
        "$programs/prog_conformance" not_blocking >"$out/with" 2>&1 || { status=1 && break; }
done
report $status switch__first_operation_on_the_lane__behind_ncclS_last

# ---- the ranks count alike, whatever comes to nothing on one of them ----
same void_groups_on_one_rank 2 -e '*:LLANE_WAIT=0' -- void_groups_on_one_rank
carried
report $? void_groups_on_one_rank__the_lane_carried_calls
# No tuner tells the children apart: their ids come from the parent's and their number.
same refused_splits_on_one_rank 2 -e '*:LLANE_WAIT=0' -e '*:FAKE_NCCL_VERSION=2.22.3' \
    -- refused_splits_on_one_rank
# The lane's first operation waits for what NCCL was given before, with LLANE_WAIT too.
same first_sum_behind_others 2 -- first_sum_behind_others

# ---- what decides a route, decides it on all ranks ----
same checked_pointers_on_one_rank 2 -e 1:NCCL_CHECK_POINTERS=1 -- groups group_errors order_across_streams
! carried && grep -q 'NCCL_CHECK_POINTERS or NCCL_CHECK_MODE is set on one' "$out/with"
report $? checked_pointers_on_one_rank__all_with_nccl_with_reason
same launch_order_on_one_rank 2 -e 0:NCCL_LAUNCH_ORDER_IMPLICIT=1 -- groups order_across_streams
! carried && grep -q 'NCCL_LAUNCH_ORDER_IMPLICIT or launchOrderImplicit is set on one' "$out/with"
report $? launch_order_on_one_rank__all_with_nccl_with_reason
same launch_order_before_2.26 2 -e '*:NCCL_LAUNCH_ORDER_IMPLICIT=1' -e '*:FAKE_NCCL_VERSION=2.25.1' \
    -e "*:LD_PRELOAD=$preloaded" -- groups
carried
report $? launch_order_before_2.26__unknown_to_NCCL__the_lane_carried_calls
"$programs/prog_ranks" -e '*:NCCL_TUNER_PLUGIN=llane' -e 0:EMU_FAIL=primary 2 \
    "$programs/prog_conformance" groups >"$out/with" 2>&1
status=$?
[ $status = 0 ] && ! carried && grep -q 'a CUDA context of its own' "$out/with"
report $? own_context_on_one_rank__all_with_nccl_with_reason
same old_gpu_on_one_rank 2 -e '*:EMU_CC=80' -- float8 arguments

# ---- a reset takes the context away, with all that hangs on it ----
same device_reset 2 -- device_reset
[ "$(n_carried "$out/with")" = 8 ]
report $? device_reset__a_lane_before_and_after_each
same device_reset_in_set_up 2 -e '*:LLANE_WAIT=0' -- device_reset_in_set_up
same device_reset_while_kernels_load 2 -e '*:LLANE_WAIT=0' -e '*:EMU_LOAD_US=10000' -- device_reset_in_set_up
# Unseen ends are told by NCCL's closing the profiler, where there is no tuner.
"$programs/prog_ranks" -e "*:NCCL_PROFILER_PLUGIN=$build/emu/libnccl-tuner-llane.so" -e '*:FAKE_NCCL_VERSION=2.27.7' \
    -e '*:LLANE_WAIT=0' 2 "$programs/prog_conformance" device_reset_in_set_up >"$out/with" 2>&1
report $? device_reset_in_set_up_with_the_profiler_alone
same ends_in_set_up 3 -e '*:LLANE_WAIT=0' -- ends_in_set_up
for ab in alternate shadow; do
    same "destroyed_on_any_device_$ab" 2 -e "*:LLANE_AB=$ab" -- destroyed_on_any_device
    same "device_reset_while_timed_$ab" 2 -e "*:LLANE_AB=$ab" -e '*:EMU_QUERY_US=2000' -- device_reset_while_timed
    "$programs/prog_ranks" -t 20 -e '*:NCCL_TUNER_PLUGIN=llane' -e "*:LLANE_AB=$ab" 1 \
        "$programs/prog_conformance" destroyed_and_reset_in_turns >"$out/with" 2>&1
    report $? "destroyed_and_reset_in_turns_$ab"
done

# ---- threads with communicators of their own ----
"$programs/prog_ranks" -e '*:NCCL_TUNER_PLUGIN=llane' -e '*:LLANE_WAIT=0' -e '*:LLANE_REPORT_SIGNAL=usr1' 1 \
    "$programs/prog_conformance" threads_apart >"$out/with" 2>&1
report $? threads_apart__ends_and_reports_beside_first_sums

# ---- settings of the order ----
for setting in LLANE_GRAPH_ORDER=0 NCCL_GRAPH_MIXING_SUPPORT=0; do
    # One stream at a time needs no nodes in its graphs; captures_in_turns would overlap.
    same "${setting%=0}_off" 2 -e "*:$setting" -- odd_captures groups order_across_streams
done

for nodes in '5 LLANE_STATS=1' '3 LLANE_GRAPH_ORDER=0' '3 NCCL_GRAPH_MIXING_SUPPORT=0'; do
    "$programs/prog_ranks" -e '*:NCCL_TUNER_PLUGIN=llane' -e "*:${nodes#* }" 2 "$programs/prog_conformance" \
        graph_nodes >"$out/with" 2>&1 && grep -q "graph_nodes: nodes = ${nodes%% *}$" "$out/with" && carried
    report $? "graph_of_three_sums__${nodes#* }__${nodes%% *}_nodes"
done

# ---- older NCCL, and the newest ----
for version in 2.21.5 2.30.7; do
    same "version_$version" 2 -e "*:FAKE_NCCL_VERSION=$version" --
done

same version_2.32.0 2 -e '*:FAKE_NCCL_VERSION=2.32.0' -- suspended collective_configs
carried
report $? version_2.32.0__the_lane_carried_calls
# Of three calls in each of four rounds, and one before, those with a configuration are NCCL's.
same collective_configs 2 -e '*:FAKE_NCCL_VERSION=2.32.0' -- collective_configs
[ "$(grep -c 'lane 9 calls' "$out/with")" = 2 ]
report $? collective_configs__with_one__nccls
same suspended_while_the_lane_goes_live 2 -e '*:FAKE_NCCL_VERSION=2.30.7' -e '*:LLANE_WAIT=0' -- suspended
carried
report $? suspended_while_the_lane_goes_live__the_lane_carried_calls
# Twice a communicator of two; of the two that these grow to, one; and what all come of.
same grown 3 -e '*:FAKE_NCCL_VERSION=2.30.7' -e '*:LLANE_WAIT_TIMEOUT_MS=4000' -- grown
[ "$(n_carried "$out/with")" = 10 ] && grep -q 'lane 60 calls 24000 bytes; NCCL 0' "$out/with"
report $? grown__a_lane_but_after_a_shrink
same grown_halves 8 -t 20 -e '*:FAKE_NCCL_VERSION=2.30.7' -e '*:LLANE_WAIT=0' -- grown_halves
[ "$(grep -Ec 'rank [01]/2 .*: lane 0 calls.*NCCL gives it and others' "$out/with")" = 8 ]
report $? grown_halves__no_lane_for_their_children

# ---- memory, and more than one NCCL ----
same foreign_memory 2 -- foreign_memory
carried
report $? foreign_memory__the_lane_carried_calls
mkdir "$out/copy" && cp "$build/emu/libnccl.so.2" "$out/copy/"
same two_copies 2 -e "*:SECOND_NCCL=$out/copy/libnccl.so.2" -e '*:LLANE_WAIT=0' -- two_copies
[ "$(grep -Ec 'llane stats: .*: lane [1-9]' "$out/with")" = 4 ]
report $? two_copies__a_lane_for_each

# ---- processes ----
case ${LLANE_V:-} in
asan | tsan) report 77 fork "a sanitizer does not follow a process with threads into its child" ;;
*)
    same fork 2 -- fork_after_use
    [ "$(grep -c 'llane stats: .* rank' "$out/with")" = 2 ]
    report $? fork__child_prints_nothing
    ;;
esac
"$programs/prog_ranks" -g -e '*:NCCL_TUNER_PLUGIN=llane' 2 "$programs/prog_conformance" \
    killed_while_spinning >"$out/with" 2>&1
[ $? = 143 ]
report $? sigterm__kernel_spins__program_ends # cases.md 14
"$programs/prog_ranks" -e '*:NCCL_TUNER_PLUGIN=llane' -e '*:LLANE_WAIT=0' 2 \
    "$programs/prog_conformance" helper_takes_no_signals >"$out/with" 2>&1
report $? signals__set_up_under_way__for_the_programs_threads
echo "1..$n"
