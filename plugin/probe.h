/*
 * probe: does memory that a peer's kernel writes arrive where this rank's kernel reads? Peer access
 * flags, copies and the writer's own read-back prove nothing; only this does.
 *
 * Owns: nothing. Threads: set-up's helper thread. Blocking: until all patterns came or
 * LLANE_PROBE_TIMEOUT_MS passed, or cancel is set. Errors: LLANE_EGPU, LLANE_ECANCELED,
 * LLANE_EREFUSED (the GPU does not run or end the kernels in time).
 */
#ifndef LLANE_PROBE_H
#define LLANE_PROBE_H

#include <stdatomic.h>

#include "staging.h"

struct llane_probe {
    const struct llane_staging *staging; /* this rank's: its mapped words */
    uint8_t *send[LLANE_MAX_RANKS];      /* see struct llane_probe_args */
    uint8_t *recv[LLANE_MAX_RANKS];
    uint32_t peers; /* bit r: rank r takes part */
    int rank, n_ranks;
    uint64_t nonce; /* one for all ranks, and for this probe alone */
};

/*
 * All ranks call it after a verdict that all areas are zeroed and mapped. result_out: LLANE_PROBE_* for
 * what each rank stored. 0 also if some of it did not come.
 */
int llane_probe_run(const struct llane_probe *probe, struct CUstream_st *stream,
                    const _Atomic int *cancel, uint32_t result_out[LLANE_MAX_RANKS]);

#endif
