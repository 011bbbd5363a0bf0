/*
 * client: what prog_allreduce is made of below its options: the members (ranks) that one thread
 * drives, their communicators, streams and buffers. Knows NCCL's client API and gpu.h alone, so it
 * runs on any libnccl.
 *
 * Errors: a failing call ends the process with its words (RANKS_CHECK).
 */
#ifndef LLANE_TEST_CLIENT_H
#define LLANE_TEST_CLIENT_H

#include "gpu.h"
#include "nccl_client.h"

#include <stdbool.h>

enum { CLIENT_MAX = 64, CLIENT_GUARD_BYTES = 64, CLIENT_POISON = 0xa5 };

enum client_kind {
    CLIENT_RANK,        /* ncclCommInitRank, ncclCommInitAll where one thread drives all */
    CLIENT_CONFIG,      /* ncclCommInitRankConfig */
    CLIENT_NONBLOCKING, /* the same with blocking = 0 */
    CLIENT_SCALABLE,    /* ncclCommInitRankScalable */
    CLIENT_SPLIT,       /* children of one more communicator, ranks in reverse order */
    CLIENT_HALVES,      /* children: even ranks, odd ranks */
};
enum client_end { CLIENT_DESTROY, CLIENT_FINALIZE, CLIENT_ABORT, CLIENT_LEAVE };

struct client_options {
    int counts[CLIENT_MAX], n_counts;
    int types[CLIENT_MAX], n_types;
    int ops[CLIENT_MAX], n_ops;
    int offsets[CLIENT_MAX], n_offsets; /* elements; rank r takes the r-th, round and round */
    int n_iterations, batch, n_streams, n_comms;
    int in_place; /* 0, 1, or 2: every second call */
    int n_threads, n_all, device, sleep_ms, skew_ms;
    bool is_graph, is_group, is_mixed;
    enum client_kind kind;
    const char *name; /* the config's commName */
    enum client_end end;
};

struct client_slot {
    uint8_t *in, *out; /* device memory, CLIENT_GUARD_BYTES before and behind what is used */
    uint8_t *host;
};
struct client_member {
    int rank, n_ranks, device, index;
    ncclComm_t parent, comms[CLIENT_MAX];
    int comm_rank[CLIENT_MAX], comm_size[CLIENT_MAX];
    struct CUstream_st *streams[CLIENT_MAX];
    struct CUevent_st *fork;
    struct CUgraph_st *captured;
    struct CUgraphExec_st *graph;
    struct client_slot *slots; /* 2 * batch: the second half is the eager calls of a mixed run */
    size_t slot_bytes;
};
/* The members that one thread drives. */
struct client_set {
    const struct client_options *options;
    struct client_member *members;
    int n_members;
    uint64_t n_calls;
    size_t n_wrong;
};

/* One id a communicator, alike on all ranks. */
void client_open(struct client_set *set, const ncclUniqueId *ids);
void client_close(struct client_set *set);
/* All iterations of one type, operation and count. */
void client_run(struct client_set *set, ncclDataType_t type, ncclRedOp_t op, size_t count);

#endif
