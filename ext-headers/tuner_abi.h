/*
 * NCCL's tuner plugin tables v1 - v6 in our own words. NCCL looks up the newest symbol it knows
 * ("ncclTunerPlugin_v6", ...), keeps the pointer, and only reads the table.
 *
 * Members must stay in this order; the assertions below hold each at its place. A collective's kind
 * (ncclFunc_t) and all of NCCL's enums travel as int. What llane never looks into is a void *.
 */
#ifndef LLANE_TUNER_ABI_H
#define LLANE_TUNER_ABI_H

#include "nccl_abi.h"

/* NCCL 2.19, 2.20. One per process: no context. */
struct llane_tuner_v1 {
    const char *name;
    ncclResult_t (*init)(size_t n_ranks, size_t n_nodes, llane_nccl_logger logger);
    ncclResult_t (*get_coll_info)(int func, size_t n_bytes, int coll_net, int nvls, int n_pipe_ops,
                                  int *algo, int *proto, int *n_channels);
    ncclResult_t (*destroy)(void);
};

/* NCCL 2.21 and all later ones as a fallback. */
struct llane_tuner_v2 {
    const char *name;
    ncclResult_t (*init)(size_t n_ranks, size_t n_nodes, llane_nccl_logger logger, void **ctx);
    ncclResult_t (*get_coll_info)(void *ctx, int func, size_t n_bytes, int coll_net, int nvls,
                                  int n_pipe_ops, int *algo, int *proto, int *n_channels);
    ncclResult_t (*destroy)(void *ctx);
};

/* NCCL 2.22: a table of costs instead of one answer. */
struct llane_tuner_v3 {
    const char *name;
    ncclResult_t (*init)(size_t n_ranks, size_t n_nodes, llane_nccl_logger logger, void **ctx);
    ncclResult_t (*get_coll_info)(void *ctx, int func, size_t n_bytes, int n_pipe_ops,
                                  float **cost_table, int n_algos, int n_protos, int *n_channels);
    ncclResult_t (*destroy)(void *ctx);
};

/* NCCL 2.24: whether the user's buffers are registered. */
struct llane_tuner_v4 {
    const char *name;
    ncclResult_t (*init)(size_t n_ranks, size_t n_nodes, llane_nccl_logger logger, void **ctx);
    ncclResult_t (*get_coll_info)(void *ctx, int func, size_t n_bytes, int n_pipe_ops,
                                  float **cost_table, int n_algos, int n_protos, int reg_buff,
                                  int *n_channels);
    ncclResult_t (*destroy)(void *ctx);
};

/*
 * NCCL 2.28: the communicator's id, equal on all its ranks. nvl_domains points at three ints,
 * constants at NCCL's cost model, which a tuner may edit.
 */
struct llane_tuner_v5 {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t comm_id, size_t n_ranks, size_t n_nodes,
                         llane_nccl_logger logger, void *nvl_domains, void *constants);
    ncclResult_t (*get_coll_info)(void *ctx, int func, size_t n_bytes, int n_pipe_ops,
                                  float **cost_table, int n_algos, int n_protos, int reg_buff,
                                  int *n_channels);
    ncclResult_t (*finalize)(void *ctx);
};

/* NCCL 2.30: get_chunk_size may be NULL. */
struct llane_tuner_v6 {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t comm_id, size_t n_ranks, size_t n_nodes,
                         llane_nccl_logger logger, void *nvl_domains, void *constants);
    ncclResult_t (*get_coll_info)(void *ctx, int func, size_t n_bytes, int n_pipe_ops,
                                  float **cost_table, int n_algos, int n_protos, int reg_buff,
                                  int *n_channels);
    ncclResult_t (*finalize)(void *ctx);
    ncclResult_t (*get_chunk_size)(void *ctx, int func, size_t n_bytes, int algo, int proto,
                                   int n_channels, size_t *chunk_bytes);
};

#define LLANE_ABI_MEMBER(type, index, member)                                                      \
    _Static_assert(offsetof(struct type, member) == (index) * sizeof(void *), #type "." #member)
#define LLANE_ABI_TUNER(type, last)                                                                \
    LLANE_ABI_MEMBER(type, 0, name);                                                               \
    LLANE_ABI_MEMBER(type, 1, init);                                                               \
    LLANE_ABI_MEMBER(type, 2, get_coll_info);                                                      \
    LLANE_ABI_MEMBER(type, 3, last)
LLANE_ABI_TUNER(llane_tuner_v1, destroy);
LLANE_ABI_TUNER(llane_tuner_v2, destroy);
LLANE_ABI_TUNER(llane_tuner_v3, destroy);
LLANE_ABI_TUNER(llane_tuner_v4, destroy);
LLANE_ABI_TUNER(llane_tuner_v5, finalize);
LLANE_ABI_TUNER(llane_tuner_v6, finalize);
LLANE_ABI_MEMBER(llane_tuner_v6, 4, get_chunk_size);
#undef LLANE_ABI_TUNER
#undef LLANE_ABI_MEMBER

_Static_assert(sizeof(struct llane_tuner_v5) == 4 * sizeof(void *), "tuner v5 ends at finalize");
_Static_assert(sizeof(struct llane_tuner_v6) == 5 * sizeof(void *), "tuner v6 ends at chunk size");
_Static_assert(sizeof(ncclResult_t) == sizeof(int), "NCCL's enums are ints");

#endif
