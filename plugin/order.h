/*
 * order: operations of one lane run in the order the host issued them, across streams and across
 * graphs, as NCCL's do.
 *
 * Owns: nothing but its own struct; the events belong to the lane's staging memory.
 * Threads: the caller holds the communicator's lock. Blocking: no.
 * Errors: LLANE_EGPU. After a failed before() nothing was launched.
 *
 * Eager: last_op is recorded after every operation and awaited by the next one on another stream.
 * (Recording it only when the stream changes would cover later work of that stream and can
 * deadlock.)
 *
 * In a capture: one external wait on last_op before the first operation, an event of the capture's
 * own after each (no node), and one external record of last_op that depends on all of them: two
 * nodes a graph, whatever number of operations it has. Without graph order (NCCL's graph mixing off,
 * LLANE_GRAPH_ORDER=0) there are none, and a graph's operations are ordered among themselves alone.
 */
#ifndef LLANE_ORDER_H
#define LLANE_ORDER_H

#include <stdint.h>

#include "gpu.h"

/* Captures of one lane that may be under way at once. One more, and operations of a forgotten one are
 * ordered as if it were a graph of its own. */
enum { LLANE_ORDER_CAPTURES = 4 };

struct llane_order_capture {
    uint64_t id;                /* 0: never used */
    struct CUevent_st *last_op; /* the capture's last operation, or what its first waits for */
    uint64_t stream;            /* where that was: an id, see llane_gpu_stream_id */
    void *record_node;
    void *last_launch; /* the lane's: llane_order_chain */
};

/* A graph keeps what its kernels use: retain(arg) at its first operation, release(arg), by any thread,
 * when it is gone; never, where the driver cannot tell. */
struct llane_order_keeper {
    void (*retain)(void *arg);
    void (*release)(void *arg);
    void *arg;
};

struct llane_order {
    struct CUevent_st *last_op;
    struct llane_order_keeper keeper;
    int is_graph_ordered;
    uint64_t last_stream;     /* an id, as above */
    int has_last;             /* last_op was recorded eagerly on last_stream */
    int was_captured;         /* a replay may record last_op on any stream: always wait */
    uint64_t current_capture; /* of the operation between before() and after(); 0: eager */
    uint64_t current_stream;  /* likewise */
    struct llane_order_capture captures[LLANE_ORDER_CAPTURES];
    uint32_t n_captures; /* begun so far; the oldest entry makes room */
};

void llane_order_init(struct llane_order *order, struct CUevent_st *last_op,
                      struct CUevent_st *const *captured_ops, int is_graph_ordered,
                      const struct llane_order_keeper *keeper);
/* 1 once an operation was entered. */
int llane_order_has_begun(const struct llane_order *order);

int llane_order_before(struct llane_order *order, struct CUstream_st *stream);
/* Between the two: where the lane's last launch in the capture under way stands, for struct
 * llane_gpu_launch. NULL: eager. */
void **llane_order_chain(struct llane_order *order);
int llane_order_after(struct llane_order *order, struct CUstream_st *stream);

/* after() where the lock was given up since before(). */
int llane_order_after_others(struct llane_order *order, struct CUstream_st *stream);

#endif
