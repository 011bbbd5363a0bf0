#!/bin/bash
# Proves, by exhaustive search, that board and switch cannot split the ranks, and that the models
# notice each way of breaking them. TAP. `--deep` adds the larger runs (half a minute, 2 GB).
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n=0
n_failed=0

report() { # passed? name
    n=$((n + 1))
    if [ "$1" = 1 ]; then
        echo "ok $n - $2"
    else
        echo "not ok $n - $2"
        n_failed=$((n_failed + 1))
        tail -n 30 "$work/log" | sed 's/^/# /'
    fi
}

# Prints clean, error or broken (the model did not run to its end).
search() { # optimisation model flags...
    local optimisation=$1 model=$2
    shift 2
    cd "$work" || return
    if ! spin "$@" -a "$here/$model.pml" >log 2>&1 ||
        ! ${CC:-gcc} "$optimisation" -w -DSAFETY -DNOCLAIM -DCOLLAPSE -o pan pan.c >>log 2>&1; then
        echo broken
        return
    fi
    ./pan -m100000 -w20 >log 2>&1
    if grep -qE '^pan:1: (assertion violated|invalid end state)' log; then
        echo error
    elif grep -q 'errors: 0' log && ! grep -qE 'max search depth too small|out of memory|Search not completed' log; then
        echo clean
    else
        echo broken
    fi
}

holds() { # model flags...
    [ "$(search -O1 "$@")" = clean ] && passed=1 || passed=0
    report "$passed" "$1 holds: ${*:2}"
}

breaks() { # model flags...
    [ "$(search -O0 "$@")" = error ] && passed=1 || passed=0
    report "$passed" "$1 is noticed to be wrong: ${*:2}"
}

relacy() { # expected exit status, what to weaken
    "$work/relacy_switch" "${@:2}" >"$work/log" 2>&1
    [ $? = "$1" ] && passed=1 || passed=0
    [ "$1" = 0 ] && name="holds" || name="is noticed to be wrong: $2"
    report "$passed" "relacy_switch $name"
}

if command -v spin >/dev/null; then
    holds board_switch -DN=2 -DK=4 -DREFUSALS=2
    holds board_switch -DN=3 -DK=3
    for mutation in NO_REREAD POST_LATE NO_CANCEL NO_POST_CHECK PROPOSE_ANEW; do
        breaks board_switch -DN=2 -DK=3 -D$mutation
    done
    holds board_verdict -DN=2 -DDEATHS=2 -DLEAVES=2
    holds board_verdict -DN=3 -DDEATHS=1 -DLEAVES=0
    holds board_verdict -DN=3 -DDEATHS=0 -DLEAVES=1
    for mutation in LOST_VOTE LATE_RECORD NO_DEATH_WATCH SILENT_LEAVE LEAVE_ONCE; do
        breaks board_verdict -DN=2 -D$mutation
    done
    breaks board_verdict -DN=3 -DGIVE_UP_ALONE
    if [ "${1:-}" = --deep ]; then
        holds board_switch -DN=3 -DK=3 -DREFUSALS=2
        holds board_switch -DN=2 -DK=6 -DREFUSALS=2
        holds board_verdict -DN=3 -DDEATHS=1 -DLEAVES=1
    fi
else
    n=$((n + 1))
    echo "ok $n - board_switch and board_verdict # SKIP spin is not installed"
fi

if [ -e /usr/include/relacy/relacy.hpp ]; then
    if ${CXX:-g++} -std=c++11 -O1 -w "$here/relacy_switch.cc" -o "$work/relacy_switch" >"$work/log" 2>&1; then
        relacy 0
        for weakened in WEAK_POST RELAXED_LOOK RELAXED_VOTE; do
            relacy 1 $weakened
        done
    else
        report 0 "relacy_switch compiles"
    fi
else
    n=$((n + 1))
    echo "ok $n - relacy_switch # SKIP relacy (Debian: relacy-dev) is not installed"
fi
echo "1..$n"
[ $n_failed = 0 ]
