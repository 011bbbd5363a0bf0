/*
 * lane: one communicator's low-latency path once it is set up, and the launch of an operation on it.
 *
 * Owns: its staging memory. Made by set-up's helper thread, used under the communicator's lock by the
 * threads that call NCCL, buried by whoever drops the communicator last.
 * Blocking: no. Errors: LLANE_EGPU from a launch, which is then the call's error: never retried
 * through NCCL, since the peers have launched theirs.
 */
#ifndef LLANE_LANE_H
#define LLANE_LANE_H

#include "ab.h"
#include "board.h"
#include "nccl_abi.h"
#include "order.h"
#include "route.h"
#include "shadow.h"
#include "sizes.h"
#include "staging.h"

struct llane_lane {
    struct llane_staging *staging;
    struct llane_board *board; /* the communicator's, */
    struct llane_order *order; /* likewise */
    struct llane_all_reduce_args
        args[LLANE_N_PACKETS]; /* all that does not change from call to call */
    struct llane_route_limits limits;
    int has_shared; /* this rank has pairs over host memory */
    uint64_t n_launched[LLANE_SIZE_BUCKETS][LLANE_N_ALGORITHMS][LLANE_N_PACKETS]; /* statistics */
    struct llane_ab *ab;         /* NULL: nothing is timed */
    struct llane_shadow *shadow; /* NULL: nothing is compared */
    int device, rank;
    int is_checked; /* LLANE_CHECK on any rank */
};

struct llane_operation {
    const void *in;
    void *out;
    size_t count;
    ncclDataType_t datatype;
    ncclRedOp_t op;
    cudaStream_t stream;
    uint64_t number; /* of the communicator's all-reduces */
    int is_grouped;  /* issued at the end of a group */
};

/*
 * The communicator's device may be other than the current one, which is left as it was. LLANE_EREFUSED:
 * nothing was launched, since the ranks disagree on a call (check.h).
 */
int llane_lane_all_reduce(struct llane_lane *lane, const struct llane_operation *operation);

/* The kernel alone, as planned, on the current device: for all_reduce, and for calibration while the
 * lane is not live. chain: as in struct llane_gpu_launch. */
int llane_lane_launch(const struct llane_lane *lane, const struct llane_operation *operation,
                      const struct llane_plan *plan, void **chain);

/* 1 until the operations so far have ended, those of replayed graphs included; 0 once they were told to
 * stop. */
int llane_lane_is_busy(const struct llane_lane *lane);

/* LLANE_AB: around an operation that NCCL carries in its turn; NULL: nothing to end. */
struct llane_ab_pair *llane_lane_ab_begin(struct llane_lane *lane,
                                          const struct llane_operation *operation);
void llane_lane_ab_end(struct llane_lane *lane, struct llane_ab_pair *pair, cudaStream_t stream);

/* LLANE_AB=shadow: before and after an operation that NCCL carries, see shadow.h. */
int llane_lane_shadow_input(struct llane_lane *lane, const struct llane_operation *operation);
int llane_lane_shadow(struct llane_lane *lane, const struct llane_operation *operation, int input,
                      int is_compared);

/* Where the lane is checked: as above, for an all-reduce that NCCL carries. */
int llane_lane_check(struct llane_lane *lane, const struct llane_operation *operation);

/* LLANE_DEAD_*: what a kernel of this lane found wrong, for good. */
uint32_t llane_lane_dead(const struct llane_lane *lane);

/* Told to end, by whoever. */
int llane_lane_is_aborted(const struct llane_lane *lane);

/* Spinning and later kernels of this lane end at once. Safe from any thread, without the lock. */
void llane_lane_abort(struct llane_lane *lane);

/* Staging goes to the graveyard; the struct is freed. A half-built lane and NULL are allowed. */
void llane_lane_bury(struct llane_lane *lane);

#endif
