/* Proves that all ranks switch to the lane at one call number, whatever the timing. */
// ALSO: tsan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "err.h"
#include "switch.h"

enum { N_RANKS = 3 };

static void switch__nothing_posted__proposer_waits_until_canceled(void **state)
{
    (void)state;
    struct llane_switch sw = {0};
    _Atomic int cancel = 1;
    uint64_t s;
    llane_switch_stand_by(&sw, 0, 0);
    llane_switch_stand_by(&sw, 1, 0); /* rank 2 has not posted: its calls may go by unseen */
    assert_int_equal(llane_switch_propose(&sw, N_RANKS, &cancel, &s), LLANE_ECANCELED);
    assert_int_equal(llane_switch_state(sw.word), LLANE_SWITCH_OPEN);
    assert_int_equal(llane_switch_is_confirmed(&sw, &s), 0);
}

static void switch__all_stand_by_before_any_call__first_call_is_live(void **state)
{
    (void)state;
    struct llane_switch sw = {0};
    uint64_t s = 0, again = 0;
    for (int r = 0; r < N_RANKS; r++) {
        llane_switch_stand_by(&sw, r, 0);
    }
    assert_int_equal(llane_switch_propose(&sw, N_RANKS, NULL, &s), 0);
    assert_int_equal(s, 1);
    assert_int_equal(llane_switch_is_confirmed(&sw, &again), 1);
    assert_int_equal(again, 1);
    for (int r = 0; r < N_RANKS; r++) {
        assert_int_equal(llane_switch_begin(&sw, r, 1), LLANE_SWITCH_LIVE);
    }
}

static void switch__calls_begun__highest_plus_one_is_the_first_live_one(void **state)
{
    (void)state;
    struct llane_switch sw = {0};
    uint64_t s = 0;
    const uint64_t begun[N_RANKS] = {7, 12, 1};
    for (int r = 0; r < N_RANKS; r++) {
        assert_int_equal(llane_switch_begin(&sw, r, begun[r]), LLANE_SWITCH_NOT_YET);
    }
    assert_int_equal(llane_switch_propose(&sw, N_RANKS, NULL, &s), 0);
    assert_int_equal(s, 13);
    for (int r = 0; r < N_RANKS; r++) {
        assert_int_equal(llane_switch_begin(&sw, r, 12), LLANE_SWITCH_NOT_YET);
        assert_int_equal(llane_switch_begin(&sw, r, 13), LLANE_SWITCH_LIVE);
    }
}

static void switch__call_at_a_proposed_number__cancels_it(void **state)
{
    (void)state;
    struct llane_switch sw = {.word = 5 << 2 | LLANE_SWITCH_PROPOSED};
    assert_int_equal(llane_switch_begin(&sw, 1, 4), LLANE_SWITCH_NOT_YET);
    assert_int_equal(llane_switch_state(sw.word), LLANE_SWITCH_PROPOSED);
    assert_int_equal(llane_switch_begin(&sw, 1, 5), LLANE_SWITCH_NOT_YET);
    assert_int_equal(llane_switch_state(sw.word), LLANE_SWITCH_CANCELLED);
    assert_int_equal(llane_switch_begin(&sw, 1, 6), LLANE_SWITCH_NOT_YET);
    assert_int_equal(llane_switch_begin(&sw, 0, 2), LLANE_SWITCH_NOT_YET);
    assert_int_equal(llane_switch_begin(&sw, 2, 2), LLANE_SWITCH_NOT_YET);
    uint64_t s = 0;
    assert_int_equal(llane_switch_propose(&sw, N_RANKS, NULL, &s), 0);
    assert_int_equal(s, 7);
}

static void switch__refused_call__its_number_is_free_again(void **state)
{
    (void)state;
    struct llane_switch sw = {0};
    uint64_t s = 0;
    for (int r = 0; r < N_RANKS; r++) {
        assert_int_equal(llane_switch_begin(&sw, r, 1), LLANE_SWITCH_NOT_YET);
    }
    assert_int_equal(llane_switch_begin(&sw, 2, 2), LLANE_SWITCH_NOT_YET);
    llane_switch_uncount(&sw, 2, 2);
    assert_int_equal(llane_switch_propose(&sw, N_RANKS, NULL, &s), 0);
    assert_int_equal(s, 2);
    assert_int_equal(llane_switch_begin(&sw, 2, 2), LLANE_SWITCH_LIVE);
}

static void switch__absurd_number_posted__is_an_error(void **state)
{
    (void)state;
    struct llane_switch sw = {0};
    uint64_t s;
    for (int r = 0; r < N_RANKS; r++) {
        llane_switch_stand_by(&sw, r, r == 1 ? UINT64_MAX - 1 : 0);
    }
    assert_int_equal(llane_switch_propose(&sw, N_RANKS, NULL, &s), LLANE_EINVAL);
    assert_int_equal(llane_switch_state(sw.word), LLANE_SWITCH_OPEN);
}

static void switch__given_up_before_a_number_is_confirmed__no_call_is_ever_live(void **state)
{
    (void)state;
    static const uint64_t words[] = {0, 5 << 2 | LLANE_SWITCH_PROPOSED,
                                     5 << 2 | LLANE_SWITCH_CANCELLED};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct llane_switch sw = {.word = words[i]};
        uint64_t s = 0, again = 0;
        assert_int_equal(llane_switch_give_up(&sw), 1);
        assert_int_equal(llane_switch_give_up(&sw), 1);
        for (int r = 0; r < N_RANKS; r++) {
            assert_int_equal(llane_switch_begin(&sw, r, 5), LLANE_SWITCH_NOT_YET);
            assert_int_equal(llane_switch_begin(&sw, r, (uint64_t)1 << 60), LLANE_SWITCH_NOT_YET);
        }
        assert_int_equal(llane_switch_propose(&sw, N_RANKS, NULL, &s), 0);
        assert_true(s == LLANE_SWITCH_NEVER);
        assert_int_equal(llane_switch_is_confirmed(&sw, &again), 1);
        assert_true(again == LLANE_SWITCH_NEVER);
    }
}

static void switch__given_up_while_ranks_have_not_posted__proposer_returns(void **state)
{
    (void)state;
    struct llane_switch sw = {0};
    uint64_t s = 0;
    assert_int_equal(llane_switch_give_up(&sw), 1);
    assert_int_equal(llane_switch_propose(&sw, N_RANKS, NULL, &s), 0);
    assert_true(s == LLANE_SWITCH_NEVER);
}

static void switch__confirmed__is_not_given_up(void **state)
{
    (void)state;
    struct llane_switch sw = {.word = 5 << 2 | LLANE_SWITCH_CONFIRMED};
    assert_int_equal(llane_switch_give_up(&sw), 0);
    assert_int_equal(llane_switch_begin(&sw, 0, 5), LLANE_SWITCH_LIVE);
}

/* ---- stress: every round a fresh switch, ranks that run freely, a proposer that comes in between, and in
 * some rounds one that gives up */

/* cases.md 27: numbers that no program reaches, and where 32 bits end, do not come near the state bits. */
static void switch__numbers_where_words_end__switch_at_the_next(void **state)
{
    (void)state;
    static const uint64_t numbers[] = {UINT32_MAX - 1, UINT32_MAX, (uint64_t)1 << 32,
                                       ((uint64_t)1 << 60) - 1, (uint64_t)1 << 60};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct llane_switch sw = {0};
        uint64_t s = 0;
        for (int r = 0; r < N_RANKS; r++) {
            assert_int_equal(llane_switch_begin(&sw, r, numbers[i] - (uint64_t)r),
                             LLANE_SWITCH_NOT_YET);
        }
        assert_int_equal(llane_switch_propose(&sw, N_RANKS, NULL, &s), 0);
        assert_true(s == numbers[i] + 1);
        assert_int_equal(llane_switch_begin(&sw, 0, numbers[i] + 1), LLANE_SWITCH_LIVE);
        assert_int_equal(llane_switch_begin(&sw, 1, numbers[i]), LLANE_SWITCH_NOT_YET);
    }
}

enum { N_ROUNDS = 600, N_CALLS = 150, N_THREADS = N_RANKS + 2, NOTHING = 0, NCCL = 1, LANE = 2 };

static _Thread_local uint32_t random_state;

static uint32_t random_number(void)
{
    random_state = random_state * 1664525U + 1013904223U;
    return random_state >> 8;
}

static void random_delay(void)
{
    uint32_t dice = random_number() % 256;
    if (dice < 8) {
        sched_yield();
    } else if (dice < 10) {
        nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
    } else {
        for (_Atomic uint32_t i = 0; i < dice; i++) {
        }
    }
}

#ifdef LLANE_SWITCH_PAUSE
void LLANE_SWITCH_PAUSE(void);
void LLANE_SWITCH_PAUSE(void)
{
    if (random_number() % 4 == 0) {
        random_delay();
        sched_yield();
    }
}
#endif

struct round {
    struct llane_switch sw;
    struct llane_switch *_Atomic published[N_RANKS]; /* by each rank's helper */
    uint8_t path[N_RANKS][N_CALLS + 1];
    uint64_t s;
    int is_given_up;
};

static struct round *rounds;
static pthread_barrier_t barrier;

static void run_user(struct round *round, int r)
{
    uint32_t speed = random_number() % 4; /* ranks are not equally fast */
    for (uint64_t call = 1; call <= N_CALLS; call++) {
        /* Acquire: pairs with the helper's release in run_helper. */
        struct llane_switch *sw = atomic_load_explicit(&round->published[r], memory_order_acquire);
        enum llane_switch_answer answer =
            sw != NULL ? llane_switch_begin(sw, r, call) : LLANE_SWITCH_NOT_YET;
        for (uint32_t i = 0; i <= speed; i++) {
            random_delay();
        }
        if (random_number() % 16 == 0) { /* NCCL refuses it; the number is used again */
            if (sw != NULL) {
                llane_switch_uncount(sw, r, call);
            }
            call--;
            continue;
        }
        round->path[r][call] = answer == LLANE_SWITCH_LIVE ? LANE : NCCL;
    }
    /* A rank that saw the board too late for any call lets the proposer end all the same. */
    struct llane_switch *sw;
    while ((sw = atomic_load_explicit(&round->published[r], memory_order_acquire)) == NULL) {
        sched_yield();
    }
    llane_switch_stand_by(sw, r, N_CALLS);
}

static void run_helper(struct round *round)
{
    for (int i = 0; i < N_RANKS; i++) {
        for (uint32_t n = random_number() % 8; n > 0; n--) {
            random_delay();
        }
        atomic_store_explicit(&round->published[i], &round->sw, memory_order_release);
    }
    if (llane_switch_propose(&round->sw, N_RANKS, NULL, &round->s) != 0) {
        round->s = 0;
    }
}

/* When a call or two are made, as the proposer comes then. */
static void run_watch(struct round *round)
{
    if (random_number() % 2 == 0) {
        while (llane_switch_state(atomic_load(&round->sw.word)) == LLANE_SWITCH_OPEN) {
            sched_yield();
        }
    }
    for (uint32_t n = random_number() % 8; n > 0; n--) {
        random_delay();
    }
    round->is_given_up = llane_switch_give_up(&round->sw);
}

static void *run_thread(void *arg)
{
    int index = (int)(intptr_t)arg;
    for (int i = 0; i < N_ROUNDS; i++) {
        random_state = (uint32_t)(i * N_THREADS + index) * 2654435761U + 1;
        pthread_barrier_wait(&barrier);
        if (index < N_RANKS) {
            run_user(&rounds[i], index);
        } else if (index == N_RANKS) {
            run_helper(&rounds[i]);
        } else if (i % 3 == 0) {
            run_watch(&rounds[i]);
        }
    }
    return NULL;
}

static void switch__ranks_and_proposer_race__every_call_takes_one_path(void **state)
{
    (void)state;
    pthread_t threads[N_THREADS];
    rounds = aligned_alloc(LLANE_SWITCH_LINE_BYTES, N_ROUNDS * sizeof(*rounds));
    assert_non_null(rounds);
    memset(rounds, 0, N_ROUNDS * sizeof(*rounds));
    assert_int_equal(pthread_barrier_init(&barrier, NULL, N_THREADS), 0);
    for (int t = 0; t < N_THREADS; t++) {
        assert_int_equal(pthread_create(&threads[t], NULL, run_thread, (void *)(intptr_t)t), 0);
    }
    for (int t = 0; t < N_THREADS; t++) {
        pthread_join(threads[t], NULL);
    }
    int n_split = 0, n_wrong = 0, n_within = 0, n_given_up = 0;
    for (int i = 0; i < N_ROUNDS; i++) {
        for (uint64_t call = 1; call <= N_CALLS; call++) {
            for (int r = 0; r < N_RANKS; r++) {
                n_split += rounds[i].path[r][call] != rounds[i].path[0][call];
                n_wrong += rounds[i].path[r][call] != (call >= rounds[i].s ? LANE : NCCL);
            }
        }
        n_given_up += rounds[i].is_given_up;
        n_wrong += rounds[i].is_given_up != (rounds[i].s == LLANE_SWITCH_NEVER);
        n_within += rounds[i].s > 1 && rounds[i].s <= N_CALLS;
    }
    print_message("# %d of %d switches fell among the calls, %d were given up, %d calls split\n",
                  n_within, N_ROUNDS, n_given_up, n_split);
    free(rounds);
    assert_int_equal(n_split, 0);
    assert_int_equal(n_wrong, 0);
    assert_true(n_within >= N_ROUNDS / 10); /* else the race was not run */
    assert_true(n_given_up >= N_ROUNDS / 30);
    assert_true(n_given_up < N_ROUNDS / 3);
}

/* With the argument "stress": that test alone (test_switch_mutants.sh). */
int main(int n_args, char **args)
{
    const struct CMUnitTest stress[] = {
        cmocka_unit_test(switch__ranks_and_proposer_race__every_call_takes_one_path),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(switch__nothing_posted__proposer_waits_until_canceled),
        cmocka_unit_test(switch__all_stand_by_before_any_call__first_call_is_live),
        cmocka_unit_test(switch__calls_begun__highest_plus_one_is_the_first_live_one),
        cmocka_unit_test(switch__call_at_a_proposed_number__cancels_it),
        cmocka_unit_test(switch__refused_call__its_number_is_free_again),
        cmocka_unit_test(switch__numbers_where_words_end__switch_at_the_next),
        cmocka_unit_test(switch__absurd_number_posted__is_an_error),
        cmocka_unit_test(switch__given_up_before_a_number_is_confirmed__no_call_is_ever_live),
        cmocka_unit_test(switch__given_up_while_ranks_have_not_posted__proposer_returns),
        cmocka_unit_test(switch__confirmed__is_not_given_up),
        cmocka_unit_test(switch__ranks_and_proposer_race__every_call_takes_one_path),
    };
    if (n_args > 1 && strcmp(args[1], "stress") == 0) {
        return cmocka_run_group_tests(stress, NULL, NULL) != 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
