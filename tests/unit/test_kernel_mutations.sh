#!/bin/bash
# Proves that the tests of the kernels catch each way to break the protocol: the float32 kernels are built from
# a copy with one mistake planted in it, and the tests must then fail, or hang while unbroken kernels pass
# them. Ends with `mutations: N planted, N caught`.
set -u
emu=$LLANE_BUILD/emu
out=$LLANE_BUILD/mutations
headers=(kernels/*.cuh)
case ${LLANE_V:-} in
asan | tsan)
    echo "what the tests catch is for them to show, without a sanitizer's help"
    exit 77
    ;;
esac
set -f # patterns name tests, not files
mkdir -p "$out"

# Name | tests that are there to catch it, program:pattern, one run each | file | the mistake, in Perl.
# shellcheck disable=SC2016 # Perl, not the shell, reads the dollars
mutations='
HALF_FLAG | reuse:one_shot_ll__* | packets | s/ && \(uint32_t\)\(high >> 32\) == op//
ANY_FLAG | reuse:one_shot_ll__* | packets | s/\(uint32_t\)\(low >> 32\) == op && \(uint32_t\)\(high >> 32\) == op/low >> 32 != 0 \&\& high >> 32 != 0/
HALF_SENTINEL | reuse:one_shot_sentinel__* | packets | s/is_whole\(low\) && is_whole\(high\)/is_whole(low)/
ONE_GENERATION | reuse:one_shot_ll__* reuse:one_shot_sentinel__* reuse:two_shot_sentinel__* | packets | s/\(op & 1\) \* slot_bytes/0 * op * slot_bytes/
ONE_COUNTER | reuse:one_shot_sentinel__* | packets | s/return cell\.sentinel_op/return cell.ll_op/
SKIP_ONE | reuse:kernels__counters_wrap__* | packets | s/0xffffffffu \? 4 :/0xffffffffu ? 1 :/
NO_STRIPE | reuse:kernels__counter_wraps_over* | packets | s/if \(\(op >> 1\) % 16 != 0\)/if (op != 0)/
CLEAN_OWN | reuse:kernels__stripe_goes_round* | packets | s/ && !is_used\(r, packet\)//
SPARE_SHORTER | reuse:kernels__stripe_goes_round* | two_shot | s/packet - results < length<S>\(plan, r\)/packet - results < plan.n_shard/
NO_REARM | reuse:one_shot_sentinel__* reuse:two_shot_sentinel__* | packets | s/llane_store16\(at, ~0ull, ~0ull\);/(void)at;/
REARM_WHOLE | reuse:one_shot_sentinel__* | one_shot | s/(rearm.*?|)(if \(r != args\.rank && !llane_is_shared<HAS_SHARED>\(args, r\))(\)\s*S::P::rearm)/$1$2 \&\& i < args.count \/ (S::W * S::T::LANES)$3/s
REARM_SUMS_ONLY | reuse:two_shot_sentinel__* | two_shot | s/if \(i < length<S>\(plan, r\)\)/if (false)/
EARLY_SUM | reuse:two_shot_ll__* reuse:two_shot_sentinel__* | combine | s/(address\(base \+ g\); \},\s*)others,/$1others & (others - 1),/
SINGLE_NO_REARM | reuse:one_shot_sentinel__* | single | s/P::rearm\(from\[s\] \+ generation\);/(void)s;/
SINGLE_ONE_GENERATION | reuse:one_shot_ll__* reuse:one_shot_sentinel__* | single | s/op & 1 \? args\.slot_bytes : 0/0/
SINGLE_EARLY_SUM | reuse:one_shot_ll__* reuse:one_shot_sentinel__* reuse:packet_a_thread* | single | s/is_here = is_here & P::is_here/is_here = P::is_here/
SINGLE_CLEAN_OWN | reuse:kernels__stripe_goes_round* | single | s/return packet < n \|\|/return false ||/
SINGLE_SPARE_ALL | reuse:kernels__stripe_goes_round* | single | s/return packet < n \|\|/return true ||/
SINGLE_CLEAN_RESULTS | reuse:kernels__stripe_goes_round* | single | s/\(N_STEPS == 2 && packet - results < n\)/false/
SINGLE_SPARE_RESULTS | reuse:kernels__stripe_goes_round* | single | s/packet - results < n\)/packet >= results)/
SINGLE_REARM_INPUTS_ONLY | reuse:packet_a_thread* | single | s/P::rearm\(from\[s\] \+ generation \+ half\);/;/
SINGLE_EARLY_RESULTS | reuse:packet_a_thread* | single | s/generation \+ half, op,(\s*&poll)/generation, op,$1/
SINGLE_OTHER_SHARD | reuse:packet_a_thread* | single | s/llane_peer\(rank, s, S::N\) \* n/(rank + s) % S::N * n/
SINGLE_NO_LOOK | ends:kernels__aborted* | single | s/if \(llane_poll_must_stop\(/if (!llane_poll_must_stop(/
SINGLE_ONE_MORE | results:kernels__several* | all_reduce | s/if \(n <= n_threads &&/if (n <= n_threads + 1 \&\&/
SINGLE_STORE_STOPPED | ends:kernels__two_shot_aborted* | single | s/(generation \+ half, op, &poll, theirs\);\s*)if \(visit\.is_whole\)/$1if (true)/
SEVERAL_EARLY_SUM | results:kernels__several* | several | s/for \(int k = 1; k < K; k\+\+\)/for (int k = 2; k < K; k++)/
SEVERAL_SHORT | results:kernels__several* | several | s/(push\(.*?)k \* LLANE_WARP < n_packets/$1(k + 1) * LLANE_WARP < n_packets/s
SEVERAL_LONG | results:kernels__several* | several | s/(push\(.*?)k \* LLANE_WARP < n_packets/$1(k - 1) * LLANE_WARP < n_packets/s
SEVERAL_STORE_LONG | results:kernels__several* | several | s/k \* LLANE_WARP < n_packets(\)\s*S::store)/(k - 1) * LLANE_WARP < n_packets$1/
SEVERAL_TWO_SHORT | results:kernels__several* | several | s/k \* LLANE_WARP < plan\.n_shard(\) \{\s*const)/(k + 1) * LLANE_WARP < plan.n_shard$1/
SEVERAL_TWO_LONG | results:kernels__several* | several | s/k \* LLANE_WARP < plan\.n_shard(\) \{\s*const)/(k - 1) * LLANE_WARP < plan.n_shard$1/
SEVERAL_AWAIT_LONG | results:kernels__several* | several | s/(for \(int k = 1; k < K; k\+\+\)\s*if \(i \+ )k \* LLANE_WARP/$1(k - 1) * LLANE_WARP/
SEVERAL_OTHER_PLACE | results:kernels__several* | several | s/return thread \/ LLANE_WARP \* \(K \* LLANE_WARP\)/return thread \/ LLANE_WARP * LLANE_WARP/
SEVERAL_NO_REARM | results:kernels__several* | several | s/(llane_batch_rearm\(.*?)k < K;/$1k < K - 1;/s
SEVERAL_REARM_INPUTS_ONLY | results:kernels__several* | several | s/llane_batch_rearm<S, K>\(args, plan\.results, i, plan\.n_shard\);//
SEVERAL_REARM_SHORT | results:kernels__several* | several | s/(llane_batch_rearm\(.*?)k \* LLANE_WARP < n\)/$1(k + 1) * LLANE_WARP < n)/s
SEVERAL_REARM_EARLY | results:kernels__several* | several | s/(typename S::payload payloads\[K \* S::N\];)/$1 llane_batch_rearm<S, K>(args, generation, i, n_packets);/
SEVERAL_REARM_EARLY_TWO | results:kernels__several* | several | s/(typename S::payload mine\[K\] = \{\}, payloads\[K \* S::N\];)/$1 llane_batch_rearm<S, K>(args, plan.contributions, i, plan.n_shard);/
SEVERAL_REARM_OTHERS | reuse:sentinel__block* | several | s/if constexpr \(S::P::IS_LL\)(\s*llane_one_shot::clean)/if constexpr (true)$1/
SEVERAL_REARM_OTHERS_TWO | reuse:sentinel__block* | several | s/if constexpr \(S::P::IS_LL\)( \{\s*llane_two_shot::clean)/if constexpr (true)$1/
SEVERAL_ORDER | results:kernels__several* | several | s/payloads\[g\] = S::P::payload/payloads[g \/ S::N * S::N + S::N - 1 - g % S::N] = S::P::payload/
SEVERAL_NO_LOOK | ends:kernels__aborted* | several | s/if \(llane_poll_must_stop\(/if (!llane_poll_must_stop(/
COPIES_ONE_FOR_ALL | shared:shared_one_shot_sentinel__* shared:shared_one_shot_ll__* | one_shot | s/\(uint64_t\)stride \* s \* LLANE_PACKET_BYTES,/0 * s,/
COPIES_READ_FIRST | shared:shared_one_shot_sentinel__* shared:shared_one_shot_ll__* | one_shot | s/return \(uint64_t\)stride \* s \*/return (uint64_t)0 * s */
COPIES_BEYOND_ROOM | shared:shared_one_shot_sentinel__* | one_shot | s/\(uint64_t\)\(n_ranks - 1\) \* stride \* LLANE_PACKET_BYTES > args\.shared_slot_bytes/false/
COPIES_SHORT_EXTENT | shared:shared_one_shot_sentinel__* | one_shot | s/stride == 0 \? n_packets : \(n_ranks - 1\) \* stride/n_packets/
COPIES_SPARE_PRIVATE | shared:shared__stripe_goes_round* | one_shot | s/(packet % stride < n_packets) &&\s*llane_is_shared[^;]*;/$1;/
COPIES_SPARE_PADDING | shared:shared__stripe_goes_round* | one_shot | s/packet % stride < n_packets &&//
COPIES_CLEAN_OWN | shared:shared__stripe_goes_round* | one_shot | s/return s < n_ranks - 1 && packet % stride < n_packets/return s < 1 \&\& packet % stride < n_packets/
LATE_REARM_LEFT | shared:shared_sentinel__large* | one_shot | s/(i = next;\s*\}\s*if constexpr \(HAS_SHARED\)\s*)llane_shared_rearm<typename S::P>\(&rearming, UINT32_MAX\);/$1;/
LATE_REARM_NONE | shared:shared_sentinel__large* | one_shot | s/HAS_SHARED && n_packets > LLANE_REARMED_FIRST/false/
LATE_REARM_ONE_LESS | shared:shared_sentinel__large* | one_shot | s/(HAS_SHARED && n_packets > LLANE_REARMED_FIRST)/$1 + 1/
LATE_REARM_LEFT_TWO | shared:shared_sentinel__large* | two_shot | s/llane_shared_rearm<typename S::P>\(rearming, UINT32_MAX\);//
LATE_REARM_NONE_TWO | shared:shared_sentinel__large* | two_shot | s/HAS_SHARED && plan\.n_packets > LLANE_REARMED_FIRST/false/
LATE_REARM_ONE_LESS_TWO | shared:shared_sentinel__large* | two_shot | s/(HAS_SHARED && plan\.n_packets > LLANE_REARMED_FIRST)/$1 + 1/
SHARED_TWO_GENERATIONS | shared:shared_one_shot_sentinel__* shared:shared_two_shot_sentinel__* | shared | s/LLANE_SHARED_GENERATIONS - 1u/1u/
SHARED_NO_REARM | shared:shared_one_shot_sentinel__* shared:shared_two_shot_sentinel__* | shared | s/P::rearm\(rearming->slot[^;]*;//
REARM_FIRST_NONE | shared:shared_one_shot_sentinel__* shared:shared_two_shot_sentinel__* | shared | s/n_packets <= LLANE_REARMED_FIRST/false/
REARM_FIRST_ONE_LESS | shared:shared_sentinel__large* | shared | s/n_packets <= LLANE_REARMED_FIRST/n_packets < LLANE_REARMED_FIRST/
SHARED_LAST | shared:shared_one_shot_sentinel__* | shared | s/\.before_last/.last/
SHARED_REARM_TOO_LATE | shared:shared_one_shot_sentinel__* shared:shared_two_shot_sentinel__* | shared | s/\(args, op \+ 2\)/(args, op + 1)/
SHARED_SHORT_EXTENT | shared:shared_two_shot_sentinel__* | two_shot | s/n_ranks \* plan\.n_shard\)/plan.n_packets - plan.n_shard)/
SHARED_NO_STRIPE | shared:shared__stripe_goes_round* | shared | s/if \(!is_used\(first \+ i\)\)/if (op == 0)/
SHARED_CLEAN_OWN | shared:shared__stripe_goes_round* shared:shared_one_shot_ll__* | shared | s/if \(!is_used\(first \+ i\)\)/if (op != 0)/
SHARED_SPARE_ALL | shared:shared__stripe_goes_round* | two_shot | s/return \(r == args\.rank[^;]*;/return true;/
SHARED_WRAP | shared:shared__counters_wrap__* | packets | s/0xffffffffu \? 4 :/0xffffffffu ? 2 :/
RING_ONE_PLACE | reuse:ring_ll__* | ring | s/\(step - 1\) \* plan\.n_half \+ i\)/0 * step + i)/
RING_SHARED_SLOT | reuse:ring_ll__* | ring | s/(uint64_t place\(.*?)n_ranks == 2 \?/$1n_ranks == 99 ?/s
RING_SPARE_SHORTER | reuse:kernels__stripe_goes_round* | ring | s/has_packet\(plan, shard_of\(rank, n_ranks, channel, step\), channel,.*?plan\.n_half\)\)/true)/s
RING_CHUNK_BY_GRID | reuse:ring_ll__* | ring | s/args\.chunk_packets != 0 \? args\.chunk_packets : plan\.n_half/llane_grid_threads()/
RING_EARLY | reuse:ring_ll__* | ring | s/(llane_gather<typename S::P, 1>\(\[&\]\(int\) \{ return at; \}, )1,/$1step > 1,/
ISLANDS_NO_TWIN | reuse:islands_ll__* | islands | s/\(1u << partial::COUNT\) - 1,(\s*)op/0,$1op/
ISLANDS_SPARE_SHORTER | reuse:kernels__stripe_goes_round* | islands | s/return packet < length\(plan, r - plan\.first\)/return true/
ISLANDS_SPARE_PARTIALS | reuse:kernels__stripe_goes_round* | islands | s/n_partials \* length\(plan, plan\.own\)/10000/
ISLANDS_CLEAN_RESULTS | reuse:kernels__stripe_goes_round* | islands | s/return !plan\.is_upper && r == plan\.twin && packet < length\(plan, plan\.own\)/return false/
RAW_NAN | results:kernels__three_kinds* | convert | s/x != x \? 0x7fffffffu : //
RAW_WORDS | results:kernels__three_kinds* | reduce | s/if constexpr \(T::IS_FLOAT\)/if constexpr (false)/
OWN_CELL | reuse:one_shot_ll__* | cells | s/(llane_cells_leave\(.*?if \(!visit->mine)/$1 || visit->mine != \&cells->cell[llane_block_id()]/s
NO_SYNC | reuse:one_shot_ll__* | cells | s/!llane_block_or\(!visit->is_whole\)/visit->is_whole/
NO_BUSY | ends:kernels__two_at_once* | cells | s/if \(visit->mine\)\s*llane_store_system32\(&visit->mine->busy, 1\);/(void)visit;/
UNLIKE_LL | ends:kernels__cells_not_equal* | cells | s/ \|\| visit->own\.ll_op != visit->cell\.ll_op//
UNLIKE_SENTINEL | ends:kernels__cells_not_equal* | cells | s/ \|\|\s*visit->own\.sentinel_op != visit->cell\.sentinel_op//
NO_SIGN | ends:kernels__aborted* | cells | s/llane_store_sign\([^;]*;/(void)number;/
OTHER_SIGN | ends:kernels__aborted* | cells | s/family == LLANE_LL \? op : cell\.sentinel_op/family == LLANE_LL ? op : cell.ll_op/
NO_LOOK | ends:kernels__aborted* | cells | s/if \(llane_load_system32\(&poll->words->abort\) == 0\)/if (poll)/
IGNORE_DEAD | ends:kernels__aborted* | cells | s/visit\.cell\.dead == LLANE_DEAD_NOT;/true;/
DEAD_IN_ONE_CELL | ends:kernels__aborted* | cells | s/c < LLANE_MAX_BLOCKS; c\+\+/c < 1; c++/
DEAD_FORGOTTEN | ends:kernels__lane_lost* | cells | s/(llane_advance_cell\(visit->mine,[^;]*;)/$1 llane_store_system32(&visit->mine->dead, 0);/
DEAD_NOT_SEEN | ends:kernels__lane_lost* | cells | s/if \(cell\.dead != LLANE_DEAD_NOT\)/if (cell.dead == 99)/
'
for program in results reuse ends shared; do
    if ! ${CC:-gcc} -std=gnu11 -O1 -D_GNU_SOURCE= -Iplugin -Ikernels -c \
        tests/unit/test_kernel_$program.c -o "$out/$program.o"; then
        echo "not ok - test_kernel_$program compiles"
        exit 1
    fi
done

# FOLDER PROGRAM...: the float32 kernels there, and test programs of them and the other types' as they are.
build() {
    local here=$1 program
    ${CXX:-g++} -std=gnu++17 -O0 -w -DLLANE_EMU -Itests/emu_gpu -x c++ \
        -c "$here/type_f32.cu" -o "$here/type_f32.o" || return
    for program in "${@:2}"; do
        ${CXX:-g++} "$here/type_f32.o" "$out/$program.o" \
            "$LLANE_BUILD/emu/libllane-kernels.a" -o "$here/$program" -L"$emu" -lllane-emu \
            -Wl,-rpath,"$emu" -lcmocka -lm -pthread || return
    done
}

# FOLDER PROGRAM:PATTERN LOG: status of a run.
run() {
    CMOCKA_MESSAGE_OUTPUT=STDOUT LLANE_TEST_WATCHDOG=600 exec "$1/${2%:*}" "${2#*:}" >"$3" 2>&1
}

# FOLDER PROGRAM:PATTERN LOG: of a broken run, into LOG.status. It hangs if it does not end while unbroken kernels pass
# twice: then its watchdog bites at once. By the clock alone, a mistake that nothing notices would be caught where the
# test is slow.
judge() {
    local pid
    run "$@" &
    pid=$!
    for _ in {1..10}; do # most end soon
        kill -0 $pid 2>/dev/null && sleep 0.1
    done
    for _ in 1 2; do
        kill -0 $pid 2>/dev/null || break
        (run "$out/NOTHING" "$2" "$3.unbroken") || kill $pid
    done
    kill -ALRM $pid 2>/dev/null
    wait $pid
    echo $? >"$3.status"
}

number=0 planted=0 caught=0
report() { # ok|"not ok", what, log
    number=$((number + 1))
    [ "$1" = ok ] || sed 's/^/# /' "$3"
    echo "$1 $number - $2"
}

copy() {
    rm -rf "$1" && mkdir -p "$1" && cp "${headers[@]}" kernels/table.h kernels/type_f32.cu "$1"
}

copy "$out/NOTHING" && build "$out/NOTHING" results reuse ends shared
for tests in $(cut -s -d'|' -f2 <<<"$mutations" | tr ' ' '\n' | sort -u); do
    (run "$out/NOTHING" "$tests" "$out/NOTHING/log") && result=ok || result="not ok"
    report "$result" "unbroken kernels pass $tests" "$out/NOTHING/log"
done

# Many a run hangs: meanwhile the next mistake is planted. Few at once, since they poll.
runs=()
while IFS='|' read -r name all_tests file mistake; do
    name=${name// /} file=${file// /}
    [ -n "$name" ] || continue
    here=$out/$name
    copy "$here" && perl -0pi -e "$mistake" "$here/$file.cuh"
    read -r -a programs <<<"$(tr ' ' '\n' <<<"$all_tests" | sed -n 's/:.*//p' | sort -u | xargs)"
    if cmp -s "$here/$file.cuh" "kernels/$file.cuh" ||
        ! build "$here" "${programs[@]}" 2>"$here/log"; then
        report "not ok" "$name can be planted" "$here/log"
        continue
    fi
    for tests in $all_tests; do
        log=$here/${tests//[:*]/}.log
        while [ "$(jobs -pr | wc -l)" -ge 2 ]; do
            wait -n
        done
        judge "$here" "$tests" "$log" &
        runs+=("$name $tests $log")
    done
done <<<"$mutations"
wait

for entry in "${runs[@]}"; do
    read -r name tests log <<<"$entry"
    planted=$((planted + 1))
    read -r status <"$log.status"
    # A failure that the tests found, not one to start.
    if [ "$status" -ne 0 ] && grep -qE "^\[  FAILED  \]|^watchdog:" "$log"; then
        caught=$((caught + 1))
        report ok "$name is caught by $tests" "$log"
    else
        report "not ok" "$name is caught by $tests (status $status)" "$log"
    fi
done
echo "1..$number"
echo "mutations: $planted planted, $caught caught"
