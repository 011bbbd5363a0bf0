#!/bin/bash
# Proves that the stress test of test_switch.c notices each way of breaking the switch protocol. TAP.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n=0
n_failed=0

# Delays at the places where another thread hurts most make each error show within a second.
build() { # mutation or NONE
    ${CC:-gcc} -std=gnu11 -O2 -w -D_GNU_SOURCE -I"$root/plugin" -pthread "-DLLANE_MUTATE_SWITCH_$1" \
        -DLLANE_SWITCH_PAUSE=pause_here "$root/tests/unit/test_switch.c" "$root/plugin/switch.c" \
        -lcmocka -o "$work/stress"
}

expect() { # passes|fails mutation
    n=$((n + 1))
    outcome=broken
    if build "$2" >"$work/log" 2>&1; then
        CMOCKA_MESSAGE_OUTPUT=STDOUT timeout 60 "$work/stress" stress >"$work/log" 2>&1
        case $? in
        0) outcome=passes ;;
        1) outcome=fails ;;
        esac
    fi
    if [ "$outcome" = "$1" ]; then
        echo "ok $n - stress $1 with mutation $2"
    else
        echo "not ok $n - stress $1 with mutation $2 ($outcome)"
        sed 's/^/# /' "$work/log"
        n_failed=$((n_failed + 1))
    fi
}

expect passes NONE
for mutation in NO_REREAD POST_LATE NO_CANCEL PROPOSE_ANEW; do
    expect fails $mutation
done
echo "1..$n"
[ $n_failed = 0 ]
