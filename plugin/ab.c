#include "ab.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "err.h"

enum { RING = 1024 };

/*
 * Nanoseconds, to one part in 64: below 64 each its own place, from there on 64 places for each power
 * of two up to 2^38, four minutes; what took longer is in the last one.
 */
enum { STEPS = 64, STEP_BITS = 6, TOP_BIT = 37, PLACES = (TOP_BIT - STEP_BITS + 2) * STEPS };

enum state { FREE, TAKEN, RECORDED, VOID };

struct llane_ab_pair {
    struct CUevent_st *from, *to;
    struct llane_ab *ab;
    uint8_t bucket, path;
    /* FREE -> TAKEN -> RECORDED or VOID by the caller, the rest by the collector. Each release pairs
     * with the other side's acquire: the pair's fields and events are complete. */
    _Atomic int state;
};

struct llane_ab {
    int device;
    uint64_t context; /* llane_gpu_context_id of it then */
    struct llane_ab *next_unused;
    uint32_t head;        /* pairs begun; the caller's, under the communicator's lock */
    pthread_mutex_t lock; /* over what follows */
    uint32_t tail;        /* pairs read */
    _Atomic uint64_t calls[LLANE_SIZE_BUCKETS][LLANE_AB_N_PATHS];
    uint64_t timed[LLANE_SIZE_BUCKETS][LLANE_AB_N_PATHS];
    uint32_t places[LLANE_SIZE_BUCKETS][LLANE_AB_N_PATHS][PLACES];
    struct llane_ab_pair ring[RING];
};

static pthread_mutex_t unused_lock = PTHREAD_MUTEX_INITIALIZER;
static struct llane_ab *unused;

enum llane_ab_path llane_ab_turn(uint64_t number)
{
    uint64_t bits = (number >> 1) + 0x9E3779B97F4A7C15ull;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return ((bits >> 63) ^ number) & 1 ? LLANE_AB_NCCL : LLANE_AB_LANE;
}

/* ---- coming and going ---- */

static struct llane_ab *take_unused(int device)
{
    uint64_t context = llane_gpu_context_id(device);
    pthread_mutex_lock(&unused_lock);
    struct llane_ab **link = &unused;
    while (*link && ((*link)->device != device || (*link)->context != context)) {
        link = &(*link)->next_unused;
    }
    struct llane_ab *ab = *link;
    if (ab) {
        *link = ab->next_unused;
    }
    pthread_mutex_unlock(&unused_lock);
    return ab;
}

/* Events that were recorded for the lane before are simply recorded again. */
static void reset(struct llane_ab *ab)
{
    ab->head = ab->tail = 0;
    memset(ab->calls, 0, sizeof ab->calls);
    memset(ab->timed, 0, sizeof ab->timed);
    memset(ab->places, 0, sizeof ab->places);
    for (int i = 0; i < RING; i++) {
        atomic_init(&ab->ring[i].state, FREE);
    }
}

static void free_half_built(struct llane_ab *ab)
{
    for (int i = 0; i < RING; i++) {
        if (ab->ring[i].from) {
            llane_gpu_event_destroy(ab->ring[i].from);
        }
        if (ab->ring[i].to) {
            llane_gpu_event_destroy(ab->ring[i].to);
        }
    }
    free(ab);
}

int llane_ab_create(int device, struct llane_ab **out)
{
    struct llane_ab *ab = take_unused(device);
    if (ab) {
        reset(ab);
        *out = ab;
        return 0;
    }
    ab = calloc(1, sizeof *ab);
    if (!ab) {
        return LLANE_ENOMEM;
    }
    ab->device = device;
    pthread_mutex_init(&ab->lock, NULL);
    for (int i = 0; i < RING; i++) {
        ab->ring[i].ab = ab;
        if (llane_gpu_event_create(1, &ab->ring[i].from) ||
            llane_gpu_event_create(1, &ab->ring[i].to)) {
            free_half_built(ab);
            return LLANE_EGPU;
        }
    }
    ab->context = llane_gpu_context_id(device);
    *out = ab;
    return 0;
}

void llane_ab_bury(struct llane_ab *ab)
{
    if (ab) {
        pthread_mutex_lock(&unused_lock);
        ab->next_unused = unused;
        unused = ab;
        pthread_mutex_unlock(&unused_lock);
    }
}

/* ---- a call ---- */

struct llane_ab_pair *llane_ab_begin(struct llane_ab *ab, enum llane_ab_path path, uint64_t bytes,
                                     struct CUstream_st *stream, int is_timed)
{
    int bucket = llane_size_bucket(bytes);
    struct llane_ab_pair *pair = &ab->ring[ab->head % RING];
    /* Relaxed: a number of its own, for the report. */
    atomic_fetch_add_explicit(&ab->calls[bucket][path], 1, memory_order_relaxed);
    if (!is_timed || atomic_load_explicit(&pair->state, memory_order_acquire) != FREE ||
        llane_gpu_event_record(pair->from, stream)) {
        return NULL;
    }
    ab->head++;
    pair->bucket = (uint8_t)bucket;
    pair->path = (uint8_t)path;
    atomic_store_explicit(&pair->state, TAKEN, memory_order_release);
    return pair;
}

void llane_ab_end(struct llane_ab_pair *pair, struct CUstream_st *stream)
{
    if (pair) {
        int err = llane_gpu_event_record(pair->to, stream);
        atomic_store_explicit(&pair->state, err ? VOID : RECORDED, memory_order_release);
    }
}

void llane_ab_cancel(struct llane_ab_pair *pair, int was_made)
{
    if (pair) {
        atomic_fetch_sub_explicit(&pair->ab->calls[pair->bucket][pair->path], !was_made,
                                  memory_order_relaxed);
        atomic_store_explicit(&pair->state, VOID, memory_order_release);
    }
}

/* ---- what came of it ---- */

static int place_of(double us)
{
    double ns = us * 1000;
    uint64_t v = ns < 0 ? 0 : ns < (double)(1ull << TOP_BIT) ? (uint64_t)ns : (2ull << TOP_BIT) - 1;
    if (v < STEPS) {
        return (int)v;
    }
    int top = 63 - __builtin_clzll(v);
    return (top - STEP_BITS) * STEPS + (int)(v >> (top - STEP_BITS));
}

/* The middle of what a place holds. */
static double us_of(int place)
{
    if (place < STEPS) {
        return place / 1000.0;
    }
    int shift = place / STEPS - 1;
    uint64_t low = (uint64_t)(place % STEPS + STEPS) << shift;
    return ((double)low + (double)(1ull << shift) / 2) / 1000;
}

/* 1: the pair has been dealt with. */
static int read_pair(struct llane_ab *ab, struct llane_ab_pair *pair)
{
    int is_done = 0;
    float us;
    int state = atomic_load_explicit(&pair->state, memory_order_acquire);
    if (state == RECORDED) {
        if (llane_gpu_event_query(pair->to, &is_done)) {
            is_done = 1; /* an error of the program's, or the runtime has gone */
        } else if (!is_done) {
            return 0;
        } else if (!llane_gpu_event_elapsed_us(pair->from, pair->to, &us)) {
            ab->places[pair->bucket][pair->path][place_of((double)us)]++;
            ab->timed[pair->bucket][pair->path]++;
        }
    } else if (state != VOID) {
        return 0;
    }
    atomic_store_explicit(&pair->state, FREE, memory_order_release);
    return 1;
}

/* By any thread: it may have no context, or one of another device. */
static void collect(struct llane_ab *ab)
{
    int previous;
    if (llane_device_was_reset(ab->device, ab->context) ||
        llane_device_enter(ab->device, &previous)) {
        return;
    }
    for (int i = 0; i < RING && read_pair(ab, &ab->ring[ab->tail % RING]); i++) {
        ab->tail++;
    }
    (void)llane_device_leave(ab->device, previous, 0);
}

void llane_ab_collect(struct llane_ab *ab)
{
    pthread_mutex_lock(&ab->lock);
    collect(ab);
    pthread_mutex_unlock(&ab->lock);
}

/* The smallest time that at least this part of all did not exceed. */
static double quantile(const uint32_t *places, uint64_t n, double part)
{
    double wanted = part * (double)n;
    uint64_t so_far = 0;
    int place = 0;
    while (place < PLACES - 1 && (double)(so_far += places[place]) < wanted) {
        place++;
    }
    return n ? us_of(place) : 0;
}

void llane_ab_summarize(struct llane_ab *ab, struct llane_ab_summary *out)
{
    pthread_mutex_lock(&ab->lock);
    collect(ab);
    for (int b = 0; b < LLANE_SIZE_BUCKETS; b++) {
        for (int p = 0; p < LLANE_AB_N_PATHS; p++) {
            uint64_t n = ab->timed[b][p];
            out->sizes[b].calls[p] = atomic_load_explicit(&ab->calls[b][p], memory_order_relaxed);
            out->sizes[b].timed[p] = n;
            out->sizes[b].median_us[p] = quantile(ab->places[b][p], n, 0.5);
            out->sizes[b].p99_us[p] = quantile(ab->places[b][p], n, 0.99);
        }
    }
    pthread_mutex_unlock(&ab->lock);
}

double llane_ab_saved_us(const struct llane_ab_summary *summary, int bucket)
{
    const uint64_t *timed = summary->sizes[bucket].timed;
    const double *median = summary->sizes[bucket].median_us;
    return timed[LLANE_AB_LANE] && timed[LLANE_AB_NCCL]
               ? (double)summary->sizes[bucket].calls[LLANE_AB_LANE] *
                     (median[LLANE_AB_NCCL] - median[LLANE_AB_LANE])
               : 0;
}
