/*
 * probe: does memory that a peer's kernel writes arrive where this rank's kernel reads? Peer access
 * flags, copies and the writer's own read-back prove nothing; only this does.
 *
 * Owns: nothing. Threads: set-up's helper thread. Blocking: until all patterns came or
 * LLANE_PROBE_TIMEOUT_MS passed, or cancel is set. Errors: LLANE_EGPU, LLANE_ECANCELED,
 * LLANE_EREFUSED (a pair failed: peer_out says which).
 */
#ifndef LLANE_PROBE_H
#define LLANE_PROBE_H

#include <stdatomic.h>

#include "staging.h"

/* How the pair (peer -> this rank) failed, in words. */
const char *llane_probe_text(uint32_t result);

/*
 * bases[r] is rank r's staging memory as this rank reaches it. All ranks call it after a verdict
 * that all staging memory is zeroed and mapped, with one nonce.
 */
int llane_probe_run(const struct llane_staging *staging, uint8_t *const *bases, int rank,
                    int n_ranks, uint64_t nonce, struct CUstream_st *stream,
                    const _Atomic int *cancel, int *peer_out, uint32_t *result_out);

#endif
