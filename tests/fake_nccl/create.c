/* How communicators come to be: by a unique id, as children of one, without some ranks of one. */
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t g_id_magic = 0x64696c63636e6661u;

/* The lanes of a unique id; the rest of its bytes are noise, as NCCL's are an address. */
struct unique_id {
    uint64_t magic, random[15];
};

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

/*
 * With NCCL_COMM_ID every unique id is that address, and plugins are told one id for all communicators
 * made of it. They still meet apart, one after the other: the ranks of one communicator at the address
 * are all there before those of the next. Here a rank's count tells them apart.
 */
static _Atomic uint64_t g_n_by_variable[FAKE_MAX_RANKS];

static bool is_of_variable(const struct unique_id *id)
{
    return !id->random[1]; /* else it is noise */
}

static bool is_known(const ncclConfig_t *config, size_t end)
{
    return config && config->size >= end;
}

/* Copies what is used of the config; a child inherits what is not set. */
static ncclResult_t read_config(struct ncclComm *comm, const ncclConfig_t *config,
                                const struct ncclComm *parent)
{
    comm->is_blocking = parent ? parent->is_blocking : true;
    comm->is_sharing = parent && !config && parent->is_sharing;
    comm->is_shrink_sharing = parent && !config && parent->is_shrink_sharing;
    if (parent && !config)
        memcpy(comm->name, parent->name, sizeof(comm->name));
    if (config && config->magic != FAKE_CONFIG_MAGIC) {
        FAKE_WARN("the config was not initialised");
        return ncclInvalidArgument;
    }
    if (is_known(config, offsetof(ncclConfig_t, blocking) + sizeof(int)) &&
        config->blocking != FAKE_CONFIG_UNSET) {
        if (config->blocking != 0 && config->blocking != 1)
            return ncclInvalidArgument;
        comm->is_blocking = config->blocking;
    }
    if (is_known(config, offsetof(ncclConfig_t, split_share) + sizeof(int)))
        comm->is_sharing = config->split_share == 1;
    if (is_known(config, offsetof(ncclConfig_t, shrink_share) + sizeof(int)))
        comm->is_shrink_sharing = config->shrink_share == 1;
    if (is_known(config, offsetof(ncclConfig_t, comm_name) + sizeof(char *)) && config->comm_name)
        snprintf(comm->name, sizeof(comm->name), "%s", config->comm_name);
    return ncclSuccess;
}

/* From the ranks' meeting to the tuner; in the caller's thread or one of the group's. */
static ncclResult_t establish(struct ncclComm *comm, uint64_t id, int rank, int n_ranks)
{
    int before = 0, version = 0;
    ncclResult_t result;
    comm->id = comm->link->id = id;
    if (!comm->hash)
        comm->hash = id;
    comm->rank = rank;
    comm->n_ranks = n_ranks;
    llane_gpu_device_get(&before);
    if (llane_gpu_device_set(comm->device) != 0)
        return ncclUnhandledCudaError;
    ncclGetVersion(&version); /* through the PLT, as NCCL does */
    FAKE_INFO("fake NCCL version %d, comm %016llx rank %d of %d device %d: init", version,
              (unsigned long long)id, rank, n_ranks, comm->device);
    fake_net_load(comm);
    result = fake_segment_join(id, rank, n_ranks, &comm->link->abort, &comm->link->segment);
    if (result == ncclSuccess)
        fake_profiler_load(comm);
    if (result == ncclSuccess)
        result = fake_tuner_load(comm);
    if (result == ncclSuccess)
        result = fake_segment_exchange(&comm->link->segment, comm->n_exchanges_issued++,
                                       (int[2]){0, 0}, &comm->link->abort, NULL);
    comm->n_exchanges_done = comm->n_exchanges_issued;
    llane_gpu_device_set(before);
    if (result != ncclSuccess)
        FAKE_WARN("init of rank %d: %s", rank, ncclGetErrorString(result));
    /* Publishes all of the above to a thread that asks for the state of a non-blocking comm. */
    atomic_store(&comm->state, (int)result);
    return result;
}

static ncclResult_t job_init(struct fake_job *job)
{
    return establish(job->comm, job->id, job->key, job->color);
}

static ncclResult_t job_split(struct fake_job *job)
{
    struct ncclComm *parent = job->parent;
    int mine[2] = {job->color, job->key}, all[FAKE_MAX_RANKS][2];
    /* Several splits of one parent in a group meet in the order of the calls. */
    pthread_mutex_lock(&parent->lock);
    while (parent->n_exchanges_done != job->n_exchange)
        pthread_cond_wait(&parent->turn, &parent->lock);
    pthread_mutex_unlock(&parent->lock);
    ncclResult_t result = fake_segment_exchange(&parent->link->segment, job->n_exchange, mine,
                                                &parent->link->abort, all);
    pthread_mutex_lock(&parent->lock);
    parent->n_exchanges_done++;
    pthread_cond_broadcast(&parent->turn);
    pthread_mutex_unlock(&parent->lock);
    if (job->color == NCCL_SPLIT_NOCOLOR) {
        fake_comm_free(job->comm);
        return result;
    }
    if (result != ncclSuccess) {
        atomic_store(&job->comm->state, (int)result);
        return result;
    }
    int rank = 0, n_ranks = 0;
    for (int r = 0; r < parent->n_ranks; r++) {
        if (all[r][0] != job->color)
            continue;
        n_ranks++;
        /* Keys order the ranks; equal keys keep the parent's order. */
        rank += all[r][1] < job->key || (all[r][1] == job->key && r < parent->rank);
    }
    uint64_t id = mix(mix(parent->id, 1 + job->n_child), (uint64_t)job->color);
    job->comm->hash = mix(mix(parent->hash, 1 + job->n_child), (uint64_t)job->color);
    return establish(job->comm, id, rank, n_ranks);
}

static struct fake_job *job_new(struct ncclComm *comm, ncclResult_t (*run)(struct fake_job *))
{
    struct fake_job *job = calloc(1, sizeof(*job));
    if (!job)
        abort();
    job->comm = comm;
    job->run = run;
    return job;
}

static ncclResult_t begin_init(ncclComm_t *comm_out, int n_ranks, const ncclUniqueId *unique,
                               int rank, int device, const ncclConfig_t *config)
{
    struct unique_id id;
    memcpy(&id, unique, sizeof(id));
    if (!comm_out || n_ranks < 1 || n_ranks > FAKE_MAX_RANKS || rank < 0 || rank >= n_ranks ||
        id.magic != g_id_magic) {
        FAKE_WARN("bad argument: rank %d of %d", rank, n_ranks);
        return ncclInvalidArgument;
    }
    struct ncclComm *comm = fake_comm_new(device);
    ncclResult_t result = read_config(comm, config, NULL);
    if (result != ncclSuccess) {
        fake_comm_free(comm);
        return result;
    }
    struct fake_job *job = job_new(comm, job_init);
    comm->hash = mix(id.random[0], id.random[1]);
    job->id = comm->hash;
    if (is_of_variable(&id))
        job->id = mix(job->id, atomic_fetch_add(&g_n_by_variable[rank], 1));
    job->key = rank;
    job->color = n_ranks;
    fake_group_add_job(job);
    *comm_out = comm;
    return ncclSuccess;
}

FAKE_API(ncclResult_t, GetUniqueId, (ncclUniqueId * out))
{
    ncclResult_t result = fake_env_load();
    if (result != ncclSuccess)
        return result;
    if (!out)
        return ncclInvalidArgument;
    struct unique_id id = {.magic = g_id_magic};
    const char *address = fake_getenv("NCCL_COMM_ID");
    if (address) {
        for (; *address; address++)
            id.random[0] = mix(id.random[0], (unsigned char)*address);
        memcpy(out, &id, sizeof(id));
        return ncclSuccess;
    }
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, id.random, sizeof(id.random));
    if (fd >= 0)
        close(fd);
    if (n != (ssize_t)sizeof(id.random))
        return ncclSystemError;
    memcpy(out, &id, sizeof(id));
    return ncclSuccess;
}

static ncclResult_t init_rank(ncclComm_t *comm, int n_ranks, const ncclUniqueId *id, int rank,
                              const ncclConfig_t *config)
{
    ncclResult_t result = fake_env_load();
    int device = 0;
    if (result != ncclSuccess)
        return result;
    if (llane_gpu_device_get(&device) != 0)
        return ncclUnhandledCudaError;
    fake_group_begin();
    return fake_group_finish(begin_init(comm, n_ranks, id, rank, device, config));
}

FAKE_API(ncclResult_t, CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))
{
    return init_rank(comm, nranks, &id, rank, NULL);
}

FAKE_API(ncclResult_t, CommInitRankConfig,
         (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config))
{
    return init_rank(comm, nranks, &id, rank, config);
}

FAKE_API(ncclResult_t, CommInitRankScalable,
         (ncclComm_t * comm, int nranks, int rank, int n_ids, ncclUniqueId *ids,
          ncclConfig_t *config))
{
    if (n_ids < 1 || n_ids > nranks || !ids)
        return ncclInvalidArgument;
    return init_rank(comm, nranks, &ids[0], rank, config);
}

FAKE_API(ncclResult_t, CommInitAll, (ncclComm_t * comms, int ndev, const int *devlist))
{
    ncclUniqueId id;
    int n_devices = 0;
    ncclResult_t result = fake_env_load();
    if (result != ncclSuccess)
        return result;
    if (!comms || ndev < 1 || llane_gpu_device_count(&n_devices) != 0)
        return ncclInvalidArgument;
    for (int i = 0; i < ndev; i++) {
        int device = devlist ? devlist[i] : i;
        if (device < 0 || device >= n_devices)
            return ncclInvalidArgument;
    }
    result = ncclGetUniqueId(&id); /* through the PLT, as NCCL does */
    fake_group_begin();
    for (int i = 0; i < ndev && result == ncclSuccess; i++)
        result = begin_init(&comms[i], ndev, &id, i, devlist ? devlist[i] : i, NULL);
    return fake_group_finish(result);
}

static ncclResult_t begin_split(ncclComm_t parent, int color, int key, ncclComm_t *comm_out,
                                const ncclConfig_t *config)
{
    ncclResult_t result = fake_comm_check(parent);
    if (result == ncclInvalidUsage && atomic_load(&parent->is_revoked))
        result = ncclSuccess; /* a revoked parent may be split */
    if (result != ncclSuccess)
        return result;
    if (!comm_out || color < NCCL_SPLIT_NOCOLOR)
        return ncclInvalidArgument;
    *comm_out = NULL;
    struct ncclComm *comm = fake_comm_new(parent->device);
    if ((result = read_config(comm, config, parent)) != ncclSuccess) {
        fake_comm_free(comm);
        return result;
    }
    if (parent->is_sharing) /* as in NCCL the parent's own config decides, not the child's */
        comm->shares_with = parent->shares_with ? parent->shares_with : parent;
    if (color == NCCL_SPLIT_NOCOLOR)
        comm->is_blocking = true; /* nobody could ask for its state */
    struct fake_job *job = job_new(comm, job_split);
    job->parent = parent;
    job->color = color;
    job->key = key;
    pthread_mutex_lock(&parent->lock);
    job->n_exchange = parent->n_exchanges_issued++;
    job->n_child = parent->n_children++;
    pthread_mutex_unlock(&parent->lock);
    fake_group_add_job(job);
    if (color != NCCL_SPLIT_NOCOLOR)
        *comm_out = comm;
    return ncclSuccess;
}

FAKE_API(ncclResult_t, CommSplit,
         (ncclComm_t parent, int color, int key, ncclComm_t *comm, ncclConfig_t *config))
{
    fake_group_begin();
    return fake_group_finish(begin_split(parent, color, key, comm, config));
}

/* How often this set was shrunk to before: alike on all of its ranks, whatever else each has shrunk. */
static uint64_t count_shrink(struct ncclComm *parent, uint64_t set)
{
    uint64_t i = 0;
    pthread_mutex_lock(&parent->lock);
    while (i < parent->n_shrunk_sets && parent->shrunk_sets[i].set != set)
        i++;
    if (i == FAKE_SHRUNK_SETS)
        abort();
    if (i == parent->n_shrunk_sets)
        parent->shrunk_sets[parent->n_shrunk_sets++].set = set;
    uint64_t n = parent->shrunk_sets[i].n++;
    pthread_mutex_unlock(&parent->lock);
    return n;
}

static ncclResult_t begin_shrink(ncclComm_t parent, const int *excluded, int n_excluded,
                                 ncclComm_t *comm_out, const ncclConfig_t *config, int flags)
{
    ncclResult_t result = fake_comm_check(parent);
    if (result == ncclInvalidUsage && atomic_load(&parent->is_revoked))
        result = ncclSuccess;
    if (result != ncclSuccess)
        return result;
    if (!comm_out || !excluded || n_excluded < 1 || n_excluded >= parent->n_ranks)
        return ncclInvalidArgument;
    bool is_out[FAKE_MAX_RANKS] = {false};
    for (int i = 0; i < n_excluded; i++) {
        if (excluded[i] < 0 || excluded[i] >= parent->n_ranks || excluded[i] == parent->rank)
            return ncclInvalidArgument;
        is_out[excluded[i]] = true;
    }
    if (flags & FAKE_SHRINK_ABORT)
        fake_comm_stop_work(parent);
    struct ncclComm *comm = fake_comm_new(parent->device);
    if ((result = read_config(comm, config, parent)) != ncclSuccess) {
        fake_comm_free(comm);
        return result;
    }
    if (parent->is_shrink_sharing && !(flags & FAKE_SHRINK_ABORT))
        comm->shares_with = parent->shares_with ? parent->shares_with : parent;
    /* No meeting on the parent: its other ranks may be dead. All survivors know who is out. */
    struct fake_job *job = job_new(comm, job_init);
    comm->hash = mix(parent->hash, 0x73687269u);
    job->id = mix(parent->id, 0x73687269u);
    for (int r = 0; r < parent->n_ranks; r++) {
        job->color += !is_out[r];
        job->key += !is_out[r] && r < parent->rank;
        job->id = mix(job->id, is_out[r]);
    }
    job->id = mix(job->id, count_shrink(parent, job->id));
    fake_group_add_job(job);
    *comm_out = comm;
    return ncclSuccess;
}

FAKE_API(ncclResult_t, CommShrink,
         (ncclComm_t parent, int *excluded, int n_excluded, ncclComm_t *comm, ncclConfig_t *config,
          int flags))
{
    fake_group_begin();
    return fake_group_finish(begin_shrink(parent, excluded, n_excluded, comm, config, flags));
}

/* What the next one that grows out of the parent is known by; its new ranks learn it from the unique id. */
static struct unique_id grown_id(struct ncclComm *parent)
{
    const uint64_t salt = 0x67726f77u, number = 1 + parent->n_grown;
    return (struct unique_id){
        g_id_magic, {mix(parent->id, salt), number, mix(mix(parent->hash, salt), number)}};
}

FAKE_API(ncclResult_t, CommGetUniqueId, (ncclComm_t comm, ncclUniqueId *out))
{
    ncclResult_t result = fake_comm_check(comm);
    if (result != ncclSuccess || !out)
        return result != ncclSuccess ? result : ncclInvalidArgument;
    const struct unique_id id = grown_id(comm);
    memcpy(out, &id, sizeof(id));
    return ncclSuccess;
}

/* Ranks of the parent keep theirs and say -1; new ones have no parent. */
static ncclResult_t begin_grow(ncclComm_t parent, int n_ranks, const ncclUniqueId *unique, int rank,
                               ncclComm_t *comm_out, const ncclConfig_t *config)
{
    struct unique_id id = {0};
    int device = 0;
    ncclResult_t result = parent ? fake_comm_check(parent) : fake_env_load();
    if (result != ncclSuccess)
        return result;
    if (!comm_out || (parent ? rank != -1 || n_ranks <= parent->n_ranks
                             : rank < 0 || rank >= n_ranks || !unique))
        return ncclInvalidArgument;
    if (!parent && llane_gpu_device_get(&device) != 0)
        return ncclUnhandledCudaError;
    if (unique)
        memcpy(&id, unique, sizeof(id));
    if (parent)
        id = grown_id(parent);
    struct ncclComm *comm = fake_comm_new(parent ? parent->device : device);
    if ((result = read_config(comm, config, parent)) != ncclSuccess) {
        fake_comm_free(comm);
        return result;
    }
    if (parent)
        parent->n_grown++;
    struct fake_job *job = job_new(comm, job_init);
    job->id = mix(id.random[0], id.random[1]);
    comm->hash = id.random[2];
    job->key = parent ? parent->rank : rank;
    job->color = n_ranks;
    fake_group_add_job(job);
    *comm_out = comm;
    return ncclSuccess;
}

FAKE_API(ncclResult_t, CommGrow,
         (ncclComm_t parent, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *comm,
          ncclConfig_t *config))
{
    fake_group_begin();
    return fake_group_finish(begin_grow(parent, nranks, id, rank, comm, config));
}
