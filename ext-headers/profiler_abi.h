/*
 * NCCL's profiler plugin tables v1 - v6 in our own words. NCCL looks up the newest symbol it knows
 * ("ncclProfiler_v6", ...), and an error from init only turns the profiler off. *mask says, for the
 * whole process, which events NCCL tells; with 0 it never calls what stands between init and finalize.
 * NCCL 2.28 and later do not finalize a context that is NULL.
 *
 * Source: NCCL's public code, 2.23 - 2.30. Members must stay in this order; the assertions below hold
 * each at its place. Events are never asked for: their descriptions are void *, their enums int.
 */
#ifndef LLANE_PROFILER_ABI_H
#define LLANE_PROFILER_ABI_H

#include "nccl_abi.h"

#define LLANE_PROFILER_EVENTS                                                                      \
    ncclResult_t (*start_event)(void *ctx, void **event, void *description);                       \
    ncclResult_t (*stop_event)(void *event);                                                       \
    ncclResult_t (*record_event_state)(void *event, int state, void *args);                        \
    ncclResult_t (*finalize)(void *ctx)

/* NCCL 2.23; v2 (2.24) and v3 (2.26) differ in the events' descriptions alone. */
struct llane_profiler_v1 {
    const char *name;
    ncclResult_t (*init)(void **ctx, int *mask);
    LLANE_PROFILER_EVENTS;
};

/* NCCL 2.27. comm_hash is equal on all ranks; comm_name is ncclConfig_t's, or NULL. */
struct llane_profiler_v4 {
    const char *name;
    ncclResult_t (*init)(void **ctx, int *mask, const char *comm_name, uint64_t comm_hash,
                         int n_nodes, int n_ranks, int rank, llane_nccl_logger logger);
    LLANE_PROFILER_EVENTS;
};

/* NCCL 2.28; v6 (2.29) knows more events. comm_id is the number that tuner v5 gets, v4's comm_hash. */
struct llane_profiler_v5 {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t comm_id, int *mask, const char *comm_name,
                         int n_nodes, int n_ranks, int rank, llane_nccl_logger logger);
    LLANE_PROFILER_EVENTS;
};
#undef LLANE_PROFILER_EVENTS

#define LLANE_ABI_PROFILER(type)                                                                   \
    _Static_assert(offsetof(struct type, name) == 0 * sizeof(void *), #type ".name");              \
    _Static_assert(offsetof(struct type, init) == 1 * sizeof(void *), #type ".init");              \
    _Static_assert(offsetof(struct type, start_event) == 2 * sizeof(void *), #type ".start");      \
    _Static_assert(offsetof(struct type, stop_event) == 3 * sizeof(void *), #type ".stop");        \
    _Static_assert(offsetof(struct type, record_event_state) == 4 * sizeof(void *),                \
                   #type ".record");                                                               \
    _Static_assert(offsetof(struct type, finalize) == 5 * sizeof(void *), #type ".finalize");      \
    _Static_assert(sizeof(struct type) == 6 * sizeof(void *), #type)
LLANE_ABI_PROFILER(llane_profiler_v1);
LLANE_ABI_PROFILER(llane_profiler_v4);
LLANE_ABI_PROFILER(llane_profiler_v5);
#undef LLANE_ABI_PROFILER

#endif
