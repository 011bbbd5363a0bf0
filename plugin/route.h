/*
 * route: lane or NCCL, for one all-reduce on a communicator whose lane is live, and which kernel of
 * what width if lane. Pure: the answers depend on facts that are the same on every rank, and on
 * nothing else. Pointers, alignment, streams and local errors are not among them.
 */
#ifndef LLANE_ROUTE_H
#define LLANE_ROUTE_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "nccl_abi.h"
#include "table.h"
#include "tuning.h"

/* Widths of a block whose capacity is told apart: LLANE_MIN_THREADS << w threads. A block of another
 * width counts as one of the next. */
enum { LLANE_N_WIDTHS = 4 };
/* LLANE_MEMORY. */
enum llane_memory_mode { LLANE_MEMORY_AUTO, LLANE_MEMORY_P2P_ALONE, LLANE_MEMORY_HOST_ALONE };

/* Agreed by all ranks at set-up. The first group is rank 0's configuration. */
struct llane_route_limits {
    uint64_t min_bytes, max_bytes;
    uint64_t chunk_bytes;         /* ring: of half a shard; 0: all of it */
    uint32_t algorithm, packet;   /* 0: by size; else 1 + enum llane_algorithm, llane_packet */
    uint32_t n_blocks, n_threads; /* 0: by size */
    uint32_t sleeps;              /* between two looks of a poll loop */
    uint32_t ab;                  /* enum llane_ab_mode */
    uint32_t memory_mode;         /* enum llane_memory_mode */

    uint32_t n_ranks, max_blocks;
    /* Blocks of each width that fit beside the other ranks' on a GPU: of all launches at once. */
    uint32_t fit[LLANE_N_WIDTHS];
    uint32_t has_host_pairs; /* some ranks reach each other through host memory alone */
    uint32_t has_float8; /* every rank's GPU is of compute capability 9.0 or later, as NCCL asks */

    enum llane_memory memory; /* these: see struct llane_model_machine */
    uint32_t ranks_per_gpu, n_sockets, generation;
    struct llane_tuning tuning; /* rank 0's */
};

/* Where a call went and why; X(name, text for statistics). */
#define LLANE_ROUTES(X)                                                                            \
    X(LANE, "lane")                                                                                \
    X(EMPTY, "count is 0")                                                                         \
    X(TOO_SMALL, "below LLANE_MIN_BYTES")                                                          \
    X(TOO_LARGE, "above LLANE_MAX_BYTES")                                                          \
    X(SLOWER, "NCCL is faster at this size")                                                       \
    X(DATATYPE, "datatype not carried")                                                            \
    X(OPERATION, "operation not carried")                                                          \
    X(AB_TURN, "NCCL's turn by LLANE_AB")                                                          \
    X(AB_SHADOW, "with the lane beside it by LLANE_AB")                                            \
    X(AB_CAPTURED, "captured, under LLANE_AB=shadow")                                              \
    X(SETTING_UP, "lane not live yet")                                                             \
    X(INACTIVE, "no lane on this communicator")

enum llane_route {
#define LLANE_ROUTE_MEMBER(name, text) LLANE_ROUTE_##name,
    LLANE_ROUTES(LLANE_ROUTE_MEMBER)
#undef LLANE_ROUTE_MEMBER
        LLANE_N_ROUTES
};

const char *llane_route_text(enum llane_route route);

/* Size of one element, 0 for a datatype that this version does not know. */
size_t llane_route_type_bytes(ncclDataType_t datatype);

enum llane_route llane_route_choose(const struct llane_route_limits *limits, size_t count,
                                    ncclDataType_t datatype, ncclRedOp_t op);

struct llane_plan {
    enum llane_type type;
    enum llane_kernel_op op;
    enum llane_algorithm algorithm;
    enum llane_packet packet;
    uint32_t n_blocks, n_threads;
    uint32_t chunk_packets; /* table.h */
};

/* For a call that llane_route_choose gave to the lane. */
struct llane_plan llane_route_plan(const struct llane_route_limits *limits, size_t count,
                                   ncclDataType_t datatype, ncclRedOp_t op);

/* "one-shot LL" and the like. */
const char *llane_plan_text(const struct llane_plan *plan);

/*
 * limits->tuning where it says DEFAULT: what the model finds best, for each bucket, or NCCL where the
 * model finds NCCL faster by a margin. Forced by name, the algorithm or packet is never NCCL's.
 */
void llane_route_fill_defaults(struct llane_route_limits *limits);

/* By the model. */
double llane_route_lane_us(const struct llane_route_limits *limits, enum llane_algorithm algorithm,
                           enum llane_packet packet, uint64_t bytes);
double llane_route_nccl_us(const struct llane_route_limits *limits, uint64_t bytes);

/*
 * What is worth measuring for a bucket: kernels for float32, several widths each, no two alike.
 * usable_out: for each class a bit for each candidate; default_out: which one the model would take.
 * Returns how many.
 */
int llane_route_candidates(const struct llane_route_limits *limits, uint32_t bucket,
                           struct llane_tuning_choice out[LLANE_TUNING_CANDIDATES],
                           uint32_t usable_out[LLANE_TUNING_CLASSES],
                           int default_out[LLANE_TUNING_CLASSES]);

/*
 * Blocks that all of a lane's launches on one GPU may have there at once, beside those of the other ranks.
 * A GPU that a rank has alone holds other communicators' lanes beside this one, whose ranks may be served
 * in another order on each GPU: two launches, the second one early, take no more than one may.
 */
uint32_t llane_route_fit(uint32_t n_sms, uint32_t blocks_per_sm, uint32_t n_sharing);
/* 1 if every entry names kernels that exist and messages that fit their slots: for tables read. */
int llane_route_can_use(const struct llane_route_limits *limits, const struct llane_tuning *tuning);

/* Bytes of a slot's generation that the largest call of a packet family needs. */
uint64_t llane_route_slot_bytes(const struct llane_route_limits *limits, enum llane_packet packet);
/* The same for a slot in host memory. */
uint64_t llane_route_shared_slot_bytes(const struct llane_route_limits *limits,
                                       enum llane_packet packet);

#endif
