#include "order.h"

#include <string.h>

void llane_order_init(struct llane_order *order, struct CUevent_st *last_op,
                      struct CUevent_st *const *captured_ops, int is_graph_ordered,
                      const struct llane_order_keeper *keeper)
{
    memset(order, 0, sizeof *order);
    order->last_op = last_op;
    order->is_graph_ordered = is_graph_ordered;
    order->keeper = *keeper;
    for (int i = 0; i < LLANE_ORDER_CAPTURES; i++) {
        order->captures[i].last_op = captured_ops[i];
    }
}

static struct llane_order_capture *find_capture(struct llane_order *order, uint64_t id)
{
    struct llane_order_capture *c = order->captures;
    while (c < order->captures + LLANE_ORDER_CAPTURES && c->id != id) {
        c++;
    }
    return c < order->captures + LLANE_ORDER_CAPTURES ? c : NULL;
}

/* The first operation of a capture: its entry, and what it hangs on. */
static int begin_capture(struct llane_order *order, struct CUstream_st *stream, uint64_t id)
{
    const struct llane_order_keeper *keeper = &order->keeper;
    struct llane_order_capture *c = &order->captures[order->n_captures % LLANE_ORDER_CAPTURES];
    /* Whatever was recorded before, also by a replay of another graph, has to end first, at every
     * replay of this one. */
    int err = order->is_graph_ordered ? llane_gpu_capture_wait_external(stream, order->last_op) : 0;
    if (!err) {
        /* A group asks for another stream's place before its first operation is done, and NCCL may
         * refuse that one: what comes next waits for what this one waits for. */
        err = llane_gpu_event_record(c->last_op, stream);
    }
    if (err) {
        return err;
    }
    order->n_captures++;
    c->id = id;
    c->stream = order->current_stream;
    c->record_node = NULL;
    c->last_launch = NULL;
    order->was_captured = 1;
    keeper->retain(keeper->arg);
    /* Failing, it is kept for good: nothing to report, the operation is as right as before. */
    (void)llane_gpu_capture_retain(stream, keeper->release, keeper->arg);
    return 0;
}

/* Is that the stream of the operation under way? 0 is a stream that the driver cannot tell. */
static int is_current(const struct llane_order *order, uint64_t stream)
{
    return stream && stream == order->current_stream;
}

static int before_in_capture(struct llane_order *order, struct CUstream_st *stream)
{
    const struct llane_order_capture *c = find_capture(order, order->current_capture);
    if (!c) {
        return begin_capture(order, stream, order->current_capture);
    }
    return is_current(order, c->stream) ? 0 : llane_gpu_stream_wait_event(stream, c->last_op);
}

int llane_order_has_begun(const struct llane_order *order)
{
    return order->has_last || order->was_captured;
}

static int look(struct llane_order *order, struct CUstream_st *stream)
{
    order->current_stream = llane_gpu_stream_id(stream);
    return llane_gpu_capture_id(stream, &order->current_capture);
}

int llane_order_before(struct llane_order *order, struct CUstream_st *stream)
{
    int err = look(order, stream);
    if (err) {
        return err;
    }
    if (order->current_capture) {
        return before_in_capture(order, stream);
    }
    if ((order->was_captured && order->is_graph_ordered) ||
        (order->has_last && !is_current(order, order->last_stream))) {
        return llane_gpu_stream_wait_event(stream, order->last_op);
    }
    return 0;
}

void **llane_order_chain(struct llane_order *order)
{
    struct llane_order_capture *c =
        order->current_capture ? find_capture(order, order->current_capture) : NULL;
    return c ? &c->last_launch : NULL;
}

static int after_in_capture(struct llane_order *order, struct CUstream_st *stream)
{
    struct llane_order_capture *c = find_capture(order, order->current_capture);
    int err = c ? llane_gpu_event_record(c->last_op, stream) : 0;
    if (err || !c) {
        return err;
    }
    c->stream = order->current_stream;
    if (!order->is_graph_ordered) {
        return 0;
    }
    return c->record_node
               ? llane_gpu_capture_record_extend(stream, c->record_node)
               : llane_gpu_capture_record_external(stream, order->last_op, &c->record_node);
}

int llane_order_after(struct llane_order *order, struct CUstream_st *stream)
{
    if (order->current_capture) {
        return after_in_capture(order, stream);
    }
    int err = llane_gpu_event_record(order->last_op, stream);
    if (!err) {
        order->last_stream = order->current_stream;
        order->has_last = 1;
    }
    return err;
}

int llane_order_after_others(struct llane_order *order, struct CUstream_st *stream)
{
    int err = look(order, stream);
    return err ? err : llane_order_after(order, stream);
}
