/* Proves when a rank may take the fast path to its own buffers: both aligned to a packet's payload, and the
 * message a whole number of payloads, for two-shot one in each shard. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plugin/lane.c"

static int is_plain_at(enum llane_algorithm algorithm, enum llane_packet packet, uint32_t n_ranks,
                       uint64_t bytes, size_t in_at, size_t out_at)
{
    static _Alignas(64) uint8_t buffer[64];
    const struct llane_operation operation = {
        .in = buffer + in_at, .out = buffer + out_at, .count = bytes / 2, .datatype = ncclFloat16};
    const struct llane_plan plan = {.algorithm = algorithm, .packet = packet};
    return is_plain(&operation, &plan, n_ranks);
}

static void check(enum llane_packet packet, uint64_t payload)
{
    for (uint32_t n_ranks = 2; n_ranks <= 8; n_ranks++) {
        for (uint64_t bytes = 2; bytes <= 512; bytes += 2) {
            assert_int_equal(is_plain_at(LLANE_ONE_SHOT, packet, n_ranks, bytes, 0, 0),
                             bytes % payload == 0);
            assert_int_equal(is_plain_at(LLANE_TWO_SHOT, packet, n_ranks, bytes, 0, 0),
                             bytes % (payload * n_ranks) == 0);
        }
    }
    for (size_t at = 0; at <= 32; at += 2) {
        assert_int_equal(is_plain_at(LLANE_ONE_SHOT, packet, 4, 256, at, 0), at % payload == 0);
        assert_int_equal(is_plain_at(LLANE_ONE_SHOT, packet, 4, 256, 0, at), at % payload == 0);
        assert_int_equal(is_plain_at(LLANE_TWO_SHOT, packet, 4, 256, at, at), at % payload == 0);
    }
}

static void plain__ll__by_8_bytes(void **state)
{
    (void)state;
    check(LLANE_LL, 8);
}

static void plain__sentinel__by_16_bytes(void **state)
{
    (void)state;
    check(LLANE_SENTINEL, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain__ll__by_8_bytes),
        cmocka_unit_test(plain__sentinel__by_16_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
