/*
 * contexts: which communicator a tuner's or a profiler's init was about. NCCL passes init the address of
 * the communicator's context slot, which lies inside the communicator's own allocation (tuners: 2.21 and
 * later), with an id that all ranks of the communicator share: one number, which profilers get from
 * 2.27 on and tuners from 2.28.
 *
 * Owns one record for each slot between init and destroy. Threads: any, several inits at once.
 * Blocking: a short lock. Errors: out of memory means no record, hence no communicator id.
 */
#ifndef LLANE_CONTEXTS_H
#define LLANE_CONTEXTS_H

#include <stddef.h>
#include <stdint.h>

#include "comm_options.h"

/*
 * Records a communicator; a second call for the same slot replaces the first (2.21 calls init more
 * than once, and a communicator that failed may have left its record). comm_id 0, name NULL: not known.
 * Returns the context for NCCL to hand back, a number and no address; NULL if there is no record.
 */
void *llane_context_add(void **ctx_slot, size_t n_ranks, size_t n_nodes, uint64_t comm_id,
                        const char *name);

/* Forgets the record and returns its slot's address; NULL for a context that has none. */
const void *llane_context_remove(void *ctx);

/* The sizes that init was told; 0 for a context that has no record. */
int llane_context_sizes(void *ctx, size_t *n_ranks_out, size_t *n_nodes_out);

/*
 * The id in the newest record that has one, among those whose slot lies in [comm, comm + comm_bytes);
 * 0 if none has. name, where it is empty, becomes the name that came with this id.
 */
uint64_t llane_context_find(const void *comm, size_t comm_bytes, char name[LLANE_NAME_BYTES]);

#endif
