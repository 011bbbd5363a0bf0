// Proves what watch.c makes of the signs that waiting kernels give: how long one has waited, and that
// neither signs left behind nor looks that come late make it longer.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* First: cmocka has a macro of the name of a function in there. */
#include "../../plugin/watch.c"

#include <cmocka.h>

static struct llane_mapped mapped;
static struct llane_staging staging = {.mapped = &mapped};
static struct llane_lane lane = {.staging = &staging};
static struct llane_watched watched;

static int begin(void **state)
{
    (void)state;
    memset(&mapped, 0, sizeof mapped);
    memset(&watched, 0, sizeof watched);
    watched.lane = &lane;
    return 0;
}

static void sign(enum llane_packet family, uint32_t op)
{
    mapped.words.waiting[family] = op;
}

static int64_t look_at(int64_t now_ms)
{
    look_at_kernel(&watched, now_ms);
    return waited_ms(&watched, now_ms);
}

static void waited__signs_at_each_look__from_the_first(void **state)
{
    (void)state;
    for (int64_t ms = 0; ms <= 1000; ms += 100) {
        sign(LLANE_LL, 7);
        assert_int_equal(look_at(5000 + ms), ms);
    }
}

static void waited__signs_of_many_kernels__never_long(void **state)
{
    (void)state;
    for (uint32_t op = 1; op < 100; op++) {
        sign(op % 2 ? LLANE_LL : LLANE_SENTINEL, op);
        assert_int_equal(look_at(5000 + 100 * op), 0);
    }
}

static void waited__sign_left_behind__not_at_all(void **state)
{
    (void)state;
    sign(LLANE_SENTINEL, 7);
    assert_int_equal(look_at(100000), 0);
    assert_int_equal(look_at(100100), 0);
    assert_int_equal(look_at(200000), 0);
}

static void waited__kernel_falls_silent__not_any_more(void **state)
{
    (void)state;
    for (int64_t ms = 0; ms <= 400; ms += 100) {
        sign(LLANE_LL, 7);
        (void)look_at(5000 + ms);
    }
    assert_int_equal(look_at(5500), 400);
    assert_int_equal(look_at(5700), 0);
}

/* The kernel ended early in the pause of ten seconds. */
static void waited__pause_after_the_last_sign__does_not_count(void **state)
{
    (void)state;
    sign(LLANE_LL, 7);
    (void)look_at(5000);
    sign(LLANE_LL, 7);
    assert_int_equal(look_at(5100), 100);
    sign(LLANE_LL, 7);
    assert_int_equal(look_at(15100), 100);
    assert_int_equal(look_at(15200), 100);
    assert_int_equal(look_at(15400), 0);
}

static void waited__pause_while_it_waits__counts(void **state)
{
    (void)state;
    sign(LLANE_LL, 7);
    (void)look_at(5000);
    sign(LLANE_LL, 7);
    assert_int_equal(look_at(15000), 0);
    sign(LLANE_LL, 7);
    assert_int_equal(look_at(15100), 10100);
}

/* Of a machine with too much to do: each look is late. */
static void waited__looks_are_always_late__grows(void **state)
{
    (void)state;
    for (int64_t ms = 0; ms <= 4000; ms += 400) {
        sign(LLANE_SENTINEL, 7);
        assert_int_equal(look_at(5000 + ms), ms > 400 ? ms - 400 : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(waited__signs_at_each_look__from_the_first, begin),
        cmocka_unit_test_setup(waited__signs_of_many_kernels__never_long, begin),
        cmocka_unit_test_setup(waited__sign_left_behind__not_at_all, begin),
        cmocka_unit_test_setup(waited__kernel_falls_silent__not_any_more, begin),
        cmocka_unit_test_setup(waited__pause_after_the_last_sign__does_not_count, begin),
        cmocka_unit_test_setup(waited__pause_while_it_waits__counts, begin),
        cmocka_unit_test_setup(waited__looks_are_always_late__grows, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
