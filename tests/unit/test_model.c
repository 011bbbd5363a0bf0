/* Proves that the model is near what was measured, and that routes made of it take what measured best. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "model.h"
#include "route.h"

/* docs/scaling.md has the same figures, with their sources. */
struct measured {
    struct llane_model_machine machine;
    uint32_t algorithm, packet; /* 0: NCCL; else 1 + which */
    struct {
        uint64_t bytes;
        double us;
    } at[8];
};

enum { MOST_PERCENT = 36, MOST_MEAN_PERCENT = 9 };

/* Threads of the widest launch: of 64 blocks, as many as fit beside the other ranks' on 132
 * multiprocessors; of 8 blocks. */
enum { WIDE_2 = 64 * 512, WIDE_4 = 33 * 512, WIDE_8 = 33 * 256, EIGHT_BLOCKS = 8 * 512 };

#define ONE_GPU(n, threads)                                                                        \
    {                                                                                              \
        LLANE_MEMORY_ONE_GPU, n, n, 1, 0, threads                                                  \
    }
#define HOST(n, per_gpu, threads)                                                                  \
    {                                                                                              \
        LLANE_MEMORY_HOST, n, per_gpu, 1, 0, threads                                               \
    }
#define ONE_LL 1 + LLANE_ONE_SHOT, 1 + LLANE_LL
#define ONE_SENTINEL 1 + LLANE_ONE_SHOT, 1 + LLANE_SENTINEL
#define TWO_LL 1 + LLANE_TWO_SHOT, 1 + LLANE_LL
#define TWO_SENTINEL 1 + LLANE_TWO_SHOT, 1 + LLANE_SENTINEL
#define SEVEN(a, b, c, d, e, f, g)                                                                 \
    {                                                                                              \
        {256, a}, {1 << 10, b}, {4 << 10, c}, {16 << 10, d}, {64 << 10, e}, {256 << 10, f},        \
        {                                                                                          \
            1 << 20, g                                                                             \
        }                                                                                          \
    }
#define FOUR(a, b, c, d)                                                                           \
    {                                                                                              \
        {4 << 10, a}, {16 << 10, b}, {64 << 10, c},                                                \
        {                                                                                          \
            256 << 10, d                                                                           \
        }                                                                                          \
    }

static const struct measured all[] = {
    {ONE_GPU(2, WIDE_2), ONE_LL, SEVEN(1.18, 1.20, 1.27, 1.47, 1.60, 3.06, 4.66)},
    {ONE_GPU(2, WIDE_2), ONE_SENTINEL, SEVEN(1.20, 1.22, 1.30, 1.46, 1.60, 2.12, 3.81)},
    {ONE_GPU(2, WIDE_2), TWO_SENTINEL, SEVEN(1.62, 1.64, 1.76, 2.10, 2.46, 3.04, 4.75)},
    {ONE_GPU(4, WIDE_4), ONE_LL, SEVEN(1.65, 1.67, 1.85, 1.99, 2.70, 5.65, 17.85)},
    {ONE_GPU(4, WIDE_4), ONE_SENTINEL, SEVEN(1.70, 1.76, 1.90, 2.03, 2.54, 4.55, 11.68)},
    {ONE_GPU(4, WIDE_4), TWO_LL, FOUR(2.46, 2.79, 3.31, 4.60)},
    {ONE_GPU(4, WIDE_4), TWO_SENTINEL, SEVEN(2.35, 2.35, 2.49, 3.02, 3.59, 4.39, 8.35)},
    {ONE_GPU(8, WIDE_8), ONE_LL, SEVEN(2.62, 2.65, 2.77, 3.39, 7.22, 18.31, 70.98)},
    {ONE_GPU(8, WIDE_8), ONE_SENTINEL, SEVEN(2.61, 2.72, 3.01, 3.32, 5.15, 12.53, 56.67)},
    {ONE_GPU(8, WIDE_8), TWO_LL, FOUR(3.82, 4.04, 4.82, 7.67)},
    {ONE_GPU(8, WIDE_8), TWO_SENTINEL, SEVEN(4.09, 4.09, 4.15, 5.17, 5.58, 7.26, 19.63)},
    {ONE_GPU(2, WIDE_2), 0, 0, SEVEN(5.22, 5.20, 5.34, 6.11, 6.53, 11.71, 29.28)},
    {ONE_GPU(4, WIDE_4), 0, 0, SEVEN(10.71, 10.53, 10.73, 11.96, 14.36, 18.22, 38.21)},
    {ONE_GPU(8, WIDE_8), 0, 0, SEVEN(19.00, 18.93, 18.83, 20.93, 25.82, 26.64, 51.97)},
    {ONE_GPU(2, EIGHT_BLOCKS), ONE_LL, SEVEN(1.21, 1.23, 1.29, 1.49, 2.00, 4.15, 13.54)},
    {ONE_GPU(2, EIGHT_BLOCKS), ONE_SENTINEL, SEVEN(1.19, 1.21, 1.30, 1.47, 1.78, 3.72, 10.70)},
    {ONE_GPU(2, EIGHT_BLOCKS), TWO_SENTINEL, SEVEN(1.61, 1.62, 1.76, 2.09, 2.43, 4.48, 10.71)},
    {ONE_GPU(4, EIGHT_BLOCKS), ONE_LL, SEVEN(1.69, 1.70, 1.85, 2.03, 3.20, 7.47, 27.24)},
    {ONE_GPU(4, EIGHT_BLOCKS), ONE_SENTINEL, SEVEN(1.69, 1.75, 1.90, 2.06, 2.96, 6.89, 21.80)},
    {ONE_GPU(4, EIGHT_BLOCKS), TWO_SENTINEL, SEVEN(2.33, 2.35, 2.47, 2.99, 3.58, 5.13, 15.33)},
    {ONE_GPU(8, EIGHT_BLOCKS), ONE_LL, SEVEN(2.60, 2.63, 2.76, 3.26, 5.64, 16.99, 76.35)},
    {ONE_GPU(8, EIGHT_BLOCKS), ONE_SENTINEL, SEVEN(2.64, 2.69, 2.95, 3.32, 5.33, 15.64, 82.58)},
    {ONE_GPU(8, EIGHT_BLOCKS), TWO_SENTINEL, SEVEN(4.10, 4.08, 4.13, 5.10, 5.51, 7.19, 22.22)},
    {ONE_GPU(2, EIGHT_BLOCKS), 0, 0, SEVEN(5.32, 5.32, 5.55, 6.30, 6.50, 11.52, 29.05)},
    {ONE_GPU(4, EIGHT_BLOCKS), 0, 0, SEVEN(10.64, 10.53, 10.68, 11.84, 13.98, 18.75, 38.43)},
    {ONE_GPU(8, EIGHT_BLOCKS), 0, 0, SEVEN(18.84, 18.79, 18.67, 21.23, 25.11, 26.38, 50.72)},
    {HOST(2, 1, 0), ONE_SENTINEL, SEVEN(3.1, 3.3, 3.5, 4.4, 6.5, 14.6, 53)},
    {HOST(2, 1, 0), 0, 0, SEVEN(10.0, 9.9, 10.1, 11.1, 15.3, 35, 63)},
    {HOST(2, 2, EIGHT_BLOCKS), ONE_SENTINEL, SEVEN(3.02, 3.17, 3.38, 4.59, 8.76, 24.21, 92.47)},
    {HOST(2, 2, EIGHT_BLOCKS), TWO_SENTINEL, SEVEN(5.02, 5.09, 5.33, 6.43, 9.42, 24.62, 90.57)},
    {HOST(2, 2, EIGHT_BLOCKS), 0, 0, SEVEN(8.93, 9.12, 9.76, 11.35, 15.96, 39.35, 134)},
    {HOST(4, 4, EIGHT_BLOCKS), ONE_SENTINEL, SEVEN(4.95, 5.02, 5.88, 10.63, 28.60, 84.03, 345.7)},
    {HOST(4, 4, EIGHT_BLOCKS), TWO_SENTINEL, SEVEN(9.52, 9.75, 10.80, 14.00, 22.68, 65.61, 195.7)},
    {HOST(4, 4, EIGHT_BLOCKS), 0, 0, SEVEN(21.52, 21.93, 22.45, 25.95, 38.11, 92.72, 337)},
    {HOST(8, 8, EIGHT_BLOCKS), ONE_SENTINEL, SEVEN(7.00, 7.59, 14.79, 48.19, 129.1, 371.6, 1347)},
    {HOST(8, 8, EIGHT_BLOCKS), TWO_SENTINEL,
     SEVEN(20.88, 19.68, 21.45, 26.28, 47.64, 148.4, 486.3)},
    {HOST(8, 8, EIGHT_BLOCKS),
     0,
     0,
     {{256, 41.53},
      {1 << 10, 41.81},
      {4 << 10, 43.02},
      {16 << 10, 50.07},
      {64 << 10, 73.14},
      {256 << 10, 223}}},
};

static double modelled(const struct measured *m, uint64_t bytes)
{
    return m->algorithm ? llane_model_lane_us(&m->machine, (enum llane_algorithm)(m->algorithm - 1),
                                              (enum llane_packet)(m->packet - 1), bytes)
                        : llane_model_nccl_us(&m->machine, bytes);
}

static void model__what_was_measured__is_near(void **state)
{
    (void)state;
    double sum = 0;
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct measured *m = &all[i];
        for (int s = 0; s < 8 && m->at[s].bytes; s++, n++) {
            double us = modelled(m, m->at[s].bytes);
            double off = us > m->at[s].us ? us / m->at[s].us : m->at[s].us / us;
            if (off > 1 + MOST_PERCENT / 100.0) {
                fail_msg("%s, %u ranks, kernel %u %u, %llu bytes: measured %.2f, model %.2f",
                         llane_memory_text(m->machine.memory), m->machine.n_ranks, m->algorithm,
                         m->packet, (unsigned long long)m->at[s].bytes, m->at[s].us, us);
            }
            sum += off;
        }
    }
    assert_int_equal(n, 252);
    assert_true(sum / n < 1 + MOST_MEAN_PERCENT / 100.0);
}

static struct llane_route_limits limits_of(struct llane_model_machine machine, uint64_t max_bytes)
{
    struct llane_route_limits limits = {
        .max_bytes = max_bytes,
        .n_ranks = machine.n_ranks,
        .max_blocks = machine.n_threads == EIGHT_BLOCKS ? 8 : LLANE_MAX_BLOCKS,
        .has_float8 = 1,
        .memory = machine.memory,
        .ranks_per_gpu = machine.ranks_per_gpu,
        .n_sockets = machine.n_sockets,
        .has_host_pairs = machine.memory == LLANE_MEMORY_HOST,
    };
    for (uint32_t w = 0; w < LLANE_N_WIDTHS; w++) {
        uint32_t fit = 132 * (512 / (LLANE_MIN_THREADS << w)) / machine.ranks_per_gpu;
        limits.fit[w] = fit < LLANE_MAX_BLOCKS ? fit : LLANE_MAX_BLOCKS;
    }
    llane_route_fill_defaults(&limits);
    return limits;
}

/* The measured time of a kernel, or 0. */
static double measured_us(struct llane_model_machine machine, uint32_t algorithm, uint32_t packet,
                          uint64_t bytes)
{
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct measured *m = &all[i];
        for (int s = 0; s < 8; s++) {
            if (m->machine.memory == machine.memory && m->machine.n_ranks == machine.n_ranks &&
                m->machine.ranks_per_gpu == machine.ranks_per_gpu &&
                m->machine.n_threads == machine.n_threads && m->algorithm == algorithm &&
                m->packet == packet && m->at[s].bytes == bytes) {
                return m->at[s].us;
            }
        }
    }
    return 0;
}

static double best_measured_us(struct llane_model_machine machine, uint64_t bytes)
{
    double best = 1e9;
    for (uint32_t kernel = 0; kernel < LLANE_N_PACKETS * 2; kernel++) {
        double us =
            measured_us(machine, 1 + kernel / LLANE_N_PACKETS, 1 + kernel % LLANE_N_PACKETS, bytes);
        best = us > 0 && us < best ? us : best;
    }
    return best;
}

static void assert_are_the_best(struct llane_model_machine machine)
{
    struct llane_route_limits limits = limits_of(machine, 1 << 20);
    for (uint64_t bytes = 256; bytes <= 1 << 20; bytes *= 4) {
        struct llane_plan plan = llane_route_plan(&limits, bytes / 4, ncclFloat32, ncclSum);
        double us = measured_us(machine, 1 + plan.algorithm, 1 + plan.packet, bytes);
        if (!(us > 0 && us <= 1.07 * best_measured_us(machine, bytes))) {
            fail_msg("%u ranks, %u threads, %llu bytes: %s, measured %.2f, best %.2f",
                     machine.n_ranks, machine.n_threads, (unsigned long long)bytes,
                     llane_plan_text(&plan), us, best_measured_us(machine, bytes));
        }
        assert_int_equal(llane_route_choose(&limits, bytes / 4, ncclFloat32, ncclSum),
                         LLANE_ROUTE_LANE);
    }
}

static void defaults__where_measured__are_the_best_kernel_or_as_good(void **state)
{
    static const uint32_t wide[] = {WIDE_2, WIDE_4, WIDE_8};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct llane_model_machine machine = ONE_GPU(2u << i, wide[i]);
        assert_are_the_best(machine);
        machine.n_threads = EIGHT_BLOCKS;
        assert_are_the_best(machine);
        machine.memory = LLANE_MEMORY_HOST;
        assert_are_the_best(machine);
    }
}

/* 0 threads: the widest launch that kernels have. */
static void model__fewer_threads__take_longer(void **state)
{
    (void)state;
    for (int memory = 0; memory < LLANE_N_MEMORIES; memory++) {
        struct llane_model_machine m = {(enum llane_memory)memory, 4, 1, 1, 0, 4096};
        struct llane_model_machine any = {(enum llane_memory)memory, 4, 1, 1, 0, 0};
        struct llane_model_machine wide = {(enum llane_memory)memory,           4, 1, 1, 0,
                                           LLANE_MAX_BLOCKS * LLANE_MAX_THREADS};
        for (int k = 0; k < 2 * LLANE_N_PACKETS; k++) {
            enum llane_algorithm a = (enum llane_algorithm)(k / LLANE_N_PACKETS);
            enum llane_packet p = (enum llane_packet)(k % LLANE_N_PACKETS);
            assert_true(llane_model_lane_us(&m, a, p, 1 << 20) >
                        llane_model_lane_us(&any, a, p, 1 << 20) + 1);
            assert_true(llane_model_lane_us(&any, a, p, 1 << 20) ==
                        llane_model_lane_us(&wide, a, p, 1 << 20));
        }
    }
}

static uint64_t largest_on_lane(struct llane_model_machine machine, ncclDataType_t type)
{
    struct llane_route_limits limits = limits_of(machine, 64 << 20);
    uint64_t largest = 0;
    for (uint64_t bytes = 8; bytes <= 64 << 20; bytes *= 2) {
        size_t count = bytes / llane_route_type_bytes(type);
        if (llane_route_choose(&limits, count, type, ncclSum) == LLANE_ROUTE_LANE) {
            largest = bytes;
        }
    }
    return largest;
}

/* cases.md 26: every rank sends to every one behind the link between the sockets; a ring crosses it
 * once. */
static void defaults__large_messages_between_sockets__are_nccls(void **state)
{
    (void)state;
    struct llane_model_machine one = {LLANE_MEMORY_PEER, 8, 1, 1, 0, 0},
                               two = {LLANE_MEMORY_PEER, 8, 1, 2, 0, 0};
    assert_true(largest_on_lane(two, ncclFloat32) < largest_on_lane(one, ncclFloat32));
    assert_in_range(largest_on_lane(two, ncclFloat32), 64 << 10, 4 << 20);
    struct llane_route_limits limits = limits_of(two, 64 << 20);
    assert_int_equal(llane_route_choose(&limits, 4 << 20, ncclFloat32, ncclSum),
                     LLANE_ROUTE_SLOWER);
    assert_int_equal(llane_route_choose(&limits, 256, ncclFloat32, ncclSum), LLANE_ROUTE_LANE);
}

/* LL carries twice the bytes. */
static void defaults__large_integers__go_to_nccl_before_floats(void **state)
{
    (void)state;
    struct llane_model_machine machine = {LLANE_MEMORY_PEER, 8, 1, 1, 0, 0};
    assert_true(largest_on_lane(machine, ncclInt32) < largest_on_lane(machine, ncclFloat32));
}

static void defaults__forced_by_name__are_never_nccls(void **state)
{
    (void)state;
    struct llane_route_limits limits = {.max_bytes = 64 << 20,
                                        .algorithm = 1 + LLANE_ONE_SHOT,
                                        .n_ranks = 8,
                                        .memory = LLANE_MEMORY_HOST,
                                        .max_blocks = 64,
                                        .fit = {64, 64, 64, 64}};
    llane_route_fill_defaults(&limits);
    assert_int_equal(llane_route_choose(&limits, 16 << 20, ncclFloat32, ncclSum), LLANE_ROUTE_LANE);
}

static void model__more_bytes__take_no_less_time(void **state)
{
    (void)state;
    for (int memory = 0; memory < LLANE_N_MEMORIES; memory++) {
        for (uint32_t n = 2; n <= LLANE_MAX_RANKS; n++) {
            for (uint32_t sockets = 1; sockets <= 2; sockets++) {
                struct llane_model_machine m = {(enum llane_memory)memory, n, 1, sockets, 0, 0};
                for (uint64_t bytes = 8; bytes < 64 << 20; bytes *= 2) {
                    assert_true(llane_model_nccl_us(&m, bytes) <=
                                llane_model_nccl_us(&m, 2 * bytes));
                    for (int k = 0; k < 2 * LLANE_N_PACKETS; k++) {
                        enum llane_algorithm a = (enum llane_algorithm)(k / LLANE_N_PACKETS);
                        enum llane_packet p = (enum llane_packet)(k % LLANE_N_PACKETS);
                        double us = llane_model_lane_us(&m, a, p, bytes);
                        assert_true(us > 0 && us <= llane_model_lane_us(&m, a, p, 2 * bytes));
                    }
                }
            }
        }
    }
}

static void model__generation__is_the_peers_bandwidth_alone(void **state)
{
    (void)state;
    struct llane_model_machine m = {LLANE_MEMORY_PEER, 4, 1, 1, 0, 0};
    double unknown = llane_model_lane_us(&m, LLANE_TWO_SHOT, LLANE_SENTINEL, 4 << 20);
    m.generation = 4;
    assert_true(llane_model_lane_us(&m, LLANE_TWO_SHOT, LLANE_SENTINEL, 4 << 20) == unknown);
    for (m.generation = 1; m.generation < 9; m.generation++) {
        double us = llane_model_lane_us(&m, LLANE_TWO_SHOT, LLANE_SENTINEL, 4 << 20);
        assert_true(m.generation < 4 ? us > unknown : m.generation == 4 || us < unknown);
    }
    m.memory = LLANE_MEMORY_HOST;
    unknown = llane_model_lane_us(&m, LLANE_TWO_SHOT, LLANE_SENTINEL, 4 << 20);
    m.generation = 0;
    assert_true(llane_model_lane_us(&m, LLANE_TWO_SHOT, LLANE_SENTINEL, 4 << 20) == unknown);
}

/* ---- docs/scaling.md ---- */

static void write_row(FILE *file, uint32_t n, uint32_t sockets)
{
    fprintf(file, "| %u, %s |", n, sockets == 1 ? "one" : "two");
    for (uint64_t bytes = 1 << 10; bytes <= 4 << 20; bytes *= 8) {
        for (uint32_t generation = 4; generation <= 5; generation++) {
            struct llane_model_machine m = {LLANE_MEMORY_PEER, n, 1, sockets, generation, 0};
            double one = llane_model_lane_us(&m, LLANE_ONE_SHOT, LLANE_SENTINEL, bytes);
            double two = llane_model_lane_us(&m, LLANE_TWO_SHOT, LLANE_SENTINEL, bytes);
            fprintf(file, " %.0f / %.0f |", one < two ? one : two, llane_model_nccl_us(&m, bytes));
        }
    }
    fprintf(file, "\n");
}

static void write_predictions(FILE *file)
{
    for (uint32_t n = 2; n <= 16; n *= 2) {
        for (uint32_t sockets = 1; sockets <= 2; sockets++) {
            write_row(file, n, sockets);
        }
    }
}

static void doc__predictions__are_the_models(void **state)
{
    (void)state;
    static char doc[1 << 16], predicted[1 << 12];
    FILE *file = fopen("docs/scaling.md", "r");
    assert_non_null(file);
    doc[fread(doc, 1, sizeof doc - 1, file)] = 0;
    fclose(file);
    file = fmemopen(predicted, sizeof predicted, "w");
    assert_non_null(file);
    write_predictions(file);
    fclose(file);
    if (!strstr(doc, predicted)) {
        fail_msg("docs/scaling.md is stale; %s", "test_model --write-predictions prints the rows");
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--write-predictions")) {
        write_predictions(stdout);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model__what_was_measured__is_near),
        cmocka_unit_test(model__more_bytes__take_no_less_time),
        cmocka_unit_test(defaults__where_measured__are_the_best_kernel_or_as_good),
        cmocka_unit_test(model__fewer_threads__take_longer),
        cmocka_unit_test(defaults__large_messages_between_sockets__are_nccls),
        cmocka_unit_test(defaults__large_integers__go_to_nccl_before_floats),
        cmocka_unit_test(model__generation__is_the_peers_bandwidth_alone),
        cmocka_unit_test(doc__predictions__are_the_models),
        cmocka_unit_test(defaults__forced_by_name__are_never_nccls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
