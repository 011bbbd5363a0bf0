#!/bin/bash
# Proves that a rank's death reaches the others as ncclRemoteError in time, and that nothing else does:
# not a slow rank, nor a stopped one, nor one that left when nobody needed it any more. TAP.
set -u
# shellcheck source=tests/emu/common.bash
. "$(dirname "$0")/common.bash"
out=$(mktemp)
trap 'rm -f "$out"' EXIT

export LLANE_WAIT=1 LLANE_STATS=1 NCCL_DEBUG=WARN NCCL_TUNER_PLUGIN=llane
export FAKE_NCCL_SHM_TAG=$$

# deaths NAME WHAT STATUS LINES PATTERN [NAME=VALUE...]: every rank saw what it should, the victim ended
# with STATUS, and so many lines match the pattern.
deaths() {
    local name=$1 what=$2 wanted=$3 lines=$4 pattern=$5
    shift 5
    env "$@" "$programs/prog_ranks" -g -t 30 3 "$programs/prog_deaths" "$what" >"$out" 2>&1
    local status=$?
    [ $status = "$wanted" ] && ! grep -q '^rank .*: .*:' "$out" &&
        [ "$(grep -Ec "$pattern" "$out")" = "$lines" ] &&
        [ "$(grep -Ec 'llane stats: .*: lane [1-9]|: ended after' "$out")" -ge 2 ]
    report $? "$name"
}

died='rank [0-9]: rank 1 \(pid [0-9]+\) died\. Its last .* call 1 of 256 bytes, this rank.s is call 2 of 256'
deaths death__killed__remote_error_and_one_line kill 137 2 "$died" # cases.md 19
deaths death__rank_0_killed__remote_error_too kill 137 2 'rank [12]: rank 0 \(pid' LLANE_TEST_VICTIM=0
deaths death__crashed__remote_error crash 134 2 "$died"
deaths death__quit_without_exit_handlers__remote_error quit 0 2 "$died"
deaths death__child_holds_what_it_inherited__remote_error children 137 2 "$died"
deaths death__LLANE_ON_DEATH_stop__kernels_end stopped 137 2 'kernels are stopped' LLANE_ON_DEATH=stop
for end in destroy finalize; do
    deaths "death__others_wait_in_${end}__they_return" end_$end 137 2 "^rank [02]: ended after"
done
deaths pause__stopped_and_continued__no_error pause 0 0 'LLANE rank'
deaths exit__nobody_needs_it__no_error exit_idle 0 0 'LLANE rank'
deaths exit__a_sum_needs_it__remote_error exit_eager 0 2 'rank 1 .* ended without destroying'
deaths exit__a_replay_needs_it__remote_error exit_graph 0 2 'ncclRemoteError'
deaths destroy__a_sum_needs_it__remote_error destroy 0 2 'rank 1 .* destroyed the communicator'
deaths abort__in_a_sum__remote_error_for_the_others abort 0 2 'ncclRemoteError'
deaths late__LLANE_TIMEOUT_S__remote_error late 0 2 'ncclRemoteError' LLANE_TIMEOUT_S=1
deaths late__LLANE_TIMEOUT_S_and_a_replay__remote_error late_graph 0 2 'ncclRemoteError' LLANE_TIMEOUT_S=1
deaths late__LLANE_TIMEOUT_S_and_nobody_late__no_error none 0 0 'LLANE rank' LLANE_TIMEOUT_S=1
free() { # free WHAT STATUS LINES PATTERN [NAME=VALUE...]
    local what=$1
    shift
    deaths "free__${what}_while_a_thread_is_in_cudaFree__seen_and_aborted${4:+__$4}" "free_$what" "$@"
}
free kill 137 2 "$died"
free kill 137 2 "$died" LLANE_TIMEOUT_S=1
free late 0 2 'ncclRemoteError' LLANE_TIMEOUT_S=1
free graph 0 2 'ncclRemoteError'
free wait 0 0 'LLANE rank'
free shadow 137 4 'ncclRemoteError' LLANE_AB=shadow
differ() { # differ WHAT WORDS
    deaths "check__${1}_differs__invalid_usage_on_all" "check_$1" 0 3 \
        "the ranks disagree on all-reduce call 2: (rank [02] 64 float32 sum, )?rank 1 $2" \
        LLANE_CHECK=1 LLANE_MAX_BYTES=256
}
differ count '32 float32 sum'
differ type '64 int32 sum'
differ op '64 float32 max'
differ group '64 float32 max'
differ route '65 float32 sum'
differ route_group '65 float32 sum'
deaths check__nobody_differs__no_error none 0 0 'LLANE rank' LLANE_CHECK=1
deaths signal__a_kernel_waits__the_process_ends term 143 1 'rank 0 ended with signal 15' LLANE_TEST_VICTIM=0
! compgen -G "/dev/shm/*-$$-*" >"$out"
report $? deaths__no_file_left
echo "1..$n"
