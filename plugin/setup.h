/*
 * setup: gives a communicator its lane, in a helper thread, with joint verdicts on the board.
 *
 * Owns: the helper threads. The user's calls go to NCCL meanwhile and never wait for it (LLANE_WAIT
 * apart). Every step is local, then voted on; all ranks read one answer, so that either all ranks
 * get a lane or none does.
 * Threads: start and wait by the user's thread, wait_for_end by whichever ends the communicator, end_all
 * by the one that ends the process. Blocking: all but start. Errors: an inactive communicator with its
 * reason, logged once a rank.
 */
#ifndef LLANE_SETUP_H
#define LLANE_SETUP_H

#include "comm.h"

/* The communicator's first all-reduce: rank, device and id are known and state is SETTING_UP. */
void llane_setup_start(struct llane_comm *comm);

/*
 * LLANE_WAIT: until the lane of each communicator is live or refused on all its ranks, or
 * LLANE_WAIT_TIMEOUT_MS. All at once, since one thread may drive all ranks of a communicator. The
 * caller begins no all-reduce on any of them meanwhile.
 */
void llane_setup_wait(struct llane_comm *const *comms, size_t n);

/* The communicator, which the caller holds, has ended, hence its set-up: a second at most, until that
 * leaves the GPU alone. NULL: all have ended. */
void llane_setup_wait_for_end(const struct llane_comm *comm);

/* Ends all set-ups and waits a second at most for their threads: the process is leaving. */
void llane_setup_end_all(void);

#endif
