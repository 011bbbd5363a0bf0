// Every all-reduce kernel gives exact results, the same bits as every other, and leaves the rest of memory alone.
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
            const int packet = has_kernel(LLANE_TYPE_F32, algorithm, g % 2) ? g % 2 : LLANE_LL;
            struct step *s = run_add(run, LLANE_TYPE_F32, algorithm, packet, LLANE_OP_SUM, 20001);

            s->how.n_blocks = grids[g][0];
            s->how.n_threads = grids[g][1];
        }
    }
    run_all(run, false);
    free(run);
    team_destroy(team);
}

/* Plain sums of which a thread has one packet to some ten: less than a warp's batch, several, and a last
 * one that is cut short; then one or two each, a packet less and one more, where other code takes over. */
static void kernels__several_packets_a_thread__results_exact(void **state)
{
    enum { N_PACKETS = 11, N_EDGES = 6 };
    static const int types[] = {LLANE_TYPE_F32, LLANE_TYPE_BF16};
    static const uint32_t packets[N_PACKETS] = {64, 65, 96, 128, 129, 161, 200, 256, 300, 500, 640};
    static const uint32_t threads[] = {LLANE_MIN_THREADS, LLANE_MIN_THREADS + 32};

    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 8; n_ranks *= 2) {
        struct team *team = team_create(n_ranks, 100 << 10);

        for (int k = 0; k < 8; k++) {
            const int type = types[k & 1], packet = k >> 1 & 1;
            const int algorithm = k >> 2 ? LLANE_TWO_SHOT : LLANE_ONE_SHOT;
            const uint32_t n_shards = algorithm == LLANE_TWO_SHOT ? n_ranks : 1;
            const uint32_t bytes = packet == LLANE_LL ? LLANE_LL_PAYLOAD : LLANE_PACKET_BYTES;
            struct run *run = run_create(team, 700 + n_ranks * 10 + (uint32_t)k);

            for (uint32_t c = 0; c < N_PACKETS + N_EDGES; c++) {
                const uint32_t n_blocks = c % 3 == 2 ? 2 : 1, edge = c - N_PACKETS;
                const uint32_t n = c < N_PACKETS
                                       ? packets[c]
                                       : (1 + edge / 3) * n_blocks * threads[c % 2] + edge % 3 - 1;
                struct step *s = run_add(run, type, algorithm, packet, LLANE_OP_SUM,
                                         (uint64_t)n * n_shards * bytes /
                                             format_of((enum llane_type)type)->bytes);

                s->how.n_blocks = n_blocks;
                s->how.n_threads = threads[c % 2];
                s->how.sleeps = s->how.sleeps && c < N_PACKETS;
                s->is_aligned = c % 4 != 0 || c >= N_PACKETS;
                s->is_spiced = c % 2 == 0;
            }
            run_all(run, false);
            free(run);
        }
        team_destroy(team);
    }
}

/* Bytes of a step's output are equal on all ranks, and equal to another step's. */
static void check_equal_outputs(const struct run *run, const struct step *a, const struct step *b)
{
    const size_t bytes = a->how.count * step_format(a)->bytes;

    for (uint32_t r = 0; r < run->team->n_ranks; r++)
        assert_memory_equal(run->team->members[r].image + out_at(b, r),
                            run->team->members[0].image + out_at(a, 0), bytes);
}

/* A ring rounds at every rank, and begins at each: floats are the same on all ranks, and that is all. */
static bool is_exact(const struct step *s)
{
    return s->how.algorithm != LLANE_RING || !step_format(s)->is_float ||
           s->how.op == LLANE_OP_MIN || s->how.op == LLANE_OP_MAX;
}

/* The same message through every kernel of the type; then compares what came out. Returns how many
 * kernels there are. */
static uint32_t check_all_ways(struct team *team, int type, int op, uint64_t count,
                               uint64_t (*values)(const struct step *, uint32_t, uint32_t,
                                                  uint64_t))
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
        check_equal_outputs(run, &run->steps[is_exact(&run->steps[k]) ? 0 : k], &run->steps[k]);
    const uint32_t n_kernels = run->n_steps;

    free(run);
    return n_kernels;
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
    uint8_t expected[4];
    struct team *team = team_create(2, 4 << 10);

    (void)state;
    oracle_store(format_of(LLANE_TYPE_F32), expected, huge_values(NULL, 2, 0, 0));
    for (uint64_t count = 7; count <= 8; count++) {
        const uint32_t n_kernels =
            check_all_ways(team, LLANE_TYPE_F32, LLANE_OP_AVG, count, huge_values);

        for (uint32_t r = 0; r < 2; r++) {
            const uint8_t *image = team->members[r].image;
            uint32_t found = 0;

            for (size_t at = 0; at + sizeof(expected) <= 4096; at += sizeof(expected))
                found += memcmp(image + at, expected, sizeof(expected)) == 0;
            /* Inputs and outputs. */
            assert_int_equal(found, 2 * n_kernels * count);
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

/* With an argument: only the tests that match this pattern. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels__types_ops_algorithms_packets_counts_ranks__results_exact),
        cmocka_unit_test(kernels__largest_grid_and_widest_blocks__results_exact),
        cmocka_unit_test(kernels__several_packets_a_thread__results_exact),
        cmocka_unit_test(kernels__one_message_through_every_kernel__bits_equal),
        cmocka_unit_test(kernels__three_kinds_of_nan_over_2_to_8_ranks__bits_equal),
        cmocka_unit_test(kernels__average_of_huge_numbers__not_infinity),
        cmocka_unit_test(kernels__every_pattern_of_8_and_16_bits__unharmed_but_for_nans),
        cmocka_unit_test(kernels__edges_of_32_and_64_bits__unharmed_but_for_nans),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    team_start_up();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
