#include "comm.h"

#include <stdlib.h>

#include "config.h"
#include "stats.h"

/*
 * Chains of nodes that are never unlinked: a reader may stand on any of them. A node whose handle is
 * NULL is free for another handle of its bucket.
 */
enum { BUCKETS = 1024 };
struct node {
    _Atomic(ncclComm_t) handle;
    struct llane_comm *comm; /* valid while handle is not NULL */
    struct node *next;
};
static struct node *_Atomic buckets[BUCKETS];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER; /* writers */
static struct llane_comm *all;                                 /* under table_lock */

const char *llane_inactive_text(int reason)
{
    static const char *const texts[] = {
#define LLANE_REASON_STRING(name, text) text,
        LLANE_INACTIVE_REASONS(LLANE_REASON_STRING)
#undef LLANE_REASON_STRING
    };
    return (unsigned)reason < LLANE_N_INACTIVE_REASONS ? texts[reason] : "unknown reason";
}

static struct node *_Atomic *bucket_of(ncclComm_t handle)
{
    uint64_t bits = (uint64_t)(uintptr_t)handle;
    return &buckets[(bits * 0x9E3779B97F4A7C15ull) >> 54];
}

static struct node *find_node(ncclComm_t handle)
{
    /* Acquire pairs with the release in add: the node and its comm are complete. */
    struct node *n = atomic_load_explicit(bucket_of(handle), memory_order_acquire);
    while (n && atomic_load_explicit(&n->handle, memory_order_acquire) != handle) {
        n = n->next;
    }
    return n;
}

struct llane_comm *llane_comm_find(ncclComm_t handle)
{
    struct node *n = handle ? find_node(handle) : NULL;
    return n ? n->comm : NULL;
}

void llane_comm_hold(struct llane_comm *comm)
{
    atomic_fetch_add_explicit(&comm->references, 1, memory_order_relaxed);
}

void llane_comm_release(struct llane_comm *comm)
{
    /* Acquire-release: the last one sees everything the others wrote. */
    if (atomic_fetch_sub_explicit(&comm->references, 1, memory_order_acq_rel) == 1) {
        llane_lane_bury(atomic_load_explicit(&comm->lane, memory_order_relaxed));
        if (comm->board) {
            llane_board_leave(comm->board);
        }
        pthread_mutex_destroy(&comm->lock);
        free(comm);
    }
}

static int insert(struct llane_comm *comm)
{
    struct node *_Atomic *bucket = bucket_of(comm->handle);
    struct node *first = atomic_load_explicit(bucket, memory_order_relaxed), *n = first;
    while (n && atomic_load_explicit(&n->handle, memory_order_relaxed)) {
        n = n->next;
    }
    if (n) {
        n->comm = comm;
        /* Release pairs with find_node's acquire. */
        atomic_store_explicit(&n->handle, comm->handle, memory_order_release);
        return 1;
    }
    n = malloc(sizeof *n);
    if (!n) {
        return 0;
    }
    atomic_init(&n->handle, comm->handle);
    n->comm = comm;
    n->next = first;
    atomic_store_explicit(bucket, n, memory_order_release);
    return 1;
}

struct llane_comm *llane_comm_add(const struct llane_nccl *nccl, ncclComm_t handle,
                                  const struct llane_board_key *key, int max_ctas)
{
    llane_comm_drop(handle, 0);
    struct llane_comm *comm = llane_config()->enable ? calloc(1, sizeof *comm) : NULL;
    if (!comm) {
        return NULL;
    }
    comm->handle = handle;
    comm->nccl = nccl;
    comm->max_ctas = max_ctas;
    atomic_init(&comm->references, 1);
    if (key) {
        comm->key = *key;
        comm->has_key = 1;
    }
    pthread_mutex_init(&comm->lock, NULL);
    pthread_mutex_lock(&table_lock);
    int is_in = insert(comm);
    if (is_in) {
        comm->next_in_all = all;
        all = comm;
    }
    pthread_mutex_unlock(&table_lock);
    if (!is_in) {
        pthread_mutex_destroy(&comm->lock);
        free(comm);
        return NULL;
    }
    return comm;
}

static void unlink_from_all(struct llane_comm *comm)
{
    struct llane_comm **link = &all;
    while (*link != comm) {
        link = &(*link)->next_in_all;
    }
    *link = comm->next_in_all;
}

/* The comm of node n leaves the table; table_lock is held. */
static struct llane_comm *take_out(struct node *n)
{
    struct llane_comm *comm = n->comm;
    atomic_store_explicit(&n->handle, NULL, memory_order_relaxed);
    unlink_from_all(comm);
    return comm;
}

static void end(struct llane_comm *comm, int is_abort)
{
    atomic_store_explicit(&comm->cancel, 1, memory_order_release);
    struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    if (is_abort && lane) {
        llane_lane_abort(lane);
    }
    llane_stats_print_if_asked(comm);
    llane_comm_release(comm);
}

void llane_comm_drop(ncclComm_t handle, int is_abort)
{
    struct llane_comm *comm = NULL;
    pthread_mutex_lock(&table_lock);
    struct node *n = handle ? find_node(handle) : NULL;
    if (n) {
        comm = take_out(n);
    }
    pthread_mutex_unlock(&table_lock);
    if (comm) {
        end(comm, is_abort);
    }
}

void llane_comm_drop_containing(const void *slot)
{
    ncclComm_t handle = NULL;
    pthread_mutex_lock(&table_lock);
    for (struct llane_comm *c = all; c && !handle; c = c->next_in_all) {
        uintptr_t offset = (uintptr_t)slot - (uintptr_t)c->handle;
        if (offset < c->handle_bytes) {
            handle = c->handle;
        }
    }
    pthread_mutex_unlock(&table_lock);
    llane_comm_drop(handle, 0);
}

void llane_comm_set_inactive(struct llane_comm *comm, enum llane_inactive_reason reason)
{
    atomic_store_explicit(&comm->inactive_reason, reason, memory_order_relaxed);
    /* Release pairs with the acquire of every call: the reason is there when the state is. */
    atomic_store_explicit(&comm->state, LLANE_COMM_INACTIVE, memory_order_release);
    atomic_store_explicit(&comm->is_settled, 1, memory_order_release);
}

void llane_comm_for_all(void (*visit)(struct llane_comm *comm))
{
    pthread_mutex_lock(&table_lock);
    for (struct llane_comm *c = all; c; c = c->next_in_all) {
        visit(c);
    }
    pthread_mutex_unlock(&table_lock);
}
