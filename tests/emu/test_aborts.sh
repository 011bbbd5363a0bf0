#!/bin/bash
# Proves that kernels which wait end soon after another thread aborts, revokes or shrinks their
# communicator, that nothing is left of it, and that its memory is used again. TAP.
set -u
# shellcheck source=tests/emu/common.bash
. "$(dirname "$0")/common.bash"
out=$(mktemp)
trap 'rm -f "$out"' EXIT

export LLANE_WAIT=1 LLANE_STATS=1 NCCL_DEBUG=WARN NCCL_TUNER_PLUGIN=llane
export FAKE_NCCL_SHM_TAG=$$
rounds=6 most_ms=3000 # on a machine that has other work

# aborts HOW WHERE
aborts() {
    "$programs/prog_ranks" -t 60 3 "$programs/prog_aborts" "$1" "$2" $rounds $most_ms >"$out" 2>&1
    status=$?
    [ $status = 0 ] && [ "$(grep -c 'worst of' "$out")" = 2 ] &&
        [ "$(grep -Ec 'llane stats: .*: lane [1-9]' "$out")" -ge $((3 * rounds)) ]
    report $? "${1}__${2}__kernel_and_call_end_in_time"
    sed -n 's/^rank/# rank/p' "$out"
}

aborts abort eager # cases.md 18, 30
aborts abort graph
# An area is more than 4 MiB, and each round takes one. How soon one is free again is a matter of time, but
# not all rounds find none.
! sed -n 's/.*: \([0-9]*\) KiB of staging memory/\1/p' "$out" |
    awk -v rounds="$rounds" '$1 >= 4096 * rounds { found = 1 } END { exit !found }'
report $? abort__staging_is_used_again
aborts revoke eager
aborts revoke graph
aborts revoke queue
aborts shrink eager

# Rank 1 has no use of its first area until rank 0's operation is over: it takes a second one, of 4 MiB
# too. The third communicator finds one of them free, or not yet.
"$programs/prog_ranks" -t 60 2 "$programs/prog_reuse" >"$out" 2>&1
status=$?
[ $status = 0 ] && [ "$(grep -Ec ': (8192|12288) KiB of staging memory' "$out")" = 2 ]
report $? reuse__peers_operation_still_queued__memory_is_left_alone
! compgen -G "/dev/shm/*-$$-*" >"$out"
report $? aborts__no_file_left
echo "1..$n"
