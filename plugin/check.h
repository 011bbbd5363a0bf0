/*
 * check: with LLANE_CHECK=1, finds ranks that disagree on count, type or operation of an all-reduce,
 * which NCCL and the lane alike take for undefined: they would wait forever, or sum wrongly.
 *
 * Each rank posts what each of its calls says into a ring of its own on the board and compares with
 * what the others posted for the same call number: of two ranks, the later one sees both. A rank that
 * is more than the ring ahead of another is not compared with it.
 *
 * Owns nothing: struct llane_check lies on the board. Threads: post by the rank's user thread; tell by
 * any. Blocking: no. Errors: LLANE_EREFUSED, they disagree.
 */
#ifndef LLANE_CHECK_H
#define LLANE_CHECK_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "switch.h"

enum { LLANE_CHECK_CALLS = 512 }; /* about what a GPU's launch queue lets a rank be ahead */

/* What a rank said of one call. */
struct llane_check_call {
    _Atomic uint64_t number; /* 0: nothing, or being written */
    _Atomic uint64_t count;
    _Atomic uint64_t what; /* type, and above it the operation */
    uint64_t reserved;
};

/* In shared memory; all zero at first. */
struct llane_check {
    /* 0, or call number and two ranks that disagree on it, the first ones found. */
    _Alignas(LLANE_SWITCH_LINE_BYTES) _Atomic uint64_t verdict;
    _Alignas(LLANE_SWITCH_LINE_BYTES) struct llane_check_call
        calls[LLANE_SWITCH_MAX_RANKS][LLANE_CHECK_CALLS];
};

struct llane_check_what {
    uint64_t number, count;
    int type, op;
};

/* Before the call is launched. */
int llane_check_post(struct llane_check *check, int n_ranks, int rank,
                     const struct llane_check_what *what);

/* 1 and the disagreement in words, if there is one. n_ranks bounds what is read there. */
int llane_check_tell(const struct llane_check *check, int n_ranks, char *words, size_t bytes);

#endif
