#include "group.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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
    ncclResult_t error; /* of the first call in it that failed */
    int nccl_knows;     /* of an error */
    struct entry *entries;
    size_t n_entries, max_entries;
    struct deferred *deferred;
    size_t n_deferred, max_deferred;
    struct llane_comm **awaited; /* held */
    size_t n_awaited, max_awaited;
    struct llane_comm **counted; /* held; all-reduces of theirs were begun in the group */
    size_t n_counted, max_counted;
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
    if (g && g->depth++ == 0) {
        g->error = ncclSuccess;
        g->nccl_knows = 0;
    }
}

void llane_group_fail(const struct llane_nccl *nccl, ncclResult_t result, enum llane_refusal by)
{
    struct group *g = find(nccl);
    if (g && g->depth) {
        g->error = g->error == ncclSuccess ? result : g->error;
        g->nccl_knows |= by == LLANE_REFUSED_BY_NCCL;
    }
}

static pthread_key_t at_thread_end;
static int has_key; /* else what a thread used stays */

static void free_arrays(void *arg)
{
    struct group *g = arg;
    for (int i = 0; i < LLANE_MAX_NCCL_COPIES; i++) {
        free(g[i].entries);
        free(g[i].deferred);
        free(g[i].awaited);
        free(g[i].counted);
        memset(&g[i], 0, sizeof g[i]);
    }
}

static void make_key(void)
{
    has_key = !pthread_key_create(&at_thread_end, free_arrays);
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
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        pthread_once(&once, make_key);
        if (has_key) {
            (void)pthread_setspecific(at_thread_end, groups);
        }
        *max = more;
    }
    return moved;
}

/*
 * As NCCL: all streams of one communicator in a group are in one capture, or none is in any. Only an
 * operation on another stream than the one before costs a query.
 */
static int is_in_one_capture(const struct group *g, const struct llane_comm *comm,
                             cudaStream_t stream)
{
    size_t i = g->n_entries;
    while (i && g->entries[i - 1].comm != comm) {
        i--;
    }
    uint64_t mine = 0, theirs = 0;
    return !i || g->entries[i - 1].operation.stream == stream ||
           (!llane_gpu_capture_id(stream, &mine) &&
            !llane_gpu_capture_id(g->entries[i - 1].operation.stream, &theirs) && mine == theirs);
}

int llane_group_add(struct llane_comm *comm, const struct llane_operation *operation,
                    enum llane_group_path path)
{
    struct group *g = find(comm->nccl);
    const struct entry *last = g && g->n_entries ? &g->entries[g->n_entries - 1] : NULL;
    if (path == LLANE_GROUP_NCCL && last && last->path == path && last->comm == comm &&
        last->operation.stream == operation->stream) {
        return 0; /* NCCL launches both at once: one place in the order */
    }
    if (g && !is_in_one_capture(g, comm, operation->stream)) {
        LLANE_WARN(
            "rank %d: streams of one communicator in a group must all be in the same capture, "
            "or in none",
            comm->rank);
        return LLANE_EINVAL;
    }
    struct entry *entries =
        g ? grow(g->entries, g->n_entries, &g->max_entries, sizeof *entries) : NULL;
    if (!entries) {
        return LLANE_ENOMEM;
    }
    g->entries = entries;
    llane_comm_hold(comm);
    entries[g->n_entries] = (struct entry){comm, *operation, path};
    entries[g->n_entries++].operation.is_grouped = 1;
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

static int add_comm(struct llane_comm *comm, struct llane_comm ***list, size_t *n, size_t *max)
{
    struct llane_comm **comms = grow(*list, *n, max, sizeof *comms);
    if (!comms) {
        return LLANE_ENOMEM;
    }
    *list = comms;
    llane_comm_hold(comm);
    comms[(*n)++] = comm;
    return 0;
}

int llane_group_wait_for(struct llane_comm *comm)
{
    struct group *g = find(comm->nccl);
    return g ? add_comm(comm, &g->awaited, &g->n_awaited, &g->max_awaited) : LLANE_ENOMEM;
}

int llane_group_count(struct llane_comm *comm)
{
    struct group *g = find(comm->nccl);
    if (!comm->n_in_group && (!g || add_comm(comm, &g->counted, &g->n_counted, &g->max_counted))) {
        return LLANE_ENOMEM;
    }
    comm->n_in_group++;
    return 0;
}

/* The group has ended. is_void: it failed, so the numbers of calls that were not launched are the next
 * ones'. */
static void end_counts(struct group *g, int is_void)
{
    for (size_t i = 0; i < g->n_counted; i++) {
        struct llane_comm *comm = g->counted[i];
        if (is_void) {
            llane_comm_uncount(comm, comm->n_in_group);
        }
        comm->n_in_group = 0;
        llane_comm_release(comm);
    }
    g->n_counted = 0;
}

static void wait_for_lanes(struct group *g, ncclResult_t result)
{
    if (g->n_awaited && !llane_is_refused(result)) {
        llane_setup_wait(g->awaited, g->n_awaited);
    }
    for (size_t i = 0; i < g->n_awaited; i++) {
        llane_comm_release(g->awaited[i]);
    }
    g->n_awaited = 0;
}

enum phase { LAUNCH, BEFORE_NCCL, AFTER_NCCL, AFTER_NCCL_PENDING };

/* Once the lane has launched one of its operations, its peers count on it: all numbers stay. */
static int launch(struct llane_comm *comm, const struct llane_operation *operation)
{
    struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    int err = llane_lane_all_reduce(lane, operation);
    comm->n_in_group = err ? comm->n_in_group : 0;
    return err;
}

static int run(struct entry *e, enum phase phase)
{
    int err = 0;
    pthread_mutex_lock(&e->comm->lock);
    if (!llane_comm_is_ordered(e->comm)) {
        err = 0; /* it was ended meanwhile */
    } else if (e->path == LLANE_GROUP_LANE) {
        err = phase == LAUNCH ? launch(e->comm, &e->operation) : 0;
    } else if (phase == BEFORE_NCCL) {
        err = llane_order_before_nccl(&e->comm->order, e->operation.stream);
    } else if (phase == AFTER_NCCL) {
        err = llane_order_after_nccl(&e->comm->order, e->operation.stream);
    } else if (phase == AFTER_NCCL_PENDING) {
        e->comm->is_pending = 1;
        e->comm->pending_stream = e->operation.stream;
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
            (void)llane_comm_not_launched(g->entries[i].comm, err); /* says so */
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
        end_counts(g, 1);
        run_deferred(g, ncclInvalidUsage);
        wait_for_lanes(g, ncclInvalidUsage);
    }
}

static ncclResult_t launch_and_end(struct group *g)
{
    int err = run_all(g, LAUNCH);
    int before_err = run_all(g, BEFORE_NCCL);
    ncclResult_t result = g->nccl->GroupEnd();
    int after_err = result == ncclSuccess      ? run_all(g, AFTER_NCCL)
                    : result == ncclInProgress ? run_all(g, AFTER_NCCL_PENDING)
                                               : 0;
    ncclResult_t ours = err == LLANE_EREFUSED            ? ncclInvalidUsage
                        : err || before_err || after_err ? ncclUnhandledCudaError
                                                         : ncclSuccess;
    return result == ncclSuccess ? ours : result;
}

/* Nothing of it is launched. NCCL learns of an error that is not its own by a call it must refuse. */
static ncclResult_t fail_and_end(struct group *g)
{
    if (!g->nccl_knows) {
        (void)g->nccl->AllReduce(NULL, NULL, 0, ncclInt8, ncclSum, NULL, NULL);
    }
    ncclResult_t result = g->nccl->GroupEnd();
    return g->nccl_knows && result != ncclSuccess ? result : g->error;
}

ncclResult_t llane_group_note(const struct llane_nccl *nccl, ncclResult_t result)
{
    if (llane_is_refused(result)) {
        llane_group_fail(nccl, result, LLANE_REFUSED_BY_NCCL);
    }
    return result;
}

ncclResult_t llane_group_end(const struct llane_nccl *nccl)
{
    struct group *g = find(nccl);
    if (!g || g->depth == 0 || --g->depth) {
        return nccl->GroupEnd();
    }
    ncclResult_t result = g->error != ncclSuccess ? fail_and_end(g) : launch_and_end(g);
    clear(g);
    end_counts(g, llane_is_refused(result));
    run_deferred(g, result);
    wait_for_lanes(g, result);
    return result;
}
