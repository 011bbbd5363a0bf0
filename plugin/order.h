/*
 * order: operations of one communicator run in the order the host issued them, across streams and
 * across graphs, as NCCL's do. It is kept from the communicator's first all-reduce on, before the lane
 * is there: a graph captured then may be replayed when it is.
 *
 * Owns: the events, which are never destroyed, since graphs outlive communicators: given back, they
 * are taken by another communicator once no graph uses them.
 * Threads: the caller holds the communicator's lock; events_take and events_give by any thread.
 * Blocking: no. Errors: LLANE_EGPU, LLANE_ENOMEM. After a failed before() nothing was launched.
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

/* Captures that are kept apart, those of the latest operations; when one has ended is not known. What
 * comes in a forgotten one is ordered as if it were another graph's. */
enum { LLANE_ORDER_CAPTURES = 4 };

struct llane_order_events {
    struct CUevent_st *last_op;                            /* eager or replayed */
    struct CUevent_st *captured_ops[LLANE_ORDER_CAPTURES]; /* the last ones of captures under way */
    /* Graphs that use them, and what their kernels use; where the driver cannot tell that a graph is
     * gone, it counts for good. */
    _Atomic int n_graphs;
    int device;
    uint64_t context; /* llane_gpu_context_id of it then */
    struct llane_order_events *next;
};

struct llane_order_capture {
    uint64_t id;                /* 0: never used */
    struct CUevent_st *last_op; /* the capture's last operation, or what its first waits for */
    void *node;                 /* as what last_op was captured; NULL: as several, or none */
    void *record_node;
    void *last_launch; /* the lane's: llane_order_chain */
    uint64_t last_use; /* as n_uses was then; 0: never */
};

struct llane_order {
    struct llane_order_events *events;
    int is_graph_ordered;
    uint64_t last_stream;     /* see llane_gpu_stream_id */
    int has_last;             /* last_op was recorded eagerly on last_stream */
    int was_captured;         /* a replay may record last_op on any stream: always wait */
    uint64_t current_capture; /* of the operation between before() and after(); 0: eager */
    uint64_t current_stream;  /* likewise, eager alone */
    struct llane_order_capture captures[LLANE_ORDER_CAPTURES];
    uint64_t n_uses; /* of captures; the entry not used for longest makes room */
};

int llane_order_events_take(int device, struct llane_order_events **out);
/* NULL is allowed. */
void llane_order_events_give(struct llane_order_events *events);
/* The last operation has ended, and no graph can begin another. On the current device. */
int llane_order_events_are_idle(struct llane_order_events *events);

void llane_order_init(struct llane_order *order, struct llane_order_events *events,
                      int is_graph_ordered);
/* 1 once an operation was entered. */
int llane_order_has_begun(const struct llane_order *order);

int llane_order_before(struct llane_order *order, struct CUstream_st *stream);
/* Between the two: where the lane's last launch in the capture under way stands, for struct
 * llane_gpu_launch. NULL: eager. */
void **llane_order_chain(struct llane_order *order);
int llane_order_after(struct llane_order *order, struct CUstream_st *stream);

/*
 * Around an operation that NCCL carries. The current device may be another one, which is left as it
 * was, and the lock may be given up between the two.
 */
int llane_order_before_nccl(struct llane_order *order, struct CUstream_st *stream);
int llane_order_after_nccl(struct llane_order *order, struct CUstream_st *stream);

#endif
