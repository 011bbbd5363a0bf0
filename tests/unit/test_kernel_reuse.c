// Slots, generations, counters and flags survive reuse, wrap and replay by any mixture of kernels.
// ALSO: asan
/*
 * Through plugin/gpu.h and kernels/table.h alone, so it can be linked with gpu_cuda.c as well. Also
 * built with kernels that test_kernel_mutations.sh has broken on purpose; then it must fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "kernel_run.h"

/* cases.md 12 (grids differ from rank to rank), 17 (stores and loads are torn in the emulation) */
static void kernels__many_operations_back_to_back__no_slot_reused_too_early(void **state)
{
    static const uint32_t ranks[] = {2, 3, 4, 5, 8};

    (void)state;
    for (int i = 0; i < 5; i++) {
        struct team *team = team_create(ranks[i], 8 << 10);
        struct run *run = run_create(team, 1000 + ranks[i]);

        for (uint32_t k = 0; k < 300; k++)
            run_add_any(run, mix(77 + ranks[i], k), 4 << 10);
        run_all(run, false);
        free(run);
        team_destroy(team);
    }
}

/* One kernel again and again: nothing but its own packets to tell operations apart by. */
static void check_one_kernel(int algorithm, int packet, uint32_t max_ranks)
{
    for (uint32_t n_ranks = 2; n_ranks <= max_ranks; n_ranks++) {
        struct team *team = team_create(n_ranks, 4 << 10);
        struct run *run = run_create(team, 1100);

        for (uint32_t k = 0; k < 240; k++)
            run_add(run, LLANE_TYPE_F32, algorithm, packet, LLANE_OP_SUM,
                    k % 8 == 0 ? 1000 : 1 + k % 13)
                ->has_own_grids = k % 16 == 0;
        run_all(run, false);
        free(run);
        team_destroy(team);
    }
}

static void one_shot_ll__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_ONE_SHOT, LLANE_LL, 4);
}

static void one_shot_sentinel__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_ONE_SHOT, LLANE_SENTINEL, 4);
}

/* Where no thread has more than one packet, ranks whose buffers are aligned have code of their own
 * (single.cuh), next to ranks that go the general way. */
static void check_packet_a_thread(int algorithm, uint32_t n_ranks)
{
    static const int types[] = {LLANE_TYPE_F32, LLANE_TYPE_F16, LLANE_TYPE_BF16,
                                LLANE_TYPE_I32, LLANE_TYPE_F64, LLANE_TYPE_E4M3};
    struct team *team = team_create(n_ranks, 4 << 10);
    struct run *run = run_create(team, 1150 + n_ranks);

    team_preset(team, UINT32_MAX - 70, UINT32_MAX - 50);
    for (uint32_t k = 0; k < 288; k++) {
        const int type = types[k / 2 % 6], is_two_shot = algorithm == LLANE_TWO_SHOT;
        const uint64_t grain = LLANE_PACKET_BYTES / format_of(type)->bytes;
        struct step *s;

        if (!has_kernel(type, algorithm, k % 2))
            continue;
        /* As many packets as the smallest grid has threads, at most; every ninth has a tail. */
        s = run_add(run, type, algorithm, k % 2, LLANE_OP_SUM,
                    grain * (is_two_shot ? n_ranks : 1) *
                            (1 + k * 7 % (k % 2 && !is_two_shot ? 64 : 32)) -
                        (k % 9 == 8));
        s->is_in_place = k % 3 == 1;
        s->is_spiced = k % 5 == 0;
        s->has_own_grids = k % 4 == 0;
    }
    run_all(run, false);
    free(run);
    team_check_slots(team, LLANE_SENTINEL, slot_check_armed);
    team_destroy(team);
}

static void packet_a_thread__plain_and_other_ranks__agree(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 8; n_ranks *= 2) {
        check_packet_a_thread(LLANE_ONE_SHOT, n_ranks);
        check_packet_a_thread(LLANE_TWO_SHOT, n_ranks);
    }
}

static void two_shot_ll__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_TWO_SHOT, LLANE_LL, 3);
}

static void two_shot_sentinel__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_TWO_SHOT, LLANE_SENTINEL, 3);
}

static void ring_ll__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_RING, LLANE_LL, 3);
}

static void islands_ll__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_ISLANDS, LLANE_LL, 5);
}

/* Rank 1's packets from `first` on, n of them at `at` in a generation, as rank 0 should find them for
 * operation 1; or a half of each, the other one still on its way. */
static void plant_packets(struct team *team, uint64_t at, uint32_t first, uint32_t n, bool is_whole)
{
    struct member *from = &team->members[1];
    uint64_t *halves = (uint64_t *)(void *)from->image;

    for (uint32_t i = 0; i < n; i++) {
        halves[2 * i] = 0x3f8000003f800000;
        halves[2 * i + 1] = is_whole ? 0x3f8000003f800000 : UINT64_MAX;
    }
    at += (uint64_t)first * LLANE_PACKET_BYTES;
    MUST(llane_gpu_memcpy_async(team_slot(team, LLANE_SENTINEL, 0, 1) +
                                    team->slot_bytes[LLANE_SENTINEL] + at,
                                halves, (size_t)n * LLANE_PACKET_BYTES, from->side_stream));
    MUST(llane_gpu_stream_synchronize(from->side_stream));
}

/* How many of those packets have something in their first half. */
static uint32_t count_packets(struct team *team, uint64_t at, uint32_t first, uint32_t n)
{
    struct member *m = &team->members[0];
    const uint64_t *halves = (const uint64_t *)(const void *)m->image;
    uint32_t n_there = 0;

    at += (uint64_t)first * LLANE_PACKET_BYTES;
    MUST(llane_gpu_memcpy_async(
        m->image, team_slot(team, LLANE_SENTINEL, 0, 1) + team->slot_bytes[LLANE_SENTINEL] + at,
        (size_t)n * LLANE_PACKET_BYTES, m->side_stream));
    MUST(llane_gpu_stream_synchronize(m->side_stream));
    for (uint32_t i = 0; i < n; i++)
        n_there += halves[2 * i] != UINT64_MAX;
    return n_there;
}

/* Rank 1 is played here. Of rank 0's two blocks the first gets its packets, the other one only halves. */
static void check_block_ahead(int algorithm, uint32_t packets_a_thread)
{
    const uint32_t n_parts = algorithm == LLANE_TWO_SHOT ? 2 : 1;
    const uint32_t n = packets_a_thread * LLANE_MIN_THREADS; /* a block's */
    const struct launch how = {.type = LLANE_TYPE_F32,
                               .algorithm = (enum llane_algorithm)algorithm,
                               .packet = LLANE_SENTINEL,
                               .op = LLANE_OP_SUM,
                               .count = (uint64_t)2 * n * n_parts * LLANE_PACKET_BYTES / 4,
                               .n_blocks = 2,
                               .n_threads = LLANE_MIN_THREADS};
    struct team *team = team_create(2, how.count * 4);
    struct member *m = &team->members[0];
    uint64_t at[2] = {0, team->slot_bytes[LLANE_SENTINEL] / 2};

    MUST(llane_gpu_device_set(m->device));
    MUST(llane_gpu_memset_async(m->arena, 0, how.count * 4, m->stream));
    member_launch(m, m->stream, &how, m->arena, m->arena);
    for (uint32_t k = 0; k < n_parts; k++) {
        plant_packets(team, at[k], n, n, false);
        plant_packets(team, at[k], 0, n, true);
    }
    for (uint32_t k = 0; k < n_parts; k++) {
        while (count_packets(team, at[k], 0, n) != 0)
            ; /* until the first block has re-armed its own */
        assert_int_equal(count_packets(team, at[k], n, n), n);
    }
    for (uint32_t k = 0; k < n_parts; k++)
        plant_packets(team, at[k], n, n, true);
    MUST(llane_gpu_stream_synchronize(m->stream));
    slot_check_armed(team, 1, member_fetch_slot(m, LLANE_SENTINEL, 1, 1),
                     team->slot_bytes[LLANE_SENTINEL] / sizeof(uint32_t));
    team_destroy(team);
}

static void sentinel__block_ends_before_another__rearms_its_own_packets(void **state)
{
    (void)state;
    for (uint32_t packets_a_thread = 1; packets_a_thread <= 4; packets_a_thread *= 2) {
        check_block_ahead(LLANE_ONE_SHOT, packets_a_thread);
        check_block_ahead(LLANE_TWO_SHOT, packets_a_thread);
    }
}

/* Behind a message's last packet begins the other generation, or another rank's slot: none is touched there.
 * By several packets a thread, then by one. */
static void kernels__messages_fill_their_slots__results_exact(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 8; n_ranks *= 2) {
        struct team *team = team_create(n_ranks, 1);
        struct run *run = run_create(team, 1180 + n_ranks);

        for (uint32_t k = 0; k < 48; k++) {
            const int algorithm = k / 2 % 2, packet = k % 2;
            const uint64_t n_slot = team->slot_bytes[packet] / LLANE_PACKET_BYTES;
            const uint64_t n_dealt = algorithm == LLANE_TWO_SHOT ? n_slot / 2 : n_slot;
            const uint64_t n_packets = algorithm == LLANE_TWO_SHOT ? n_dealt * n_ranks : n_slot;
            struct step *s = run_add(run, LLANE_TYPE_F32, algorithm, packet, LLANE_OP_SUM,
                                     n_packets * (packet == LLANE_LL ? 2 : 4));

            s->is_aligned = k % 3 != 2;
            s->how.sleeps = false;
            s->how.n_threads = LLANE_MIN_THREADS;
            s->how.n_blocks =
                k / 4 % 3 == 2 ? (uint32_t)n_dealt / LLANE_MIN_THREADS + 1 : 1 + k / 4 % 3;
        }
        run_all(run, false);
        free(run);
        team_destroy(team);
    }
}

/* cases.md 16: ranks fall behind each other by more than an operation's time. */
static void kernels__ranks_out_of_step__results_exact(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 4; n_ranks += 2) {
        struct team *team = team_create(n_ranks, 4 << 10);
        struct run *run = run_create(team, 1200 + n_ranks);

        run->max_pause_us = 2000;
        for (uint32_t k = 0; k < 250; k++)
            run_add_any(run, mix(78, k), 2 << 10);
        run_all(run, false);
        free(run);
        team_destroy(team);
    }
}

/* The same again where stores reach some peers long after others: the emulation has to be told at
 * its start, hence a process of its own. */
static void kernels__stores_late_and_out_of_order__results_exact(void **state)
{
    static const char *const faults[] = {
        "delay_us:0>1=300,delay_us:2>0=100",
        "delay_us:1>0=50,delay_us:0>2=400,delay_us:2>1=150",
    };

    (void)state;
    for (int k = 0; k < 2; k++) {
        const pid_t child = fork();
        int status;

        assert_true(child >= 0);
        if (child == 0) {
            setenv("EMU_FAULTS", faults[k], 1);
            setenv("CMOCKA_MESSAGE_OUTPUT", "STDOUT", 1);
            dup2(STDERR_FILENO, STDOUT_FILENO);
            execl("/proc/self/exe", "test_kernel_reuse", "kernels__ranks_out*", (char *)NULL);
            _exit(126);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

/* Fills the LL slots with packets that will be taken for the operations whose numbers are in flags,
 * unless something removes them. */
struct stale {
    const uint32_t *flags;
    uint32_t n_flags;
};

static void member_plant(struct member *m, void *arg)
{
    const struct stale *stale = arg;
    const uint64_t per_generation = m->team->slot_bytes[LLANE_LL] / LLANE_PACKET_BYTES;
    uint32_t *words = (uint32_t *)(void *)m->image;
    const size_t bytes = m->team->n_ranks * 2 * m->team->slot_bytes[LLANE_LL];

    for (uint64_t packet = 0; packet < bytes / LLANE_PACKET_BYTES; packet++) {
        const uint32_t generation = packet / per_generation % 2;
        uint32_t flag = stale->flags[packet % stale->n_flags];

        if (flag % 2 != generation)
            flag = stale->flags[(packet + 1) % stale->n_flags];
        words[packet * 4] = words[packet * 4 + 2] = 0x3f812345;
        words[packet * 4 + 1] = words[packet * 4 + 3] = flag;
    }
    MUST(llane_gpu_memcpy_async(m->slots[LLANE_LL], m->image, bytes, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

/*
 * How old the flags in a slot of two stripes can be: it takes 64 operations to go round, and the wrap
 * makes the stripe jump once.
 */
enum { GOING_ROUND = 64, MAX_AGE = 2 * GOING_ROUND };

static struct team *stale_team_create(uint32_t n_ranks)
{
    struct team *team = team_create(n_ranks, 1);

    assert_int_equal(team->slot_bytes[LLANE_LL], 2 * LLANE_STRIPE_BYTES);
    return team;
}

/* float32 elements of the largest message that fits such a slot. */
static uint64_t stale_max_count(uint32_t n_ranks, int algorithm)
{
    const uint64_t n_packets = 2 * LLANE_STRIPE_BYTES / LLANE_PACKET_BYTES;
    const uint64_t most = algorithm == LLANE_ISLANDS ? n_packets / 5 * (n_ranks / 2) : n_packets;

    return (most < n_packets ? most : n_packets) * LLANE_LL_PAYLOAD / 4;
}

static void slot_check_flags(const struct team *team, uint32_t generation, const uint32_t *words,
                             uint64_t n_words)
{
    for (uint64_t w = 1; w < n_words; w += 2) {
        uint32_t age = 0, op = words[w];

        while (op != 0 && op != team->next_op[LLANE_LL] && age <= MAX_AGE) {
            op = op_after(op);
            age++;
        }
        if (age > MAX_AGE)
            fail_msg("packet %llu of generation %u of an LL slot of %u ranks has still flag %u",
                     (unsigned long long)w / 4, generation, team->n_ranks, words[w]);
    }
}

/* cases.md 27: small operations while the stripe goes round, before and behind the wrap; then
 * operations whose numbers stale packets had, that use all of the slot. */
static void check_stale(uint32_t n_ranks, int algorithm)
{
    enum { N_SMALL = MAX_AGE, N_LARGE = 30, N_BEFORE = 40 };
    const uint32_t first_op = UINT32_MAX - N_BEFORE;
    uint32_t flags[N_SMALL + N_LARGE] = {first_op};
    const struct stale stale = {.flags = &flags[N_SMALL], .n_flags = N_LARGE};
    struct team *team = stale_team_create(n_ranks);
    struct run *run = run_create(team, 2000 + n_ranks);

    for (int k = 1; k < N_SMALL + N_LARGE; k++)
        flags[k] = op_after(flags[k - 1]);
    team_do(team, member_plant, (void *)&stale);
    team_preset(team, first_op, 1);
    for (uint32_t k = 0; k < N_SMALL; k++)
        run_add(run, LLANE_TYPE_F32, k / 2 % 2, LLANE_LL, LLANE_OP_SUM, 1 + k % 16);
    for (uint32_t k = 0; k < N_LARGE; k++)
        run_add(run, LLANE_TYPE_F32, algorithm, LLANE_LL, LLANE_OP_SUM,
                stale_max_count(n_ranks, algorithm) - k);
    run_all(run, false);
    team_check_slots(team, LLANE_LL, slot_check_flags);
    free(run);
    team_destroy(team);
}

static void kernels__counter_wraps_over_stale_packets__none_is_taken(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 4; n_ranks++)
        for (int algorithm = 0; algorithm < LLANE_N_ALGORITHMS; algorithm++)
            check_stale(n_ranks, algorithm);
}

/* The last operation's packets are still there, n of them from one on of the slot's generation. */
static void check_last_packets(struct team *team, uint32_t owner, uint32_t source, uint64_t first,
                               uint64_t n)
{
    const uint32_t last = team->next_op[LLANE_LL] - 1;
    const uint32_t *words = member_fetch_slot(&team->members[owner], LLANE_LL, source, last % 2);

    for (uint64_t w = 1; w < n * 4; w += 2)
        assert_int_equal(words[first * 4 + w], last);
}

/* Packets in the shard of rank r. */
static uint64_t shard_length(uint64_t n_packets, uint32_t n_ranks, uint32_t r)
{
    const uint64_t n_shard = divide_up(n_packets, n_ranks), first = r * n_shard;
    const uint64_t left = first < n_packets ? n_packets - first : 0;

    return left < n_shard ? left : n_shard;
}

static void check_last_operation(struct team *team, int algorithm, uint64_t n_packets)
{
    const uint32_t n_ranks = team->n_ranks, n_lower = (n_ranks + 1) / 2;

    for (uint32_t k = 0; k < n_ranks * n_ranks; k++) {
        const uint32_t owner = k / n_ranks, source = k % n_ranks;

        if (owner == source)
            continue;
        if (algorithm == LLANE_ONE_SHOT)
            check_last_packets(team, owner, source, 0, n_packets);
        if (algorithm == LLANE_TWO_SHOT) {
            check_last_packets(team, owner, source, 0, shard_length(n_packets, n_ranks, owner));
            check_last_packets(team, owner, source,
                               team->slot_bytes[LLANE_LL] / 2 / LLANE_PACKET_BYTES,
                               shard_length(n_packets, n_ranks, source));
        }
    }
    /* The results of shard 0, which the other island's owner stored. */
    if (algorithm == LLANE_ISLANDS)
        check_last_packets(team, 0, n_lower, 0, divide_up(n_packets, n_ranks - n_lower));
}

/* The same operation each time that a stripe comes, for messages of all lengths: what it spares, it
 * has to have written. With a two-shot operation some shards are shorter than others. The last operation
 * zeroes a stripe too, and what it wrote stays. n_ops: GOING_ROUND, or less, for that alone. */
static void check_no_old_flag(uint32_t n_ranks, int algorithm, uint64_t count, uint32_t n_ops)
{
    static const uint32_t old = 0x7fffffff, older = 0x7ffffffe;
    const uint32_t flags[] = {old, older};
    const struct stale stale = {.flags = flags, .n_flags = 2};
    struct team *team = stale_team_create(n_ranks);
    struct run *run = run_create(team, 2100);

    if (count > stale_max_count(n_ranks, algorithm))
        count = stale_max_count(n_ranks, algorithm);
    team_do(team, member_plant, (void *)&stale);
    for (uint32_t k = 0; k < n_ops; k++) {
        struct step *s = run_add(run, LLANE_TYPE_F32, algorithm, LLANE_LL, LLANE_OP_SUM, count);

        /* Each stripe comes but once: who can has to go the way of single packets. */
        s->is_aligned = true;
        s->how.sleeps = false;
    }
    run_all(run, false);
    if (n_ops == GOING_ROUND)
        team_check_slots(team, LLANE_LL, slot_check_flags);
    check_last_operation(team, algorithm, divide_up(count * 4, LLANE_LL_PAYLOAD));
    free(run);
    team_destroy(team);
}

static void kernels__stripe_goes_round_under_one_operation__no_old_flag_is_left(void **state)
{
    static const uint64_t counts[] = {1, 3, 16, 314, 499, 512};

    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 5; n_ranks += n_ranks - 1)
        for (int c = 0; c < 6; c++)
            for (int algorithm = 0; algorithm < LLANE_N_ALGORITHMS; algorithm++) {
                check_no_old_flag(n_ranks, algorithm, counts[c], GOING_ROUND);
                /* The last operation's stripe is the other one then. */
                check_no_old_flag(n_ranks, algorithm, counts[c], GOING_ROUND / 2);
            }
}

/* cases.md 27 */
static void kernels__counters_wrap__generations_keep_taking_turns(void **state)
{
    static const uint32_t presets[][2] = {
        {UINT32_MAX - 3, 1}, {2, UINT32_MAX - 2}, {UINT32_MAX - 2, UINT32_MAX - 3}};

    (void)state;
    for (uint32_t k = 0; k < 30; k++) {
        struct team *team = team_create(3, 4 << 10);
        struct run *run = run_create(team, 3000 + k);

        team_preset(team, presets[k % 3][0], presets[k % 3][1]);
        for (uint32_t i = 0; i < 8; i++)
            run_add(run, LLANE_TYPE_F32, (k + i / 2) & 1, i & 1, LLANE_OP_SUM, 200 + k);
        for (uint32_t i = 0; i < 8; i++)
            run_add_any(run, mix(k, i), 4 << 10);
        run_all(run, false);
        free(run);
        team_destroy(team);
    }
}

static void kernels__graph_replayed_with_new_inputs__results_exact(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 4; n_ranks++) {
        struct team *team = team_create(n_ranks, 4 << 10);

        for (uint32_t k = 0; k < 6; k++) {
            struct run *run = run_create(team, 4000 + k);

            for (uint32_t i = 0; i < 12; i++)
                run_add_any(run, mix(79 + k, i), 2 << 10)->is_in_place = false;
            run->times = 5; /* the same inputs give the same outputs each time */
            run_all(run, k % 3 != 2);
            free(run);
        }
        team_destroy(team);
    }
}

/* With an argument: only the tests that match this pattern. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels__many_operations_back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(one_shot_ll__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(one_shot_sentinel__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(packet_a_thread__plain_and_other_ranks__agree),
        cmocka_unit_test(two_shot_ll__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(two_shot_sentinel__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(ring_ll__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(islands_ll__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(sentinel__block_ends_before_another__rearms_its_own_packets),
        cmocka_unit_test(kernels__messages_fill_their_slots__results_exact),
        cmocka_unit_test(kernels__ranks_out_of_step__results_exact),
        cmocka_unit_test(kernels__stores_late_and_out_of_order__results_exact),
        cmocka_unit_test(kernels__counter_wraps_over_stale_packets__none_is_taken),
        cmocka_unit_test(kernels__stripe_goes_round_under_one_operation__no_old_flag_is_left),
        cmocka_unit_test(kernels__counters_wrap__generations_keep_taking_turns),
        cmocka_unit_test(kernels__graph_replayed_with_new_inputs__results_exact),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    team_start_up();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
