#include "group.h"

#include <stdlib.h>

#include "err.h"
#include "log.h"
#include "setup.h"

struct entry {
    struct llane_comm *comm; /* held */
    struct llane_operation operation;
    enum llane_group_path path;
};

struct deferred {
    void (*then)(void *arg, ncclResult_t result);
    void *arg;
};

struct group {
    const struct llane_nccl *nccl;
    int depth;
    struct entry *entries;
    size_t n_entries, max_entries;
    struct deferred *deferred;
    size_t n_deferred, max_deferred;
    struct llane_comm **awaited; /* held */
    size_t n_awaited, max_awaited;
};

static _Thread_local struct group groups[LLANE_MAX_NCCL_COPIES];

static struct group *find(const struct llane_nccl *nccl)
{
    for (int i = 0; i < LLANE_MAX_NCCL_COPIES; i++) {
        if (groups[i].nccl == nccl || !groups[i].nccl) {
            groups[i].nccl = nccl;
            return &groups[i];
        }
    }
    return NULL; /* more copies than tables: cannot be, see real_nccl.h */
}

int llane_group_is_open(const struct llane_nccl *nccl)
{
    const struct group *g = find(nccl);
    return g && g->depth > 0;
}

void llane_group_start(const struct llane_nccl *nccl)
{
    struct group *g = find(nccl);
    if (g) {
        g->depth++;
    }
}

/* Room for one more of size bytes; the array may move. */
static void *grow(void *array, size_t n, size_t *max, size_t bytes)
{
    if (n < *max) {
        return array;
    }
    size_t more = *max ? *max * 2 : 16;
    void *moved = realloc(array, more * bytes);
    if (moved) {
        *max = more;
    }
    return moved;
}

int llane_group_add(struct llane_comm *comm, const struct llane_operation *operation,
                    enum llane_group_path path)
{
    struct group *g = find(comm->nccl);
    struct entry *entries =
        g ? grow(g->entries, g->n_entries, &g->max_entries, sizeof *entries) : NULL;
    if (!entries) {
        return LLANE_ENOMEM;
    }
    g->entries = entries;
    llane_comm_hold(comm);
    entries[g->n_entries++] = (struct entry){comm, *operation, path};
    return 0;
}

int llane_group_defer(const struct llane_nccl *nccl, void (*then)(void *arg, ncclResult_t result),
                      void *arg)
{
    struct group *g = find(nccl);
    struct deferred *deferred =
        g ? grow(g->deferred, g->n_deferred, &g->max_deferred, sizeof *deferred) : NULL;
    if (!deferred) {
        return LLANE_ENOMEM;
    }
    g->deferred = deferred;
    deferred[g->n_deferred++] = (struct deferred){then, arg};
    return 0;
}

int llane_group_wait_for(struct llane_comm *comm)
{
    struct group *g = find(comm->nccl);
    struct llane_comm **awaited =
        g ? grow(g->awaited, g->n_awaited, &g->max_awaited, sizeof *awaited) : NULL;
    if (!awaited) {
        return LLANE_ENOMEM;
    }
    g->awaited = awaited;
    llane_comm_hold(comm);
    awaited[g->n_awaited++] = comm;
    return 0;
}

static void wait_for_lanes(struct group *g, ncclResult_t result)
{
    if (g->n_awaited && (result == ncclSuccess || result == ncclInProgress)) {
        llane_setup_wait(g->awaited, g->n_awaited);
    }
    for (size_t i = 0; i < g->n_awaited; i++) {
        llane_comm_release(g->awaited[i]);
    }
    g->n_awaited = 0;
}

enum phase { LAUNCH, BEFORE_NCCL, AFTER_NCCL };

static int run(struct entry *e, enum phase phase)
{
    int err = 0;
    pthread_mutex_lock(&e->comm->lock);
    struct llane_lane *lane = atomic_load_explicit(&e->comm->lane, memory_order_acquire);
    if (phase == LAUNCH && e->path == LLANE_GROUP_LANE) {
        err = llane_lane_all_reduce(lane, &e->operation);
    } else if (phase == BEFORE_NCCL && e->path == LLANE_GROUP_NCCL) {
        err = llane_lane_order_before(lane, e->operation.stream);
    } else if (phase == AFTER_NCCL && e->path == LLANE_GROUP_NCCL) {
        err = llane_lane_order_after(lane, e->operation.stream);
    }
    pthread_mutex_unlock(&e->comm->lock);
    return err;
}

/* All entries, also after a failure: peers wait for what this rank has promised. */
static int run_all(struct group *g, enum phase phase)
{
    int first_err = 0;
    for (size_t i = 0; i < g->n_entries; i++) {
        int err = run(&g->entries[i], phase);
        if (err && !first_err) {
            first_err = err;
            LLANE_WARN("rank %d: an all-reduce of a group failed: %s", g->entries[i].comm->rank,
                       llane_gpu_error());
        }
    }
    return first_err;
}

static void clear(struct group *g)
{
    for (size_t i = 0; i < g->n_entries; i++) {
        llane_comm_release(g->entries[i].comm);
    }
    g->n_entries = 0;
}

/* A then() may open a group of its own: the list is taken first. */
static void run_deferred(struct group *g, ncclResult_t result)
{
    size_t n = g->n_deferred;
    struct deferred *deferred = g->deferred;
    g->deferred = NULL;
    g->n_deferred = g->max_deferred = 0;
    for (size_t i = 0; i < n; i++) {
        deferred[i].then(deferred[i].arg, result);
    }
    free(deferred);
}

void llane_group_drop(const struct llane_nccl *nccl)
{
    struct group *g = find(nccl);
    if (g && g->depth && --g->depth == 0) {
        clear(g);
        run_deferred(g, ncclInvalidUsage);
        wait_for_lanes(g, ncclInvalidUsage);
    }
}

ncclResult_t llane_group_end(const struct llane_nccl *nccl)
{
    struct group *g = find(nccl);
    if (!g || g->depth == 0 || --g->depth) {
        return nccl->GroupEnd();
    }
    int err = run_all(g, LAUNCH);
    int order_err = run_all(g, BEFORE_NCCL);
    ncclResult_t result = nccl->GroupEnd();
    if (result == ncclSuccess) {
        int after_err = run_all(g, AFTER_NCCL);
        order_err = order_err ? order_err : after_err;
    }
    clear(g);
    run_deferred(g, result);
    wait_for_lanes(g, result);
    return (err || order_err) && result == ncclSuccess ? ncclUnhandledCudaError : result;
}
