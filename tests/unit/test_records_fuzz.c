/* Proves that no record of another rank leads to a launch the kernels are not made for. */
// LDADD: tests/fuzz/fuzz_records.c
// ALSO: asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fuzz/seeds.h"

static void records__seeds_and_changed_copies__survive(void **unused)
{
    (void)unused;
    for (int round = 0; round < 10; round++) {
        assert_true(seeds_run("tests/fuzz/seeds_records") >= 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records__seeds_and_changed_copies__survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
