#include "staging.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backoff.h"
#include "config.h"
#include "device.h"
#include "err.h"

/* An exported allocation is mapped whole by peers; CUDA places small ones inside a 2 MiB block. */
static const uint64_t GRAIN_BYTES = 2u << 20;

enum { CELLS_BYTES = sizeof(struct llane_cells) };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct llane_staging *graveyard; /* under lock */
/* Relaxed: a number of its own. Not under the lock, whose holder may wait for the driver. */
static _Atomic uint64_t total_bytes;

/* One family's slots of all sources, both generations. */
static uint64_t region_bytes(uint32_t n_ranks, uint64_t slot_bytes)
{
    return (uint64_t)n_ranks * 2 * slot_bytes;
}

/* Up to the end of the last region. */
static uint64_t used_bytes(uint32_t n_ranks, const uint64_t slot_bytes[LLANE_N_PACKETS])
{
    uint64_t bytes = CELLS_BYTES + (uint64_t)LLANE_MAX_RANKS * LLANE_PROBE_BYTES;
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        bytes += region_bytes(n_ranks, slot_bytes[p]);
    }
    return bytes;
}

uint64_t llane_staging_bytes(uint32_t n_ranks, const uint64_t slot_bytes[LLANE_N_PACKETS],
                             uint64_t scratch_bytes)
{
    uint64_t bytes = used_bytes(n_ranks, slot_bytes) + scratch_bytes;
    return (bytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES;
}

uint8_t *llane_staging_scratch(uint8_t *base, uint32_t n_ranks,
                               const uint64_t slot_bytes[LLANE_N_PACKETS])
{
    return base + used_bytes(n_ranks, slot_bytes);
}

struct llane_cells *llane_staging_cells(uint8_t *base)
{
    return (struct llane_cells *)base;
}

uint8_t *llane_staging_probe_area(uint8_t *base, uint32_t source)
{
    return base + CELLS_BYTES + (uint64_t)source * LLANE_PROBE_BYTES;
}

uint8_t *llane_staging_slot(uint8_t *base, uint32_t n_ranks,
                            const uint64_t slot_bytes[LLANE_N_PACKETS], enum llane_packet packet,
                            uint32_t source)
{
    uint8_t *region = llane_staging_probe_area(base, LLANE_MAX_RANKS);
    for (int p = 0; p < (int)packet; p++) {
        region += region_bytes(n_ranks, slot_bytes[p]);
    }
    return region + (uint64_t)source * 2 * slot_bytes[packet];
}

int llane_staging_arm(struct llane_staging *staging, uint32_t n_ranks,
                      const uint64_t slot_bytes[LLANE_N_PACKETS], struct CUstream_st *stream)
{
    uint8_t *region = llane_staging_slot(staging->base, n_ranks, slot_bytes, LLANE_SENTINEL, 0);
    int err = llane_gpu_memset_async(region, 0xff,
                                     region_bytes(n_ranks, slot_bytes[LLANE_SENTINEL]), stream);
    return err ? err : llane_gpu_stream_synchronize(stream);
}

/* By any thread that ends a communicator: it may have no context, or one of another device. */
static int is_idle(const struct llane_staging *s)
{
    int is_done = 0, previous;
    if (llane_device_enter(s->device, &previous)) {
        return 0;
    }
    int err = llane_gpu_event_query(s->last_probe, &is_done);
    int is_idle = !err && is_done && (!s->events || llane_order_events_are_idle(s->events));
    return !llane_device_leave(s->device, previous, 0) && is_idle;
}

int llane_staging_reserve(uint64_t bytes, uint64_t max_total_bytes)
{
    uint64_t total = atomic_load_explicit(&total_bytes, memory_order_relaxed);
    do {
        if (bytes > max_total_bytes || total > max_total_bytes - bytes) {
            return LLANE_ENOMEM;
        }
    } while (!atomic_compare_exchange_weak_explicit(&total_bytes, &total, total + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return 0;
}

static void unreserve(uint64_t bytes)
{
    atomic_fetch_sub_explicit(&total_bytes, bytes, memory_order_relaxed);
}

static void look_at_board(struct llane_staging *s)
{
    /* Release pairs with llane_board_is_unused: what the kernels stored is there. */
    atomic_store_explicit(&llane_board_presence(s->board, s->rank)->is_using, 0,
                          memory_order_release);
    if (llane_board_is_unused(s->board)) {
        llane_board_leave(s->board);
        s->board = NULL;
    }
}

static void forget(struct llane_staging *s)
{
    unreserve(s->bytes);
    llane_order_events_give(s->events);
    free(s); /* not the mapped words: what pinned them is not known */
}

static void collect(void)
{
    pthread_mutex_lock(&lock);
    for (struct llane_staging **link = &graveyard; *link;) {
        struct llane_staging *s = *link;
        int is_gone = llane_device_was_reset(s->device, s->context);
        if (s->board && (is_gone || is_idle(s))) {
            look_at_board(s);
        }
        if (!s->board && is_gone) {
            *link = s->next;
            forget(s);
        } else {
            link = &s->next;
        }
    }
    pthread_mutex_unlock(&lock);
}

static struct llane_staging *exhume(int device, uint64_t bytes)
{
    collect();
    uint64_t context = llane_gpu_context_id(device);
    pthread_mutex_lock(&lock);
    struct llane_staging **link = &graveyard, *found = NULL;
    while (*link && !found) {
        struct llane_staging *s = *link;
        if (s->device == device && s->context == context && s->bytes >= bytes &&
            s->bytes / 4 <= bytes && !s->board) {
            *link = s->next;
            found = s;
        } else {
            link = &s->next;
        }
    }
    pthread_mutex_unlock(&lock);
    if (found) {
        llane_order_events_give(found->events);
        found->events = NULL;
    }
    return found;
}

/*
 * Pages of our own where they can be pinned, since cudaHostAlloc's would go with the context, while a
 * lane that was not destroyed is still looked at; shared, for no fork to copy them.
 */
static int map_words(struct llane_staging *s)
{
    enum { BYTES = sizeof(struct llane_mapped) };
    void *device;
    void *host = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int err = host == MAP_FAILED ? LLANE_ENOMEM : llane_gpu_host_register(host, BYTES, &device);
    if (err && host != MAP_FAILED) {
        munmap(host, BYTES);
    }
    err = err ? llane_gpu_host_alloc(BYTES, &host, &device) : 0;
    s->mapped = host;
    s->mapped_device = device;
    return err;
}

/* What an attempt that fails half-way allocated on the device stays until exit: nothing is freed. */
static int allocate(int device, uint64_t bytes, uint64_t max_total_bytes,
                    struct llane_staging **out)
{
    struct llane_staging *s = calloc(1, sizeof *s);
    int err = s ? llane_staging_reserve(bytes, max_total_bytes) : LLANE_ENOMEM;
    if (err) {
        goto undo_struct;
    }
    s->device = device;
    s->bytes = bytes;
    void *base;
    if ((err = llane_gpu_malloc(bytes, &base))) {
        goto undo_reserve;
    }
    s->base = base;
    s->context = llane_gpu_context_id(device); /* now there is one */
    s->is_exported = !llane_gpu_ipc_export(base, &s->handle);
    if ((err = map_words(s)) || (err = llane_gpu_event_create(0, &s->last_probe))) {
        goto undo_struct;
    }
    *out = s;
    return 0;

undo_reserve:
    unreserve(bytes);
undo_struct:
    free(s);
    return err;
}

/* Zeroes the memory and gives every cell its first operation numbers. */
static int prepare(struct llane_staging *s, struct CUstream_st *stream)
{
    static const struct llane_cell first = {.ll_op = 1, .sentinel_op = 1};
    struct llane_cells cells = {0};
    for (int i = 0; i < LLANE_MAX_BLOCKS; i++) {
        cells.cell[i] = first;
    }
    memset(s->mapped, 0, sizeof *s->mapped);
    int err = llane_gpu_memset_async(s->base, 0, s->bytes, stream);
    if (!err) {
        err = llane_gpu_memcpy_async(s->base, &cells, sizeof cells, stream);
    }
    if (!err) {
        err = llane_gpu_stream_synchronize(stream);
    }
    return err;
}

int llane_staging_take(int device, uint64_t bytes, uint64_t max_total_bytes,
                       struct CUstream_st *stream, struct llane_staging **out)
{
    struct llane_staging *s = exhume(device, bytes);
    int err = s ? 0 : allocate(device, bytes, max_total_bytes, &s);
    if (err) {
        return err;
    }
    if ((err = prepare(s, stream))) {
        return err; /* kept: what the device still does to it is not known */
    }
    *out = s;
    return 0;
}

void llane_staging_bury(struct llane_staging *s, struct llane_board *board, int rank)
{
    if (!s) {
        return;
    }
    if (board) {
        llane_board_hold(board);
    }
    s->board = board;
    s->rank = rank;
    pthread_mutex_lock(&lock);
    s->next = graveyard;
    graveyard = s;
    pthread_mutex_unlock(&lock);
    collect();
}

uint64_t llane_staging_total_bytes(void)
{
    return atomic_load_explicit(&total_bytes, memory_order_relaxed);
}
