/* Proves that two results are held to be the same exactly where rounding explains the difference, and
 * that the shadow of a call finds a lane that computes something else. */
// ALSO: asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "compare.h"
#include "err.h"
#include "gpu.h"
#include "lane.h"
#include "shadow.h"

/* ---- compare ---- */

enum verdict { SAME, WITHIN, BEYOND };

static enum verdict compare(ncclDataType_t datatype, ncclRedOp_t op, const void *in, const void *a,
                            const void *b)
{
    const struct llane_compared what = {in, a, b, 1, datatype, op, 2};
    struct llane_comparison c;
    llane_compare(&what, &c);
    return c.n_beyond ? BEYOND : c.n_other_bits ? WITHIN : SAME;
}

static enum verdict floats(ncclRedOp_t op, float in, float a, float b)
{
    return compare(ncclFloat32, op, &in, &a, &b);
}

static enum verdict halves(ncclDataType_t datatype, ncclRedOp_t op, uint16_t in, uint16_t a,
                           uint16_t b)
{
    return compare(datatype, op, &in, &a, &b);
}

static enum verdict bytes(ncclDataType_t datatype, ncclRedOp_t op, uint8_t in, uint8_t a, uint8_t b)
{
    return compare(datatype, op, &in, &a, &b);
}

static void compare__float32__up_to_rounding(void **state)
{
    (void)state;
    float ulp = ldexpf(1, -23);
    assert_int_equal(floats(ncclSum, 1, 1.5f, 1.5f), SAME);
    assert_int_equal(floats(ncclSum, 1, 1.5f, 1.5f + ulp), WITHIN);
    assert_int_equal(floats(ncclSum, 1, 1.5f, 1.5f + 64 * ulp), BEYOND);
    assert_int_equal(floats(ncclSum, 1, 1.5f, -1.5f), BEYOND);
    /* Large contributions that cancel leave large rounding errors. */
    assert_int_equal(floats(ncclSum, 1e6f, 0.01f, 0.02f), WITHIN);
    assert_int_equal(floats(ncclSum, 1.0f, 0.01f, 0.02f), BEYOND);
    /* A product's error goes with the product alone. */
    assert_int_equal(floats(ncclProd, 1e6f, 0.01f, 0.02f), BEYOND);
    assert_int_equal(floats(ncclProd, 1e6f, 0.01f, nextafterf(0.01f, 1)), WITHIN);
    assert_int_equal(floats(ncclMax, 1, 1.5f, 1.5f + ulp), BEYOND);
    assert_int_equal(floats(ncclSum, 1, 0.0f, -0.0f), WITHIN);
}

static void compare__special_values__nan_is_nan_and_infinity_is_infinity(void **state)
{
    (void)state;
    uint32_t bits[2] = {0x7fffffff, 0xffc00000};
    float in = 1, inf = INFINITY, number = 3;
    assert_int_equal(compare(ncclFloat32, ncclSum, &in, &bits[0], &bits[1]), WITHIN);
    assert_int_equal(compare(ncclFloat32, ncclSum, &in, &bits[0], &number), BEYOND);
    assert_int_equal(compare(ncclFloat32, ncclSum, &in, &number, &bits[1]), BEYOND);
    assert_int_equal(floats(ncclSum, inf, inf, inf), SAME);
    assert_int_equal(floats(ncclSum, inf, inf, -inf), BEYOND);
    assert_int_equal(floats(ncclSum, 1, inf, 3e38f), BEYOND);
}

static void compare__narrow_floats__by_their_own_precision(void **state)
{
    (void)state;
    /* 1.0 and the next number up, and 2.0, of each. */
    assert_int_equal(halves(ncclFloat16, ncclSum, 0x3c00, 0x3c00, 0x3c01), WITHIN);
    assert_int_equal(halves(ncclFloat16, ncclSum, 0x3c00, 0x3c00, 0x4000), BEYOND);
    assert_int_equal(halves(ncclBfloat16, ncclSum, 0x3f80, 0x3f80, 0x3f81), WITHIN);
    assert_int_equal(halves(ncclBfloat16, ncclSum, 0x3f80, 0x3f80, 0x4000), BEYOND);
    assert_int_equal(bytes(ncclFloat8e4m3, ncclSum, 0x38, 0x38, 0x39), WITHIN);
    assert_int_equal(bytes(ncclFloat8e4m3, ncclSum, 0x38, 0x38, 0xb8), BEYOND);
    assert_int_equal(bytes(ncclFloat8e5m2, ncclSum, 0x3c, 0x3c, 0x3d), WITHIN);
    assert_int_equal(bytes(ncclFloat8e4m3, ncclSum, 0x38, 0x7f, 0xff), WITHIN); /* NaNs */
    assert_int_equal(bytes(ncclFloat8e4m3, ncclMax, 0x38, 0x38, 0x39), BEYOND);
    /* Subnormal numbers are numbers: 2^-24 and 2^-23. */
    assert_int_equal(halves(ncclFloat16, ncclMax, 0, 0x0001, 0x0002), BEYOND);
}

static void compare__integers__every_bit(void **state)
{
    (void)state;
    int64_t in = 1, a = 1ll << 60, b = (1ll << 60) + 1;
    assert_int_equal(compare(ncclInt64, ncclSum, &in, &a, &a), SAME);
    assert_int_equal(compare(ncclInt64, ncclSum, &in, &a, &b), BEYOND);
    assert_int_equal(bytes(ncclUint8, ncclAvg, 1, 7, 8), BEYOND);
}

static void compare__several__first_and_number(void **state)
{
    (void)state;
    const float in[5] = {1, 1, 1, 1, 1}, a[5] = {1, 2, 3, 4, 5}, b[5] = {1, 2, 30, 4, 50};
    const struct llane_compared what = {in, a, b, 5, ncclFloat32, ncclSum, 2};
    struct llane_comparison c;
    llane_compare(&what, &c);
    /* The bound goes with the largest of the message, 50. */
    assert_int_equal(c.n_other_bits, 2);
    assert_int_equal(c.n_beyond, 2);
    assert_int_equal(c.first_beyond, 2);
    assert_true(c.first_a == 3 && c.first_b == 30);
}

/* ---- shadow, with a lane that adds `error` to what NCCL found ---- */

static float error, expected;
static int n_launched, launch_err;

int llane_lane_launch(const struct llane_lane *lane, const struct llane_operation *operation,
                      const struct llane_plan *plan, void **chain)
{
    float value = expected + error;
    (void)lane, (void)plan, (void)chain;
    n_launched++;
    if (launch_err) {
        return launch_err;
    }
    assert_int_equal(
        llane_gpu_memcpy_async(operation->out, &value, sizeof value, operation->stream), 0);
    return llane_gpu_stream_synchronize(operation->stream);
}

static uint64_t reserved;

int llane_staging_reserve(uint64_t bytes, uint64_t max_total_bytes)
{
    if (reserved + bytes > max_total_bytes) {
        return LLANE_ENOMEM;
    }
    reserved += bytes;
    return 0;
}

int llane_order_after_nccl(struct llane_order *order, struct CUstream_st *stream)
{
    (void)order;
    (void)stream;
    return 0;
}

struct fixture {
    struct llane_lane lane;
    struct llane_shadow *shadow;
    struct llane_operation operation;
    void *in, *out;
    struct CUstream_st *stream;
};

static void open_fixture(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(llane_gpu_device_set(0), 0);
    assert_int_equal(llane_gpu_stream_create(&f->stream), 0);
    assert_int_equal(llane_gpu_malloc(64, &f->in), 0);
    assert_int_equal(llane_gpu_malloc(64, &f->out), 0);
    assert_int_equal(llane_shadow_create(0, 1, 2, 64, 1 << 20, &f->shadow), 0);
    f->operation =
        (struct llane_operation){f->in, f->out, 1, ncclFloat32, ncclSum, f->stream, 5, 0};
    f->lane.limits = (struct llane_route_limits){.max_bytes = 64, .n_ranks = 2, .max_blocks = 4};
    error = 0;
    expected = 3;
    n_launched = launch_err = 0;
}

static void close_fixture(struct fixture *f)
{
    llane_shadow_bury(f->shadow);
    assert_int_equal(llane_gpu_stream_synchronize(f->stream), 0);
    assert_int_equal(llane_gpu_stream_destroy(f->stream), 0);
}

/* As a call goes: the input is copied, NCCL writes, the lane follows, all of it ends. */
static void call(struct fixture *f, int is_compared)
{
    int input = llane_shadow_copy_input(f->shadow, &f->operation);
    assert_int_equal(llane_gpu_memcpy_async(f->out, &expected, sizeof expected, f->stream), 0);
    assert_int_equal(llane_shadow_launch(f->shadow, &f->lane, &f->operation, input, is_compared),
                     0);
    assert_int_equal(llane_gpu_stream_synchronize(f->stream), 0);
}

/* What is still under way is waited for. */
static struct llane_shadow_summary summary_of(struct fixture *f, uint64_t n_compared)
{
    struct llane_shadow_summary summary;
    for (int i = 0; i < 100000; i++) {
        llane_shadow_summarize(f->shadow, &summary);
        if (summary.sizes[2].compared >= n_compared) {
            break;
        }
    }
    return summary;
}

static void shadow__lane_agrees__counted_as_the_same(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f);
    call(&f, 1);
    struct llane_shadow_summary s = summary_of(&f, 1);
    assert_int_equal(s.sizes[2].calls, 1);
    assert_int_equal(s.sizes[2].same, 1);
    close_fixture(&f);
}

static void shadow__lane_is_wrong__counted_as_beyond(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f);
    error = 0.5f;
    call(&f, 1);
    error = ldexpf(1, -22);
    call(&f, 1);
    struct llane_shadow_summary s = summary_of(&f, 2);
    assert_int_equal(s.sizes[2].compared, 2);
    assert_int_equal(s.sizes[2].beyond, 1);
    assert_int_equal(s.sizes[2].within, 1);
    close_fixture(&f);
}

static void shadow__not_to_be_compared__lane_runs_all_the_same(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f);
    error = 1;
    call(&f, 0);
    struct llane_shadow_summary s = summary_of(&f, 0);
    assert_int_equal(n_launched, 1);
    assert_int_equal(s.sizes[2].calls, 1);
    assert_int_equal(s.sizes[2].compared, 0);
    close_fixture(&f);
}

static void shadow__group_has_taken_all_inputs__lane_runs_without_comparison(void **state)
{
    (void)state;
    struct fixture f;
    int inputs[64], n = 0;
    open_fixture(&f);
    while (n < 64 && (inputs[n] = llane_shadow_copy_input(f.shadow, &f.operation)) >= 0) {
        n++;
    }
    assert_in_range(n, 1, 63);
    assert_int_equal(llane_shadow_launch(f.shadow, &f.lane, &f.operation, -1, 1), 0);
    assert_int_equal(n_launched, 1);
    llane_shadow_drop_input(f.shadow, inputs[0]);
    assert_int_equal(llane_shadow_copy_input(f.shadow, &f.operation), inputs[0]);
    assert_int_equal(llane_shadow_copy_input(f.shadow, &f.operation), -1);
    close_fixture(&f);
}

static void shadow__lane_does_not_launch__reported_to_the_caller(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f);
    launch_err = LLANE_EGPU;
    int input = llane_shadow_copy_input(f.shadow, &f.operation);
    assert_int_equal(llane_shadow_launch(f.shadow, &f.lane, &f.operation, input, 1), LLANE_EGPU);
    struct llane_shadow_summary s = summary_of(&f, 0);
    assert_int_equal(s.sizes[2].compared, 0);
    close_fixture(&f);
}

static void shadow__cap_of_staging_memory__kept(void **state)
{
    (void)state;
    struct llane_shadow *shadow;
    reserved = 0;
    assert_int_equal(llane_shadow_create(0, 1, 2, 4096, 4096, &shadow), LLANE_ENOMEM);
    assert_int_equal(reserved, 0);
    assert_int_equal(llane_shadow_create(0, 1, 2, 4096, 1 << 20, &shadow), 0);
    uint64_t of_one = reserved;
    assert_in_range(of_one, 4 * 4096, 1 << 20); /* an input and three copies at least */
    llane_shadow_bury(shadow);
    assert_int_equal(llane_shadow_create(0, 1, 2, 4096, 1 << 20, &shadow), 0);
    assert_int_equal(reserved, of_one); /* used again */
    llane_shadow_bury(shadow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compare__float32__up_to_rounding),
        cmocka_unit_test(compare__special_values__nan_is_nan_and_infinity_is_infinity),
        cmocka_unit_test(compare__narrow_floats__by_their_own_precision),
        cmocka_unit_test(compare__integers__every_bit),
        cmocka_unit_test(compare__several__first_and_number),
        cmocka_unit_test(shadow__lane_agrees__counted_as_the_same),
        cmocka_unit_test(shadow__lane_is_wrong__counted_as_beyond),
        cmocka_unit_test(shadow__not_to_be_compared__lane_runs_all_the_same),
        cmocka_unit_test(shadow__group_has_taken_all_inputs__lane_runs_without_comparison),
        cmocka_unit_test(shadow__lane_does_not_launch__reported_to_the_caller),
        cmocka_unit_test(shadow__cap_of_staging_memory__kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
