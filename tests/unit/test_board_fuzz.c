/* Proves that the board survives whatever stands in its memory. */
// LDADD: tests/fuzz/fuzz_board.c
// ALSO: asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fuzz/seeds.h"

static void board__seeds_and_changed_copies__survive(void **unused)
{
    (void)unused;
    for (int round = 0; round < 5; round++) {
        assert_true(seeds_run("tests/fuzz/seeds_board") >= 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(board__seeds_and_changed_copies__survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
