/*
 * shadow: LLANE_AB=shadow. NCCL carries a call; behind it, on a stream of llane's own, the lane reduces
 * a copy of its input into scratch memory, and a helper thread compares the two results.
 *
 * The lane's operations are in order among themselves alone: nothing of the program's waits for one,
 * but the copy of a later input whose memory it reads. (In the communicator's order they would deadlock:
 * rank 0 {recv, all-reduce} in a group, rank 1 all-reduce, then send.) Every rank launches it for every such call, or the peers'
 * kernels would wait; only the comparison is left out where a rank has no room for it.
 *
 * Owns: for each lane a few scratch buffers on the device, a stream, and a few slots of pinned memory
 * and events; used again for another lane, never freed.
 * Threads: copy_input and launch by the thread that calls NCCL, under the communicator's lock; collect
 * and summarize by any. Blocking: no. Errors: LLANE_EGPU.
 */
#ifndef LLANE_SHADOW_H
#define LLANE_SHADOW_H

#include <stdint.h>

#include "nccl_abi.h"
#include "sizes.h"

struct llane_lane;
struct llane_operation;
struct llane_order;
struct llane_shadow;

struct llane_shadow_summary {
    struct {
        uint64_t calls;                /* all */
        uint64_t compared;             /* the rest found no room, or NCCL launched it too late */
        uint64_t same, within, beyond; /* in every bit; up to rounding; not even that */
    } sizes[LLANE_SIZE_BUCKETS];
};

/* On the current device, for messages of up to max_bytes. 0, LLANE_EGPU, or LLANE_ENOMEM, also where the
 * process's staging memory would pass max_total_bytes. */
int llane_shadow_create(int device, int rank, int n_ranks, uint64_t max_bytes,
                        uint64_t max_total_bytes, struct llane_shadow **out);
void llane_shadow_bury(struct llane_shadow *shadow);

/*
 * Before NCCL's operation, on its stream. The input's
 * number, to be launched or dropped; -1 where a group has taken all, or the copy failed.
 */
int llane_shadow_copy_input(struct llane_shadow *shadow, const struct llane_operation *operation);
void llane_shadow_drop_input(struct llane_shadow *shadow, int input);
/* After it has taken its place, also with input -1. is_compared: NCCL's result will be in its buffer
 * by then. */
int llane_shadow_launch(struct llane_shadow *shadow, const struct llane_lane *lane,
                        const struct llane_operation *operation, int input, int is_compared);

/* The lane ends: the communicator's last operation is then the shadow's, which uses its memory. */
int llane_shadow_enter_order(struct llane_shadow *shadow, struct llane_order *order);

/* Compares what has ended; a difference beyond rounding is warned about. */
void llane_shadow_collect(struct llane_shadow *shadow);
/* Collects first. */
void llane_shadow_summarize(struct llane_shadow *shadow, struct llane_shadow_summary *out);

#endif
