/*
 * Proves that of ranks which post different things for one call at least one sees it, however they
 * interleave, and that equal calls, slow ranks and rubbish from others are told from that.
 */
// ALSO: tsan asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "err.h"
#include "nccl_abi.h"

enum { ROUNDS = 20000, N = 3 };

struct rank {
    struct llane_check *check;
    pthread_barrier_t *barrier;
    int rank, n_seen, n_wrong;
    pthread_t thread;
};

static struct llane_check *new_check(void)
{
    struct llane_check *check = aligned_alloc(LLANE_SWITCH_LINE_BYTES, sizeof *check);
    assert_non_null(check);
    memset(check, 0, sizeof *check);
    return check;
}

static int post(struct llane_check *check, int rank, uint64_t number, uint64_t count, int type,
                int op)
{
    const struct llane_check_what what = {number, count, type, op};
    return llane_check_post(check, N, rank, &what);
}

/* In every 50th call two of the ranks differ; the verdict is taken back for the next one. */
static void *run_rank(void *arg)
{
    struct rank *me = arg;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        int differs = i % 50 == 0 && me->rank == (int)(i / 50 % N);
        if (i % 50 == 0) {
            pthread_barrier_wait(me->barrier);
        }
        me->n_seen +=
            post(me->check, me->rank, i, i + (uint64_t)differs, ncclFloat32, ncclSum) != 0;
        if (i % 50 == 0) {
            pthread_barrier_wait(me->barrier);
            if (me->rank == 0) {
                me->n_wrong += me->check->verdict >> 16 != i;
                me->check->verdict = 0;
            }
            pthread_barrier_wait(me->barrier);
        }
    }
    return NULL;
}

static void check__ranks_race__a_difference_is_seen_and_nothing_else(void **state)
{
    (void)state;
    struct llane_check *check = new_check();
    pthread_barrier_t barrier;
    struct rank ranks[N];
    int n_seen = 0;
    pthread_barrier_init(&barrier, NULL, N);
    for (int r = 0; r < N; r++) {
        ranks[r] = (struct rank){.check = check, .barrier = &barrier, .rank = r};
        pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
    }
    for (int r = 0; r < N; r++) {
        pthread_join(ranks[r].thread, NULL);
        assert_int_equal(ranks[r].n_wrong, 0);
        n_seen += ranks[r].n_seen;
    }
    assert_in_range(n_seen, ROUNDS / 50, N * ROUNDS / 50);
    free(check);
}

static void check__each_field_differs__told_in_words(void **state)
{
    (void)state;
    static const struct {
        uint64_t count;
        int type, op;
        const char *words;
    } cases[] = {
        {9, ncclInt8, ncclSum, "all-reduce call 7: rank 0 8 int8 sum, rank 2 9 int8 sum"},
        {8, ncclFloat8e5m2, ncclSum,
         "all-reduce call 7: rank 0 8 int8 sum, rank 2 8 float8e5m2 sum"},
        {8, ncclInt8, ncclAvg, "all-reduce call 7: rank 0 8 int8 sum, rank 2 8 int8 avg"},
        {8, ncclInt8, 77,
         "all-reduce call 7: rank 0 8 int8 sum, rank 2 8 int8 an operator of its own"},
    };
    char words[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct llane_check *check = new_check();
        assert_int_equal(post(check, 0, 7, 8, ncclInt8, ncclSum), 0);
        assert_int_equal(llane_check_tell(check, N, words, sizeof words), 0);
        assert_int_equal(post(check, 2, 7, cases[i].count, cases[i].type, cases[i].op),
                         LLANE_EREFUSED);
        assert_int_equal(llane_check_tell(check, N, words, sizeof words), 1);
        assert_string_equal(words, cases[i].words);
        /* For good, and for all: also for a rank that agrees. */
        assert_int_equal(post(check, 1, 1, 1, ncclInt8, ncclSum), LLANE_EREFUSED);
        free(check);
    }
}

static void check__operators_of_the_ranks_own__not_told_apart(void **state)
{
    (void)state;
    struct llane_check *check = new_check();
    assert_int_equal(post(check, 0, 7, 8, ncclInt8, 5), 0);
    assert_int_equal(post(check, 1, 7, 8, ncclInt8, 1234), 0);
    free(check);
}

static void check__one_rank_is_a_ring_ahead__not_compared(void **state)
{
    (void)state;
    struct llane_check *check = new_check();
    for (uint64_t i = 1; i <= LLANE_CHECK_CALLS + 1; i++) {
        assert_int_equal(post(check, 0, i, 1, ncclInt8, ncclSum), 0);
    }
    assert_int_equal(post(check, 1, 1, 2, ncclInt8, ncclSum), 0);
    assert_int_equal(post(check, 1, 2, 2, ncclInt8, ncclSum), LLANE_EREFUSED);
    free(check);
}

static void check__call_numbers_near_their_end__compared(void **state)
{
    (void)state;
    struct llane_check *check = new_check();
    uint64_t number = ((uint64_t)1 << 48) - 1;
    char words[256];
    assert_int_equal(post(check, 0, number, 1, ncclInt8, ncclSum), 0);
    assert_int_equal(post(check, 1, number, 2, ncclInt8, ncclSum), LLANE_EREFUSED);
    assert_int_equal(llane_check_tell(check, N, words, sizeof words), 1);
    assert_non_null(strstr(words, "call 281474976710655: rank 0 1 int8 sum, rank 1 2 int8 sum"));
    free(check);
}

static void check__rubbish_in_shared_memory__words_all_the_same(void **state)
{
    (void)state;
    struct llane_check *check = new_check();
    char words[256];
    for (int byte = 0; byte < 256; byte += 15) {
        memset(check, byte, sizeof *check);
        (void)post(check, 0, 7, 8, ncclInt8, ncclSum);
        (void)llane_check_tell(check, N, words, sizeof words);
        (void)llane_check_tell(check, LLANE_SWITCH_MAX_RANKS, words, sizeof words);
    }
    free(check);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check__ranks_race__a_difference_is_seen_and_nothing_else),
        cmocka_unit_test(check__each_field_differs__told_in_words),
        cmocka_unit_test(check__operators_of_the_ranks_own__not_told_apart),
        cmocka_unit_test(check__one_rank_is_a_ring_ahead__not_compared),
        cmocka_unit_test(check__call_numbers_near_their_end__compared),
        cmocka_unit_test(check__rubbish_in_shared_memory__words_all_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
