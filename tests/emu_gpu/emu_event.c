/*
 * Events. A record is a position of a stream (everything issued so far), so that it costs no
 * operation; only a timed event puts one into the stream, for its time.
 */
#define _GNU_SOURCE
#include "emu_internal.h"

#include <stdlib.h>
#include <unistd.h>

enum { EVENT_MAGIC = 0x45564e54 };

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUevent_st *all_events; /* never freed: a stale handle is recognised */

int emu_event_check(struct CUevent_st *event)
{
    if (!event || (uintptr_t)event % _Alignof(struct CUevent_st) != 0 ||
        event->magic != EVENT_MAGIC)
        return emu_error("%p is no event", (void *)event);
    pthread_mutex_lock(&event->mutex);
    bool destroyed = event->destroyed, lost = event->lost;
    pthread_mutex_unlock(&event->mutex);
    if (lost)
        emu_die("an event of a device that was reset: CUDA may crash here");
    return destroyed ? emu_error("the event has been destroyed") : 0;
}

int llane_gpu_event_create(int timed, struct CUevent_st **out)
{
    if (emu_current_physical() < 0 || emu_check_fail("event_create") ||
        (timed && emu_check_fail("timed_event_create")))
        return LLANE_EGPU;
    emu_wait_for_frees(emu_current_physical());
    struct CUevent_st *event = calloc(1, sizeof *event);
    if (!event)
        return emu_error("out of host memory");
    event->magic = EVENT_MAGIC;
    event->device = emu_current_device();
    event->timed = timed != 0;
    pthread_mutex_init(&event->mutex, NULL);
    pthread_mutex_lock(&all_lock);
    event->next_all = all_events;
    all_events = event;
    pthread_mutex_unlock(&all_lock);
    *out = event;
    return 0;
}

int llane_gpu_event_destroy(struct CUevent_st *event)
{
    if (emu_event_check(event))
        return LLANE_EGPU;
    pthread_mutex_lock(&event->mutex);
    event->destroyed = true;
    pthread_mutex_unlock(&event->mutex);
    return 0;
}

void emu_events_lose(int device)
{
    pthread_mutex_lock(&all_lock);
    for (struct CUevent_st *event = all_events; event; event = event->next_all) {
        pthread_mutex_lock(&event->mutex);
        event->lost = event->lost || event->device == device;
        pthread_mutex_unlock(&event->mutex);
    }
    pthread_mutex_unlock(&all_lock);
}

void emu_event_record_now(struct CUevent_st *event, struct CUstream_st *stream)
{
    pthread_mutex_lock(&event->mutex);
    event->recorded = true;
    event->capture_id = 0;
    event->ticket++;
    struct emu_op *op = event->timed ? emu_op_new(EMU_OP_STAMP, 0) : NULL;
    if (op) {
        op->u.stamp.event = event;
        op->u.stamp.ticket = event->ticket;
        event->last = emu_stream_push(stream, op);
    } else {
        event->last = emu_stream_position(stream);
    }
    pthread_mutex_unlock(&event->mutex);
}

void emu_event_stamp(struct CUevent_st *event, uint64_t ticket)
{
    uint64_t now = llane_emu_timer_ns();
    pthread_mutex_lock(&event->mutex);
    event->ns = now;
    event->stamped_ticket = ticket;
    pthread_mutex_unlock(&event->mutex);
}

int llane_gpu_event_record(struct CUevent_st *event, struct CUstream_st *handle)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream || emu_event_check(event) || emu_check_fail("event_record"))
        return LLANE_EGPU;
    if (event->device != stream->device)
        return emu_error("an event of device %d recorded on a stream of device %d", event->device,
                         stream->device);
    if (!emu_stream_is_capturing(stream)) {
        emu_event_record_now(event, stream);
        return 0;
    }
    uint64_t id;
    size_t node;
    if (emu_capture_place(stream, &id, &node))
        return LLANE_EGPU;
    pthread_mutex_lock(&event->mutex);
    event->capture_id = id;
    event->capture_node = node;
    pthread_mutex_unlock(&event->mutex);
    return 0;
}

struct emu_position emu_event_last(struct CUevent_st *event)
{
    pthread_mutex_lock(&event->mutex);
    struct emu_position last = event->last;
    pthread_mutex_unlock(&event->mutex);
    return last;
}

/* The capture that made the last record, 0 when none did. */
static uint64_t captured_by(struct CUevent_st *event, size_t *node_out)
{
    pthread_mutex_lock(&event->mutex);
    uint64_t id = event->capture_id;
    *node_out = event->capture_node;
    pthread_mutex_unlock(&event->mutex);
    return id;
}

int llane_gpu_event_query(struct CUevent_st *event, int *done_out)
{
    size_t node;
    bool was_relaxed = emu_exchange_relaxed(true); /* as gpu_cuda.c does */
    int rc = emu_check_unsafe("event_query");
    (void)emu_exchange_relaxed(was_relaxed);
    if (emu_config()->query_us)
        usleep(emu_config()->query_us);
    if (rc || emu_current_physical() < 0 || emu_event_check(event) || emu_check_fail("event_query"))
        return LLANE_EGPU;
    if (captured_by(event, &node))
        return emu_error("event_query of an event that was last recorded in a capture");
    *done_out = emu_position_is_done(emu_event_last(event));
    return 0;
}

int llane_gpu_event_elapsed_us(struct CUevent_st *from, struct CUevent_st *to, float *us_out)
{
    struct CUevent_st *event[2] = {from, to};
    uint64_t ns[2];
    for (int i = 0; i < 2; i++) {
        if (emu_event_check(event[i]))
            return LLANE_EGPU;
        pthread_mutex_lock(&event[i]->mutex);
        bool good = event[i]->timed && event[i]->recorded && event[i]->capture_id == 0;
        bool done = event[i]->stamped_ticket == event[i]->ticket;
        ns[i] = event[i]->ns;
        pthread_mutex_unlock(&event[i]->mutex);
        if (!good)
            return emu_error("elapsed time of an event that is not timed or was not recorded");
        if (!done)
            return emu_error("elapsed time of an event that has not happened");
    }
    *us_out = (float)((double)((int64_t)(ns[1] - ns[0])) / 1000.0);
    return 0;
}

int llane_gpu_stream_wait_event(struct CUstream_st *handle, struct CUevent_st *event)
{
    struct CUstream_st *stream = emu_stream_resolve(handle);
    if (!stream || emu_event_check(event) || emu_check_fail("wait_event"))
        return LLANE_EGPU;
    size_t node;
    uint64_t id = captured_by(event, &node);
    if (id)
        return emu_capture_join(stream, id, node);
    if (emu_stream_is_capturing(stream)) {
        emu_capture_invalidate(stream);
        return emu_error("a capturing stream waits for an event recorded outside its capture");
    }
    return emu_stream_push_wait(stream, emu_event_last(event));
}
