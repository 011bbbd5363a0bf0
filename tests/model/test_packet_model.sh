#!/bin/bash
# Proves by exhaustive search (spin), for few ranks and small slots, that slots can be used again by
# any mixture of operations, that flags can come round again and that kernels which are launched early
# leave room for all ranks; and that each rule is needed for it.
# TAP. `--deep` adds the larger searches (minutes, gigabytes).
set -u
if ! command -v spin >/dev/null; then
    echo "spin is not installed"
    exit 77
fi
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
number=0
n_failed=0

# search EXPECTED(holds|fails) NAME MODEL -D...: builds the checker for one case and runs it.
search() {
    local expected=$1 name=$2 model=$3 optimisation=-O2 verdict=nothing
    shift 3
    number=$((number + 1))
    [ "$expected" = holds ] || optimisation=-O0
    rm -f pan
    if spin -a "$@" "$here/$model.pml" >log 2>&1 &&
        ${CC:-gcc} $optimisation -w -DSAFETY -DNOCLAIM -DCOLLAPSE -o pan pan.c >>log 2>&1 &&
        ./pan -m2000000 -w22 >>log 2>&1 && ! grep -qE "max search depth|out of memory|aborted" log; then
        # An incomplete search says so in other words than these two.
        case $(grep -o "errors: [0-9]*" log) in
        "errors: 0") verdict=holds ;;
        "errors: "*) verdict=fails ;;
        esac
    fi
    if [ "$verdict" = "$expected" ]; then
        echo "# $(grep "states, stored" log | xargs) ($*)"
        echo "ok $number - $name"
    else
        sed 's/^/# /' log | head -40
        echo "not ok $number - $name"
        n_failed=$((n_failed + 1))
    fi
}

# KINDS is the sum of: one-shot of one packet 1 (LL) and 2 (sentinel), of two packets 4 and 8, two-shot
# 16 and 32, two-shot with empty shards 64 and 128.
reuse() { # EXPECTED NAME -D...
    search "$1" "reuse__$2" packet_reuse "${@:3}"
}

reuse holds two_ranks_any_mixture__right_and_live -DN=2
reuse holds three_ranks_one_packet_both_families__right_and_live -DN=3 -DKINDS=195
reuse holds three_ranks_two_shot_ll__right_and_live -DN=3 -DKINDS=16
reuse fails one_generation_one_shot_ll__is_not_enough -DN=2 -DKINDS=1 -DONE_GENERATION
reuse fails one_generation_sentinel__is_not_enough -DN=2 -DKINDS=32 -DONE_GENERATION
reuse fails one_generation_mixed_algorithms__is_not_enough -DN=2 -DKINDS=17 -DONE_GENERATION
reuse fails no_rearm__old_packet_is_taken -DN=2 -DKINDS=2 -DNO_REARM
reuse fails sums_rearmed_alone__old_result_is_taken -DN=2 -DKINDS=32 -DREARM_SUMS
reuse fails one_counter_for_both_families__generation_repeats -DN=2 -DONE_COUNTER
reuse fails sums_sent_early__ranks_run_ahead -DN=3 -DKINDS=194 -DEARLY_SUM

# KINDS: likewise, but 64 and 128 are one-shot with a copy for each reader.
shared() { # EXPECTED NAME -D...
    search "$1" "shared__$2" packet_shared "${@:3}"
}

shared holds two_ranks_one_shot_sentinel__right_and_live -DN=2 -DKINDS=10
shared holds two_ranks_one_packet_both_families__right_and_live -DN=2 -DKINDS=3
shared holds three_ranks_one_packet_sentinel__right_and_live -DN=3 -DKINDS=2
shared holds three_ranks_copies_sentinel__right_and_live -DN=3 -DKINDS=128
shared fails two_generations__are_not_enough -DKINDS=2 -DGENERATIONS=2
shared fails three_generations__are_not_enough -DKINDS=2 -DGENERATIONS=3 -DM=12
shared fails no_rearm__old_packet_is_taken -DKINDS=2 -DNO_REARM
shared fails last_operation_rearmed__packet_is_lost -DKINDS=2 -DREARM_LAST
shared fails contributions_rearmed_alone__old_result_is_taken -DKINDS=32 -DSHORT_EXTENT
shared fails first_copy_rearmed_alone__old_packet_is_taken -DN=3 -DKINDS=130 -DSHORT_COPIES
shared fails kernel_ends_before_its_stores__old_packet_is_taken -DKINDS=2 -DEND_EARLY

# KINDS is the sum of: one-shot 1, ring 2, ring with one shard 4.
ring() { # EXPECTED NAME -D...
    search "$1" "ring__$2" ring_reuse "${@:3}"
}

ring holds two_ranks_mixed_with_one_shot__right_and_live -DN=2
ring holds three_ranks_mixed_with_one_shot__right_and_live -DN=3
ring fails one_generation_mixed_with_one_shot__is_not_enough -DN=3 -DKINDS=3 -DONE_GENERATION
ring fails passed_on_before_it_came__ranks_run_ahead -DN=3 -DKINDS=4 -DEARLY_SEND
ring fails one_place_for_all_steps__is_not_enough -DN=3 -DKINDS=2 -DONE_WORD

# KINDS is the sum of: one-shot 1, islands 2, islands with one shard 4.
islands() { # EXPECTED NAME -D...
    search "$1" "islands__$2" islands_reuse "${@:3}"
}

islands holds three_ranks_mixed_with_one_shot__right_and_live -DN=3
islands holds four_ranks_two_shards__right_and_live -DN=4 -DKINDS=6
islands fails one_generation_mixed_with_one_shot__is_not_enough -DN=3 -DONE_GENERATION
islands fails sent_before_inputs_came__ranks_run_ahead -DN=3 -DEARLY

flags() { # EXPECTED NAME -D...
    search "$1" "flags__$2" packet_ll "${@:3}"
}

flags holds two_ranks_two_wraps__right_and_live -DN=2 -DOPS=45
flags holds three_ranks_one_wrap__right_and_live -DN=3 -DOPS=12 -DLONG=0 -DBIG=50 -DM=9
flags fails one_generation__is_not_enough -DOPS=6 -DONE_GENERATION
flags fails no_stripe__stale_flag_is_taken -DNO_STRIPE
flags fails stripe_spares_what_others_store__stale_flag_is_taken -DSPARE_SHORTER
flags fails flags_back_before_the_stripe__stale_flag_is_taken -DM=9
flags fails wrap_to_one__generation_repeats -DSKIP_ONE
flags fails stripe_in_own_words__hangs -DCLEAN_OWN

early() { # EXPECTED NAME -D...
    search "$1" "early__$2" early_launch "${@:3}"
}

early holds two_ranks_on_one_gpu__all_kernels_end -DN=2
early holds two_ranks_with_more_room__all_kernels_end -DN=2 -DFIT=3 -DKERNELS=3
early fails let_go_before_its_wait__kernels_pile_up -DRELEASE_FIRST
early fails both_as_wide_as_they_like__nobody_goes_on -DANY_WIDTH

if [ "${1:-}" = --deep ]; then
    early holds three_ranks_on_one_gpu__all_kernels_end -DN=3 -DKERNELS=3
    reuse holds three_ranks_two_shot_sentinel__right_and_live -DN=3 -DKINDS=32
    reuse holds three_ranks_sentinel_any_short_mixture__right_and_live -DN=3 -DKINDS=162
    shared holds two_ranks_two_shot_sentinel__right_and_live -DN=2 -DKINDS=34
    shared holds three_ranks_one_packet_both_families__right_and_live -DN=3 -DKINDS=3
    shared holds three_ranks_copies_and_none_sentinel__right_and_live -DN=3 -DKINDS=130
    flags holds two_ranks_many_wraps__right_and_live -DN=2 -DOPS=200
    flags holds three_ranks_three_wraps__right_and_live -DN=3 -DOPS=60 -DLONG=0 -DBIG=70
    flags holds three_ranks_longer_messages__right_and_live -DN=3 -DOPS=4 -DLONG=1 -DBIG=20
fi
echo "1..$number"
[ $n_failed = 0 ]
