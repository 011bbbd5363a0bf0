/*
 * calibrate: the ranks of a communicator find out together which path carries which size, before its
 * lane is live, and adopt one table.
 *
 * Rank 0 directs: it alone reads the cache, decides to measure, watches the time, judges and writes.
 * Each round is a step on the board: all vote, with what they measured in the round before, and do
 * what rank 0's record says next. What a candidate takes is what it takes the slowest rank. The last
 * round gives rank 0's table to all; one more vote follows when each rank has adopted it.
 *
 * Owns: the tables that this process found, one for each key. Threads: the helper thread of the
 * communicator. Blocking: until all ranks have voted; rank 0 also for the lock that one calibration
 * a host holds. Errors: LLANE_ECANCELED; LLANE_EREFUSED, a verdict tells; LLANE_EINVAL, rank 0's
 * record makes no sense, on all ranks alike.
 */
#ifndef LLANE_CALIBRATE_H
#define LLANE_CALIBRATE_H

#include "board.h"
#include "route.h"

/* As LLANE_CALIBRATE's words. AUTO: the cache, else measure where times mean something. */
enum llane_calibrate_mode { LLANE_CALIBRATE_AUTO, LLANE_CALIBRATE_OFF, LLANE_CALIBRATE_FORCE };

/* Where times come from. 0, or this rank cannot go on: its vote then is args->refusal. */
struct llane_calibrate_source {
    /* The largest message, a few times: microseconds an operation. */
    int (*warm)(void *arg, float *us_out);
    /* Every candidate in both passes. All ranks measure the same ones in the same order. */
    int (*measure)(void *arg, uint32_t bucket, const struct llane_tuning_choice *candidates, int n,
                   struct llane_tuning_times *out);
    double (*now_ms)(void *arg);
    void *arg;
};

struct llane_calibrate_args {
    struct llane_board *board;
    int first_step;
    int rank, n_ranks;
    const _Atomic int *cancel;
    uint32_t refusal; /* the reason that a vote gives, see llane_board_vote */
    const struct llane_calibrate_source *source;
    /* Rank 0's alone: */
    enum llane_calibrate_mode mode;
    double budget_ms;
    int has_clock;         /* 0: times mean nothing here (the emulation) */
    const char *key;       /* all that a table holds for, in lines of text */
    const char *directory; /* of the cache; NULL: there is none */
};

/* limits: agreed and equal on all ranks but for the tuning, which comes out. */
int llane_calibrate(const struct llane_calibrate_args *args, struct llane_route_limits *limits,
                    struct llane_verdict *verdict_out);

#endif
