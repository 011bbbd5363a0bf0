/*
 * watch: notices that operations of a lane will not end, because a rank they need is gone: its process
 * was killed or crashed, it ended the communicator, or (LLANE_TIMEOUT_S) it has not come for too long.
 * The communicator then reports ncclRemoteError for good, and its kernels go on waiting until the program
 * aborts, as NCCL's do: one that stopped by itself would let its stream go on with garbage.
 * LLANE_ON_DEATH=stop ends them at once. Before the switch nothing is reported: the communicator gets no
 * lane (switch.h), and set-up's kernels end. Where the ranks disagree on a call (check.h) the kernels are
 * ended, and the communicator reports ncclInvalidUsage.
 *
 * Owns: one thread of the process, which looks ten times a second and also keeps the marks by which
 * other processes see that this one lives (life.h). It stays until the process ends.
 * Threads: start, begin, end by set-up's helper threads and whoever drops the communicator last; leave
 * by any. Blocking: end, and exit for a second at most, wait for a look that is under way, which reads
 * memory. The GPU is not asked: an answer may wait for a kernel, while another thread is in cudaFree, and
 * after a cudaDeviceReset the question is a fault. Errors: what cannot be watched is not watched, said
 * once.
 */
#ifndef LLANE_WATCH_H
#define LLANE_WATCH_H

#include "lane.h"

struct llane_watched;

/* Before a rank joins a board. Starts the thread, the first time. */
void llane_watch_start(void);

/* All ranks are on the lane's board. failure: receives an ncclResult_t, once, for good. NULL: no memory. */
struct llane_watched *llane_watch_begin(struct llane_lane *lane, int n_ranks, _Atomic int *failure);

/* This rank found that the ranks disagree on a call: says so at once. NULL is allowed. */
void llane_watch_disagreement(struct llane_watched *watched);

/* The communicator ends on this rank, which the others may see from now on. NULL is allowed. */
void llane_watch_leave(struct llane_watched *watched, enum llane_presence_state how);

/* Before the lane and the board go. NULL is allowed. */
void llane_watch_end(struct llane_watched *watched);

/* The process is leaving: nobody is watched any more, and others see that it left by itself. */
void llane_watch_exit(void);

#endif
