#!/bin/bash
# Proves by exhaustive search (spin) that two generations and the stripe make LL slots safe to reuse
# and to wrap, for small cases, and that each of them is needed. Argument "deep": larger cases too.
set -u
if ! command -v spin >/dev/null; then
    echo "spin is not installed"
    exit 77
fi
model=$PWD/tests/model/packet_ll.pml
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cd "$here" || exit 1
number=0

# search EXPECTED(holds|fails) NAME -D...: builds the checker for one case and runs it.
search() {
    local expected=$1 name=$2 verdict
    shift 2
    number=$((number + 1))
    rm -f pan
    if spin -a "$@" "$model" >log 2>&1 && ${CC:-gcc} -O2 -w -DSAFETY -DCOLLAPSE -o pan pan.c >>log 2>&1 &&
        ./pan -m1000000 >>log 2>&1 && ! grep -qE "max search depth|out of memory|aborted" log; then
        # An incomplete search says so in other words than these two.
        case $(grep -o "errors: [0-9]*" log) in
        "errors: 0") verdict=holds ;;
        "errors: "*) verdict=fails ;;
        *) verdict=nothing ;;
        esac
    else
        verdict=nothing
    fi
    if [ "$verdict" = "$expected" ]; then
        echo "# $(grep "states, stored" log | xargs) ($*)"
        echo "ok $number - $name"
    else
        sed 's/^/# /' log | head -40
        echo "not ok $number - $name"
    fi
}

search holds two_ranks__flags_wrap_twice__right_and_live -DN=2 -DOPS=20
search holds three_ranks__flags_wrap__right_and_live -DN=3 -DOPS=12 -DBIG=20
search fails one_generation__is_not_enough -DN=2 -DOPS=6 -DONE_GENERATION
search fails no_stripe__stale_flag_is_taken -DN=2 -DOPS=20 -DNO_STRIPE
search fails wrap_to_one__generation_repeats -DN=2 -DOPS=20 -DSKIP_ONE
search fails stripe_in_own_words__hangs -DN=2 -DOPS=20 -DCLEAN_OWN
if [ "${1:-}" = deep ]; then
    search holds two_ranks__flags_wrap_many_times__right_and_live -DN=2 -DOPS=200
    search holds three_ranks__flags_wrap_many_times__right_and_live -DN=3 -DOPS=60 -DBIG=20
fi
echo "1..$number"
