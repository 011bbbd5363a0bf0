#include "comm.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "contexts.h"
#include "err.h"
#include "forks.h"
#include "log.h"
#include "stats.h"

/*
 * Chains of nodes that are never unlinked: a reader may stand on any of them. A node whose handle is
 * NULL is free for another handle of its bucket.
 */
enum { BUCKETS = 1024 };
struct node {
    _Atomic(ncclComm_t) handle;
    struct llane_comm *_Atomic comm; /* valid while handle is not NULL */
    struct node *next;
};
static struct node *_Atomic buckets[BUCKETS];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER; /* writers */
static struct llane_comm *all;                                 /* under table_lock */
static struct llane_comm *unused; /* under table_lock, by next_in_all */

_Atomic int llane_comm_n_ordered;

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

void llane_comm_hold(struct llane_comm *comm)
{
    atomic_fetch_add_explicit(&comm->references, 1, memory_order_relaxed);
}

/* 0: the last reference is gone already. */
static int try_hold(struct llane_comm *comm)
{
    int n = atomic_load_explicit(&comm->references, memory_order_relaxed);
    /* Acquire pairs with the release in add: what the struct says belongs to this communicator. */
    while (n && !atomic_compare_exchange_weak_explicit(
                    &comm->references, &n, n + 1, memory_order_acquire, memory_order_relaxed)) {
    }
    return n != 0;
}

struct llane_comm *llane_comm_acquire(ncclComm_t handle)
{
    struct node *n;
    while (handle && (n = find_node(handle))) {
        struct llane_comm *comm = atomic_load_explicit(&n->comm, memory_order_acquire);
        if (!try_hold(comm)) {
            continue; /* it left the table before its last reference went: the next look says so */
        }
        if (comm->handle == handle) {
            return comm;
        }
        llane_comm_release(comm); /* used again for another one, between the look and the hold */
    }
    return NULL;
}

static int has_order(int state)
{
    return state == LLANE_COMM_SETTING_UP || state == LLANE_COMM_SWITCHING ||
           state == LLANE_COMM_LIVE;
}

static void set_state(struct llane_comm *comm, int state)
{
    /* Release pairs with the acquire of every call: the reason is there when the state is. */
    int before = atomic_exchange_explicit(&comm->state, state, memory_order_acq_rel);
    if (has_order(before) && !has_order(state)) {
        atomic_fetch_sub_explicit(&llane_comm_n_ordered, 1, memory_order_relaxed);
    }
}

void llane_comm_set_setting_up(struct llane_comm *comm)
{
    int new = LLANE_COMM_NEW;
    atomic_fetch_add_explicit(&llane_comm_n_ordered, 1, memory_order_release);
    if (!atomic_compare_exchange_strong_explicit(&comm->state, &new, LLANE_COMM_SETTING_UP,
                                                 memory_order_acq_rel, memory_order_relaxed)) {
        atomic_fetch_sub_explicit(&llane_comm_n_ordered, 1, memory_order_relaxed); /* retired */
    }
}

void llane_comm_set_switching(struct llane_comm *comm, struct llane_lane *lane,
                              struct llane_switch *switch_word)
{
    int setting_up = LLANE_COMM_SETTING_UP;
    atomic_store_explicit(&comm->lane, lane, memory_order_release);
    atomic_store_explicit(&comm->watched, llane_watch_begin(lane, comm->n_ranks, &comm->failure),
                          memory_order_release);
    /* Failing, it was retired. */
    atomic_compare_exchange_strong_explicit(&comm->state, &setting_up, LLANE_COMM_SWITCHING,
                                            memory_order_acq_rel, memory_order_relaxed);
    /* Last: who sees it sees all of the above. */
    atomic_store_explicit(&comm->switch_word, switch_word, memory_order_release);
}

void llane_comm_set_live(struct llane_comm *comm)
{
    int switching = LLANE_COMM_SWITCHING;
    atomic_compare_exchange_strong_explicit(&comm->state, &switching, LLANE_COMM_LIVE,
                                            memory_order_acq_rel, memory_order_relaxed);
}

/* LIVE for the sake of a call that came to nothing: the ranks' next ones may still be NCCL's. */
static void look_at_switch_again(struct llane_comm *comm, struct llane_switch *sw)
{
    int live = LLANE_COMM_LIVE;
    uint64_t s;
    if (llane_switch_is_confirmed(sw, &s) && comm->n_all_reduces + 1 < s) {
        atomic_compare_exchange_strong_explicit(&comm->state, &live, LLANE_COMM_SWITCHING,
                                                memory_order_acq_rel, memory_order_relaxed);
    }
}

void llane_comm_uncount(struct llane_comm *comm, uint64_t n)
{
    pthread_mutex_lock(&comm->lock);
    comm->n_all_reduces -= n;
    if (comm->has_posted) {
        struct llane_switch *sw = atomic_load_explicit(&comm->switch_word, memory_order_acquire);
        llane_switch_uncount(sw, comm->rank, comm->n_all_reduces + 1);
        look_at_switch_again(comm, sw);
    }
    pthread_mutex_unlock(&comm->lock);
}

struct llane_lane *llane_comm_live_lane(struct llane_comm *comm)
{
    return atomic_load_explicit(&comm->state, memory_order_acquire) == LLANE_COMM_LIVE
               ? atomic_load_explicit(&comm->lane, memory_order_acquire)
               : NULL;
}

int llane_comm_is_ordered(const struct llane_comm *comm)
{
    return has_order(atomic_load_explicit(&comm->state, memory_order_acquire));
}

int llane_comm_is_busy(const struct llane_comm *comm)
{
    const struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    return lane && llane_lane_is_busy(lane);
}

ncclResult_t llane_comm_not_launched(struct llane_comm *comm, int err)
{
    if (err == LLANE_EREFUSED) {
        llane_watch_disagreement(atomic_load_explicit(&comm->watched, memory_order_acquire));
        return ncclInvalidUsage;
    }
    LLANE_WARN("rank %d: an all-reduce did not launch: %s", comm->rank, llane_gpu_error());
    return ncclUnhandledCudaError;
}

ncclResult_t llane_comm_failure(struct llane_comm *comm)
{
    /* Acquire pairs with the watch's store. */
    return (ncclResult_t)atomic_load_explicit(&comm->failure, memory_order_acquire);
}

void llane_comm_release(struct llane_comm *comm)
{
    /* Acquire-release: the last one sees everything the others wrote. */
    if (atomic_fetch_sub_explicit(&comm->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    struct llane_comm *shares_with = comm->shares_with;
    struct llane_comm *destroyed = comm->destroyed_before;
    set_state(comm, LLANE_COMM_INACTIVE);
    llane_watch_end(atomic_load_explicit(&comm->watched, memory_order_relaxed));
    struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_relaxed);
    if (lane) {
        llane_lane_bury(lane); /* with the order's events */
    } else {
        llane_order_events_give(comm->order.events);
    }
    if (comm->board) {
        llane_board_leave(comm->board);
    }
    pthread_mutex_destroy(&comm->lock);
    pthread_mutex_destroy(&comm->key_lock);
    pthread_mutex_lock(&table_lock);
    comm->next_in_all = unused;
    unused = comm;
    pthread_mutex_unlock(&table_lock);
    if (shares_with) {
        llane_comm_release(shares_with);
    }
    while (destroyed) {
        struct llane_comm *next = destroyed->next_destroyed;
        llane_comm_release(destroyed);
        destroyed = next;
    }
}

/* table_lock is held. */
static int insert(struct llane_comm *comm)
{
    struct node *_Atomic *bucket = bucket_of(comm->handle);
    struct node *first = atomic_load_explicit(bucket, memory_order_relaxed), *n = first;
    while (n && atomic_load_explicit(&n->handle, memory_order_relaxed)) {
        n = n->next;
    }
    if (n) {
        atomic_store_explicit(&n->comm, comm, memory_order_relaxed);
        /* Release pairs with find_node's acquire. */
        atomic_store_explicit(&n->handle, comm->handle, memory_order_release);
        return 1;
    }
    n = malloc(sizeof *n);
    if (!n) {
        return 0;
    }
    atomic_init(&n->handle, comm->handle);
    atomic_init(&n->comm, comm);
    n->next = first;
    atomic_store_explicit(bucket, n, memory_order_release);
    return 1;
}

/* ---- fork ---- */

static void before_fork(void)
{
    pthread_mutex_lock(&table_lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&table_lock);
}

static void after_fork_in_child(void)
{
    llane_forks_set_passive(); /* there was a communicator: only then is this handler there */
    for (int i = 0; i < BUCKETS; i++) {
        atomic_store_explicit(&buckets[i], NULL, memory_order_relaxed);
    }
    all = NULL;
    atomic_store_explicit(&llane_comm_n_ordered, 0, memory_order_relaxed);
    pthread_mutex_unlock(&table_lock);
}

static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- coming and going ---- */

/* One that is not in the table yet, with the caller's reference and the table's. */
static struct llane_comm *make(void)
{
    pthread_mutex_lock(&table_lock);
    struct llane_comm *comm = unused;
    if (comm) {
        unused = comm->next_in_all;
    }
    pthread_mutex_unlock(&table_lock);
    if (!comm) {
        return calloc(1, sizeof *comm);
    }
    /* A late try_hold may look at references meanwhile, and finds 0. */
    size_t skipped = offsetof(struct llane_comm, references) + sizeof comm->references;
    memset((char *)comm + skipped, 0, sizeof *comm - skipped);
    return comm;
}

struct llane_comm *llane_comm_add(const struct llane_nccl *nccl, ncclComm_t handle,
                                  const struct llane_board_key *key,
                                  const struct llane_comm_options *options,
                                  struct llane_comm *shares_with)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    llane_comm_drop(handle, 0);
    if (!llane_config()->enable || llane_forks_is_passive()) {
        return NULL;
    }
    pthread_once(&once, watch_forks);
    struct llane_comm *comm = make();
    if (!comm) {
        return NULL;
    }
    comm->nccl = nccl;
    comm->options = *options;
    comm->is_graph_ordered = options->graph_usage == 2 && llane_config()->graph_order;
    if (key) {
        comm->key = *key;
        comm->has_key = 1;
    }
    if (shares_with) {
        llane_comm_hold(shares_with);
        comm->shares_with = shares_with;
    }
    pthread_mutex_init(&comm->lock, NULL);
    pthread_mutex_init(&comm->key_lock, NULL);
    pthread_mutex_lock(&table_lock);
    atomic_store_explicit(&comm->handle, handle, memory_order_relaxed);
    /* Release pairs with try_hold's acquire. The caller's and the table's. */
    atomic_store_explicit(&comm->references, 2, memory_order_release);
    int is_in = insert(comm);
    if (is_in) {
        comm->next_in_all = all;
        all = comm;
    }
    pthread_mutex_unlock(&table_lock);
    if (!is_in) {
        llane_comm_release(comm);
        llane_comm_release(comm);
        return NULL;
    }
    return comm;
}

struct llane_comm *llane_comm_acquire_or_add(const struct llane_nccl *nccl, ncclComm_t handle)
{
    int n_ranks;
    struct llane_comm *comm = llane_comm_acquire(handle);
    if (comm || !handle || !llane_config()->enable ||
        nccl->CommCount(handle, &n_ranks) != ncclSuccess) {
        return comm;
    }
    struct llane_comm_options options = llane_comm_options_read(NULL, NULL);
    options.is_guessed = 1;
    return llane_comm_add(nccl, handle, NULL, &options, NULL);
}

/* With a key for good: before, it may be written meanwhile, and there is no lane. */
static int has_met(const struct llane_comm *comm)
{
    return atomic_load_explicit(&comm->state, memory_order_acquire) != LLANE_COMM_NEW &&
           comm->has_key;
}

static int is_sibling(const struct llane_comm *a, const struct llane_comm *b)
{
    return a != b && a->nccl == b->nccl && has_met(a) && has_met(b) &&
           memcmp(&a->key, &b->key, sizeof a->key) == 0;
}

struct llane_comm *llane_comm_acquire_sibling(const struct llane_comm *comm)
{
    pthread_mutex_lock(&table_lock);
    struct llane_comm *other = all;
    while (other && (other->is_destroyed || !is_sibling(comm, other))) {
        other = other->next_in_all;
    }
    if (other) {
        llane_comm_hold(other); /* it has the table's reference */
    }
    pthread_mutex_unlock(&table_lock);
    return other;
}

static void unlink_from_all(struct llane_comm *comm)
{
    struct llane_comm **link = &all;
    while (*link && *link != comm) {
        link = &(*link)->next_in_all;
    }
    if (*link) {
        *link = comm->next_in_all;
    }
}

/* The comm of node n leaves the table; table_lock is held. */
static struct llane_comm *take_out(struct node *n)
{
    struct llane_comm *comm = atomic_load_explicit(&n->comm, memory_order_relaxed);
    atomic_store_explicit(&n->handle, NULL, memory_order_release);
    if (comm) {
        unlink_from_all(comm);
    }
    return comm;
}

static void abort_lane(struct llane_comm *comm)
{
    struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    if (lane) {
        llane_lane_abort(lane);
    }
}

void llane_comm_retire(struct llane_comm *comm, int is_abort)
{
    atomic_store_explicit(&comm->cancel, 1, memory_order_release);
    if (is_abort) {
        abort_lane(comm);
    }
    llane_watch_leave(atomic_load_explicit(&comm->watched, memory_order_acquire),
                      is_abort ? LLANE_PRESENCE_ABORTED : LLANE_PRESENCE_LEFT);
    atomic_store_explicit(&comm->inactive_reason, LLANE_INACTIVE_ENDED, memory_order_relaxed);
    set_state(comm, LLANE_COMM_INACTIVE);
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
        if (is_abort) {
            abort_lane(comm); /* before reports, which may take their time */
        }
        llane_stats_end(comm);
        llane_comm_retire(comm, is_abort);
        llane_comm_release(comm);
    }
}

static int is_around(const struct llane_comm *comm, const void *slot)
{
    uintptr_t offset = (uintptr_t)slot - (uintptr_t)comm->handle;
    return offset < atomic_load_explicit(&comm->handle_bytes, memory_order_relaxed);
}

struct llane_comm *llane_comm_acquire_context(void *ctx)
{
    const void *slot = llane_context_remove(ctx);
    pthread_mutex_lock(&table_lock);
    struct llane_comm *c = slot ? all : NULL;
    while (c && !is_around(c, slot)) {
        c = c->next_in_all;
    }
    if (c) {
        llane_comm_hold(c); /* it has the table's reference */
    }
    pthread_mutex_unlock(&table_lock);
    return c;
}

void llane_comm_set_inactive(struct llane_comm *comm, enum llane_inactive_reason reason)
{
    int state = atomic_load_explicit(&comm->state, memory_order_relaxed);
    if (state != LLANE_COMM_INACTIVE) { /* retired already: that reason stays */
        atomic_store_explicit(&comm->inactive_reason, reason, memory_order_relaxed);
        set_state(comm, LLANE_COMM_INACTIVE);
    }
    llane_watch_leave(atomic_load_explicit(&comm->watched, memory_order_acquire),
                      LLANE_PRESENCE_ABORTED);
    atomic_store_explicit(&comm->is_settled, 1, memory_order_release);
}

void llane_comm_for_all(void (*visit)(struct llane_comm *comm))
{
    size_t n = 0;
    pthread_mutex_lock(&table_lock);
    for (const struct llane_comm *c = all; c; c = c->next_in_all) {
        n++;
    }
    struct llane_comm **held = malloc((n + 1) * sizeof *held);
    n = 0;
    for (struct llane_comm *c = all; c && held; c = c->next_in_all) {
        llane_comm_hold(c);
        held[n++] = c;
    }
    pthread_mutex_unlock(&table_lock);
    for (size_t i = 0; i < n; i++) {
        visit(held[i]);
        llane_comm_release(held[i]);
    }
    free(held);
}
