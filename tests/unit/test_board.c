/* Proves that the ranks on a board read one verdict of each step, whoever refuses, leaves or dies. */
// ALSO: tsan asan
#include "board_ranks.h"

#include <sched.h>

enum { N_RANKS = 4, REASON = LLANE_BOARD_REASON_FIRST + 3 };

/* All of them, arrived. */
static void arrive_all(struct test_rank *ranks, int n_ranks)
{
    init_ranks(ranks, new_key(), n_ranks);
    for (int r = 0; r < n_ranks; r++) {
        start_rank(&ranks[r], arrive);
    }
    join_ranks(ranks, n_ranks);
    for (int r = 0; r < n_ranks; r++) {
        assert_int_equal(ranks[r].rc, 0);
        assert_true(ranks[r].verdict.is_yes);
    }
}

static void assert_all_read(struct test_rank *ranks, int n_ranks, int step, int refuser,
                            uint32_t reason)
{
    for (int r = 0; r < n_ranks; r++) {
        struct llane_verdict verdict;
        assert_int_equal(llane_board_wait(ranks[r].board, step, NULL, &verdict), 0);
        assert_int_equal(verdict.is_yes, reason == LLANE_BOARD_AGREED);
        assert_int_equal(verdict.reason, reason);
        assert_int_equal(verdict.rank, refuser);
    }
}

static void board__all_arrive__each_reads_each_record(void **state)
{
    (void)state;
    struct test_rank ranks[N_RANKS];
    char record[64];
    arrive_all(ranks, N_RANKS);
    for (int r = 0; r < N_RANKS; r++) {
        for (int of = 0; of < N_RANKS; of++) {
            assert_int_equal(
                llane_board_record(ranks[r].board, LLANE_BOARD_ARRIVAL, of, record, sizeof(record)),
                0);
            assert_string_equal(record, ranks[of].record);
        }
    }
    leave_ranks(ranks, N_RANKS);
}

static void board__all_agree_on_a_step__its_records_can_be_read(void **state)
{
    (void)state;
    struct test_rank ranks[N_RANKS];
    arrive_all(ranks, N_RANKS);
    for (int r = 0; r < N_RANKS; r++) {
        uint64_t got, fact = 1000 + (uint64_t)r;
        assert_int_equal(llane_board_record(ranks[0].board, 1, 0, &got, sizeof(got)), LLANE_EINVAL);
        llane_board_vote(ranks[r].board, 1, LLANE_BOARD_AGREED, &fact, sizeof(fact));
        llane_board_vote(ranks[r].board, 1, LLANE_BOARD_AGREED, &fact, sizeof(fact));
    }
    assert_all_read(ranks, N_RANKS, 1, 0, LLANE_BOARD_AGREED);
    for (int r = 0; r < N_RANKS; r++) {
        uint64_t got = 0;
        int of = (r + 1) % N_RANKS;
        assert_int_equal(llane_board_record(ranks[r].board, 1, of, &got, sizeof(got)), 0);
        assert_int_equal(got, 1000 + of);
        assert_int_equal(llane_board_record(ranks[r].board, 1, N_RANKS, &got, sizeof(got)),
                         LLANE_EINVAL);
        assert_int_equal(
            llane_board_record(ranks[r].board, LLANE_BOARD_STEPS, 0, &got, sizeof(got)),
            LLANE_EINVAL);
    }
    leave_ranks(ranks, N_RANKS);
}

static void board__a_rank_votes_twice__counts_once(void **state)
{
    (void)state;
    struct test_rank ranks[2];
    _Atomic int cancel = 1;
    struct llane_verdict verdict;
    arrive_all(ranks, 2);
    llane_board_vote(ranks[0].board, 1, LLANE_BOARD_AGREED, NULL, 0);
    llane_board_vote(ranks[0].board, 1, LLANE_BOARD_AGREED, NULL, 0);
    assert_int_equal(llane_board_wait(ranks[0].board, 1, &cancel, &verdict), LLANE_ECANCELED);
    llane_board_vote(ranks[1].board, 1, LLANE_BOARD_AGREED, NULL, 0);
    assert_all_read(ranks, 2, 1, 0, LLANE_BOARD_AGREED);
    leave_ranks(ranks, 2);
}

static void board__one_missing__others_wait_until_canceled(void **state)
{
    (void)state;
    struct test_rank ranks[3];
    init_ranks(ranks, new_key(), 3);
    start_rank(&ranks[0], arrive);
    start_rank(&ranks[1], arrive);
    sleep_ms(200);
    atomic_store(&ranks[0].cancel, 1);
    atomic_store(&ranks[1].cancel, 1);
    join_ranks(ranks, 2);
    assert_int_equal(ranks[0].rc, LLANE_ECANCELED);
    assert_int_equal(ranks[1].rc, LLANE_ECANCELED);
    leave_ranks(ranks, 2);
}

static void board__one_refuses__all_read_who_and_why(void **state)
{
    (void)state;
    struct test_rank ranks[N_RANKS];
    arrive_all(ranks, N_RANKS);
    for (int r = 0; r < N_RANKS; r++) {
        llane_board_vote(ranks[r].board, 1, r == 2 ? REASON : LLANE_BOARD_AGREED, NULL, 0);
    }
    llane_board_refuse(ranks[1].board, 1, REASON + 1); /* too late: it is decided */
    assert_all_read(ranks, N_RANKS, 1, 2, REASON);
    leave_ranks(ranks, N_RANKS);
}

static void board__refused_after_a_yes__stands_while_the_step_is_open(void **state)
{
    (void)state;
    struct test_rank ranks[2];
    arrive_all(ranks, 2);
    llane_board_vote(ranks[0].board, 1, LLANE_BOARD_AGREED, NULL, 0);
    llane_board_refuse(ranks[0].board, 1, REASON);
    llane_board_vote(ranks[1].board, 1, LLANE_BOARD_AGREED, NULL, 0);
    assert_all_read(ranks, 2, 1, 0, REASON);
    leave_ranks(ranks, 2);
}

static void board__one_leaves_in_mid_step__others_read_it(void **state)
{
    (void)state;
    struct test_rank ranks[N_RANKS];
    arrive_all(ranks, N_RANKS);
    for (int r = 0; r < N_RANKS; r++) {
        llane_board_vote(ranks[r].board, 1, LLANE_BOARD_AGREED, NULL, 0);
    }
    llane_board_vote(ranks[0].board, 2, LLANE_BOARD_AGREED, NULL, 0);
    llane_board_leave(ranks[3].board);
    assert_all_read(ranks, 3, 1, 0, LLANE_BOARD_AGREED);
    assert_all_read(ranks, 3, 2, 3, LLANE_BOARD_LEFT);
    leave_ranks(ranks, 3);
}

static void board__builds_differ__all_read_it(void **state)
{
    (void)state;
    struct test_rank ranks[2];
    init_ranks(ranks, new_key(), 2);
    assert_int_equal(llane_board_join(&ranks[0].args, NULL, &ranks[0].board), 0);
    ranks[1].args.build = TEST_BUILD + 1;
    start_rank(&ranks[1], arrive);
    struct llane_verdict verdict;
    assert_int_equal(llane_board_wait(ranks[0].board, LLANE_BOARD_ARRIVAL, NULL, &verdict), 0);
    assert_false(verdict.is_yes);
    assert_int_equal(verdict.rank, 1);
    assert_int_equal(verdict.reason, LLANE_BOARD_BUILD);
    pthread_join(ranks[1].thread, NULL);
    leave_ranks(ranks, 2);
}

static void board__place_taken__second_comer_is_refused(void **state)
{
    (void)state;
    struct test_rank ranks[2], again[2];
    init_ranks(ranks, new_key(), 2);
    memcpy(again, ranks, sizeof(again));
    again[0].args.build = TEST_BUILD + 1; /* even so it must not vote */
    join_first(&ranks[0]);
    start_rank(&ranks[0], arrive);
    assert_int_equal(llane_board_join(&again[0].args, NULL, &again[0].board), LLANE_EINVAL);
    start_rank(&ranks[1], arrive);
    join_ranks(ranks, 2);
    assert_true(ranks[0].verdict.is_yes && ranks[1].verdict.is_yes);
    leave_ranks(ranks, 2);
}

static void board__arguments_out_of_range__are_refused(void **state)
{
    (void)state;
    struct test_rank ranks[1];
    struct llane_board *board;
    static const struct {
        int n_ranks, rank;
        size_t record_bytes;
    } bad[] = {{0, 0, 8}, {17, 0, 8}, {2, 2, 8}, {2, -1, 8}, {2, 0, LLANE_BOARD_RECORD_BYTES + 1}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        init_ranks(ranks, new_key(), 1);
        ranks[0].args.n_ranks = bad[i].n_ranks;
        ranks[0].args.rank = bad[i].rank;
        ranks[0].args.record_bytes = bad[i].record_bytes;
        assert_int_equal(llane_board_join(&ranks[0].args, NULL, &board), LLANE_EINVAL);
    }
}

static void linger(struct test_rank *rank)
{
    arrive(rank);
    if (rank->rc == 0) {
        rank->rc = llane_board_linger(rank->board, &rank->cancel);
    }
}

static void board__late_rank_after_a_no__reads_it_too(void **state)
{
    (void)state;
    struct test_rank ranks[3];
    init_ranks(ranks, new_key(), 3);
    ranks[1].args.build = TEST_BUILD + 1;
    join_first(&ranks[0]);
    start_rank(&ranks[0], linger);
    join_first(&ranks[1]);
    start_rank(&ranks[1], arrive);
    sleep_ms(100);
    start_rank(&ranks[2], arrive);
    join_ranks(ranks, 3);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].rc, 0);
        assert_false(ranks[r].verdict.is_yes);
        assert_int_equal(ranks[r].verdict.rank, 1);
        assert_int_equal(ranks[r].verdict.reason, LLANE_BOARD_BUILD);
    }
    leave_ranks(ranks, 3);
}

static int leave_in_child(void *arg)
{
    llane_board_leave(arg);
    return 0;
}

static void board__forked_child_leaves__parent_is_undisturbed(void **state)
{
    (void)state;
    struct test_rank ranks[2];
    init_ranks(ranks, new_key(), 2);
    assert_int_equal(llane_board_join(&ranks[0].args, NULL, &ranks[0].board), 0);
    assert_int_equal(exit_status(fork_process(leave_in_child, ranks[0].board)), 0);
    start_rank(&ranks[1], arrive);
    struct llane_verdict verdict;
    assert_int_equal(llane_board_wait(ranks[0].board, LLANE_BOARD_ARRIVAL, NULL, &verdict), 0);
    assert_true(verdict.is_yes);
    pthread_join(ranks[1].thread, NULL);
    leave_ranks(ranks, 2);
}

/* ---- many rounds on one mapping, where a thread sanitizer sees every word and record ---- */

enum { N_ROUNDS = 100, N_STEPS = 4 };

struct round_rank {
    void *memory;
    int rank, failures;
    uint32_t seed;
    struct llane_verdict last[N_ROUNDS];
    int last_step[N_ROUNDS];
    pthread_t thread;
};

static uint64_t fact_of(int round, int step, int rank)
{
    return (uint64_t)round * 1000 + (uint64_t)step * 100 + (uint64_t)rank;
}

static void run_round(struct round_rank *me, struct llane_board *board, int round)
{
    for (int step = LLANE_BOARD_ARRIVAL; step < N_STEPS; step++) {
        if (step > LLANE_BOARD_ARRIVAL) {
            uint64_t fact = fact_of(round, step, me->rank);
            me->seed = me->seed * 1664525U + 1013904223U;
            uint32_t reason = me->seed >> 8 & 31 ? LLANE_BOARD_AGREED : REASON;
            llane_board_vote(board, step, reason, &fact, sizeof(fact));
        }
        me->last_step[round] = step;
        if (llane_board_wait(board, step, NULL, &me->last[round]) != 0) {
            me->failures++;
        }
        if (!me->last[round].is_yes) {
            return;
        }
        for (int r = 0; r < N_RANKS; r++) {
            uint64_t got = 0;
            int rc = llane_board_record(board, step, r, &got, sizeof(got));
            me->failures += rc != 0 || got != fact_of(round, step, r);
        }
    }
}

static void *run_rounds(void *arg)
{
    struct round_rank *me = arg;
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t fact = fact_of(round, LLANE_BOARD_ARRIVAL, me->rank);
        struct llane_board_args args = {.build = TEST_BUILD,
                                        .n_ranks = N_RANKS,
                                        .rank = me->rank,
                                        .record = &fact,
                                        .record_bytes = sizeof(fact)};
        void *memory = (char *)me->memory + (size_t)round * llane_board_bytes();
        struct llane_board *board;
        int is_new = 0, rc;
        /* Rank 0 makes the board; the others come while it does and find no board at first. */
        if (me->rank == 0) {
            is_new = 1;
        }
        while ((rc = llane_board_attach(memory, is_new, &args, &board)) == LLANE_EREFUSED) {
            sched_yield();
        }
        if (rc != 0) {
            me->failures++;
            continue;
        }
        run_round(me, board, round);
        llane_board_leave(board);
    }
    return NULL;
}

static void board__threads_on_one_mapping__verdicts_are_joint_and_records_whole(void **state)
{
    (void)state;
    size_t bytes = N_ROUNDS * llane_board_bytes();
    void *memory = shared_memory(bytes);
    static struct round_rank ranks[N_RANKS];
    for (int r = 0; r < N_RANKS; r++) {
        ranks[r] = (struct round_rank){.memory = memory, .rank = r, .seed = (uint32_t)r * 7919};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rounds, &ranks[r]), 0);
    }
    int n_no = 0;
    for (int r = 0; r < N_RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        assert_int_equal(ranks[r].failures, 0);
        for (int round = 0; round < N_ROUNDS; round++) {
            assert_int_equal(ranks[r].last_step[round], ranks[0].last_step[round]);
            assert_memory_equal(&ranks[r].last[round], &ranks[0].last[round],
                                sizeof(struct llane_verdict));
            n_no += !ranks[r].last[round].is_yes;
        }
    }
    assert_true(n_no > 0 && n_no < N_RANKS * N_ROUNDS);
    munmap(memory, bytes);
}

/* ---- processes ---- */

enum { N_CALLS = 3000 };

struct process_rank {
    struct test_rank rank;
    _Atomic int reached;
    uint8_t path[N_CALLS + 1]; /* 1: NCCL, 2: lane */
    uint64_t s;
};

struct helper {
    struct process_rank *me;
    struct llane_switch *_Atomic published;
};

static void *run_helper(void *arg)
{
    struct helper *helper = arg;
    struct process_rank *me = helper->me;
    arrive(&me->rank);
    if (me->rank.rc != 0 || !me->rank.verdict.is_yes) {
        return NULL;
    }
    /* Release: pairs with the user's acquire. Before the last vote, as set-up does. */
    atomic_store_explicit(&helper->published, llane_board_switch(me->rank.board),
                          memory_order_release);
    llane_board_vote(me->rank.board, 1, LLANE_BOARD_AGREED, NULL, 0);
    me->rank.rc = llane_board_wait(me->rank.board, 1, NULL, &me->rank.verdict);
    if (me->rank.rc == 0 && me->rank.verdict.is_yes && me->rank.args.rank == 0) {
        me->rank.rc =
            llane_switch_propose(llane_board_switch(me->rank.board), N_RANKS, NULL, &me->s);
    }
    return NULL;
}

/* Half of the calls go by whatever the helper does. The next one is made with the switch, since S is chosen
 * once all ranks have posted, and the one after it when S is chosen: there are calls enough beyond it. */
static void wait_in_the_middle(struct helper *helper, uint64_t call)
{
    struct llane_switch *sw;
    uint64_t s;
    while (call >= N_CALLS / 2 &&
           (!(sw = atomic_load_explicit(&helper->published, memory_order_acquire)) ||
            (call > N_CALLS / 2 && !llane_switch_is_confirmed(sw, &s)))) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

/* The user's calls go on while the helper sets up. */
static int run_process(void *arg)
{
    struct process_rank *me = arg;
    struct helper helper = {.me = me};
    uint32_t seed = (uint32_t)me->rank.args.rank * 2654435761U;
    pthread_t thread;
    me->rank.args.record = me->rank.record;
    if (pthread_create(&thread, NULL, run_helper, &helper) != 0) {
        return 1;
    }
    for (uint64_t call = 1; call <= N_CALLS; call++) {
        wait_in_the_middle(&helper, call);
        struct llane_switch *sw = atomic_load_explicit(&helper.published, memory_order_acquire);
        int is_live =
            sw != NULL && llane_switch_begin(sw, me->rank.args.rank, call) == LLANE_SWITCH_LIVE;
        me->path[call] = is_live ? 2 : 1;
        seed = seed * 1664525U + 1013904223U;
        if ((seed >> 24) < 40) { /* ranks stay within some hundred calls of one another */
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        }
    }
    pthread_join(thread, NULL);
    atomic_store(&me->reached, 1);
    llane_board_leave(me->rank.board);
    return me->rank.rc != 0;
}

static void board__processes_set_up_and_switch__each_call_takes_one_path(void **state)
{
    (void)state;
    struct process_rank *ranks = shared_memory(N_RANKS * sizeof(*ranks));
    struct test_rank made[N_RANKS];
    pid_t children[N_RANKS];
    init_ranks(made, new_key(), N_RANKS);
    for (int r = 0; r < N_RANKS; r++) {
        ranks[r].rank = made[r];
        children[r] = fork_process(run_process, &ranks[r]);
    }
    for (int r = 0; r < N_RANKS; r++) {
        assert_int_equal(exit_status(children[r]), 0);
        assert_int_equal(atomic_load(&ranks[r].reached), 1);
    }
    for (uint64_t call = 1; call <= N_CALLS; call++) {
        for (int r = 0; r < N_RANKS; r++) {
            assert_int_equal(ranks[r].path[call], call >= ranks[0].s ? 2 : 1);
        }
    }
    assert_in_range(ranks[0].s, 2, N_CALLS);
    munmap(ranks, N_RANKS * sizeof(*ranks));
}

/* Arrives, votes on step 1 if it is asked to, and stays. */
static int arrive_and_stay(void *arg)
{
    struct process_rank *me = arg;
    me->rank.args.record = me->rank.record;
    arrive(&me->rank);
    if (me->rank.rc != 0 || !me->rank.verdict.is_yes) {
        return 1;
    }
    if (me->s != 0) {
        llane_board_vote(me->rank.board, 1, LLANE_BOARD_AGREED, NULL, 0);
    }
    atomic_store(&me->reached, 1);
    while (pause() != 0) {
    }
    return 0;
}

/* Rank 2 dies in step 1, having voted or not; ranks 0 and 1 are threads here and wait. */
static void kill_in_mid_step(int has_voted)
{
    struct test_rank ranks[3];
    struct process_rank *victim = shared_memory(sizeof(*victim));
    init_ranks(ranks, new_key(), 3);
    victim->rank = ranks[2];
    victim->s = (uint64_t)has_voted;
    pid_t child = fork_process(arrive_and_stay, victim);
    start_rank(&ranks[0], arrive);
    start_rank(&ranks[1], arrive);
    join_ranks(ranks, 2);
    await(&victim->reached, 1);
    llane_board_vote(ranks[0].board, 1, LLANE_BOARD_AGREED, NULL, 0);
    kill(child, SIGKILL); /* a zombie until exit_status: gone all the same */
    assert_all_read(ranks, 2, 1, 2, LLANE_BOARD_DIED);
    assert_int_equal(exit_status(child), -1);
    leave_ranks(ranks, 2);
    munmap(victim, sizeof(*victim));
}

static void board__rank_killed_before_its_vote__others_read_that_it_died(void **state)
{
    (void)state;
    kill_in_mid_step(0);
}

static void board__rank_killed_after_its_vote__others_read_that_it_died(void **state)
{
    (void)state;
    kill_in_mid_step(1);
}

/* As a rank with another version of llane finds the memory: the layout's number is its second word. */
static void board__another_layout__refused_for_all(void **state)
{
    (void)state;
    void *memory =
        mmap(NULL, llane_board_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct test_rank ranks[2];
    struct llane_verdict verdict;
    assert_true(memory != MAP_FAILED);
    init_ranks(ranks, new_key(), 2);
    assert_int_equal(llane_board_attach(memory, 1, &ranks[0].args, &ranks[0].board), 0);
    ((uint32_t *)memory)[2]++;
    assert_int_equal(llane_board_attach(memory, 0, &ranks[1].args, &ranks[1].board),
                     LLANE_EREFUSED);
    assert_int_equal(llane_board_wait(ranks[0].board, LLANE_BOARD_ARRIVAL, NULL, &verdict), 0);
    assert_false(verdict.is_yes);
    assert_int_equal(verdict.rank, 1);
    assert_int_equal(verdict.reason, LLANE_BOARD_BUILD);
    llane_board_leave(ranks[0].board);
    munmap(memory, llane_board_bytes());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(board__rank_killed_before_its_vote__others_read_that_it_died),
        cmocka_unit_test(board__rank_killed_after_its_vote__others_read_that_it_died),
        cmocka_unit_test(board__processes_set_up_and_switch__each_call_takes_one_path),
        cmocka_unit_test(board__forked_child_leaves__parent_is_undisturbed),
        cmocka_unit_test(board__all_arrive__each_reads_each_record),
        cmocka_unit_test(board__all_agree_on_a_step__its_records_can_be_read),
        cmocka_unit_test(board__a_rank_votes_twice__counts_once),
        cmocka_unit_test(board__one_missing__others_wait_until_canceled),
        cmocka_unit_test(board__one_refuses__all_read_who_and_why),
        cmocka_unit_test(board__refused_after_a_yes__stands_while_the_step_is_open),
        cmocka_unit_test(board__one_leaves_in_mid_step__others_read_it),
        cmocka_unit_test(board__builds_differ__all_read_it),
        cmocka_unit_test(board__place_taken__second_comer_is_refused),
        cmocka_unit_test(board__arguments_out_of_range__are_refused),
        cmocka_unit_test(board__late_rank_after_a_no__reads_it_too),
        cmocka_unit_test(board__threads_on_one_mapping__verdicts_are_joint_and_records_whole),
        cmocka_unit_test(board__another_layout__refused_for_all),
    };
    alarm(100); /* a hang is a failure too */
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
