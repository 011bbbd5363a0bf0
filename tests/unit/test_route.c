/* Proves that the route depends on rank-uniform facts alone, draws each limit where it says, and never plans what does not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config.h"
#include "route.h"
#include "staging.h"

static const struct llane_route_limits limits = {
    .min_bytes = 16,
    .max_bytes = 4096,
    .n_ranks = 4,
    .max_blocks = LLANE_MAX_BLOCKS,
    .fit = {LLANE_MAX_BLOCKS, LLANE_MAX_BLOCKS, LLANE_MAX_BLOCKS, LLANE_MAX_BLOCKS},
    .has_float8 = 1,
};

static enum llane_route choose(size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    return llane_route_choose(&limits, count, type, op);
}

static void route__limits__are_inclusive(void **state)
{
    (void)state;
    assert_int_equal(choose(3, ncclFloat32, ncclSum), LLANE_ROUTE_TOO_SMALL);
    assert_int_equal(choose(4, ncclFloat32, ncclSum), LLANE_ROUTE_LANE);
    assert_int_equal(choose(1024, ncclFloat32, ncclSum), LLANE_ROUTE_LANE);
    assert_int_equal(choose(1025, ncclFloat32, ncclSum), LLANE_ROUTE_TOO_LARGE);
    assert_int_equal(choose(2048, ncclFloat16, ncclAvg), LLANE_ROUTE_LANE);
    assert_int_equal(choose(2049, ncclBfloat16, ncclAvg), LLANE_ROUTE_TOO_LARGE);
    assert_int_equal(choose(15, ncclInt8, ncclMax), LLANE_ROUTE_TOO_SMALL);
    assert_int_equal(choose(4096, ncclUint8, ncclMin), LLANE_ROUTE_LANE);
    assert_int_equal(choose(512, ncclInt64, ncclProd), LLANE_ROUTE_LANE);
    assert_int_equal(choose(513, ncclFloat64, ncclProd), LLANE_ROUTE_TOO_LARGE);
}

static void route__count_that_overflows__is_too_large(void **state)
{
    (void)state;
    assert_int_equal(choose(SIZE_MAX, ncclFloat32, ncclSum), LLANE_ROUTE_TOO_LARGE);
    assert_int_equal(choose(SIZE_MAX / 4 + 2, ncclFloat32, ncclSum), LLANE_ROUTE_TOO_LARGE);
    assert_int_equal(choose(SIZE_MAX / 8 + 2, ncclUint64, ncclSum), LLANE_ROUTE_TOO_LARGE);
}

static void route__no_elements__goes_to_nccl(void **state)
{
    (void)state;
    assert_int_equal(choose(0, ncclFloat32, ncclSum), LLANE_ROUTE_EMPTY);
}

static void route__what_the_kernels_lack__goes_to_nccl(void **state)
{
    (void)state;
    for (int type = -1; type < 16; type++) {
        int is_carried = type >= 0 && type < LLANE_N_TYPES;
        assert_int_equal(choose(64, (ncclDataType_t)type, ncclSum),
                         is_carried ? LLANE_ROUTE_LANE : LLANE_ROUTE_DATATYPE);
    }
    for (int op = -1; op < 16; op++) {
        int is_carried = op >= ncclSum && op <= ncclAvg;
        assert_int_equal(choose(64, ncclFloat32, (ncclRedOp_t)op),
                         is_carried ? LLANE_ROUTE_LANE : LLANE_ROUTE_OPERATION);
    }
}

static void route__float8_on_gpus_where_nccl_refuses_it__goes_to_nccl(void **state)
{
    struct llane_route_limits old = limits;
    (void)state;
    old.has_float8 = 0;
    for (int type = 0; type < LLANE_N_TYPES; type++) {
        int is_float8 = type == ncclFloat8e4m3 || type == ncclFloat8e5m2;
        assert_int_equal(llane_route_choose(&old, 64, (ncclDataType_t)type, ncclSum),
                         is_float8 ? LLANE_ROUTE_DATATYPE : LLANE_ROUTE_LANE);
    }
}

static void route__zero_maximum__carries_nothing(void **state)
{
    (void)state;
    const struct llane_route_limits none = {.n_ranks = 2};
    assert_int_equal(llane_route_choose(&none, 1, ncclFloat16, ncclSum), LLANE_ROUTE_TOO_LARGE);
}

/* ---- plans ---- */

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* table.h's rule for what fits a slot, in bytes of a generation. */
static uint64_t bytes_needed(const struct llane_plan *plan, uint64_t bytes, uint32_t n_ranks)
{
    uint64_t packets = divide_up(bytes, plan->packet == LLANE_LL ? 8 : 16);
    uint64_t shard = divide_up(packets, n_ranks), half = (shard + 1) / 2;
    switch (plan->algorithm) {
    case LLANE_ONE_SHOT:
        return 16 * packets;
    case LLANE_RING:
        return 16 * half * (2 * n_ranks - 2) * (n_ranks == 2 ? 2 : 1);
    case LLANE_ISLANDS:
        return 16 * 5 * divide_up(packets, n_ranks / 2);
    default:
        return 16 * 2 * shard;
    }
}

static void check_plan(const struct llane_route_limits *l, size_t count, int type)
{
    uint64_t bytes = count * llane_route_type_bytes((ncclDataType_t)type);
    struct llane_plan plan = llane_route_plan(l, count, (ncclDataType_t)type, ncclSum);
    assert_int_equal(plan.type, type);
    assert_non_null(llane_all_reduce_table[plan.type][plan.algorithm][plan.packet]);
    uint64_t slot_bytes = llane_route_slot_bytes(l, plan.packet);
    if (bytes_needed(&plan, bytes, l->n_ranks) > slot_bytes) {
        fail_msg(
            "%u ranks, at most %llu bytes, forced %u %u: %llu bytes of type %d by %s need %llu "
            "of a slot of %llu",
            l->n_ranks, (unsigned long long)l->max_bytes, l->algorithm, l->packet,
            (unsigned long long)bytes, type, llane_plan_text(&plan),
            (unsigned long long)bytes_needed(&plan, bytes, l->n_ranks),
            (unsigned long long)slot_bytes);
    }
    if (l->algorithm) {
        assert_int_equal(plan.algorithm, l->algorithm - 1);
    }
    if (type < LLANE_TYPE_F16 || plan.algorithm >= LLANE_RING) {
        assert_int_equal(plan.packet, LLANE_LL);
    } else if (l->packet) {
        assert_int_equal(plan.packet, l->packet - 1);
    }
}

static void check_sizes(const struct llane_route_limits *l)
{
    static const int types[] = {ncclInt8, ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64};
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        assert_int_equal(llane_route_slot_bytes(l, (enum llane_packet)p) % (2 * LLANE_STRIPE_BYTES),
                         0);
    }
    for (int t = 0; t < 5; t++) {
        uint64_t max_count = l->max_bytes / llane_route_type_bytes((ncclDataType_t)types[t]);
        for (uint64_t count = 1; count < max_count; count = count * 5 / 4 + 1) {
            check_plan(l, count, types[t]);
        }
        /* Where a table's thresholds may be: powers of two and beside them. */
        for (uint64_t count = 1; count <= max_count; count *= 2) {
            check_plan(l, count, types[t]);
            if (count < max_count) {
                check_plan(l, count + 1, types[t]);
            }
        }
        if (max_count) {
            check_plan(l, max_count, types[t]);
        }
    }
}

static void plan__any_message_and_forced_kernel__fits_its_slot(void **state)
{
    static const uint64_t max_bytes[] = {1,       16,      1000,      4096,    65536,
                                         65537,   100000,  256 << 10, 1 << 20, (1 << 20) + 24,
                                         4 << 20, 32 << 20};
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= LLANE_MAX_RANKS; n_ranks++) {
        for (int m = 0; m < 12; m++) {
            for (uint32_t algorithm = 0; algorithm <= LLANE_N_ALGORITHMS; algorithm++) {
                for (uint32_t packet = 0; packet <= LLANE_N_PACKETS; packet++) {
                    struct llane_route_limits l = limits;
                    l.n_ranks = n_ranks;
                    l.max_bytes = max_bytes[m];
                    l.algorithm = algorithm;
                    l.packet = packet;
                    check_sizes(&l);
                }
            }
        }
    }
}

static void plan__smallest_and_largest__by_the_algorithm_for_them(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= LLANE_MAX_RANKS; n_ranks++) {
        struct llane_route_limits l = limits;
        l.n_ranks = n_ranks;
        l.max_bytes = 64 << 20;
        struct llane_plan small = llane_route_plan(&l, 2, ncclFloat32, ncclAvg);
        assert_int_equal(small.algorithm, LLANE_ONE_SHOT);
        assert_int_equal(small.op, LLANE_OP_AVG);
        struct llane_plan large = llane_route_plan(&l, 16 << 20, ncclFloat32, ncclMax);
        assert_int_equal(large.algorithm, LLANE_TWO_SHOT);
        assert_int_equal(large.packet, LLANE_SENTINEL);
        assert_int_equal(large.op, LLANE_OP_MAX);
        assert_int_equal(llane_route_plan(&l, 8 << 20, ncclInt64, ncclMin).algorithm,
                         LLANE_TWO_SHOT);
    }
}

static void plan__operations__are_the_kernels(void **state)
{
    static const enum llane_kernel_op ops[] = {
        [ncclSum] = LLANE_OP_SUM, [ncclProd] = LLANE_OP_PROD, [ncclMax] = LLANE_OP_MAX,
        [ncclMin] = LLANE_OP_MIN, [ncclAvg] = LLANE_OP_AVG,
    };
    (void)state;
    for (int op = ncclSum; op <= ncclAvg; op++) {
        assert_int_equal(llane_route_plan(&limits, 64, ncclInt32, (ncclRedOp_t)op).op, ops[op]);
    }
}

static uint32_t fit_of(const struct llane_route_limits *l, uint32_t n_threads)
{
    return n_threads <= 64    ? l->fit[0]
           : n_threads <= 128 ? l->fit[1]
           : n_threads <= 256 ? l->fit[2]
                              : l->fit[3];
}

static void check_width(const struct llane_route_limits *l, uint64_t bytes)
{
    struct llane_plan plan = llane_route_plan(l, bytes, ncclUint8, ncclSum);
    uint64_t packets = divide_up(bytes, 8);
    uint64_t threads = (uint64_t)plan.n_blocks * plan.n_threads;
    if (plan.algorithm != LLANE_ONE_SHOT) {
        packets = divide_up(packets, l->n_ranks);
    }
    assert_in_range(plan.n_blocks, 1, l->max_blocks);
    assert_in_range(plan.n_threads, LLANE_MIN_THREADS, LLANE_MAX_THREADS);
    assert_int_equal(plan.n_threads % 32, 0);
    assert_in_range(plan.n_blocks, 1, fit_of(l, plan.n_threads));
    if (l->n_threads) {
        assert_int_equal(plan.n_threads, l->n_threads);
    }
    if (l->n_blocks) {
        assert_in_range(plan.n_blocks, 1, l->n_blocks);
        if (l->n_blocks <= l->max_blocks && l->n_blocks <= fit_of(l, plan.n_threads)) {
            assert_int_equal(plan.n_blocks, l->n_blocks);
        }
    }
    if (!l->n_blocks && !l->n_threads && packets <= 128 && l->fit[1] >= 2) {
        /* A packet a thread, no block without work. */
        assert_true(threads >= packets && threads - plan.n_threads < packets);
    }
}

static void plan__any_message__stays_within_the_width_that_fits(void **state)
{
    /* The second: where a multiprocessor holds 16 blocks and 1536 threads, and there is one. */
    static const uint32_t fits[][LLANE_N_WIDTHS] = {
        {1, 1, 1, 1}, {16, 12, 6, 3}, {64, 40, 20, 10}, {64, 64, 64, 64}};
    static const uint32_t forced_blocks[] = {0, 1, 5, 64}, forced_threads[] = {0, 64, 96, 512};
    (void)state;
    for (uint64_t bytes = 1; bytes < 20000000; bytes = bytes * 3 / 2 + 1) {
        for (int k = 0; k < 4 * 4 * 4 * 4; k++) {
            struct llane_route_limits l = limits;
            l.max_bytes = 32 << 20;
            l.n_ranks = 2 + (uint32_t)k % 5;
            l.max_blocks = 1u << (k % 4 * 2);
            memcpy(l.fit, fits[k / 4 % 4], sizeof l.fit);
            l.n_blocks = forced_blocks[k / 16 % 4];
            l.n_threads = forced_threads[k / 64];
            check_width(&l, bytes);
        }
    }
}

/* First more blocks, as long as each has a multiprocessor of its own, 32 at most; then wider ones. */
static void plan__packets_grow__more_blocks_then_wider_ones(void **state)
{
    static const struct {
        uint32_t n_ranks, has_host_pairs, max_blocks, own; /* own: multiprocessors */
        uint32_t packets, n_blocks, n_threads;
    } want[] = {
        {4, 0, 64, 64, 64, 1, 64},      {4, 0, 64, 64, 65, 1, 128},
        {4, 0, 64, 64, 129, 2, 128},    {4, 0, 64, 64, 4096, 32, 128},
        {4, 0, 64, 64, 4097, 17, 256},  {4, 0, 64, 64, 16384, 64, 256},
        {4, 0, 64, 64, 16385, 33, 512}, {4, 0, 64, 64, 32768, 64, 512},
        {4, 0, 64, 8, 1024, 8, 128},    {4, 0, 64, 8, 1025, 5, 256},
        {4, 0, 4, 64, 512, 4, 128},     {4, 0, 4, 64, 513, 3, 256},
        {4, 0, 4, 64, 1024, 4, 256},    {4, 0, 4, 64, 1025, 3, 512},
        {2, 0, 64, 64, 64, 1, 64},      {2, 0, 64, 64, 65, 1, 256},
        {2, 1, 64, 64, 65, 1, 128},     {8, 1, 64, 64, 4096, 32, 128},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct llane_route_limits l = limits;
        l.max_bytes = 1 << 20;
        l.algorithm = 1 + LLANE_ONE_SHOT;
        l.n_ranks = want[i].n_ranks;
        l.has_host_pairs = want[i].has_host_pairs;
        l.max_blocks = want[i].max_blocks;
        l.fit[LLANE_N_WIDTHS - 1] = want[i].own;
        struct llane_plan plan =
            llane_route_plan(&l, (uint64_t)want[i].packets * 8, ncclInt8, ncclSum);
        assert_int_equal(plan.n_threads, want[i].n_threads);
        assert_int_equal(plan.n_blocks, want[i].n_blocks);
    }
}

/* table.h's rule for shared slots; private ones are used beside them. */
static void plan__host_memory__has_a_kernel_and_fits_both_kinds_of_slots(void **state)
{
    static const uint64_t sizes[] = {1, 8, 17, 1000, 4096, 65536, 100001, 262144};
    (void)state;
    for (int k = 0; k < (LLANE_N_ALGORITHMS + 1) * (LLANE_N_PACKETS + 1) * 15 * 8; k++) {
        struct llane_route_limits l = limits;
        uint64_t bytes = sizes[k % 8];
        ncclDataType_t type = k % 3 ? ncclFloat16 : ncclInt8;
        l.max_bytes = 262144;
        l.has_host_pairs = 1;
        l.memory = LLANE_MEMORY_HOST;
        l.n_ranks = 2 + (uint32_t)k / 8 % 15;
        l.algorithm = (uint32_t)k / 120 % (LLANE_N_ALGORITHMS + 1);
        l.packet = (uint32_t)k / 120 / (LLANE_N_ALGORITHMS + 1);
        bytes -= bytes % llane_route_type_bytes(type);
        if (bytes == 0) {
            continue;
        }
        struct llane_plan plan =
            llane_route_plan(&l, bytes / llane_route_type_bytes(type), type, ncclSum);
        uint64_t packets = divide_up(bytes, plan.packet == LLANE_LL ? 8 : 16);
        uint64_t shared =
            16 * (plan.algorithm == LLANE_ONE_SHOT ? packets
                                                   : l.n_ranks * divide_up(packets, l.n_ranks));
        assert_non_null(llane_shared_table[plan.type][plan.algorithm][plan.packet]);
        assert_true(shared <= llane_route_shared_slot_bytes(&l, plan.packet));
        assert_int_equal(llane_route_shared_slot_bytes(&l, plan.packet) % LLANE_STRIPE_BYTES, 0);
        if (l.n_ranks > 2) { /* a single pair has one kind */
            assert_true(bytes_needed(&plan, bytes, l.n_ranks) <=
                        llane_route_slot_bytes(&l, plan.packet));
        }
    }
}

/* What the largest default message needs, both packet families, with room for calibration. */
static void staging__default_limits__at_most_24_MiB_at_8_ranks(void **state)
{
    (void)state;
    for (uint32_t n_ranks = 2; n_ranks <= 8; n_ranks++) {
        struct llane_route_limits l = limits;
        uint64_t slot_bytes[LLANE_N_PACKETS];
        l.n_ranks = n_ranks;
        l.max_bytes = llane_config()->max_bytes;
        assert_int_equal(l.max_bytes, 256 << 10);
        for (int p = 0; p < LLANE_N_PACKETS; p++) {
            slot_bytes[p] = llane_route_slot_bytes(&l, (enum llane_packet)p);
            /* Two generations of a message's packets from each rank are the least there can be. */
            assert_true(slot_bytes[p] * n_ranks >= l.max_bytes);
        }
        assert_in_range(llane_staging_bytes(n_ranks, slot_bytes, l.max_bytes), 1, 24 << 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route__limits__are_inclusive),
        cmocka_unit_test(route__count_that_overflows__is_too_large),
        cmocka_unit_test(route__no_elements__goes_to_nccl),
        cmocka_unit_test(route__what_the_kernels_lack__goes_to_nccl),
        cmocka_unit_test(route__float8_on_gpus_where_nccl_refuses_it__goes_to_nccl),
        cmocka_unit_test(route__zero_maximum__carries_nothing),
        cmocka_unit_test(plan__any_message_and_forced_kernel__fits_its_slot),
        cmocka_unit_test(plan__smallest_and_largest__by_the_algorithm_for_them),
        cmocka_unit_test(plan__operations__are_the_kernels),
        cmocka_unit_test(plan__any_message__stays_within_the_width_that_fits),
        cmocka_unit_test(plan__packets_grow__more_blocks_then_wider_ones),
        cmocka_unit_test(plan__host_memory__has_a_kernel_and_fits_both_kinds_of_slots),
        cmocka_unit_test(staging__default_limits__at_most_24_MiB_at_8_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
