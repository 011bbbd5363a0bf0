/*
 * The fake NCCL's own types: a libnccl.so.2 for machines without a GPU, on the emulation of
 * tests/emu_gpu. It obeys NCCL's rules where llane can see them (loading of plugins, symbols, order
 * of checks, groups, order on a communicator, capture) and is plain everywhere else: data goes
 * through shared memory by chunks, sums are made in rank order on the host.
 *
 * Environment: FAKE_NCCL_VERSION (2.28.9) chooses the version whose rules hold, FAKE_NCCL_TRACE
 * names a file that gets one line a data call. NCCL's own: NCCL_{TUNER,NET,ENV,PROFILER}_PLUGIN,
 * NCCL_DEBUG, NCCL_DEBUG_FILE, NCCL_HOSTID, NCCL_CHECK_POINTERS, NCCL_GRAPH_MIXING_SUPPORT.
 */
#ifndef FAKE_NCCL_FAKE_H
#define FAKE_NCCL_FAKE_H

#include "gpu.h"
#include "nccl_client.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

/*
 * Defines a call as NCCL does: pncclX global, ncclX weak, one address. Within the library, calls go
 * to pncclX's hidden body or, where NCCL itself goes through its PLT, to ncclX.
 */
#define FAKE_EXPORT __attribute__((visibility("default")))
#define FAKE_API(type, name, params)                                                               \
    FAKE_EXPORT type nccl##name params __attribute__((weak, alias("pnccl" #name)));                \
    FAKE_EXPORT type pnccl##name params

enum { FAKE_CAPTURES = 4, FAKE_SHRUNK_SETS = 64 };
enum { FAKE_MAX_RANKS = 64, FAKE_N_TYPES = 12, FAKE_MAX_USER_OPS = 64 };

/* Polling another process: give the core away, then sleep shortly. */
static inline void fake_pause(unsigned *n_polls)
{
    if (++*n_polls < 500) {
        sched_yield();
        return;
    }
    struct timespec t = {.tv_nsec = 50000};
    nanosleep(&t, NULL);
}

/* ---- version.c: version, log, environment ---- */
enum { FAKE_LOG_VERSION = 1, FAKE_LOG_WARN = 2, FAKE_LOG_INFO = 3, FAKE_LOG_TRACE = 5 };
int fake_version(void); /* 22809 is 2.28.9 */
/* The logger that plugins are given. */
__attribute__((format(printf, 5, 6))) void
fake_log(int level, unsigned long flags, const char *file, int line, const char *fmt, ...);
#define FAKE_WARN(...) fake_log(FAKE_LOG_WARN, ~0ul, __FILE__, __LINE__, __VA_ARGS__)
#define FAKE_INFO(...) fake_log(FAKE_LOG_INFO, ~0ul, __FILE__, __LINE__, __VA_ARGS__)

/* ---- segment.c: the shared memory of one communicator ---- */
struct fake_chunk_head {
    uint32_t call, type, op, root;
    uint64_t count;
};
enum { FAKE_CHUNK_BYTES = 64 * 1024, FAKE_P2P_BYTES = 8 * 1024, FAKE_DEPTH = 2 };
/* A rank's record; each counter is written by that rank alone, released, and acquired by the others. */
struct fake_rank {
    _Atomic uint64_t posted;          /* collective steps whose chunk is in place */
    _Atomic uint64_t exchange_posted; /* host exchanges begun ... */
    _Atomic uint64_t exchange_read;   /* ... and over */
    _Atomic uint32_t attached;
    uint32_t unused;
    uint64_t host_hash;
    int32_t exchange[2];
    uint8_t pad[128 - 48];
};
struct fake_chunk {
    struct fake_chunk_head head;
    _Alignas(64) uint8_t data[FAKE_CHUNK_BYTES];
};
/* One direction of a pair: a ring of FAKE_DEPTH pieces. */
struct fake_channel {
    _Atomic uint64_t written; /* by the sender, released; acquired by the receiver */
    _Atomic uint64_t read;    /* by the receiver, released; acquired by the sender */
    uint32_t bytes[FAKE_DEPTH];
    uint8_t pad[64 - 16 - 4 * FAKE_DEPTH];
    uint8_t data[FAKE_DEPTH][FAKE_P2P_BYTES];
};
struct fake_segment {
    int fd, rank, n_ranks, n_nodes;
    size_t bytes;
    struct fake_rank *ranks;
    struct fake_chunk *chunks;     /* [rank][FAKE_DEPTH] */
    struct fake_channel *channels; /* [source][destination] */
    void *base;
};
/*
 * Blocks until all n_ranks joined under this id, `abort` is raised (ncclInternalError) or a rank
 * that had joined died (ncclRemoteError). The file is unlinked before it returns.
 */
ncclResult_t fake_segment_join(uint64_t id, int rank, int n_ranks, const atomic_int *abort,
                               struct fake_segment *out);
void fake_segment_leave(struct fake_segment *segment);
/* All ranks learn all ranks' pairs; the n-th call of a rank meets the n-th of the others. */
ncclResult_t fake_segment_exchange(struct fake_segment *segment, uint64_t n, const int in[2],
                                   const atomic_int *abort, int (*out)[2]);

/* ---- operations ---- */
enum fake_call {
    FAKE_BROADCAST = 0, /* the first five carry the numbers that tuners see */
    FAKE_REDUCE = 1,
    FAKE_ALL_GATHER = 2,
    FAKE_REDUCE_SCATTER = 3,
    FAKE_ALL_REDUCE = 4,
    FAKE_SEND,
    FAKE_RECV,
};
struct fake_op {
    enum fake_call call;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* or the peer */
    bool is_premul;
    uint8_t scalar[8];         /* of type `type` ... */
    const void *scalar_device; /* ... or here, read when the work runs; else NULL */
    cudaStream_t stream;
    struct fake_op *next;
};

/*
 * What running work needs of a communicator. Captured work may run after the communicator is gone:
 * the last of its graphs then frees the link.
 */
struct fake_link {
    struct fake_segment segment;
    uint64_t id;
    atomic_int abort;     /* raised by the API, seen by every wait */
    atomic_int in_flight; /* eager launches not yet over */
    atomic_int busy;      /* work of this rank is running: a second is an error of the ordering */
    atomic_int n_holders; /* the communicator, and each captured work */
    uint64_t step;        /* collective steps run; only the running work touches it */
};
struct fake_work {
    struct fake_link *link;
    struct fake_op *ops; /* one collective, or the sends and receives of a group */
};
/* move.c. Both run on the stream's worker. */
void fake_work_run(void *work);
/* Of eager work, once its stream says that it is over: until then ncclCommDestroy waits, as NCCL's does. */
void fake_work_end(void *work);
void fake_work_free(struct fake_work *work);
/* comm.c */
void fake_link_release(struct fake_link *link);
const char *fake_call_name(enum fake_call call);

/* ---- reduce.c ---- */
size_t fake_type_bytes(ncclDataType_t type);
const char *fake_type_name(ncclDataType_t type);
bool fake_type_is_float(ncclDataType_t type);
/* Combines n contributions of count elements in rank order; `to` may be none of them. */
void fake_reduce(const struct fake_op *op, const void *const *from, int n, size_t count, void *to);
/* PreMulSum: each rank multiplies what it contributes by its own scalar. */
void fake_scale(const struct fake_op *op, const void *scalar, size_t count, void *data);

/* ---- comm.c ---- */
struct fake_user_op {
    bool is_used;
    ncclDataType_t type;
    uint8_t scalar[8];
    const void *scalar_device;
};
struct ncclComm {
    uint64_t start_magic;
    int n_ranks, rank, device, cc;
    uint64_t id;
    uint64_t hash; /* what plugins get; as in NCCL the same for all that one parent was shrunk to */
    struct fake_link *link;
    atomic_int state; /* ncclInProgress, then the result of creation; the asynchronous error */
    atomic_int is_revoked;
    bool is_blocking, is_finalized;
    char name[128];               /* the config's commName */
    bool is_sharing;              /* children made by ncclCommSplit share its resources */
    bool is_shrink_sharing;       /* those by ncclCommShrink, but for an abort */
    bool has_job;                 /* a background creation to be joined */
    struct ncclComm *shares_with; /* the parent whose order it keeps; ended after this one */
    atomic_int is_suspended;
    atomic_int n_launching; /* non-blocking groups' threads that are at it */
    pthread_t job;
    /* Host exchanges and children, numbered in the order of the calls. */
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t n_exchanges_issued, n_exchanges_done, n_children, n_grown;
    struct {
        uint64_t set, n;
    } shrunk_sets[FAKE_SHRUNK_SETS]; /* who was left, and how often */
    uint64_t n_shrunk_sets;
    struct fake_user_op user_ops[FAKE_MAX_USER_OPS];
    /* stream.c, under `lock` */
    struct CUevent_st *order, *join;
    bool has_order, is_ordered_by_graph;
    cudaStream_t last_stream;
    struct fake_capture {
        uint64_t id;
        void *node;
        struct CUevent_st *order; /* its last operation */
        cudaStream_t stream;      /* where that is */
    } captures[FAKE_CAPTURES];    /* under way at once; the oldest makes room */
    unsigned n_captures;
    /* loader.c; the tuner is given the address of tuner_context */
    const struct fake_tuner *tuner;
    void *tuner_context;
    const struct fake_profiler *profiler;
    void *profiler_context;
    bool has_net;
    uint64_t end_magic;
};
/* ncclSuccess, or why the communicator takes no calls. */
ncclResult_t fake_comm_check(const struct ncclComm *comm);
/* NULL or not a communicator. */
bool fake_comm_is_valid(const struct ncclComm *comm);
/* The object alone: no ranks, no plugins. */
struct ncclComm *fake_comm_new(int device);
void fake_comm_free(struct ncclComm *comm);
/* What runs leaves at the abort flag; afterwards the communicator is as it was. */
void fake_comm_stop_work(struct ncclComm *comm);
/* Waits until nothing of this communicator runs. */
void fake_comm_drain(struct ncclComm *comm);

/* ---- stream.c: issue order on a communicator, streams, capture ---- */
/* Takes the ops: one collective or a list of sends and receives. */
ncclResult_t fake_launch(struct ncclComm *comm, struct fake_op *ops);

/* ---- group.c ---- */
struct fake_job {
    ncclResult_t (*run)(struct fake_job *job);
    struct ncclComm *comm, *parent;
    uint64_t id;         /* the communicator's, where it is known before the job runs */
    uint64_t n_exchange; /* split: number of the exchange on the parent */
    uint64_t n_child;    /* split, shrink: number of the child */
    int color, key;
    int device;
    ncclResult_t result;
    pthread_t thread;
    struct fake_job *next;
};
void fake_group_begin(void);
/* Runs what was collected if this was the outermost group; `result` poisons the group. */
ncclResult_t fake_group_finish(ncclResult_t result);
bool fake_group_is_open(void);
void fake_group_add_job(struct fake_job *job);
/* ncclInvalidUsage unless all streams of a communicator in a group are in one capture or in none. */
ncclResult_t fake_group_check_capture(const struct ncclComm *comm, cudaStream_t stream);
void fake_group_add_op(struct ncclComm *comm, struct fake_op *op);

/* ---- loader.c: plugins, by the rules of the chosen version ---- */
ncclResult_t fake_env_load(void); /* once a process; an env plugin's error is fatal */
const char *fake_getenv(const char *name);
void fake_net_load(struct ncclComm *comm);
void fake_profiler_load(struct ncclComm *comm);
ncclResult_t fake_tuner_load(struct ncclComm *comm);
ncclResult_t fake_tuner_ask(struct ncclComm *comm, const struct fake_op *op);
void fake_plugins_unload(struct ncclComm *comm);

#endif
