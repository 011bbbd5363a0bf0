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
 * deadlock.) In a capture: one external wait on last_op before the first operation, captured_op
 * after each (no node), and one external record of last_op that depends on all of them.
 */
#ifndef LLANE_ORDER_H
#define LLANE_ORDER_H

#include <stdint.h>

#include "gpu.h"

struct llane_order {
    struct CUevent_st *last_op, *captured_op;
    struct CUstream_st *last_stream;
    int has_last;        /* last_op was recorded eagerly on last_stream */
    int was_captured;    /* a replay may record last_op on any stream: always wait */
    uint64_t current_capture; /* of the operation between before() and after(); 0: eager */
    uint64_t capture_id; /* of the capture that captured_op and record_node belong to */
    struct CUstream_st *capture_stream;
    void *record_node;
};

void llane_order_init(struct llane_order *order, struct CUevent_st *last_op,
                      struct CUevent_st *captured_op);
int llane_order_before(struct llane_order *order, struct CUstream_st *stream);
int llane_order_after(struct llane_order *order, struct CUstream_st *stream);

#endif
