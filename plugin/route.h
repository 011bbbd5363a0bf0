/*
 * route: lane or NCCL, for one all-reduce on a communicator whose lane is live. Pure: the answer
 * depends on facts that are the same on every rank, and on nothing else. Pointers, alignment,
 * streams and local errors are not among them.
 */
#ifndef LLANE_ROUTE_H
#define LLANE_ROUTE_H

#include <stddef.h>
#include <stdint.h>

#include "nccl_abi.h"

/* Agreed by all ranks at set-up: rank 0's values. */
struct llane_route_limits {
    uint64_t min_bytes, max_bytes;
};

/* Where a call went and why; X(name, text for statistics). */
#define LLANE_ROUTES(X)                                                                            \
    X(LANE, "lane")                                                                                \
    X(EMPTY, "count is 0")                                                                         \
    X(TOO_SMALL, "below LLANE_MIN_BYTES")                                                          \
    X(TOO_LARGE, "above LLANE_MAX_BYTES")                                                          \
    X(DATATYPE, "datatype not carried")                                                            \
    X(OPERATION, "operation not carried")                                                          \
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

/* Blocks and threads of a lane kernel: a function of the message and of agreed limits alone. */
struct llane_geometry {
    uint32_t n_blocks, n_threads;
};
struct llane_geometry llane_route_geometry(uint64_t bytes, uint32_t max_blocks);

#endif
