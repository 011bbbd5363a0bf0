/* Proves what ranks agree on about launches' widths: all that fits beside other ranks, and on a GPU with
 * one rank alone no more than one launch may have, whatever is launched early. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plugin/setup_steps.c"
#include "setup_fixture.h"

/* Ranks on GPUs of n_sms multiprocessors, each with room for 8, 4, 2 and 1 blocks; gpu[r]: rank r's. */
static struct llane_route_limits agreed(int n_ranks, const char *gpu, int32_t n_sms)
{
    struct llane_setup *s = setup_of(n_ranks, 0, gpu);
    for (int r = 0; r < n_ranks; r++) {
        s->identity[r].gpu.n_sms = n_sms;
        for (int w = 0; w < LLANE_N_WIDTHS; w++) {
            s->resources[r].blocks_per_sm[w] = 8u >> w;
        }
    }
    assert_int_equal(agree_on_width(s), LLANE_INACTIVE_NONE);
    return s->lane->limits;
}

static void width__ranks_share_a_gpu__all_that_fits_beside_the_others(void **state)
{
    static const uint32_t want[LLANE_N_WIDTHS] = {132 * 8 / 2, 132 * 4 / 2, 132, 66};
    (void)state;
    const struct llane_route_limits limits = agreed(4, "aabb", 132);
    assert_memory_equal(limits.fit, want, sizeof want);
    assert_int_equal(limits.max_blocks, LLANE_MAX_BLOCKS);
}

/* Two communicators' lanes may run at the same time there, one ahead of the other on each GPU. */
static void width__a_rank_alone_on_its_gpu__leaves_room_for_another_lane(void **state)
{
    (void)state;
    static const char *const gpus[] = {"ab", "aab"};
    static const uint32_t small[LLANE_N_WIDTHS] = {64, 64, 40, 20};
    struct llane_route_limits limits;
    for (int k = 0; k < 2; k++) {
        limits = agreed(2 + k, gpus[k], 132);
        for (int w = 0; w < LLANE_N_WIDTHS; w++) {
            assert_int_equal(limits.fit[w], LLANE_MAX_BLOCKS);
        }
    }
    limits = agreed(2, "ab", 20);
    assert_memory_equal(limits.fit, small, sizeof small);
}

/* By another rank's GPU, kernels and maxCTAs than the own ones, too. */
static void width__gpus_differ__the_least_of_all_on_every_rank(void **state)
{
    static const char gpu[] = "aabbb";
    static const int32_t n_sms[] = {132, 132, 60, 60, 60}, max_ctas[] = {0, 40, 0, 48, 0};
    static const uint32_t per_sm[][LLANE_N_WIDTHS] = {
        {8, 4, 2, 1}, {8, 4, 2, 1}, {16, 8, 4, 3}, {16, 8, 4, 3}, {16, 8, 4, 3}};
    /* Of 2 ranks on 132 and 3 on 60. */
    static const uint32_t want[LLANE_N_WIDTHS] = {320, 160, 80, 60};
    (void)state;
    for (int rank = 0; rank < 5; rank++) {
        struct llane_setup *s = setup_of(5, rank, gpu);
        for (int r = 0; r < 5; r++) {
            s->identity[r].gpu.n_sms = n_sms[r];
            s->identity[r].max_ctas = max_ctas[r];
            memcpy(s->resources[r].blocks_per_sm, per_sm[r], sizeof per_sm[r]);
        }
        assert_int_equal(agree_on_width(s), LLANE_INACTIVE_NONE);
        assert_memory_equal(s->lane->limits.fit, want, sizeof want);
        assert_int_equal(s->lane->limits.max_blocks, 40);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(width__ranks_share_a_gpu__all_that_fits_beside_the_others),
        cmocka_unit_test(width__a_rank_alone_on_its_gpu__leaves_room_for_another_lane),
        cmocka_unit_test(width__gpus_differ__the_least_of_all_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
