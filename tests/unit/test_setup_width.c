/* Proves what ranks agree on about launches' widths: all that fits beside other ranks, and on a GPU with
 * one rank alone no more than one launch may have, whatever is launched early. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plugin/setup_steps.c"

/* Ranks on GPUs of n_sms multiprocessors, each with room for 8, 4, 2 and 1 blocks; gpu[r]: rank r's. */
static struct llane_route_limits agreed(int n_ranks, const char *gpu, int32_t n_sms)
{
    static struct llane_setup s;
    static struct llane_comm comm;
    static struct llane_lane lane;
    memset(&s, 0, sizeof s);
    memset(&lane, 0, sizeof lane);
    comm.n_ranks = n_ranks;
    s.comm = &comm;
    s.lane = &lane;
    for (int r = 0; r < n_ranks; r++) {
        s.identity[r].gpu.uuid[0] = (uint8_t)gpu[r];
        s.identity[r].gpu.n_sms = n_sms;
        for (int w = 0; w < LLANE_N_WIDTHS; w++) {
            s.resources[r].blocks_per_sm[w] = 8u >> w;
        }
    }
    assert_int_equal(agree_on_width(&s), LLANE_INACTIVE_NONE);
    return lane.limits;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(width__ranks_share_a_gpu__all_that_fits_beside_the_others),
        cmocka_unit_test(width__a_rank_alone_on_its_gpu__leaves_room_for_another_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
