/* Ranks for the board's tests: as threads of this process or as forked processes. */
#ifndef LLANE_TESTS_BOARD_RANKS_H
#define LLANE_TESTS_BOARD_RANKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "board.h"
#include "err.h"

enum { TEST_BUILD = 77 };

struct test_rank {
    struct llane_board_args args;
    char record[64];
    _Atomic int cancel;
    struct llane_board *board;
    int rc;
    struct llane_verdict verdict;
    void (*body)(struct test_rank *rank);
    pthread_t thread;
};

static inline void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Unlike that of any other test, process or run. */
static inline struct llane_board_key new_key(void)
{
    static uint64_t count;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (struct llane_board_key){
        {(uint64_t)getpid() << 32 | ++count, (uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec}};
}

static inline void init_ranks(struct test_rank *ranks, struct llane_board_key key, int n_ranks)
{
    memset(ranks, 0, (size_t)n_ranks * sizeof(*ranks));
    for (int r = 0; r < n_ranks; r++) {
        snprintf(ranks[r].record, sizeof(ranks[r].record), "arrival of rank %d", r);
        ranks[r].args = (struct llane_board_args){.key = key,
                                                  .build = TEST_BUILD,
                                                  .n_ranks = n_ranks,
                                                  .rank = r,
                                                  .record = ranks[r].record,
                                                  .record_bytes = sizeof(ranks[r].record)};
    }
}

static inline void *run_rank_thread(void *arg)
{
    struct test_rank *rank = arg;
    rank->body(rank);
    return NULL;
}

/* Now and here, so that others come after it. */
static inline void join_first(struct test_rank *rank)
{
    assert_int_equal(llane_board_join(&rank->args, NULL, &rank->board), 0);
}

static inline void start_rank(struct test_rank *rank, void (*body)(struct test_rank *rank))
{
    rank->body = body;
    assert_int_equal(pthread_create(&rank->thread, NULL, run_rank_thread, rank), 0);
}

static inline void join_ranks(struct test_rank *ranks, int n)
{
    for (int r = 0; r < n; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
}

static inline void leave_ranks(struct test_rank *ranks, int n)
{
    for (int r = 0; r < n; r++) {
        llane_board_leave(ranks[r].board);
        ranks[r].board = NULL;
    }
}

/* A body: join, if that was not done, and wait for all. */
static inline void arrive(struct test_rank *rank)
{
    rank->rc = rank->board ? 0 : llane_board_join(&rank->args, &rank->cancel, &rank->board);
    if (rank->rc == 0) {
        rank->rc =
            llane_board_wait(rank->board, LLANE_BOARD_ARRIVAL, &rank->cancel, &rank->verdict);
    }
}

/* Memory that forked processes share with the test. */
static inline void *shared_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

/* The child ends with body's value; it ends with its parent. */
static inline pid_t fork_process(int (*body)(void *arg), void *arg)
{
    pid_t parent = getpid();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent && getppid() != 0) { /* 0: in a pid namespace of its own */
            _exit(99);
        }
        _exit(body(arg));
    }
    return child;
}

static inline int exit_status(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline void await(_Atomic int *value, int wanted)
{
    for (int ms = 0; atomic_load(value) != wanted; ms++) {
        assert_true(ms < 30000);
        sleep_ms(1);
    }
}

#endif
