/* Proves that the route depends on rank-uniform facts alone and draws each limit where it says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "route.h"

static const struct llane_route_limits limits = {.min_bytes = 16, .max_bytes = 4096};

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
}

static void route__count_that_overflows__is_too_large(void **state)
{
    (void)state;
    assert_int_equal(choose(SIZE_MAX, ncclFloat32, ncclSum), LLANE_ROUTE_TOO_LARGE);
    assert_int_equal(choose(SIZE_MAX / 4 + 2, ncclFloat32, ncclSum), LLANE_ROUTE_TOO_LARGE);
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
        int carried = type == ncclFloat32 || type == ncclFloat16 || type == ncclBfloat16;
        assert_int_equal(choose(64, (ncclDataType_t)type, ncclSum),
                         carried ? LLANE_ROUTE_LANE : LLANE_ROUTE_DATATYPE);
    }
    for (int op = -1; op < 16; op++) {
        int carried = op == ncclSum || op == ncclAvg;
        assert_int_equal(choose(64, ncclFloat32, (ncclRedOp_t)op),
                         carried ? LLANE_ROUTE_LANE : LLANE_ROUTE_OPERATION);
    }
}

static void route__zero_maximum__carries_nothing(void **state)
{
    (void)state;
    const struct llane_route_limits none = {0, 0};
    assert_int_equal(llane_route_choose(&none, 1, ncclFloat16, ncclSum), LLANE_ROUTE_TOO_LARGE);
}

static void geometry__any_message__stays_within_limits_and_covers_small_ones(void **state)
{
    (void)state;
    for (uint64_t bytes = 1; bytes < 300000; bytes = bytes * 5 / 4 + 1) {
        for (uint32_t max = 1; max <= 64; max *= 4) {
            struct llane_geometry g = llane_route_geometry(bytes, max);
            assert_in_range(g.n_blocks, 1, max);
            assert_in_range(g.n_threads, 32, 256);
            assert_int_equal(g.n_threads % 32, 0);
            uint64_t lines = (bytes + 7) / 8;
            if (lines <= 256ull * max) {
                assert_true((uint64_t)g.n_blocks * g.n_threads >= lines);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route__limits__are_inclusive),
        cmocka_unit_test(route__count_that_overflows__is_too_large),
        cmocka_unit_test(route__no_elements__goes_to_nccl),
        cmocka_unit_test(route__what_the_kernels_lack__goes_to_nccl),
        cmocka_unit_test(route__zero_maximum__carries_nothing),
        cmocka_unit_test(geometry__any_message__stays_within_limits_and_covers_small_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
