/*
 * tuner_contexts: which communicator a tuner's init was about. NCCL passes init the address of the
 * communicator's context slot, which lies inside the communicator's own allocation (2.21 and later),
 * and from 2.28 an id that all ranks of the communicator share.
 *
 * Owns one record for each slot between init and destroy. Threads: any, several inits at once.
 * Blocking: a short lock. Errors: out of memory means no record, hence no communicator id.
 */
#ifndef LLANE_TUNER_CONTEXTS_H
#define LLANE_TUNER_CONTEXTS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Records a communicator; a second call for the same slot replaces the first (2.21 calls init more
 * than once, and a communicator that failed may have left its record). comm_id 0: not known.
 * Returns the context for NCCL to hand back, a number and no address; NULL if there is no record.
 */
void *llane_tuner_add(void **ctx_slot, size_t n_ranks, size_t n_nodes, uint64_t comm_id);

/* Forgets the record and returns its slot's address; NULL for a context that has none. */
const void *llane_tuner_remove(void *ctx);

/* The sizes that init was told; 0 for a context that has no record. */
int llane_tuner_sizes(void *ctx, size_t *n_ranks_out, size_t *n_nodes_out);

/*
 * 1 if there is a record whose slot lies in [comm, comm + comm_bytes), with its id (0 below NCCL
 * 2.28); else 0.
 */
int llane_tuner_find(const void *comm, size_t comm_bytes, uint64_t *comm_id_out);

#endif
