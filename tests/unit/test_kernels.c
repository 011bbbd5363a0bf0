// The all-reduce and probe kernels give exact results, leave the rest of memory alone, survive reuse, wrap and replay, and stop when told.
// ALSO: asan
/*
 * Through plugin/gpu.h and kernels/table.h alone, so it can be linked with gpu_cuda.c as well. Also
 * built with each LLANE_MUTATE_* switch by test_kernel_mutations.sh; then it must fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernel_run.h"

static const enum llane_kernel kernels[] = {
    LLANE_KERNEL_ONE_SHOT_LL_F32, LLANE_KERNEL_ONE_SHOT_LL_F16, LLANE_KERNEL_ONE_SHOT_LL_BF16};

/* Varying on purpose: cells must not depend on the grid. Small, so that all ranks' blocks fit on one
 * GPU together. */
static void choose_grid(struct launch *how, uint64_t dice)
{
    static const uint32_t blocks[] = {1, 2, 3, 1, 5, 4};
    static const uint32_t threads[] = {32, 64, 32, 96, 32, 128};

    how->n_blocks = blocks[dice % 6];
    how->n_threads = threads[dice / 6 % 6];
}

static struct run *run_create(struct team *team, uint32_t seed)
{
    struct run *run = calloc(1, sizeof(*run));

    assert_non_null(run);
    run->team = team;
    run->seed = seed;
    run->times = 1;
    return run;
}

static struct step *run_add(struct run *run, enum llane_kernel kernel, enum llane_kernel_op op,
                            uint64_t count)
{
    struct step *s = &run->steps[run->n_steps];

    assert_true(run->n_steps < MAX_STEPS);
    *s = (struct step){.how = {.kernel = kernel, .op = op, .count = count}};
    choose_grid(&s->how, mix(run->seed, run->n_steps));
    s->is_in_place = mix(run->seed + 1, run->n_steps) % 3 == 0;
    run->n_steps++;
    return s;
}

static void check_matrix(uint32_t n_ranks, uint64_t largest)
{
    static const uint64_t counts[] = {1, 2, 3, 4, 5, 7, 8, 31, 33, 100, 1024, 4097};
    struct team *team = team_create(n_ranks, 128 << 10, 1);
    uint32_t next_op = 1;

    for (int k = 0; k < LLANE_N_TYPES; k++) {
        const int type = (LLANE_TYPE_F32 + k) % LLANE_N_TYPES; /* the mutated one first */
        const enum llane_kernel kernel = (enum llane_kernel)(LLANE_KERNEL_ONE_SHOT_LL + type);
        struct run *run = run_create(team, n_ranks * 20 + (uint32_t)type);

        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]) && counts[c] <= largest; c++) {
            for (int op = 0; op < LLANE_N_OPS; op++) {
                /* The operation matters little to long messages: one of them for each type. */
                if (counts[c] > 100 && (op + type) % LLANE_N_OPS != 0)
                    continue;
                run_add(run, kernel, (enum llane_kernel_op)op, counts[c]);
                run_add(run, kernel, (enum llane_kernel_op)op, counts[c])->is_spiced = true;
            }
        }
        next_op = run_all(run, false, next_op);
        free(run);
    }
    team_destroy(team);
}

static void kernels__types_ops_counts_ranks__results_exact(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 5; n_ranks++)
        check_matrix(n_ranks, 4097);
    check_matrix(8, 1024);
    check_matrix(11, 33);
    check_matrix(LLANE_MAX_RANKS, 33);
}

static void kernels__many_operations_back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 4; n_ranks++) {
        struct team *team = team_create(n_ranks, 16 << 10, 1);
        struct run *run = run_create(team, 1000 + n_ranks);

        for (uint32_t k = 0; k < 300; k++) {
            const uint64_t dice = mix(77, k);

            run_add(run, kernels[dice % 3], (enum llane_kernel_op)(dice / 3 % 2),
                    1 + dice / 6 % (dice % 5 == 0 ? 900 : 60));
        }
        run_all(run, false, 1);
        free(run);
        team_destroy(team);
    }
}

/* Fills the slots' lines from first_line on with packets that will be taken for the operations whose
 * numbers are in flags, unless something removes them. */
struct stale {
    uint32_t first_line;
    const uint32_t *flags;
    uint32_t n_flags;
};

static void member_plant(struct member *m, void *arg)
{
    const struct stale *stale = arg;
    const uint64_t generation_lines = m->team->slot_bytes / LLANE_LINE_BYTES;
    uint32_t *words = (uint32_t *)(void *)m->image;
    const size_t bytes = m->team->n_ranks * 2 * m->team->slot_bytes;

    memset(m->image, 0, bytes);
    for (uint64_t line = 0; line < bytes / LLANE_LINE_BYTES; line++) {
        const uint32_t generation = line / generation_lines % 2;
        uint32_t flag = stale->flags[line % stale->n_flags];

        if (line % generation_lines < stale->first_line)
            continue;
        if (flag % 2 != generation)
            flag = stale->flags[(line + 1) % stale->n_flags];
        words[line * 4] = words[line * 4 + 2] = 0x3f812345;
        words[line * 4 + 1] = words[line * 4 + 3] = flag;
    }
    MUST(llane_gpu_memcpy_async(m->slots, m->image, bytes, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static void kernels__counter_wraps_over_stale_packets__none_is_taken(void **state)
{
    enum { N_SMALL = 100, N_LARGE = 30 };
    const uint32_t first_op = UINT32_MAX - 40;
    uint32_t flags[N_SMALL + N_LARGE] = {first_op};
    struct stale stale = {.first_line = 8, .flags = &flags[N_SMALL], .n_flags = N_LARGE};

    (void)state;
    for (int k = 1; k < N_SMALL + N_LARGE; k++)
        flags[k] = flag_after(flags[k - 1]);
    for (uint32_t n_ranks = 2; n_ranks <= 4; n_ranks++) {
        /* 32 stripes: N_SMALL operations walk over both generations */
        struct team *team = team_create(n_ranks, 4 << 10, first_op);
        struct run *run = run_create(team, 2000 + n_ranks);

        team_do(team, member_plant, &stale);
        for (uint32_t k = 0; k < N_SMALL; k++)
            run_add(run, kernels[k % 3], LLANE_OP_SUM, 1 + k % 16);
        for (uint32_t k = 0; k < N_LARGE; k++)
            run_add(run, LLANE_KERNEL_ONE_SHOT_LL_F32, LLANE_OP_SUM, 512 - k);
        run_all(run, false, first_op);
        free(run);
        team_destroy(team);
    }
}

static void kernels__counter_wraps__generations_keep_taking_turns(void **state)
{
    uint32_t first_op = UINT32_MAX - 3;
    struct team *team = team_create(3, 16 << 10, 1);

    (void)state;
    for (uint32_t k = 0; k < 30; k++) {
        struct run *run = run_create(team, 3000 + k);

        team_do(team, member_preset, &first_op);
        for (int i = 0; i < 8; i++)
            run_add(run, kernels[k % 3], LLANE_OP_SUM, 200 + k);
        run_all(run, false, first_op);
        free(run);
    }
    team_destroy(team);
}

static void kernels__graph_replayed_with_new_inputs__results_exact(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 3; n_ranks++) {
        struct team *team = team_create(n_ranks, 16 << 10, 1);
        uint32_t next_op = 1;

        for (uint32_t k = 0; k < 6; k++) {
            struct run *run = run_create(team, 4000 + k);

            for (int i = 0; i < 12; i++)
                run_add(run, kernels[i % 3], (enum llane_kernel_op)(i / 3 % 2),
                        1 + mix(k, (uint64_t)i) % 300)
                    ->is_in_place = false;
            run->times = 5; /* the same inputs give the same outputs each time */
            next_op = run_all(run, k % 3 != 2, next_op);
            free(run);
        }
        team_destroy(team);
    }
}

/* ---- kernels that wait for a peer that does not come ---- */

static const struct launch lonely = {
    LLANE_KERNEL_ONE_SHOT_LL_F32, LLANE_OP_SUM, 1000, 3, 64,
};

/* Rank 0's kernel has started: its first line has come to rank 1. */
static void wait_for_first_line(struct team *team)
{
    struct member *to = &team->members[1];
    volatile uint32_t *line = (volatile uint32_t *)(void *)to->image;

    do {
        /* Operation 1, so generation 1. */
        MUST(llane_gpu_memcpy_async(to->image, team_slot(team, 1, 0) + team->slot_bytes,
                                    LLANE_LINE_BYTES, to->side_stream));
        MUST(llane_gpu_stream_synchronize(to->side_stream));
    } while (line[1] == 0 || line[3] == 0);
}

static void arena_clear(struct member *m)
{
    MUST(llane_gpu_memset_async(m->arena, UNTOUCHED, ARENA_BYTES, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static void check_dead(struct team *team, uint32_t reason)
{
    struct member *m = &team->members[0];

    assert_int_equal(__atomic_load_n(&m->words->dead, __ATOMIC_ACQUIRE), reason);
    /* A later kernel leaves at once, whatever the abort word says now. */
    __atomic_store_n(&m->words->abort, 0, __ATOMIC_RELEASE);
    member_launch(m, m->stream, &lonely, m->arena, m->arena + 8192);
    MUST(llane_gpu_stream_synchronize(m->stream));
    member_fetch(m, NULL);
    for (int c = 0; c < LLANE_MAX_BLOCKS; c++)
        assert_int_equal(m->seen[c].dead, reason);
    for (size_t at = 0; at < 16384; at++)
        assert_int_equal(m->image[at], UNTOUCHED);
}

static void kernels__aborted_while_polling__leave_output_alone_and_lane_dead(void **state)
{
    struct team *team = team_create(2, 16 << 10, 1);
    struct member *m = &team->members[0];
    int is_done;

    (void)state;
    MUST(llane_gpu_device_set(m->device));
    arena_clear(m);
    member_launch(m, m->stream, &lonely, m->arena, m->arena + 8192);
    wait_for_first_line(team);
    MUST(llane_gpu_stream_query(m->stream, &is_done));
    assert_false(is_done);
    /* Pairs with the look in the poll loop. */
    __atomic_store_n(&m->words->abort, 1, __ATOMIC_RELEASE);
    MUST(llane_gpu_stream_synchronize(m->stream));
    check_dead(team, LLANE_DEAD_ABORT);
    team_destroy(team);
}

static void kernels__two_at_once_on_a_lane__both_leave_and_lane_dead(void **state)
{
    static const uint32_t second_blocks[] = {3, 1, 7};

    (void)state;
    for (int k = 0; k < 3; k++) {
        struct team *team = team_create(2, 16 << 10, 1);
        struct member *m = &team->members[0];
        struct launch second = lonely;

        second.n_blocks = second_blocks[k];
        MUST(llane_gpu_device_set(m->device));
        arena_clear(m);
        member_launch(m, m->stream, &lonely, m->arena, m->arena + 8192);
        wait_for_first_line(team);
        member_launch(m, m->side_stream, &second, m->arena, m->arena + 8192);
        MUST(llane_gpu_stream_synchronize(m->side_stream));
        MUST(llane_gpu_stream_synchronize(m->stream));
        check_dead(team, LLANE_DEAD_OVERLAP);
        team_destroy(team);
    }
}

/* ---- the probe, in areas at the start of the slots ---- */

struct probing {
    uint64_t nonce;
    uint64_t timeout_ns;
    uint32_t lazy;    /* this rank does not send */
    uint32_t liar[2]; /* what rank liar[0] sends to others says that it came from liar[1] */
};

static void probe_args(struct member *m, const struct probing *how, struct llane_probe_args *args)
{
    *args = (struct llane_probe_args){
        .nonce = how->nonce,
        .timeout_ns = how->timeout_ns,
        .rank = m->rank,
        .n_ranks = m->team->n_ranks,
        .result = m->device_probe_result,
        .words = m->device_words,
    };
    for (uint32_t r = 0; r < m->team->n_ranks; r++) {
        args->send[r] = team_slot(m->team, r, m->rank);
        args->recv[r] = team_slot(m->team, m->rank, r);
    }
}

static void member_probe(struct member *m, void *arg)
{
    const struct probing *how = arg;
    struct llane_probe_args args;
    struct llane_gpu_launch launch = {.args = &args,
                                      .args_bytes = sizeof(args),
                                      .n_blocks = 1,
                                      .n_threads = 64,
                                      .stream = m->stream};

    memset(m->probe_result, 0, LLANE_MAX_RANKS * sizeof(uint32_t));
    probe_args(m, how, &args);
    if (m->rank == how->liar[0]) {
        const uint32_t as = how->liar[1];
        uint8_t *own = args.send[m->rank];

        args.send[m->rank] = args.send[as]; /* whose own entry is not used */
        args.send[as] = own;
        args.rank = as;
    }
    launch.kernel = llane_kernel_table[LLANE_KERNEL_PROBE_SEND];
    if (m->rank != how->lazy)
        MUST(llane_gpu_launch(&launch));
    MUST(llane_gpu_stream_synchronize(m->stream));
    probe_args(m, how, &args);
    launch.kernel = llane_kernel_table[LLANE_KERNEL_PROBE_CHECK];
    MUST(llane_gpu_launch(&launch));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static void probe__pairs_good_silent_wrong_stale__told_apart(void **state)
{
    enum { N = 4, NOBODY = 99 };
    struct team *team = team_create(N, 4 << 10, 1);
    struct probing how = {.nonce = 0x123456789abcdef0u,
                          .timeout_ns = 10000000000u,
                          .lazy = NOBODY,
                          .liar = {NOBODY, NOBODY}};

    (void)state;
    team_do(team, member_probe, &how);
    for (int r = 0; r < N; r++)
        for (int s = 0; s < N; s++)
            assert_int_equal(team->members[r].probe_result[s], LLANE_PROBE_GOOD);

    /* Rank 2 keeps silent under a new nonce: what it sent before does not count. */
    how.nonce++;
    how.timeout_ns = 300000000;
    how.lazy = 2;
    team_do(team, member_probe, &how);
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t s = 0; s < N; s++)
            assert_int_equal(team->members[r].probe_result[s],
                             s == 2 && r != 2 ? LLANE_PROBE_WRONG : LLANE_PROBE_GOOD);
    team_destroy(team);

    /* Clean areas, and rank 1 silent: missing. */
    team = team_create(N, 4 << 10, 1);
    how.lazy = 1;
    team_do(team, member_probe, &how);
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t s = 0; s < N; s++)
            assert_int_equal(team->members[r].probe_result[s],
                             s == 1 && r != 1 ? LLANE_PROBE_MISSING : LLANE_PROBE_GOOD);
    team_destroy(team);

    /* Rank 0's stores carry rank 3's pattern: as if they had gone astray. */
    team = team_create(N, 4 << 10, 1);
    how.lazy = NOBODY;
    how.liar[0] = 0;
    how.liar[1] = 3;
    team_do(team, member_probe, &how);
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t s = 0; s < N; s++)
            assert_int_equal(team->members[r].probe_result[s],
                             s == 0 && r != 0 ? LLANE_PROBE_WRONG : LLANE_PROBE_GOOD);
    team_destroy(team);
}

static void probe__aborted__leaves_pairs_pending(void **state)
{
    struct team *team = team_create(2, 4 << 10, 1);
    struct probing how = {.timeout_ns = UINT64_MAX, .lazy = 1, .liar = {99, 99}};

    (void)state;
    /* Pairs with the check kernel's look. */
    for (int r = 0; r < 2; r++)
        __atomic_store_n(&team->members[r].words->abort, 1, __ATOMIC_RELEASE);
    team_do(team, member_probe, &how);
    assert_int_equal(team->members[0].probe_result[1], LLANE_PROBE_PENDING);
    team_destroy(team);
}

/* With an argument: only the tests that match this pattern. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels__types_ops_counts_ranks__results_exact),
        cmocka_unit_test(kernels__many_operations_back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(kernels__counter_wraps_over_stale_packets__none_is_taken),
        cmocka_unit_test(kernels__counter_wraps__generations_keep_taking_turns),
        cmocka_unit_test(kernels__graph_replayed_with_new_inputs__results_exact),
        cmocka_unit_test(kernels__aborted_while_polling__leave_output_alone_and_lane_dead),
        cmocka_unit_test(kernels__two_at_once_on_a_lane__both_leave_and_lane_dead),
        cmocka_unit_test(probe__pairs_good_silent_wrong_stale__told_apart),
        cmocka_unit_test(probe__aborted__leaves_pairs_pending),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    team_start_up();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
