/*
 * Groups: a depth per thread; everything is collected and happens when the depth returns to 0: first
 * creations and splits (each in a thread, so that one thread can own many ranks), then per
 * communicator the collectives in order, then all its sends and receives as one. An error on the way
 * poisons the group: nothing of it is launched and ncclGroupEnd returns that error.
 */
#include "fake.h"

#include <stdlib.h>

/* A communicator of the group, with what was collected for it. */
struct entry {
    struct ncclComm *comm;
    struct fake_op *collectives, *pairwise;
    struct entry *next;
};
static _Thread_local struct {
    int depth;
    ncclResult_t result;
    struct fake_job *jobs;
    struct entry *entries; /* in the order of their first operation */
} g_group;

void fake_group_begin(void)
{
    g_group.depth++;
}

bool fake_group_is_open(void)
{
    return g_group.depth > 0;
}

void fake_group_add_job(struct fake_job *job)
{
    struct fake_job **at = &g_group.jobs;
    while (*at)
        at = &(*at)->next;
    *at = job;
}

ncclResult_t fake_group_check_capture(const struct ncclComm *comm, cudaStream_t stream)
{
    const struct entry *e = g_group.entries;
    while (e && e->comm != comm)
        e = e->next;
    const struct fake_op *other = !e ? NULL : e->collectives ? e->collectives : e->pairwise;
    uint64_t mine = 0, theirs = 0;
    if (!other || other->stream == stream)
        return ncclSuccess;
    if (llane_gpu_capture_id(stream, &mine) != 0 ||
        llane_gpu_capture_id(other->stream, &theirs) != 0)
        return ncclUnhandledCudaError;
    return mine == theirs ? ncclSuccess : ncclInvalidUsage;
}

void fake_group_add_op(struct ncclComm *comm, struct fake_op *op)
{
    struct entry **e = &g_group.entries;
    while (*e && (*e)->comm != comm)
        e = &(*e)->next;
    if (!*e) {
        *e = calloc(1, sizeof(**e));
        (*e)->comm = comm;
    }
    struct fake_op **at = op->call < FAKE_SEND ? &(*e)->collectives : &(*e)->pairwise;
    while (*at)
        at = &(*at)->next;
    *at = op;
}

static void *run_job(void *arg)
{
    struct fake_job *job = arg;
    job->result = job->run(job);
    return NULL;
}

/* A creation that the caller does not wait for; the thread owns the job. */
static void *run_background_job(void *arg)
{
    struct fake_job *job = arg;
    job->run(job);
    free(job);
    return NULL;
}

/* A job that will not run leaves its communicator in the group's error. */
static void drop_jobs(struct fake_job *jobs, ncclResult_t why)
{
    for (struct fake_job *job = jobs, *next; job; job = next) {
        next = job->next;
        atomic_store(&job->comm->state, why);
        free(job);
    }
}

/* Takes the jobs. */
static ncclResult_t run_jobs(struct fake_job *jobs)
{
    ncclResult_t result = ncclSuccess;
    struct fake_job *waited = NULL, **end = &waited;
    for (struct fake_job *job = jobs, *next; job; job = next) {
        next = job->next;
        job->next = NULL;
        if (job->comm->is_blocking) {
            *end = job;
            end = &job->next;
            continue;
        }
        struct ncclComm *comm = job->comm;
        comm->has_job = true;
        if (pthread_create(&comm->job, NULL, run_background_job, job) != 0)
            abort();
        result = ncclInProgress;
    }
    if (waited && !waited->next) {
        run_job(waited); /* nobody to run beside: in the caller's thread, as NCCL does */
    } else {
        for (struct fake_job *job = waited; job; job = job->next) {
            if (pthread_create(&job->thread, NULL, run_job, job) != 0)
                abort();
        }
        for (struct fake_job *job = waited; job; job = job->next)
            pthread_join(job->thread, NULL);
    }
    for (struct fake_job *job = waited, *next; job; job = next) {
        next = job->next;
        if (job->result != ncclSuccess && (result == ncclSuccess || result == ncclInProgress))
            result = job->result;
        free(job);
    }
    return result;
}

static void free_ops(struct fake_op *ops)
{
    for (struct fake_op *op = ops, *next; op; op = next) {
        next = op->next;
        free(op);
    }
}

static ncclResult_t launch_entry(struct entry *e)
{
    ncclResult_t result = ncclSuccess;
    while (e->collectives && result == ncclSuccess) {
        struct fake_op *op = e->collectives;
        e->collectives = op->next;
        op->next = NULL;
        result = fake_tuner_ask(e->comm, op);
        if (result == ncclSuccess)
            result = fake_launch(e->comm, op);
        else
            free(op);
    }
    if (e->pairwise && result == ncclSuccess) {
        result = fake_launch(e->comm, e->pairwise);
        e->pairwise = NULL;
    }
    return result;
}

static void free_entry(struct entry *e)
{
    free_ops(e->collectives);
    free_ops(e->pairwise);
    free(e);
}

/* Some time after the call has returned. */
static void *run_late_launch(void *entries)
{
    struct timespec t = {.tv_nsec = 3000000};
    nanosleep(&t, NULL);
    for (struct entry *e = entries, *next; e; e = next) {
        next = e->next;
        ncclResult_t result = launch_entry(e);
        struct ncclComm *comm = e->comm;
        free_entry(e);
        atomic_store(&comm->state, (int)result);
        atomic_fetch_sub(&comm->n_launching, 1); /* the last touch: fake_comm_drain waits for it */
    }
    return NULL;
}

/* A group of non-blocking communicators, as NCCL does it. */
static ncclResult_t launch_later(struct entry *entries)
{
    pthread_t thread;
    for (struct entry *e = entries; e; e = e->next) {
        atomic_fetch_add(&e->comm->n_launching, 1);
        atomic_store(&e->comm->state, ncclInProgress);
    }
    if (pthread_create(&thread, NULL, run_late_launch, entries) != 0)
        abort();
    pthread_detach(thread);
    return ncclInProgress;
}

ncclResult_t fake_group_finish(ncclResult_t result)
{
    if (result != ncclSuccess && g_group.result == ncclSuccess)
        g_group.result = result;
    if (--g_group.depth > 0)
        return result;

    /* What runs below may call NCCL again (a plugin's hooks), so the state is taken first. */
    struct fake_job *jobs = g_group.jobs;
    struct entry *entries = g_group.entries;
    result = g_group.result;
    g_group.jobs = NULL;
    g_group.entries = NULL;
    g_group.result = ncclSuccess;
    if (result != ncclSuccess)
        drop_jobs(jobs, result);
    else if (jobs)
        result = run_jobs(jobs);
    bool is_blocking = true;
    for (struct entry *e = entries; e; e = e->next)
        is_blocking = is_blocking && e->comm->is_blocking;
    if (!is_blocking && (result == ncclSuccess || result == ncclInProgress))
        return launch_later(entries);
    for (struct entry *e = entries, *next; e; e = next) {
        next = e->next;
        if (result == ncclSuccess || result == ncclInProgress) {
            ncclResult_t r = launch_entry(e);
            result = r == ncclSuccess ? result : r;
        }
        free_entry(e);
    }
    return result;
}

FAKE_API(ncclResult_t, GroupStart, (void))
{
    fake_group_begin();
    return ncclSuccess;
}

FAKE_API(ncclResult_t, GroupEnd, (void))
{
    if (!fake_group_is_open()) {
        FAKE_WARN("ncclGroupEnd without ncclGroupStart");
        return ncclInvalidUsage;
    }
    return fake_group_finish(ncclSuccess);
}

FAKE_API(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t * info))
{
    if (!fake_group_is_open())
        return ncclInvalidUsage;
    if (!info)
        return fake_group_finish(ncclSuccess); /* NCCL takes it for a plain end */
    ncclResult_t result = g_group.result;
    if (g_group.depth == 1) {
        /* Nothing is launched: what was collected is dropped. */
        if (result == ncclSuccess)
            g_group.result = ncclInvalidUsage;
        fake_group_finish(ncclSuccess);
    } else {
        g_group.depth--;
    }
    if (info && result == ncclSuccess)
        info->estimated_time = 1.0f;
    return result;
}
