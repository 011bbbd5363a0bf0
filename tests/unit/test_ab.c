/* Proves, on events with a clock of the test's own, that times land in the median and percentile of
 * their path and size, that calls that cannot be timed are counted all the same, and that turns are
 * even. */
// ALSO: asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ab.h"
#include "err.h"
#include "gpu.h"

/* ---- events that stand in for the GPU's ---- */

static double now_us;
static int n_events, fails_at = -1, is_held; /* is_held: nothing has ended yet */

struct CUevent_st {
    double us;
};

int llane_gpu_event_create(int timed, struct CUevent_st **out)
{
    assert_int_equal(timed, 1);
    *out = n_events == fails_at ? NULL : calloc(1, sizeof **out);
    n_events += *out != NULL;
    return *out ? 0 : LLANE_EGPU;
}

int llane_gpu_event_destroy(struct CUevent_st *event)
{
    n_events--;
    free(event);
    return 0;
}

int llane_gpu_event_record(struct CUevent_st *event, struct CUstream_st *stream)
{
    (void)stream;
    event->us = now_us;
    return 0;
}

int llane_gpu_event_query(struct CUevent_st *event, int *done_out)
{
    (void)event;
    *done_out = !is_held;
    return 0;
}

int llane_gpu_event_elapsed_us(struct CUevent_st *from, struct CUevent_st *to, float *us_out)
{
    *us_out = (float)(to->us - from->us);
    return 0;
}

/* ---- */

static struct llane_ab *create(void)
{
    struct llane_ab *ab = NULL;
    now_us = 0;
    is_held = 0;
    assert_int_equal(llane_ab_create(0, &ab), 0);
    return ab;
}

static void call(struct llane_ab *ab, enum llane_ab_path path, uint64_t bytes, double us)
{
    struct llane_ab_pair *pair = llane_ab_begin(ab, path, bytes, NULL, 1);
    now_us += us;
    llane_ab_end(pair, NULL);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int is_near(double got, double expected)
{
    return fabs(got - expected) <= 0.01 * expected + 0.002;
}

static void summary__times_of_all_magnitudes__median_and_p99_within_a_hundredth(void **state)
{
    (void)state;
    enum { N = 999 };
    double times[N];
    struct llane_ab_summary summary;
    double scale = 0.01;
    for (int magnitude = 0; magnitude < 10; magnitude++, scale *= 8) {
        struct llane_ab *ab = create();
        for (int i = 0; i < N; i++) {
            times[i] = scale * (1 + (i * 7919 % N) / 100.0);
            call(ab, LLANE_AB_LANE, 4096, times[i]);
            call(ab, LLANE_AB_NCCL, 4096, 3 * times[i]);
            llane_ab_collect(ab);
        }
        llane_ab_summarize(ab, &summary);
        qsort(times, N, sizeof *times, compare);
        assert_int_equal(summary.sizes[12].timed[LLANE_AB_LANE], N);
        assert_true(is_near(summary.sizes[12].median_us[LLANE_AB_LANE], times[N / 2]));
        assert_true(is_near(summary.sizes[12].p99_us[LLANE_AB_LANE], times[989]));
        assert_true(is_near(summary.sizes[12].median_us[LLANE_AB_NCCL], 3 * times[N / 2]));
        llane_ab_bury(ab);
    }
}

static void summary__sizes__are_kept_apart(void **state)
{
    (void)state;
    struct llane_ab *ab = create();
    struct llane_ab_summary summary;
    call(ab, LLANE_AB_LANE, 1024, 5);
    call(ab, LLANE_AB_LANE, 1025, 50);
    call(ab, LLANE_AB_NCCL, 1024, 9);
    llane_ab_summarize(ab, &summary);
    assert_true(is_near(summary.sizes[10].median_us[LLANE_AB_LANE], 5));
    assert_true(is_near(summary.sizes[11].median_us[LLANE_AB_LANE], 50));
    assert_true(is_near(summary.sizes[10].median_us[LLANE_AB_NCCL], 9));
    assert_int_equal(summary.sizes[11].timed[LLANE_AB_NCCL], 0);
    assert_true(is_near(llane_ab_saved_us(&summary, 10), 4));
    assert_true(llane_ab_saved_us(&summary, 11) == 0);
    llane_ab_bury(ab);
}

static void saved__calls_that_were_not_timed__count(void **state)
{
    (void)state;
    struct llane_ab *ab = create();
    struct llane_ab_summary summary;
    call(ab, LLANE_AB_LANE, 8, 10);
    call(ab, LLANE_AB_NCCL, 8, 40);
    for (int i = 0; i < 9; i++) {
        assert_null(llane_ab_begin(ab, LLANE_AB_LANE, 8, NULL, 0));
    }
    llane_ab_summarize(ab, &summary);
    assert_int_equal(summary.sizes[3].calls[LLANE_AB_LANE], 10);
    assert_int_equal(summary.sizes[3].timed[LLANE_AB_LANE], 1);
    assert_true(is_near(llane_ab_saved_us(&summary, 3), 300));
    llane_ab_bury(ab);
}

static void begin__ring_is_full__call_is_counted_and_not_timed(void **state)
{
    (void)state;
    struct llane_ab *ab = create();
    struct llane_ab_summary summary;
    is_held = 1;
    int n_timed = 0;
    for (int i = 0; i < 5000; i++) {
        struct llane_ab_pair *pair = llane_ab_begin(ab, LLANE_AB_LANE, 8, NULL, 1);
        n_timed += pair != NULL;
        now_us += 3;
        llane_ab_end(pair, NULL);
        llane_ab_collect(ab);
    }
    assert_in_range(n_timed, 100, 4999);
    llane_ab_summarize(ab, &summary);
    assert_int_equal(summary.sizes[3].calls[LLANE_AB_LANE], 5000);
    assert_int_equal(summary.sizes[3].timed[LLANE_AB_LANE], 0);
    is_held = 0;
    llane_ab_summarize(ab, &summary);
    assert_int_equal(summary.sizes[3].timed[LLANE_AB_LANE], n_timed);
    assert_non_null(llane_ab_begin(ab, LLANE_AB_LANE, 8, NULL, 1));
    llane_ab_bury(ab);
}

static void cancel__call_was_refused__is_as_if_it_had_not_been(void **state)
{
    (void)state;
    struct llane_ab *ab = create();
    struct llane_ab_summary summary;
    for (int i = 0; i < 3000; i++) {
        llane_ab_cancel(llane_ab_begin(ab, LLANE_AB_NCCL, 8, NULL, 1), i == 2999);
        llane_ab_collect(ab);
    }
    call(ab, LLANE_AB_NCCL, 8, 7);
    llane_ab_summarize(ab, &summary);
    assert_int_equal(summary.sizes[3].calls[LLANE_AB_NCCL], 2); /* one was made, without a time */
    assert_int_equal(summary.sizes[3].timed[LLANE_AB_NCCL], 1);
    assert_true(is_near(summary.sizes[3].median_us[LLANE_AB_NCCL], 7));
    llane_ab_bury(ab);
}

static void create__after_a_lane_has_gone__its_events_are_used_again_and_empty(void **state)
{
    (void)state;
    struct llane_ab *first = create(), *second;
    struct llane_ab_summary summary;
    call(first, LLANE_AB_LANE, 8, 7);
    int before = n_events;
    llane_ab_bury(first);
    second = create();
    assert_int_equal(n_events, before);
    llane_ab_summarize(second, &summary);
    assert_int_equal(summary.sizes[3].calls[LLANE_AB_LANE], 0);
    assert_int_equal(summary.sizes[3].timed[LLANE_AB_LANE], 0);
    llane_ab_bury(second);
}

static void create__events_run_out__fails_and_leaves_none(void **state)
{
    (void)state;
    struct llane_ab *ab = NULL;
    int before = n_events;
    fails_at = before + 11;
    assert_int_equal(llane_ab_create(1, &ab), LLANE_EGPU);
    assert_null(ab);
    assert_int_equal(n_events, before);
    fails_at = -1;
}

/* Whatever turns a program's own calls take, each of them meets both paths about as often. */
static void turn__calls_of_any_period__meet_both_paths(void **state)
{
    (void)state;
    for (uint64_t k = 0; k < 1000; k++) {
        assert_int_not_equal(llane_ab_turn(2 * k), llane_ab_turn(2 * k + 1));
    }
    for (uint64_t period = 1; period <= 16; period++) {
        for (uint64_t at = 0; at < period; at++) {
            int n = 0;
            for (uint64_t k = 0; k < 1000; k++) {
                n += llane_ab_turn(at + k * period) == LLANE_AB_LANE;
            }
            assert_in_range(n, 420, 580);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(summary__times_of_all_magnitudes__median_and_p99_within_a_hundredth),
        cmocka_unit_test(summary__sizes__are_kept_apart),
        cmocka_unit_test(saved__calls_that_were_not_timed__count),
        cmocka_unit_test(begin__ring_is_full__call_is_counted_and_not_timed),
        cmocka_unit_test(cancel__call_was_refused__is_as_if_it_had_not_been),
        cmocka_unit_test(create__after_a_lane_has_gone__its_events_are_used_again_and_empty),
        cmocka_unit_test(create__events_run_out__fails_and_leaves_none),
        cmocka_unit_test(turn__calls_of_any_period__meet_both_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
