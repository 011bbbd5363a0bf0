// Slots in host memory that a rank stores once and several peers read, alone and mixed with private ones.
// ALSO: asan
/*
 * Through plugin/gpu.h and kernels/table.h alone, so it can be linked with gpu_cuda.c as well. Also
 * built with kernels that test_kernel_mutations.sh has broken on purpose; then it must fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernel_run.h"

static const enum sharing sharings[] = {SHARING_ALL, SHARING_SOME};

/* Between operations all of a shared sentinel slot waits, but for what the last two stored. */
static void check_armed(const struct team *team)
{
    const uint32_t next = team->next_op[LLANE_SENTINEL];
    const uint64_t n_words = team->shared_slot_bytes[LLANE_SENTINEL] / sizeof(uint32_t);

    for (uint32_t r = 0; r < team->n_ranks; r++) {
        for (uint32_t ahead = 0; ahead < LLANE_SHARED_GENERATIONS - 2; ahead++) {
            const uint32_t generation = (next + ahead) % LLANE_SHARED_GENERATIONS;
            const uint32_t *words =
                (const uint32_t *)(const void *)team->members[r].shared_slots[LLANE_SENTINEL] +
                generation * n_words;

            for (uint64_t w = 0; w < n_words; w++)
                if (words[w] != UINT32_MAX)
                    fail_msg("word %llu of generation %u of rank %u's shared slot is %08x",
                             (unsigned long long)w, generation, r, words[w]);
        }
    }
}

static void run_shared(struct run *run, bool by_graph)
{
    MUST(run->team->n_ranks < 2); /* for those who read the oracle: it divides by it */
    run_all(run, by_graph);
    check_armed(run->team);
    free(run);
}

static void shared__types_ops_algorithms_packets_ranks__results_exact(void **state)
{
    static const uint32_t ranks[] = {2, 3, 4, 8, LLANE_MAX_RANKS};

    (void)state;
    for (int k = 0; k < 2 * 5; k++) {
        struct team *team = team_create_sharing(ranks[k / 2], 8 << 10, sharings[k % 2]);

        for (int type = 0; type < LLANE_N_TYPES; type++) {
            struct run *run = run_create(team, 100 + (uint32_t)(k * LLANE_N_TYPES + type));

            for (int way = 0; way < LLANE_TWO_SHOT * 2 + 2; way++) {
                if (!has_kernel(type, way / 2, way % 2))
                    continue;
                for (int op = 0; op < LLANE_N_OPS; op++)
                    run_add(run, type, way / 2, way % 2, op, 1 + (uint64_t)(17 * op + type) % 70)
                        ->is_spiced = op % 2 == 0;
                run_add(run, type, way / 2, way % 2, LLANE_OP_SUM, 512);
            }
            run_shared(run, type % 3 == 0);
        }
        team_destroy(team);
    }
}

static void shared__many_operations_back_to_back__no_slot_reused_too_early(void **state)
{
    static const uint32_t ranks[] = {2, 3, 4, 5, 8};

    (void)state;
    for (int k = 0; k < 2 * 5; k++) {
        struct team *team = team_create_sharing(ranks[k / 2], 8 << 10, sharings[k % 2]);
        struct run *run = run_create(team, 1000 + ranks[k / 2]);

        for (uint32_t i = 0; i < 200; i++)
            run_add_any(run, mix(77 + ranks[k / 2], i), 4 << 10);
        run_shared(run, false);
        team_destroy(team);
    }
}

/* One kernel again and again: nothing but its own packets to tell operations apart by. */
static void check_one_kernel(int algorithm, int packet)
{
    for (int k = 0; k < 2 * 2; k++) {
        struct team *team = team_create_sharing(2 + (uint32_t)k / 2, 4 << 10, sharings[k % 2]);
        struct run *run = run_create(team, 1100);

        for (uint32_t i = 0; i < 240; i++)
            run_add(run, LLANE_TYPE_F32, algorithm, packet, LLANE_OP_SUM,
                    i % 8 == 0 ? 1000 : 1 + i % 13);
        run_shared(run, false);
        team_destroy(team);
    }
}

static void shared_one_shot_ll__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_ONE_SHOT, LLANE_LL);
}

static void shared_one_shot_sentinel__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_ONE_SHOT, LLANE_SENTINEL);
}

static void shared_two_shot_ll__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_TWO_SHOT, LLANE_LL);
}

static void shared_two_shot_sentinel__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_TWO_SHOT, LLANE_SENTINEL);
}

/* Long enough to be re-armed packet by packet (shared.cuh), short ones behind them, and the longest that
 * are not, of 512 packets. */
static void shared_sentinel__large_messages__no_slot_reused_too_early(void **state)
{
    (void)state;
    for (int k = 0; k < 2 * 2; k++) {
        struct team *team = team_create_sharing(2 + (uint32_t)k / 2, 16 << 10, sharings[k % 2]);
        struct run *run = run_create(team, 1150);

        for (uint32_t i = 0; i < 48; i++)
            run_add(run, LLANE_TYPE_F32, i / 3 % 2 ? LLANE_TWO_SHOT : LLANE_ONE_SHOT,
                    LLANE_SENTINEL, LLANE_OP_SUM,
                    i % 4 == 3   ? 1 + i
                    : i % 4 == 1 ? 2048 + i / 4 % 2
                                 : 4000 - i);
        run_shared(run, false);
        team_destroy(team);
    }
}

/* cases.md 16: ranks fall behind each other by more than an operation's time. */
static void shared__ranks_out_of_step__results_exact(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct team *team = team_create_sharing(3, 4 << 10, sharings[k]);
        struct run *run = run_create(team, 1200);

        run->max_pause_us = 1500;
        for (uint32_t i = 0; i < 200; i++)
            run_add_any(run, mix(78, i), 2 << 10);
        run_shared(run, false);
        team_destroy(team);
    }
}

/* cases.md 27 */
static void shared__counters_wrap__generations_keep_taking_turns(void **state)
{
    static const uint32_t presets[][2] = {
        {UINT32_MAX - 3, 1}, {4, UINT32_MAX - 2}, {UINT32_MAX - 2, UINT32_MAX - 3}};

    (void)state;
    for (uint32_t k = 0; k < 12; k++) {
        struct team *team = team_create_sharing(3, 4 << 10, sharings[k % 2]);
        struct run *run = run_create(team, 3000 + k);

        team_preset(team, presets[k % 3][0], presets[k % 3][1]);
        for (uint32_t i = 0; i < 16; i++)
            run_add(run, LLANE_TYPE_F32, (k + i / 2) & 1, i & 1, LLANE_OP_SUM, 200 + k);
        run_shared(run, false);
        team_destroy(team);
    }
}

static const uint32_t old_flag = 0x7fffffff;

/* Flags that no operation of the run has, in all of its shared LL slots. */
static void member_plant(struct member *m, void *arg)
{
    const uint64_t n_words = 2 * m->team->shared_slot_bytes[LLANE_LL] / sizeof(uint32_t);
    uint32_t *words = (uint32_t *)(void *)m->shared_slots[LLANE_LL];

    (void)arg;
    for (uint64_t w = 1; w < n_words; w += 2)
        words[w] = old_flag;
}

static bool is_sharing(const struct team *team, uint32_t rank)
{
    bool is = false;

    for (uint32_t r = 0; r < team->n_ranks; r++)
        is |= are_sharing(team, rank, r);
    return is;
}

/* The same operation each time that a stripe comes, for messages of all lengths: what it spares, it
 * has to have written. */
static void shared__stripe_goes_round_under_one_operation__no_old_flag_is_left(void **state)
{
    enum { MAX_BYTES = 1500, GOING_ROUND = 64 };
    static const uint64_t counts[] = {1, 3, 100, 314, 375};

    (void)state;
    for (int k = 0; k < 2 * 2 * 5; k++) {
        struct team *team = team_create_sharing(k / 2 % 2 ? 3 : 5, MAX_BYTES, sharings[k % 2]);
        struct run *run = run_create(team, 2100);
        const uint64_t n_words = 2 * team->shared_slot_bytes[LLANE_LL] / sizeof(uint32_t);

        assert_int_equal(team->shared_slot_bytes[LLANE_LL], 2 * LLANE_STRIPE_BYTES);
        team_do(team, member_plant, NULL);
        for (uint32_t i = 0; i < GOING_ROUND; i++)
            run_add(run, LLANE_TYPE_F32, k / 2 % 2 ? LLANE_ONE_SHOT : LLANE_TWO_SHOT, LLANE_LL,
                    LLANE_OP_SUM, counts[k / 4]);
        run_shared(run, false);
        for (uint32_t r = 0; r < team->n_ranks; r++) {
            const uint32_t *words =
                (const uint32_t *)(const void *)team->members[r].shared_slots[LLANE_LL];

            /* Nobody reads, and nobody cleans, what is shared with none. */
            for (uint64_t w = 1; w < n_words && is_sharing(team, r); w += 2)
                if (words[w] == old_flag)
                    fail_msg("rank %u of %u: word %llu still has its flag", r, team->n_ranks,
                             (unsigned long long)w);
        }
        team_destroy(team);
    }
}

/* With an argument: only the tests that match this pattern. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared__types_ops_algorithms_packets_ranks__results_exact),
        cmocka_unit_test(shared__many_operations_back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(shared_one_shot_ll__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(shared_one_shot_sentinel__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(shared_two_shot_ll__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(shared_two_shot_sentinel__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(shared_sentinel__large_messages__no_slot_reused_too_early),
        cmocka_unit_test(shared__ranks_out_of_step__results_exact),
        cmocka_unit_test(shared__counters_wrap__generations_keep_taking_turns),
        cmocka_unit_test(shared__stripe_goes_round_under_one_operation__no_old_flag_is_left),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    team_start_up();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
