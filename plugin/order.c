#include "order.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "err.h"

static pthread_mutex_t unused_lock = PTHREAD_MUTEX_INITIALIZER;
static struct llane_order_events *unused; /* under unused_lock */

/* ---- events ---- */

static struct llane_order_events *take_unused(int device)
{
    uint64_t context = llane_gpu_context_id(device);
    pthread_mutex_lock(&unused_lock);
    struct llane_order_events **link = &unused;
    /* Acquire pairs with release_graph: the graph has recorded for the last time. */
    while (*link && ((*link)->device != device || (*link)->context != context ||
                     atomic_load_explicit(&(*link)->n_graphs, memory_order_acquire))) {
        link = &(*link)->next;
    }
    struct llane_order_events *found = *link;
    if (found) {
        *link = found->next;
    }
    pthread_mutex_unlock(&unused_lock);
    return found;
}

static int create(struct llane_order_events *events)
{
    int err = llane_gpu_event_create(0, &events->last_op);
    for (int i = 0; i < LLANE_ORDER_CAPTURES && !err; i++) {
        err = llane_gpu_event_create(0, &events->captured_ops[i]);
    }
    return err;
}

int llane_order_events_take(int device, struct llane_order_events **out)
{
    *out = take_unused(device);
    if (*out) {
        return 0;
    }
    struct llane_order_events *events = calloc(1, sizeof *events);
    int previous;
    int err = events ? llane_device_enter(device, &previous) : LLANE_ENOMEM;
    if (!err) {
        events->device = device;
        err = llane_device_leave(device, previous, create(events));
        events->context = llane_gpu_context_id(device); /* now there is one */
    }
    if (err) {
        free(events); /* what was created stays: nothing is freed on the way */
        return err;
    }
    *out = events;
    return 0;
}

void llane_order_events_give(struct llane_order_events *events)
{
    if (events) {
        pthread_mutex_lock(&unused_lock);
        events->next = unused;
        unused = events;
        pthread_mutex_unlock(&unused_lock);
    }
}

int llane_order_events_are_idle(struct llane_order_events *events)
{
    int is_done = 0;
    /* Acquire pairs with release_graph: the graph's last kernel has ended. */
    return !atomic_load_explicit(&events->n_graphs, memory_order_acquire) &&
           !llane_gpu_event_query(events->last_op, &is_done) && is_done;
}

/* By a thread of the driver's, perhaps: no call of the runtime's here. */
static void release_graph(void *arg)
{
    struct llane_order_events *events = arg;
    /* Release pairs with the acquires above. */
    atomic_fetch_sub_explicit(&events->n_graphs, 1, memory_order_release);
}

/* ---- order ---- */

void llane_order_init(struct llane_order *order, struct llane_order_events *events,
                      int is_graph_ordered)
{
    memset(order, 0, sizeof *order);
    order->events = events;
    order->is_graph_ordered = is_graph_ordered;
    for (int i = 0; i < LLANE_ORDER_CAPTURES; i++) {
        order->captures[i].last_op = events->captured_ops[i];
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

static struct llane_order_capture *capture_unused_longest(struct llane_order *order)
{
    struct llane_order_capture *longest = order->captures;
    for (int i = 1; i < LLANE_ORDER_CAPTURES; i++) {
        struct llane_order_capture *c = &order->captures[i];
        longest = c->last_use < longest->last_use ? c : longest;
    }
    return longest;
}

/* What the stream has captured so far becomes what the capture's next operation comes after. */
static int enter_in_capture(struct llane_order *order, struct llane_order_capture *c,
                            struct CUstream_st *stream)
{
    c->last_use = ++order->n_uses;
    int err = llane_gpu_event_record(c->last_op, stream);
    return err ? err : llane_gpu_capture_node(stream, &c->node);
}

/* The first operation of a capture: its entry, and what it hangs on. */
static int begin_capture(struct llane_order *order, struct CUstream_st *stream, uint64_t id)
{
    struct llane_order_capture *c = capture_unused_longest(order);
    /* Whatever was recorded before, also by a replay of another graph, has to end first, at every
     * replay of this one. */
    int err = order->is_graph_ordered
                  ? llane_gpu_capture_wait_external(stream, order->events->last_op)
                  : 0;
    if (!err) {
        /* A group asks for another stream's place before its first operation is done, and NCCL may
         * refuse that one: what comes next waits for what this one waits for. */
        err = enter_in_capture(order, c, stream);
    }
    if (err) {
        return err;
    }
    c->id = id;
    c->record_node = NULL;
    c->last_launch = NULL;
    order->was_captured = 1;
    atomic_fetch_add_explicit(&order->events->n_graphs, 1, memory_order_relaxed);
    /* Failing, they are kept for good: nothing to report, the operation is as right as before. */
    (void)llane_gpu_capture_retain(stream, release_graph, order->events);
    return 0;
}

/*
 * No wait where the stream comes after the last operation anyway: edges that say it twice would cost
 * every replay. The handles of streams say nothing here: one that a capture has taken in may be
 * destroyed before its end, and its handle given to another.
 */
static int before_in_capture(struct llane_order *order, struct CUstream_st *stream)
{
    const struct llane_order_capture *c = find_capture(order, order->current_capture);
    if (!c) {
        return begin_capture(order, stream, order->current_capture);
    }
    int is_behind = 0;
    int err = c->node ? llane_gpu_capture_is_behind(stream, c->node, &is_behind) : 0;
    return err || is_behind ? err : llane_gpu_stream_wait_event(stream, c->last_op);
}

int llane_order_has_begun(const struct llane_order *order)
{
    return order->has_last || order->was_captured;
}

static int look(struct llane_order *order, struct CUstream_st *stream)
{
    int err = llane_gpu_capture_id(stream, &order->current_capture);
    order->current_stream = err || order->current_capture ? 0 : llane_gpu_stream_id(stream);
    return err;
}

/* The last eager operation was on the stream of this one. 0 is a stream that the driver cannot tell. */
static int is_on_last_stream(const struct llane_order *order)
{
    return order->last_stream && order->last_stream == order->current_stream;
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
        (order->has_last && !is_on_last_stream(order))) {
        return llane_gpu_stream_wait_event(stream, order->events->last_op);
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
    int err = c ? enter_in_capture(order, c, stream) : 0;
    if (err || !c || !order->is_graph_ordered) {
        return err;
    }
    return c->record_node
               ? llane_gpu_capture_record_extend(stream, c->record_node)
               : llane_gpu_capture_record_external(stream, order->events->last_op, &c->record_node);
}

int llane_order_after(struct llane_order *order, struct CUstream_st *stream)
{
    if (order->current_capture) {
        return after_in_capture(order, stream);
    }
    int err = llane_gpu_event_record(order->events->last_op, stream);
    if (!err) {
        order->last_stream = order->current_stream;
        order->has_last = 1;
    }
    return err;
}

int llane_order_before_nccl(struct llane_order *order, struct CUstream_st *stream)
{
    int device = order->events->device, previous;
    int err = llane_device_enter(device, &previous);
    return err ? err : llane_device_leave(device, previous, llane_order_before(order, stream));
}

int llane_order_after_nccl(struct llane_order *order, struct CUstream_st *stream)
{
    int device = order->events->device, previous;
    int err = llane_device_enter(device, &previous);
    if (err) {
        return err;
    }
    err = look(order, stream);
    return llane_device_leave(device, previous, err ? err : llane_order_after(order, stream));
}
