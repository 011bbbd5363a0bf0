#include "order.h"

#include <string.h>

void llane_order_init(struct llane_order *order, struct CUevent_st *last_op,
                      struct CUevent_st *captured_op)
{
    memset(order, 0, sizeof *order);
    order->last_op = last_op;
    order->captured_op = captured_op;
}

static int before_in_capture(struct llane_order *order, struct CUstream_st *stream, uint64_t id)
{
    if (order->capture_id != id) {
        /* First operation of this capture. Whatever was recorded before, also by a replay of
         * another graph, has to end first, at every replay of this one. */
        int err = llane_gpu_capture_wait_external(stream, order->last_op);
        if (!err) {
            order->was_captured = 1;
            order->capture_id = id;
            order->record_node = NULL;
            order->capture_stream = stream;
        }
        return err;
    }
    if (order->capture_stream != stream) {
        return llane_gpu_stream_wait_event(stream, order->captured_op);
    }
    return 0;
}

int llane_order_before(struct llane_order *order, struct CUstream_st *stream)
{
    int err = llane_gpu_capture_id(stream, &order->current_capture);
    if (err) {
        return err;
    }
    if (order->current_capture) {
        return before_in_capture(order, stream, order->current_capture);
    }
    if (order->was_captured || (order->has_last && order->last_stream != stream)) {
        return llane_gpu_stream_wait_event(stream, order->last_op);
    }
    return 0;
}

static int after_in_capture(struct llane_order *order, struct CUstream_st *stream)
{
    int err = llane_gpu_event_record(order->captured_op, stream);
    if (err) {
        return err;
    }
    order->capture_stream = stream;
    return order->record_node
               ? llane_gpu_capture_record_extend(stream, order->record_node)
               : llane_gpu_capture_record_external(stream, order->last_op, &order->record_node);
}

int llane_order_after(struct llane_order *order, struct CUstream_st *stream)
{
    if (order->current_capture) {
        return after_in_capture(order, stream);
    }
    int err = llane_gpu_event_record(order->last_op, stream);
    if (!err) {
        order->last_stream = stream;
        order->has_last = 1;
    }
    return err;
}
