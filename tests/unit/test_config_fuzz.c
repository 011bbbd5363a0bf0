/* Proves that the parser of variables accepts nothing beyond their bounds. */
// LDADD: tests/fuzz/fuzz_config.c
// ALSO: asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fuzz/seeds.h"

static void config__seeds_and_changed_copies__survive(void **unused)
{
    (void)unused;
    for (int round = 0; round < 20; round++) {
        assert_true(seeds_run("tests/fuzz/seeds_config") >= 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config__seeds_and_changed_copies__survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
