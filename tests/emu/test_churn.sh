#!/bin/bash
# Proves that communicators and graphs that come and go leave nothing behind: descriptors, threads,
# host memory, staging memory. TAP.
set -u
# shellcheck source=tests/emu/common.bash
. "$(dirname "$0")/common.bash"
explain() { grep -v 'llane stats: .* rank' "$out" | tail -n 20; }
out=$(mktemp)
trap 'rm -f "$out"' EXIT

export LLANE_WAIT=1 LLANE_STATS=1 NCCL_DEBUG=WARN NCCL_TUNER_PLUGIN=llane

# staging NAME MAX_KIB PROG_RANKS_OPTIONS -- PROG_CHURN_OPTIONS: sums right, never more staging memory.
staging() {
    local name=$1 most=$2 options=()
    shift 2
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    "$programs/prog_ranks" -t 120 "${options[@]}" 2 "$programs/prog_churn" "$@" >"$out" 2>&1
    status=$?
    [ $status = 0 ] || [ $status = 3 ] &&
        ! sed -n 's/.*: \([0-9]*\) KiB of staging memory/\1/p' "$out" |
            awk -v most="$most" '$1 > most { found = 1 } END { exit !found }'
    report $? "${name}__staging_is_used_again"
}
# churn: as staging, and nothing else grows.
churn() {
    staging "$@"
    case ${LLANE_V:-} in
    asan | tsan) report 77 "${1}__files_threads_memory_stay" "a sanitizer keeps what was freed" ;;
    *) report $status "${1}__files_threads_memory_stay" ;;
    esac
}
carried() { grep -Eq 'llane stats: .*: lane [1-9]' "$out"; }

# A helper thread may still hold the last one when the next begins, hence not one area but two or three.
churn communicators 12288 -- 400
carried
report $? communicators__the_lane_carried_calls
churn communicators_with_graphs 12288 -- 400 graph
carried
report $? communicators_with_graphs__the_lane_carried_calls
churn captures_of_one_communicator 4096 -- 1000 many
carried
report $? captures_of_one_communicator__the_lane_carried_calls
churn send_and_receive_only 0 -- 100 pairs
! grep -q 'staging memory' "$out"
report $? send_and_receive_only__no_staging
# Without a wait they end in the middle of their set-up; with the fault in the middle of a probe.
staging no_wait__ended_in_mid_set_up 32768 -e '*:LLANE_WAIT=0' -e '*:LLANE_PROBE_TIMEOUT_MS=10' -- 400
staging no_wait__ended_in_mid_probe 32768 -e '*:LLANE_WAIT=0' -e '*:EMU_FAULTS=drop:1>0' \
    -e '*:LLANE_PROBE_TIMEOUT_MS=10' -- 100 slow
echo "1..$n"
