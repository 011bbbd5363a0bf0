#!/bin/bash
# Proves that a death while the lane is being set up ends alike on all other ranks: at each step no lane, no
# error and NCCL carries on; from the switch on ncclRemoteError. TAP.
set -u
# shellcheck source=tests/emu/common.bash
. "$(dirname "$0")/common.bash"
out=$(mktemp)
trap 'rm -f "$out"' EXIT
explain() { grep -E 'WRONG|LLANE|saw|prog_' "$out" | head -n 40; }

export LLANE_WAIT=0 LLANE_CALIBRATE=force NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT NCCL_TUNER_PLUGIN=llane
export FAKE_NCCL_SHM_TAG=$$
n_ranks=3

# die WHEN [PROG_RANKS_OPTIONS...]: all others saw one thing; ncclRemoteError if the lane was live, which is
# said by each of them, and only then.
die() {
    local when=$1 saw
    shift
    run -g -t 40 "$@" $n_ranks "$programs/prog_setup_deaths" "$when"
    [ $? = 137 ] && ! grep -q WRONG "$out" || return 1
    saw=$(sed -n 's/^rank [0-9]: saw //p' "$out" | sort | uniq -c)
    case $saw in
    *" $((n_ranks - 1)) nothing") ! grep -q 'active from' "$out" ;;
    *" $((n_ranks - 1)) ncclRemoteError")
        [ "$(grep -c 'active from' "$out")" -ge $((n_ranks - 1)) ] &&
            [ "$(grep -c 'rank [0-9] (pid [0-9]*) died' "$out")" = $((n_ranks - 1)) ]
        ;;
    *) false ;;
    esac
}
# Before the switch: no lane anywhere, and LINES of the others at least say why. While kernels load, which
# waits for NCCL's kernel, hence for the abort, they may not come to it.
died() {
    [ "$(grep -c ": inactive: a rank's process ended during set-up" "$out")" -ge "$1" ] &&
        ! grep -q 'active from' "$out"
}
step() { # step NAME LINES CALL [PROG_RANKS_OPTIONS...]
    local name=$1 lines=$2 call=$3 victim status=0
    shift 3
    for victim in 0 1 2; do
        if ! die call -e "$victim:EMU_KILL=$call" -e "*:LLANE_TEST_VICTIM=$victim" "$@" || ! died "$lines"; then
            status=1 && break
        fi
    done
    report $status "setup_death__${name}__no_lane_and_no_error_on_all_others"
}

step before_arrival 0 stream_create
step kernels_load 0 kernel_load
step staging 0 malloc
step staging_exported 0 ipc_export
step staging_zeroed 0 memset
step peers_opened 2 ipc_open
step second_peer_opened 2 ipc_open:2
step probe_sent 2 launch
step probe_checked 2 launch:2
step slots_armed 2 memset:2
step host_memory_pinned 2 host_register:2 -e '*:LLANE_MEMORY=host'
step host_memory_probed 2 launch -e '*:LLANE_MEMORY=host'
step events_for_ab 0 timed_event_create -e '*:LLANE_AB=alternate'
step calibration_begun 2 capture_begin
step calibration_under_way 2 capture_begin:2 -e '*:LLANE_MAX_BYTES=256'
step waited_for 2 ipc_open -e '*:LLANE_WAIT=1'
step calibration_waited_for 2 capture_begin:2 -e '*:LLANE_WAIT=1' -e '*:LLANE_MAX_BYTES=256'

# The switch waits for a call of the victim's, of whichever rank.
status=0
for victim in 0 1 2; do
    if ! die idle -e "*:LLANE_TEST_VICTIM=$victim" -e '*:LLANE_CALIBRATE=off' || ! died 2; then
        status=1 && break
    fi
done
report $status setup_death__switch_open__no_lane_and_no_error_on_all_others

# Wherever it is by then.
status=0 n_errors=0
for i in {0..29}; do
    die $((i * 37 % 400)) -e "*:LLANE_TEST_VICTIM=$((i % 3))" \
        -e "*:LLANE_CALIBRATE=$([ $((i % 4)) = 0 ] && echo force || echo off)" || { status=1 && break; }
    grep -q 'saw ncclRemoteError' "$out" && n_errors=$((n_errors + 1))
done
report $status setup_death__at_any_time__all_others_alike
echo "# $n_errors of 30 came after the switch"
! compgen -G "/dev/shm/*-$$-*" >"$out"
report $? setup_deaths__no_file_left
echo "1..$n"
