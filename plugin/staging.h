/*
 * staging: one rank's memory for one lane, and the graveyard it goes to.
 *
 * Owns: a dedicated device allocation (nothing else lives in it, since it is exported whole), the
 * lane's mapped host words and its order events. Nothing is freed before the process ends: on a
 * live path cudaFree and cudaIpcCloseMemHandle wait for spinning kernels. What a lane leaves is
 * buried and taken again by the next one that fits, once its last operation has ended.
 * Threads: any; one short lock. Blocking: allocation only (set-up's helper thread).
 * Errors: LLANE_EGPU, LLANE_ENOMEM (the process's cap LLANE_MAX_STAGING would be passed).
 */
#ifndef LLANE_STAGING_H
#define LLANE_STAGING_H

#include <stdint.h>

#include "gpu.h"
#include "order.h"
#include "table.h"

/* Host memory that the lane's kernels reach: written by one side, read by the other (table.h). */
struct llane_mapped {
    struct llane_lane_words words;
    uint32_t probe_result[LLANE_MAX_RANKS];
};

struct llane_staging {
    uint8_t *base; /* device memory of `device`, zeroed when taken */
    uint64_t bytes;
    int device;
    struct llane_gpu_ipc_handle handle;
    struct llane_mapped *mapped, *mapped_device;
    struct CUevent_st *last_probe;
    struct llane_order_events *events; /* of the communicator whose lane it was or is; NULL: none */
    int64_t rests_until_ms;            /* in the graveyard, */
    struct llane_staging *next;        /* a list */
};

/* Sizes within an allocation; all ranks compute the same from agreed numbers. slot_bytes: of one
 * generation, for each packet family, which has a region of its own. */
uint64_t llane_staging_bytes(uint32_t n_ranks, const uint64_t slot_bytes[LLANE_N_PACKETS]);
struct llane_cells *llane_staging_cells(uint8_t *base);
uint8_t *llane_staging_probe_area(uint8_t *base, uint32_t source);
uint8_t *llane_staging_slot(uint8_t *base, uint32_t n_ranks,
                            const uint64_t slot_bytes[LLANE_N_PACKETS], enum llane_packet packet,
                            uint32_t source);

/*
 * Takes memory of at least bytes on the current device, all zero, every cell at operation 1. Waits
 * for the zeroing on stream, which is the caller's own.
 */
int llane_staging_take(int device, uint64_t bytes, uint64_t max_total_bytes,
                       struct CUstream_st *stream, struct llane_staging **out);

/* Arms all sentinel slots (all ones: "not here yet"). Waits for it, as above. */
int llane_staging_arm(struct llane_staging *staging, uint32_t n_ranks,
                      const uint64_t slot_bytes[LLANE_N_PACKETS], struct CUstream_st *stream);

/*
 * CLEAN: used again as soon as its last operation has ended and no graph uses it. PROBED: a peer may
 * still write to its probe area, which only hurts the next probe: used again after the time of two
 * probes. TAINTED: a peer's kernel may still write to its slots (an aborted operation): it stays
 * untouched until the process ends.
 */
enum llane_staging_end { LLANE_STAGING_CLEAN, LLANE_STAGING_PROBED, LLANE_STAGING_TAINTED };
void llane_staging_bury(struct llane_staging *staging, enum llane_staging_end end);

/* Device memory taken by this process so far. */
uint64_t llane_staging_total_bytes(void);

#endif
