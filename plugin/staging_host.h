/*
 * staging_host: host memory for the pairs of ranks that have no peer access. The ranks of a lane share
 * one memory, handed on as the board is; it has no name, so nothing is left of it whatever happens to
 * them. Each rank has a part, which it alone writes: for each peer a probe area, and one slot a packet
 * family that all of them read.
 *
 * Owns: the mapping and its pinning, for the life of the process: kernels of an aborted lane may
 * still look there. Threads: set-up's helper thread. Blocking: take waits for the other ranks to come,
 * or for the communicator's end. Errors: as noted, explained in the log where they occur.
 */
#ifndef LLANE_STAGING_HOST_H
#define LLANE_STAGING_HOST_H

#include <stdint.h>

#include "board.h"
#include "table.h"

struct llane_staging_host {
    uint8_t *base;   /* as the host sees it */
    uint8_t *device; /* as kernels of this rank's device do, once it is pinned */
    uint64_t part_bytes;
    uint32_t n_ranks, rank;
    uint64_t slot_bytes[LLANE_N_PACKETS]; /* of a generation */
    char placement[96];                   /* of this rank's part, in words */
};

/* Bytes of one rank's part; all ranks compute the same from agreed numbers. */
uint64_t llane_staging_host_part_bytes(uint32_t n_ranks,
                                       const uint64_t slot_bytes[LLANE_N_PACKETS]);

/*
 * Finds or makes the memory (n_ranks, rank and slot_bytes are set) and prepares this rank's part, on
 * the given node if it can be placed: zeros, sentinel slots armed. After a verdict that all have done
 * so, pin can follow. LLANE_ENOMEM (no room: nothing was written), LLANE_ESYS, LLANE_ECANCELED.
 */
int llane_staging_host_take(struct llane_staging_host *memory, struct llane_board *board, int node,
                            const _Atomic int *cancel);

/* LLANE_EGPU. */
int llane_staging_host_pin(struct llane_staging_host *memory);

/* Device addresses. */
uint8_t *llane_staging_host_probe_area(const struct llane_staging_host *memory, uint32_t writer,
                                       uint32_t reader);
uint8_t *llane_staging_host_slot(const struct llane_staging_host *memory, enum llane_packet packet,
                                 uint32_t writer);

#endif
