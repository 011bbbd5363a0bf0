/* Proves that the parser of tuning tables survives every seed of its fuzz target, and changed copies. */
// LDADD: tests/fuzz/fuzz_tuning.c
// ALSO: asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fuzz/seeds.h"

static void parser__seeds_and_changed_copies__survive(void **unused)
{
    (void)unused;
    int n = 0;
    for (int round = 0; round < 20; round++) {
        n += seeds_run("tests/fuzz/seeds_tuning");
    }
    assert_int_equal(n, 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parser__seeds_and_changed_copies__survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
