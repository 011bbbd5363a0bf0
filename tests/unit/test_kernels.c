// The all-reduce and probe kernels give exact results, leave the rest of memory alone, survive reuse, wrap and replay, and stop when told.
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

static bool has_kernel(int type, int algorithm, int packet)
{
    return llane_all_reduce_table[type][algorithm][packet] != NULL;
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

static struct step *run_add(struct run *run, int type, int algorithm, int packet, int op,
                            uint64_t count)
{
    struct step *s = &run->steps[run->n_steps];

    assert_true(run->n_steps < MAX_STEPS);
    assert_true(has_kernel(type, algorithm, packet));
    *s = (struct step){.how = {.type = (enum llane_type)type,
                               .algorithm = (enum llane_algorithm)algorithm,
                               .packet = (enum llane_packet)packet,
                               .op = (enum llane_kernel_op)op,
                               .count = count}};
    choose_grid(&s->how, mix(run->seed, run->n_steps));
    s->is_in_place = mix(run->seed + 1, run->n_steps) % 3 == 0;
    run->n_steps++;
    return s;
}

/* Any kernel and operation; a message of at most max_bytes, often a small one, often plain. */
static struct step *run_add_any(struct run *run, uint64_t dice, uint64_t max_bytes)
{
    /* Half of them of the three types whose plain sums have code of their own. */
    static const int common[] = {LLANE_TYPE_F32, LLANE_TYPE_F16, LLANE_TYPE_BF16};
    const bool is_common = dice >> 8 & 1;
    const int type = is_common ? common[(dice >> 16) % 3] : (int)((dice >> 16) % LLANE_N_TYPES);
    const int packet = dice >> 9 & 1 && has_kernel(type, 0, LLANE_SENTINEL);
    const uint64_t size = format_of((enum llane_type)type)->bytes;
    const uint64_t grain = LLANE_PACKET_BYTES * run->team->n_ranks;
    const uint64_t most = dice >> 32 & 3 ? max_bytes / 8 : max_bytes;
    uint64_t bytes = 1 + mix(dice, 1) % most;
    struct step *s;

    if (dice >> 34 & 1 && bytes > grain)
        bytes -= bytes % grain;
    s = run_add(run, type, dice >> 10 & 1, packet,
                is_common && dice >> 11 & 1 ? LLANE_OP_SUM : (int)((dice >> 24) % LLANE_N_OPS),
                divide_up(bytes, size));
    s->is_spiced = dice >> 12 & 1;
    s->has_own_grids = dice >> 13 & 1;
    return s;
}

/* ---- results ---- */

/* Messages around a packet, around a packet for each rank, and longer than a grid's first round; with
 * fewer packets than ranks some shards are empty. */
static void add_counts(struct run *run, int type, int algorithm, int packet, uint64_t max_count)
{
    const uint32_t per_packet = LLANE_PACKET_BYTES / format_of((enum llane_type)type)->bytes;
    const uint32_t per_round = per_packet * run->team->n_ranks;
    const uint64_t all_ops[] = {1, per_packet + 1, per_round, 2 * per_round + 3};
    const uint64_t one_op[] = {
        2,    3,   per_packet - 1, per_packet, per_round - 1, 33 * per_round, per_round + 1, 100,
        1024, 4097};

    for (int c = 0; c < 4; c++) {
        for (int op = 0; op < LLANE_N_OPS; op++) {
            const bool is_spiced = (c + op + type + packet) % 2 == 0;

            run_add(run, type, algorithm, packet, op, all_ops[c])->is_spiced = is_spiced;
        }
    }
    for (int c = 0; c < 10; c++)
        if (one_op[c] > 0 && one_op[c] <= max_count)
            run_add(run, type, algorithm, packet, c % 2 ? LLANE_OP_SUM : (c + type) % LLANE_N_OPS,
                    one_op[c])
                ->is_spiced = c % 3 == 0;
}

static void check_matrix(uint32_t n_ranks, uint64_t max_count)
{
    struct team *team = team_create(n_ranks, 40 << 10);

    for (int k = 0; k < LLANE_N_TYPES; k++) {
        const int type = (LLANE_TYPE_F32 + k) % LLANE_N_TYPES; /* the mutated one first */
        struct run *run = run_create(team, n_ranks * 20 + (uint32_t)type);

        for (int algorithm = 0; algorithm < LLANE_N_ALGORITHMS; algorithm++)
            for (int packet = 0; packet < LLANE_N_PACKETS; packet++)
                if (has_kernel(type, algorithm, packet))
                    add_counts(run, type, algorithm, packet, max_count);
        run_all(run, false);
        free(run);
    }
    team_destroy(team);
}

static void kernels__types_ops_algorithms_packets_counts_ranks__results_exact(void **state)
{
    (void)state;
    check_matrix(2, 4097);
    check_matrix(3, 4097);
    check_matrix(4, 1024);
    check_matrix(5, 1024);
    check_matrix(8, 1024);
    check_matrix(11, 0);
    check_matrix(LLANE_MAX_RANKS, 0);
}

static void kernels__largest_grid_and_widest_blocks__results_exact(void **state)
{
    static const uint32_t grids[][2] = {{LLANE_MAX_BLOCKS, LLANE_MIN_THREADS},
                                        {1, LLANE_MAX_THREADS},
                                        {7, LLANE_MAX_THREADS},
                                        {LLANE_MAX_BLOCKS - 1, LLANE_MIN_THREADS},
                                        {1, LLANE_MIN_THREADS}};
    struct team *team = team_create(2, 100 << 10);
    struct run *run = run_create(team, 900);

    (void)state;
    for (int algorithm = 0; algorithm < LLANE_N_ALGORITHMS; algorithm++) {
        for (int g = 0; g < 5; g++) {
            struct step *s = run_add(run, LLANE_TYPE_F32, algorithm, g % 2, LLANE_OP_SUM, 20001);

            s->how.n_blocks = grids[g][0];
            s->how.n_threads = grids[g][1];
        }
    }
    run_all(run, false);
    free(run);
    team_destroy(team);
}

/* Bytes of a step's output are equal on all ranks, and equal to another step's. */
static void check_equal_outputs(const struct run *run, const struct step *a, const struct step *b)
{
    const size_t bytes = a->how.count * step_format(a)->bytes;

    for (uint32_t r = 0; r < run->team->n_ranks; r++)
        assert_memory_equal(run->team->members[r].image + out_at(b, r),
                            run->team->members[0].image + out_at(a, 0), bytes);
}

/* The same message through every kernel of the type; then compares what came out. */
static void check_all_ways(struct team *team, int type, int op, uint64_t count,
                           uint64_t (*values)(const struct step *, uint32_t, uint32_t, uint64_t))
{
    struct run *run = run_create(team, 500 + (uint32_t)type);

    for (int algorithm = 0; algorithm < LLANE_N_ALGORITHMS; algorithm++) {
        for (int packet = 0; packet < LLANE_N_PACKETS; packet++) {
            if (has_kernel(type, algorithm, packet)) {
                struct step *s = run_add(run, type, algorithm, packet, op, count);

                s->values = values;
                s->is_spiced = true;
                s->is_in_place = false;
            }
        }
    }
    run_all(run, false);
    team_do(team, member_fetch, &run->used);
    for (uint32_t k = 0; k < run->n_steps; k++)
        check_equal_outputs(run, &run->steps[0], &run->steps[k]);
    free(run);
}

static uint64_t mixed_values(const struct step *s, uint32_t n_ranks, uint32_t rank, uint64_t i)
{
    return oracle_spiced_bits(step_format(s), mix(rank, i), mix(7, i / 4) % ORACLE_N_SPICES,
                              rank == i / 4 % n_ranks);
}

static void kernels__one_message_through_every_kernel__bits_equal(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 8; n_ranks++) {
        struct team *team = team_create(n_ranks, 8 << 10);

        for (int type = 0; type < LLANE_N_TYPES; type++)
            for (int op = (int)n_ranks % 2; op < LLANE_N_OPS; op += 2)
                check_all_ways(team, type, op, 400 + n_ranks, mixed_values);
        team_destroy(team);
    }
}

/* Three NaNs, all ones among them, or a number. Four neighbours are alike, to fill words. */
static uint64_t nan_values(const struct step *s, uint32_t n_ranks, uint32_t rank, uint64_t i)
{
    const struct format *f = step_format(s);

    (void)n_ranks;
    switch (mix(rank, i / 4) % 4) {
    case 0:
        return format_all_ones(f);
    case 1:
        return format_nan(f);
    case 2:
        return f->is_finite ? format_all_ones(f) : format_infinity(f) + 1;
    default:
        return oracle_plain_bits(f, mix(rank, i));
    }
}

/* cases.md 35 */
static void kernels__three_kinds_of_nan_over_2_to_8_ranks__bits_equal(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 8; n_ranks++) {
        struct team *team = team_create(n_ranks, 8 << 10);

        for (int type = LLANE_TYPE_F16; type < LLANE_N_TYPES; type++)
            check_all_ways(team, type, (int)(n_ranks + (uint32_t)type) % LLANE_N_OPS, 301,
                           nan_values);
        team_destroy(team);
    }
}

static uint64_t huge_values(const struct step *s, uint32_t n_ranks, uint32_t rank, uint64_t i)
{
    (void)s, (void)n_ranks, (void)rank, (void)i;
    return format_encode(format_of(LLANE_TYPE_F32), 2e38);
}

/* cases.md 36 */
static void kernels__average_of_huge_numbers__not_infinity(void **state)
{
    const float huge = 2e38F;
    struct team *team = team_create(2, 4 << 10);

    (void)state;
    for (uint64_t count = 7; count <= 8; count++) {
        check_all_ways(team, LLANE_TYPE_F32, LLANE_OP_AVG, count, huge_values);
        for (uint32_t r = 0; r < 2; r++) {
            const uint8_t *image = team->members[r].image;
            uint32_t found = 0;

            for (size_t at = 0; at + sizeof(huge) <= 4096; at += sizeof(huge))
                found += memcmp(image + at, &huge, sizeof(huge)) == 0;
            /* Inputs and outputs of four steps. */
            assert_int_equal(found, 8 * count);
        }
    }
    team_destroy(team);
}

/* ---- what sentinel packets carry ---- */

static uint64_t minus_zero(const struct format *f)
{
    return format_sign_bit(f);
}

/* Which rank contributes pattern i; the others contribute -0, which changes no number. A packet's
 * elements are one rank's. */
static bool contributes(const struct format *f, uint32_t n_ranks, uint32_t rank, uint64_t i)
{
    return i * f->bytes / LLANE_PACKET_BYTES % n_ranks == rank;
}

static uint64_t n_patterns(const struct format *f)
{
    return 1ull << 8 * f->bytes;
}

/* Every pattern of 8 or 16 bits among its neighbours, then every one beside an element of all ones,
 * before and behind it. */
static uint64_t every_pattern(const struct step *s, uint32_t n_ranks, uint32_t rank, uint64_t i)
{
    const struct format *f = step_format(s);
    const uint64_t n = n_patterns(f);

    if (!contributes(f, n_ranks, rank, i))
        return minus_zero(f);
    if (i < n)
        return i;
    if (i < 3 * n)
        return i % 2 ? format_all_ones(f) : (i - n) / 2;
    return i % 2 ? (i - 3 * n) / 2 : format_all_ones(f);
}

static void kernels__every_pattern_of_8_and_16_bits__unharmed_but_for_nans(void **state)
{
    static const enum llane_type types[] = {LLANE_TYPE_F16, LLANE_TYPE_BF16, LLANE_TYPE_E4M3,
                                            LLANE_TYPE_E5M2};

    (void)state;
    for (int t = 0; t < 4; t++) {
        const struct format *f = format_of(types[t]);
        struct team *team = team_create(2 + (uint32_t)t % 2, 5 * n_patterns(f) * f->bytes);

        for (uint64_t x = 0; x < n_patterns(f); x++) {
            const uint64_t bits[2] = {x, minus_zero(f)};
            double distance;
            const uint64_t result = oracle_reduce(f, LLANE_OP_SUM, bits, 2, &distance);

            if (format_is_nan(f, x))
                assert_int_equal(result, format_nan(f));
            else if ((x & ~format_sign_bit(f)) > format_largest(f) && f->saturates)
                assert_int_equal(result & ~format_sign_bit(f), format_largest(f));
            else
                assert_int_equal(result, x);
        }
        check_all_ways(team, types[t], LLANE_OP_SUM, 5 * n_patterns(f), every_pattern);
        team_destroy(team);
    }
}

/* Words and halves of all ones, NaNs of all classes, the ends of each class of numbers. */
static uint64_t edge_values(const struct step *s, uint32_t n_ranks, uint32_t rank, uint64_t i)
{
    static const uint64_t edges32[] = {
        0xffffffff, 0xfffffffe, 0x7fffffff, 0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001,
        0xffbfffff, 0x7f800000, 0xff800000, 0x7f7fffff, 0xff7fffff, 0x007fffff, 0x807fffff,
        0x00000001, 0x80000001, 0x00000000, 0x80000000, 0x0000ffff, 0x3f80ffff, 0xff7fff00,
    };
    static const uint64_t edges64[] = {
        0xffffffffffffffff, 0xfffffffffffffffe, 0x7fffffffffffffff, 0x7ff8000000000000,
        0xfff8000000000000, 0x7ff0000000000001, 0xfff0000000000001, 0xffffffff00000000,
        0xfffffffffffffffe, 0x00000000ffffffff, 0x80000000ffffffff, 0x3ff00000ffffffff,
        0x7fefffffffffffff, 0xffefffffffffffff, 0x7ff00000ffffffff, 0xfffffffeffffffff,
        0x7ff0000000000000, 0xfff0000000000000, 0x0000000000000001, 0x8000000000000000,
    };
    const struct format *f = step_format(s);

    if (!contributes(f, n_ranks, rank, i))
        return minus_zero(f);
    /* By turns, then in any order. */
    if (f->bytes == 4)
        return edges32[(i < 84 ? i / 4 : mix(5, i)) % 21];
    return edges64[(i < 80 ? i / 4 : mix(6, i)) % 20];
}

static void kernels__edges_of_32_and_64_bits__unharmed_but_for_nans(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 4; n_ranks++) {
        struct team *team = team_create(n_ranks, 32 << 10);

        check_all_ways(team, LLANE_TYPE_F32, LLANE_OP_SUM, 4000, edge_values);
        check_all_ways(team, LLANE_TYPE_F64, LLANE_OP_SUM, 4000, edge_values);
        team_destroy(team);
    }
}

/* ---- reuse ---- */

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
static void check_one_kernel(int algorithm, int packet)
{
    for (uint32_t n_ranks = 2; n_ranks <= 3; n_ranks++) {
        struct team *team = team_create(n_ranks, 4 << 10);
        struct run *run = run_create(team, 1100);

        for (uint32_t k = 0; k < 240; k++)
            run_add(run, LLANE_TYPE_F32, algorithm, packet, LLANE_OP_SUM,
                    k % 8 == 0 ? 1000 : 1 + k % 13);
        run_all(run, false);
        free(run);
        team_destroy(team);
    }
}

static void one_shot_ll__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_ONE_SHOT, LLANE_LL);
}

static void one_shot_sentinel__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_ONE_SHOT, LLANE_SENTINEL);
}

static void two_shot_ll__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_TWO_SHOT, LLANE_LL);
}

static void two_shot_sentinel__back_to_back__no_slot_reused_too_early(void **state)
{
    (void)state;
    check_one_kernel(LLANE_TWO_SHOT, LLANE_SENTINEL);
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
            execl("/proc/self/exe", "test_kernels", "kernels__ranks_out*", (char *)NULL);
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
enum { STALE_MAX_BYTES = 2048, GOING_ROUND = 64, MAX_AGE = 2 * GOING_ROUND };

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
    struct team *team = team_create(n_ranks, STALE_MAX_BYTES);
    struct run *run = run_create(team, 2000 + n_ranks);

    assert_int_equal(team->slot_bytes[LLANE_LL], 2 * LLANE_STRIPE_BYTES);
    for (int k = 1; k < N_SMALL + N_LARGE; k++)
        flags[k] = op_after(flags[k - 1]);
    team_do(team, member_plant, (void *)&stale);
    team_preset(team, first_op, 1);
    for (uint32_t k = 0; k < N_SMALL; k++)
        run_add(run, LLANE_TYPE_F32, k / 2 % 2, LLANE_LL, LLANE_OP_SUM, 1 + k % 16);
    for (uint32_t k = 0; k < N_LARGE; k++)
        run_add(run, LLANE_TYPE_F32, algorithm, LLANE_LL, LLANE_OP_SUM, STALE_MAX_BYTES / 4 - k);
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

/* The same operation each time that a stripe comes, for messages of all lengths: what it spares, it
 * has to have written. With a two-shot operation some shards are shorter than others. */
static void check_no_old_flag(uint32_t n_ranks, int algorithm, uint64_t count)
{
    static const uint32_t old = 0x7fffffff, older = 0x7ffffffe;
    const uint32_t flags[] = {old, older};
    const struct stale stale = {.flags = flags, .n_flags = 2};
    struct team *team = team_create(n_ranks, STALE_MAX_BYTES);
    struct run *run = run_create(team, 2100);

    team_do(team, member_plant, (void *)&stale);
    for (uint32_t k = 0; k < GOING_ROUND; k++)
        run_add(run, LLANE_TYPE_F32, algorithm, LLANE_LL, LLANE_OP_SUM, count);
    run_all(run, false);
    team_check_slots(team, LLANE_LL, slot_check_flags);
    free(run);
    team_destroy(team);
}

static void kernels__stripe_goes_round_under_one_operation__no_old_flag_is_left(void **state)
{
    static const uint64_t counts[] = {1, 3, 16, 314, 499, 512};

    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 5; n_ranks += n_ranks - 1)
        for (int c = 0; c < 6; c++)
            for (int algorithm = 0; algorithm < LLANE_N_ALGORITHMS; algorithm++)
                check_no_old_flag(n_ranks, algorithm, counts[c]);
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

/* ---- kernels that wait for a peer that does not come ---- */

enum { OUT_AT = 8192, USED_BYTES = 16384, SECOND = 0x3e, LATER = 0x5a };

static struct launch lonely(int algorithm, int packet)
{
    return (struct launch){.type = LLANE_TYPE_F32,
                           .algorithm = (enum llane_algorithm)algorithm,
                           .packet = (enum llane_packet)packet,
                           .op = LLANE_OP_SUM,
                           .count = 1000,
                           .n_blocks = 3,
                           .n_threads = LLANE_MIN_THREADS};
}

static void launch_lonely(struct member *m, struct CUstream_st *stream, const struct launch *how)
{
    member_launch(m, stream, how, m->arena, m->arena + OUT_AT);
}

/*
 * Until the packet at this offset of rank 0's slot at rank 1, in the generation of operation 1, is
 * there and carries this payload in its first word. Any payload of the tests is neither 0 nor all
 * ones.
 */
static void wait_for_packet(struct team *team, enum llane_packet packet, uint64_t offset,
                            uint32_t payload)
{
    struct member *to = &team->members[1];
    volatile uint32_t *words = (volatile uint32_t *)(void *)to->image;

    do {
        MUST(llane_gpu_memcpy_async(
            to->image, team_slot(team, packet, 1, 0) + team->slot_bytes[packet] + offset,
            LLANE_PACKET_BYTES, to->side_stream));
        MUST(llane_gpu_stream_synchronize(to->side_stream));
    } while (words[0] != payload);
}

static uint32_t word_of(int byte)
{
    uint32_t word;

    memset(&word, byte, sizeof(word));
    return word;
}

static void arena_fill(struct member *m, int byte)
{
    MUST(llane_gpu_memset_async(m->arena, byte, USED_BYTES, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static void member_check_arena(struct member *m, int byte)
{
    size_t bytes = USED_BYTES;

    member_fetch(m, &bytes);
    for (size_t at = 0; at < USED_BYTES; at++)
        assert_int_equal(m->image[at], byte);
}

static void check_dead(struct member *m, uint32_t reason)
{
    const struct launch later = lonely(LLANE_ONE_SHOT, LLANE_LL);
    struct member *peer = &m->team->members[1];
    const uint32_t *words;

    assert_int_equal(__atomic_load_n(&m->words->dead, __ATOMIC_ACQUIRE), reason);
    /* A later kernel leaves at once and sends nothing, whatever the abort word says now. */
    __atomic_store_n(&m->words->abort, 0, __ATOMIC_RELEASE);
    arena_fill(m, LATER);
    launch_lonely(m, m->stream, &later);
    MUST(llane_gpu_stream_synchronize(m->stream));
    member_check_arena(m, LATER);
    assert_int_equal(m->seen->dead, reason);
    for (uint32_t g = 0; g < 2; g++) {
        words = member_fetch_slot(peer, LLANE_LL, 0, g);
        for (uint64_t w = 0; w < m->team->slot_bytes[LLANE_LL] / sizeof(*words); w++)
            assert_int_not_equal(words[w], word_of(LATER));
    }
}

static void member_abort(struct member *m)
{
    int is_done;

    MUST(llane_gpu_stream_query(m->stream, &is_done));
    assert_false(is_done);
    /* Pairs with the look in the poll loop. */
    __atomic_store_n(&m->words->abort, 1, __ATOMIC_RELEASE);
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static void kernels__aborted_while_polling__leave_output_alone_and_lane_dead(void **state)
{
    (void)state;
    for (int k = 0; k < LLANE_N_ALGORITHMS * LLANE_N_PACKETS; k++) {
        const struct launch how = lonely(k / LLANE_N_PACKETS, k % LLANE_N_PACKETS);
        struct team *team = team_create(2, 8 << 10);
        struct member *m = &team->members[0];

        MUST(llane_gpu_device_set(m->device));
        arena_fill(m, UNTOUCHED);
        launch_lonely(m, m->stream, &how);
        wait_for_packet(team, how.packet, 0, word_of(UNTOUCHED));
        member_abort(m);
        member_check_arena(m, UNTOUCHED);
        check_dead(m, LLANE_DEAD_ABORT);
        team_destroy(team);
    }
}

/* Contributions of rank 1 as they would have come for operation 1. */
static void plant_contributions(struct team *team, enum llane_packet packet)
{
    struct member *m = &team->members[0];
    uint32_t *words = (uint32_t *)(void *)m->image;
    const uint64_t bytes = team->slot_bytes[packet] / 2;

    for (uint64_t w = 0; w < bytes / sizeof(*words); w++)
        words[w] = packet == LLANE_LL && w % 2 ? 1 : 0x3f800000;
    MUST(llane_gpu_memcpy_async(team_slot(team, packet, 0, 1) + team->slot_bytes[packet], m->image,
                                bytes, m->stream));
    MUST(llane_gpu_stream_synchronize(m->stream));
}

static void kernels__two_shot_aborted_between_its_steps__ends_and_lane_dead(void **state)
{
    (void)state;
    for (int packet = 0; packet < LLANE_N_PACKETS; packet++) {
        const struct launch how = lonely(LLANE_TWO_SHOT, packet);
        struct team *team = team_create(2, 8 << 10);
        struct member *m = &team->members[0];

        MUST(llane_gpu_device_set(m->device));
        arena_fill(m, UNTOUCHED);
        plant_contributions(team, how.packet);
        launch_lonely(m, m->stream, &how);
        /* Its own shard's sum is on its way to rank 1, who sends none. */
        wait_for_packet(team, how.packet, team->slot_bytes[packet] / 2,
                        (uint32_t)format_encode(
                            format_of(LLANE_TYPE_F32),
                            format_decode(format_of(LLANE_TYPE_F32), word_of(UNTOUCHED)) + 1.0));
        member_abort(m);
        check_dead(m, LLANE_DEAD_ABORT);
        team_destroy(team);
    }
}

/* The second kernel shows by its own input that it runs; then rank 1 lets both of them end. */
static void kernels__two_at_once_on_a_lane__end_and_lane_dead(void **state)
{
    static const uint32_t second_blocks[] = {3, 1, 7, 3};

    (void)state;
    for (int k = 0; k < 4; k++) {
        const struct launch first = lonely(k % 2, LLANE_LL);
        struct team *team = team_create(2, 8 << 10);
        struct member *m = &team->members[0], *peer = &team->members[1];
        struct launch second = first;

        second.n_blocks = second_blocks[k];
        MUST(llane_gpu_device_set(m->device));
        arena_fill(m, UNTOUCHED);
        arena_fill(peer, UNTOUCHED);
        MUST(llane_gpu_memset_async(m->arena + USED_BYTES, SECOND, OUT_AT, m->stream));
        launch_lonely(m, m->stream, &first);
        wait_for_packet(team, LLANE_LL, 0, word_of(UNTOUCHED));
        member_launch(m, m->side_stream, &second, m->arena + USED_BYTES,
                      m->arena + USED_BYTES + OUT_AT);
        wait_for_packet(team, LLANE_LL, 0, word_of(SECOND));
        MUST(llane_gpu_device_set(peer->device));
        launch_lonely(peer, peer->stream, &first);
        MUST(llane_gpu_stream_synchronize(peer->stream));
        MUST(llane_gpu_device_set(m->device));
        MUST(llane_gpu_stream_synchronize(m->side_stream));
        MUST(llane_gpu_stream_synchronize(m->stream));
        check_dead(m, LLANE_DEAD_OVERLAP);
        assert_int_equal(peer->words->dead, LLANE_DEAD_NOT);
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
        args->send[r] = team_slot(m->team, LLANE_LL, r, m->rank);
        args->recv[r] = team_slot(m->team, LLANE_LL, m->rank, r);
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
    struct team *team = team_create(N, 4 << 10);
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
    team = team_create(N, 4 << 10);
    how.lazy = 1;
    team_do(team, member_probe, &how);
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t s = 0; s < N; s++)
            assert_int_equal(team->members[r].probe_result[s],
                             s == 1 && r != 1 ? LLANE_PROBE_MISSING : LLANE_PROBE_GOOD);
    team_destroy(team);

    /* Rank 0's stores carry rank 3's pattern: as if they had gone astray. */
    team = team_create(N, 4 << 10);
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
    struct team *team = team_create(2, 4 << 10);
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
        cmocka_unit_test(kernels__types_ops_algorithms_packets_counts_ranks__results_exact),
        cmocka_unit_test(kernels__largest_grid_and_widest_blocks__results_exact),
        cmocka_unit_test(kernels__one_message_through_every_kernel__bits_equal),
        cmocka_unit_test(kernels__three_kinds_of_nan_over_2_to_8_ranks__bits_equal),
        cmocka_unit_test(kernels__average_of_huge_numbers__not_infinity),
        cmocka_unit_test(kernels__every_pattern_of_8_and_16_bits__unharmed_but_for_nans),
        cmocka_unit_test(kernels__edges_of_32_and_64_bits__unharmed_but_for_nans),
        cmocka_unit_test(kernels__many_operations_back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(one_shot_ll__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(one_shot_sentinel__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(two_shot_ll__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(two_shot_sentinel__back_to_back__no_slot_reused_too_early),
        cmocka_unit_test(kernels__ranks_out_of_step__results_exact),
        cmocka_unit_test(kernels__stores_late_and_out_of_order__results_exact),
        cmocka_unit_test(kernels__counter_wraps_over_stale_packets__none_is_taken),
        cmocka_unit_test(kernels__stripe_goes_round_under_one_operation__no_old_flag_is_left),
        cmocka_unit_test(kernels__counters_wrap__generations_keep_taking_turns),
        cmocka_unit_test(kernels__graph_replayed_with_new_inputs__results_exact),
        cmocka_unit_test(kernels__aborted_while_polling__leave_output_alone_and_lane_dead),
        cmocka_unit_test(kernels__two_shot_aborted_between_its_steps__ends_and_lane_dead),
        cmocka_unit_test(kernels__two_at_once_on_a_lane__end_and_lane_dead),
        cmocka_unit_test(probe__pairs_good_silent_wrong_stale__told_apart),
        cmocka_unit_test(probe__aborted__leaves_pairs_pending),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    team_start_up();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
