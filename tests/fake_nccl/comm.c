/* Communicators: what they consist of, how they are asked and how they end. */
#include "fake.h"

#include <stdlib.h>

static const uint64_t g_start_magic = 0x6b6166656e63636cu;
static const uint64_t g_end_magic = 0x6c63636e65666b61u;

bool fake_comm_is_valid(const struct ncclComm *comm)
{
    return comm && comm->start_magic == g_start_magic && comm->end_magic == g_end_magic;
}

ncclResult_t fake_comm_check(const struct ncclComm *comm)
{
    if (!fake_comm_is_valid(comm)) {
        FAKE_WARN("comm is no communicator");
        return ncclInvalidArgument;
    }
    if (atomic_load(&comm->is_revoked) || atomic_load(&comm->is_suspended))
        return ncclInvalidUsage;
    int state = atomic_load(&comm->state);
    return state == ncclInProgress ? ncclInvalidArgument : (ncclResult_t)state;
}

struct ncclComm *fake_comm_new(int device)
{
    struct ncclComm *comm = calloc(1, sizeof(*comm));
    struct fake_link *link = calloc(1, sizeof(*link));
    if (!comm || !link)
        abort();
    comm->start_magic = g_start_magic;
    comm->end_magic = g_end_magic;
    comm->link = link;
    atomic_init(&link->n_holders, 1);
    comm->device = device;
    atomic_init(&comm->state, ncclInProgress);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->turn, NULL);
    struct llane_gpu_identity identity;
    if (llane_gpu_identify(device, &identity) == 0)
        comm->cc = 10 * identity.cc_major + identity.cc_minor;
    return comm;
}

void fake_link_release(struct fake_link *link)
{
    if (atomic_fetch_sub(&link->n_holders, 1) != 1)
        return;
    if (link->segment.base)
        fake_segment_leave(&link->segment);
    free(link);
}

void fake_comm_free(struct ncclComm *comm)
{
    bool is_captured = atomic_load(&comm->link->n_holders) > 1;
    fake_link_release(comm->link);
    if (!is_captured) {
        if (comm->order)
            llane_gpu_event_destroy(comm->order);
        for (int i = 0; i < FAKE_CAPTURES; i++) {
            if (comm->captures[i].order)
                llane_gpu_event_destroy(comm->captures[i].order);
        }
    }
    if (comm->join)
        llane_gpu_event_destroy(comm->join);
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->turn);
    comm->start_magic = comm->end_magic = 0;
    free(comm);
}

void fake_comm_drain(struct ncclComm *comm)
{
    unsigned n_polls = 0;
    while (atomic_load(&comm->n_launching) || atomic_load(&comm->link->in_flight) ||
           atomic_load(&comm->link->busy))
        fake_pause(&n_polls);
}

void fake_comm_stop_work(struct ncclComm *comm)
{
    atomic_store(&comm->link->abort, 1);
    fake_comm_drain(comm);
    atomic_store(&comm->link->abort, 0);
}

static void join_job(struct ncclComm *comm)
{
    if (comm->has_job)
        pthread_join(comm->job, NULL);
    comm->has_job = false;
}

FAKE_API(ncclResult_t, CommFinalize, (ncclComm_t comm))
{
    if (!comm)
        return ncclSuccess;
    ncclResult_t result = fake_comm_check(comm);
    if (result != ncclSuccess)
        return result;
    if (comm->is_finalized)
        return ncclInvalidArgument;
    fake_comm_drain(comm);
    comm->is_finalized = true;
    return ncclSuccess;
}

static ncclResult_t end(struct ncclComm *comm)
{
    int before = 0;
    join_job(comm);
    fake_comm_drain(comm);
    llane_gpu_device_get(&before);
    llane_gpu_device_set(comm->device);
    fake_plugins_unload(comm);
    llane_gpu_device_set(before);
    fake_comm_free(comm);
    return ncclSuccess;
}

FAKE_API(ncclResult_t, CommDestroy, (ncclComm_t comm))
{
    if (!comm)
        return ncclSuccess;
    if (!fake_comm_is_valid(comm)) {
        FAKE_WARN("comm is no communicator (destroyed twice?)");
        return ncclInvalidArgument;
    }
    return end(comm);
}

FAKE_API(ncclResult_t, CommAbort, (ncclComm_t comm))
{
    if (!comm)
        return ncclSuccess;
    if (!fake_comm_is_valid(comm))
        return ncclInvalidArgument;
    atomic_store(&comm->link->abort, 1); /* read by every wait of this rank */
    return end(comm);
}

FAKE_API(ncclResult_t, CommRevoke, (ncclComm_t comm, int flags))
{
    if (!fake_comm_is_valid(comm) || flags != 0)
        return ncclInvalidArgument;
    if (atomic_load(&comm->is_revoked) || atomic_load(&comm->state) == ncclInProgress)
        return ncclInvalidArgument;
    atomic_store(&comm->is_revoked, 1);
    fake_comm_stop_work(comm);
    return ncclSuccess;
}

FAKE_API(ncclResult_t, CommSuspend, (ncclComm_t comm, int flags))
{
    (void)flags;
    ncclResult_t result = fake_comm_check(comm);
    if (result == ncclSuccess)
        atomic_store(&comm->is_suspended, 1);
    return result;
}

FAKE_API(ncclResult_t, CommResume, (ncclComm_t comm))
{
    if (!fake_comm_is_valid(comm))
        return ncclInvalidArgument;
    atomic_store(&comm->is_suspended, 0);
    return ncclSuccess;
}

FAKE_API(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t *result))
{
    if (!fake_comm_is_valid(comm) || !result)
        return ncclInvalidArgument;
    *result = (ncclResult_t)atomic_load(&comm->state);
    return ncclSuccess;
}

/* NCCL asks only for a ready communicator here: a revoked one still answers. It asks by its own public
 * call (2.28, ncclCommEnsureReady), which binds to whoever has taken that name over. */
static ncclResult_t ask(ncclComm_t comm, int value, int *out)
{
    ncclResult_t state;
    if (!fake_comm_is_valid(comm) || !out || ncclCommGetAsyncError(comm, &state) != ncclSuccess ||
        state == ncclInProgress)
        return ncclInvalidArgument;
    *out = value;
    return ncclSuccess;
}

FAKE_API(ncclResult_t, CommCount, (const ncclComm_t comm, int *count))
{
    return ask(comm, fake_comm_is_valid(comm) ? comm->n_ranks : 0, count);
}

FAKE_API(ncclResult_t, CommUserRank, (const ncclComm_t comm, int *rank))
{
    return ask(comm, fake_comm_is_valid(comm) ? comm->rank : 0, rank);
}

FAKE_API(ncclResult_t, CommCuDevice, (const ncclComm_t comm, int *device))
{
    return ask(comm, fake_comm_is_valid(comm) ? comm->device : 0, device);
}

FAKE_API(ncclResult_t, CommRegister,
         (const ncclComm_t comm, void *buffer, size_t bytes, void **handle))
{
    if (!fake_comm_is_valid(comm) || !buffer || bytes == 0 || !handle)
        return ncclInvalidArgument;
    *handle = buffer;
    return ncclSuccess;
}

FAKE_API(ncclResult_t, CommDeregister, (const ncclComm_t comm, void *handle))
{
    return fake_comm_is_valid(comm) && handle ? ncclSuccess : ncclInvalidArgument;
}
