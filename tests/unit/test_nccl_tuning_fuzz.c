/* Proves that the parser of tuning files survives every seed of its fuzz target, and changed copies. */
// LDADD: tests/fuzz/fuzz_nccl_tuning.c
// ALSO: asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#include "fuzz/seeds.h"

static void parser__seeds_and_changed_copies__survive(void **state)
{
    (void)state;
    assert_true(seeds_run("tests/fuzz/seeds_nccl_tuning") >= 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parser__seeds_and_changed_copies__survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
