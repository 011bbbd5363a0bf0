/*
 * staging: one rank's memory for one lane, and the graveyard it goes to.
 *
 * Owns: a dedicated device allocation (nothing else lives in it, since it is exported whole), the
 * lane's mapped host words and its order events. Nothing is freed before the process ends: on a
 * live path cudaFree and cudaIpcCloseMemHandle wait for spinning kernels. What a lane leaves is
 * buried and taken again by the next one that fits, once no kernel of any of its ranks writes to any
 * rank's memory any more: each rank tells so on the board when its own last operation has ended, an
 * aborted one too, and no graph is left.
 * Threads: any. Blocking: taking (set-up's helper thread) allocates; it and burying ask the driver, one
 * thread at a time, which may have to wait where another thread is in cudaFree. The totals never wait.
 * Errors: LLANE_EGPU, LLANE_ENOMEM (the process's cap LLANE_MAX_STAGING would be passed).
 */
#ifndef LLANE_STAGING_H
#define LLANE_STAGING_H

#include <stdint.h>

#include "board.h"
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
    uint64_t context;                   /* llane_gpu_context_id of it then */
    struct llane_gpu_ipc_handle handle; /* if it could be exported */
    int is_exported;
    struct llane_mapped *mapped, *mapped_device;
    struct CUevent_st *last_probe;
    struct llane_order_events *events; /* of the communicator whose lane it was or is; NULL: none */
    /* In the graveyard: held while kernels of some rank may write here; NULL: free to be taken. */
    struct llane_board *board;
    int rank; /* on it */
    struct llane_staging *next;
};

/* Kernels that use it end, and later ones at once; probes' kernels too. Any thread. */
static inline void llane_staging_abort(const struct llane_staging *staging)
{
    /* Pairs with the look that every poll loop takes at the word. */
    __atomic_store_n(&staging->mapped->words.abort, 1, __ATOMIC_RELEASE);
}

static inline int llane_staging_is_aborted(const struct llane_staging *staging)
{
    return __atomic_load_n(&staging->mapped->words.abort, __ATOMIC_RELAXED) != 0;
}

/* Sizes within an allocation; all ranks compute the same from agreed numbers. slot_bytes: of one
 * generation, for each packet family, which has a region of its own. scratch_bytes: for the owner's
 * kernels alone, while it calibrates. */
uint64_t llane_staging_bytes(uint32_t n_ranks, const uint64_t slot_bytes[LLANE_N_PACKETS],
                             uint64_t scratch_bytes);
uint8_t *llane_staging_scratch(uint8_t *base, uint32_t n_ranks,
                               const uint64_t slot_bytes[LLANE_N_PACKETS]);
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
 * Ends the lane's use of it. The board is the lane's, on which peers have learned of this memory; NULL:
 * none has. NULL for staging is allowed. This, and taking, look at all that is buried: they tell the
 * others what this rank's kernels have left alone, and find what all ranks' have.
 */
void llane_staging_bury(struct llane_staging *staging, struct llane_board *board, int rank);

/* Memory taken by this process so far. */
uint64_t llane_staging_total_bytes(void);
/* Memory of another kind that counts as well, for good; LLANE_ENOMEM beyond the cap. */
int llane_staging_reserve(uint64_t bytes, uint64_t max_total_bytes);

#endif
