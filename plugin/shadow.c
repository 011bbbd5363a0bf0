#include "shadow.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "device.h"
#include "err.h"
#include "lane.h"
#include "log.h"

/* Pinned memory of all slots of a lane: as many as fit, one at least. */
enum { MOST_SLOTS = 8, MOST_HOST_BYTES = 48 << 20, N_PARTS = 3, MOST_WARNINGS = 10 };
/* Inputs of calls in one group; what later ones of it need was not launched yet. */
enum { N_INPUTS = 4 };
enum part { IN, NCCLS, LANES };
enum state { FREE, RECORDED };

struct slot {
    uint8_t *part[N_PARTS];
    struct CUevent_st *nccl_done, *lane_done;
    struct llane_operation operation;
    /* The release of each side pairs with the other's acquire: all of the above is complete. */
    _Atomic int state;
};

struct llane_shadow {
    struct llane_shadow *next_unused;
    int device, rank, n_ranks;
    uint64_t context; /* llane_gpu_context_id of the device then */
    uint64_t max_bytes;
    struct CUstream_st *stream;
    uint8_t *in[N_INPUTS], *out; /* device memory */
    /* Under the communicator's lock. */
    int is_taken[N_INPUTS]; /* copied and not launched */
    int was_used[N_INPUTS]; /* what read it last is in front of `read` */
    struct CUevent_st *copied[N_INPUTS], *read[N_INPUTS];
    int next_input;
    int n_slots;
    struct slot slots[MOST_SLOTS];
    _Atomic uint64_t calls[LLANE_SIZE_BUCKETS];
    pthread_mutex_t lock; /* over what follows */
    struct llane_shadow_summary found;
    int n_warnings;
};

static pthread_mutex_t unused_lock = PTHREAD_MUTEX_INITIALIZER;
static struct llane_shadow *unused;

/* ---- coming and going ---- */

/* What its last lane began may still run: then it has to wait. */
static int can_be_used(struct llane_shadow *s, int device, uint64_t max_bytes)
{
    int is_done = 0;
    return s->device == device && !llane_device_was_reset(device, s->context) &&
           s->max_bytes == max_bytes && !llane_gpu_stream_query(s->stream, &is_done) && is_done;
}

static struct llane_shadow *take_unused(int device, uint64_t max_bytes)
{
    pthread_mutex_lock(&unused_lock);
    struct llane_shadow **link = &unused;
    while (*link && !can_be_used(*link, device, max_bytes)) {
        link = &(*link)->next_unused;
    }
    struct llane_shadow *s = *link;
    if (s) {
        *link = s->next_unused;
    }
    pthread_mutex_unlock(&unused_lock);
    return s;
}

static int make_slots(struct llane_shadow *s, uint64_t bytes)
{
    for (int i = 0; i < s->n_slots; i++) {
        struct slot *slot = &s->slots[i];
        void *host, *unused_device;
        if (llane_gpu_host_alloc(N_PARTS * bytes, &host, &unused_device) ||
            llane_gpu_event_create(0, &slot->nccl_done) ||
            llane_gpu_event_create(0, &slot->lane_done)) {
            return LLANE_EGPU;
        }
        for (int p = 0; p < N_PARTS; p++) {
            slot->part[p] = (uint8_t *)host + (uint64_t)p * bytes;
        }
    }
    return 0;
}

static int n_slots_for(uint64_t bytes)
{
    uint64_t n = MOST_HOST_BYTES / (N_PARTS * bytes);
    return n > MOST_SLOTS ? MOST_SLOTS : n ? (int)n : 1;
}

/* Half built it stays: freeing device memory would wait for kernels. Its rank refuses the lane. */
static int make(struct llane_shadow *s, uint64_t max_total_bytes)
{
    uint64_t bytes = s->max_bytes ? s->max_bytes : 1;
    void *all;
    bytes = (bytes + 255) / 256 * 256; /* as aligned as memory of their own would be */
    s->n_slots = n_slots_for(bytes);
    if (llane_staging_reserve((N_INPUTS + 1 + (uint64_t)s->n_slots * N_PARTS) * bytes,
                              max_total_bytes)) {
        return LLANE_ENOMEM;
    }
    if (llane_gpu_stream_create(&s->stream) || llane_gpu_malloc((N_INPUTS + 1) * bytes, &all)) {
        return LLANE_EGPU;
    }
    for (uint64_t i = 0; i < N_INPUTS; i++) {
        s->in[i] = (uint8_t *)all + i * bytes;
    }
    s->out = (uint8_t *)all + N_INPUTS * bytes;
    for (int i = 0; i < N_INPUTS; i++) {
        if (llane_gpu_event_create(0, &s->copied[i]) || llane_gpu_event_create(0, &s->read[i])) {
            return LLANE_EGPU;
        }
    }
    pthread_mutex_init(&s->lock, NULL);
    return make_slots(s, bytes);
}

int llane_shadow_create(int device, int rank, int n_ranks, uint64_t max_bytes,
                        uint64_t max_total_bytes, struct llane_shadow **out)
{
    struct llane_shadow *s = take_unused(device, max_bytes);
    if (!s) {
        s = calloc(1, sizeof *s);
        if (!s) {
            return LLANE_ENOMEM;
        }
        s->device = device;
        s->max_bytes = max_bytes;
        int err = make(s, max_total_bytes);
        if (err) {
            free(s);
            return err;
        }
        s->context = llane_gpu_context_id(device);
    }
    memset(s->calls, 0, sizeof s->calls);
    memset(&s->found, 0, sizeof s->found);
    memset(s->is_taken, 0, sizeof s->is_taken);
    memset(s->was_used, 0, sizeof s->was_used);
    s->next_input = 0;
    for (int i = 0; i < s->n_slots; i++) {
        atomic_init(&s->slots[i].state, FREE);
    }
    s->n_warnings = 0;
    s->rank = rank;
    s->n_ranks = n_ranks;
    *out = s;
    return 0;
}

void llane_shadow_bury(struct llane_shadow *shadow)
{
    if (shadow) {
        pthread_mutex_lock(&unused_lock);
        shadow->next_unused = unused;
        unused = shadow;
        pthread_mutex_unlock(&unused_lock);
    }
}

/* ---- a call ---- */

static uint64_t bytes_of(const struct llane_operation *o)
{
    return o->count * llane_route_type_bytes(o->datatype);
}

static int copy_input(struct llane_shadow *s, int input, const struct llane_operation *o)
{
    int err = s->was_used[input] ? llane_gpu_stream_wait_event(o->stream, s->read[input]) : 0;
    err = err ? err : llane_gpu_memcpy_async(s->in[input], o->in, bytes_of(o), o->stream);
    return err ? err : llane_gpu_event_record(s->copied[input], o->stream);
}

/* In turns, so that a copy seldom waits for the lane. */
int llane_shadow_copy_input(struct llane_shadow *shadow, const struct llane_operation *operation)
{
    int input = shadow->next_input, n = 0;
    for (; n < N_INPUTS && shadow->is_taken[input]; n++) {
        input = (input + 1) % N_INPUTS;
    }
    if (n == N_INPUTS || copy_input(shadow, input, operation)) {
        return -1;
    }
    shadow->next_input = (input + 1) % N_INPUTS;
    shadow->is_taken[input] = 1;
    return input;
}

void llane_shadow_drop_input(struct llane_shadow *shadow, int input)
{
    if (input >= 0) {
        shadow->is_taken[input] = 0;
    }
}

static struct slot *find_free(struct llane_shadow *s)
{
    for (int i = 0; i < s->n_slots; i++) {
        if (atomic_load_explicit(&s->slots[i].state, memory_order_acquire) == FREE) {
            return &s->slots[i];
        }
    }
    return NULL;
}

/* NCCL's result, on the program's stream: what follows there may write to the buffer. */
static int copy_nccls(struct slot *slot, const struct llane_operation *o)
{
    int err = llane_gpu_memcpy_async(slot->part[NCCLS], o->out, bytes_of(o), o->stream);
    return err ? err : llane_gpu_event_record(slot->nccl_done, o->stream);
}

static int copy_lanes(struct llane_shadow *s, struct slot *slot, const void *in, uint64_t bytes)
{
    int err = llane_gpu_memcpy_async(slot->part[IN], in, bytes, s->stream);
    err = err ? err : llane_gpu_memcpy_async(slot->part[LANES], s->out, bytes, s->stream);
    return err ? err : llane_gpu_event_record(slot->lane_done, s->stream);
}

/* Without an input it reads what is there: the peers wait for this rank's part. */
static int run_lane(struct llane_shadow *s, const struct llane_lane *lane,
                    const struct llane_operation *o, int input)
{
    struct llane_operation mine = *o;
    struct llane_plan plan = llane_route_plan(&lane->limits, o->count, o->datatype, o->op);
    mine.in = input < 0 ? s->out : s->in[input];
    mine.out = s->out;
    mine.stream = s->stream;
    int err = input < 0 ? 0 : llane_gpu_stream_wait_event(s->stream, s->copied[input]);
    return err ? err : llane_lane_launch(lane, &mine, &plan, NULL);
}

int llane_shadow_launch(struct llane_shadow *shadow, const struct llane_lane *lane,
                        const struct llane_operation *operation, int input, int is_compared)
{
    uint64_t bytes = bytes_of(operation);
    struct slot *slot = is_compared && input >= 0 ? find_free(shadow) : NULL;
    /* Relaxed: a number of its own, for the report. */
    atomic_fetch_add_explicit(&shadow->calls[llane_size_bucket(bytes)], 1, memory_order_relaxed);
    if (slot && copy_nccls(slot, operation)) {
        slot = NULL;
    }
    int err = run_lane(shadow, lane, operation, input);
    if (!err && slot && !copy_lanes(shadow, slot, shadow->in[input], bytes)) {
        slot->operation = *operation;
        atomic_store_explicit(&slot->state, RECORDED, memory_order_release);
    }
    if (input >= 0) {
        shadow->is_taken[input] = 0;
        shadow->was_used[input] = !llane_gpu_event_record(shadow->read[input], shadow->stream);
    }
    return err;
}

int llane_shadow_enter_order(struct llane_shadow *shadow, struct llane_order *order)
{
    return llane_order_after_nccl(order, shadow->stream);
}

/* ---- what came of it ---- */

static int has_ended(const struct slot *slot)
{
    int is_nccl_done = 0, is_lane_done = 0;
    return !llane_gpu_event_query(slot->nccl_done, &is_nccl_done) && is_nccl_done &&
           !llane_gpu_event_query(slot->lane_done, &is_lane_done) && is_lane_done;
}

static void warn(struct llane_shadow *s, const struct llane_operation *o,
                 const struct llane_comparison *c)
{
    if (s->n_warnings++ < MOST_WARNINGS) {
        LLANE_WARN("rank %d: LLANE_AB=shadow: all-reduce %" PRIu64 " of %zu elements, datatype %d, "
                   "operation %d: %" PRIu64 " differ by more than rounding, the first at %zu: NCCL "
                   "%g, lane %g",
                   s->rank, o->number, o->count, (int)o->datatype, (int)o->op, c->n_beyond,
                   c->first_beyond, c->first_a, c->first_b);
    }
}

static void compare(struct llane_shadow *s, const struct slot *slot)
{
    const struct llane_operation *o = &slot->operation;
    const struct llane_compared what = {
        .in = slot->part[IN],
        .a = slot->part[NCCLS],
        .b = slot->part[LANES],
        .count = o->count,
        .datatype = o->datatype,
        .op = o->op,
        .n_ranks = s->n_ranks,
    };
    struct llane_comparison c;
    int bucket = llane_size_bucket(bytes_of(o));
    llane_compare(&what, &c);
    s->found.sizes[bucket].compared++;
    if (c.n_beyond) {
        s->found.sizes[bucket].beyond++;
        warn(s, o, &c);
    } else if (c.n_other_bits) {
        s->found.sizes[bucket].within++;
    } else {
        s->found.sizes[bucket].same++;
    }
}

/* By any thread: it may have no context, or one of another device. */
static void collect(struct llane_shadow *s)
{
    int previous;
    if (llane_device_was_reset(s->device, s->context) || llane_device_enter(s->device, &previous)) {
        return;
    }
    for (int i = 0; i < s->n_slots; i++) {
        struct slot *slot = &s->slots[i];
        if (atomic_load_explicit(&slot->state, memory_order_acquire) == RECORDED &&
            has_ended(slot)) {
            compare(s, slot);
            atomic_store_explicit(&slot->state, FREE, memory_order_release);
        }
    }
    (void)llane_device_leave(s->device, previous, 0);
}

void llane_shadow_collect(struct llane_shadow *shadow)
{
    pthread_mutex_lock(&shadow->lock);
    collect(shadow);
    pthread_mutex_unlock(&shadow->lock);
}

void llane_shadow_summarize(struct llane_shadow *shadow, struct llane_shadow_summary *out)
{
    pthread_mutex_lock(&shadow->lock);
    collect(shadow);
    *out = shadow->found;
    pthread_mutex_unlock(&shadow->lock);
    for (int b = 0; b < LLANE_SIZE_BUCKETS; b++) {
        out->sizes[b].calls = atomic_load_explicit(&shadow->calls[b], memory_order_relaxed);
    }
}
