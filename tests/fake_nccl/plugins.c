/*
 * Tuner and profiler tables of every version, declared here from NCCL's documentation of them and
 * not from ext-headers/, so that a wrong layout there is noticed. Libraries are shared by all
 * communicators and closed when the last one has gone.
 */
#include "loader.h"

#include <dlfcn.h>
#include <stdlib.h>

enum { N_ALGORITHMS = 7, N_PROTOCOLS = 3 };

/* ---- tuner ---- */
struct nvl_domain {
    int n_domains, min_ranks, max_ranks;
};
struct tuner_v1 {
    const char *name;
    ncclResult_t (*init)(size_t n_ranks, size_t n_nodes, fake_logger logger);
    ncclResult_t (*get)(int func, size_t bytes, int collnet, int nvls, int n_pipe_ops,
                        int *algorithm, int *protocol, int *n_channels);
    ncclResult_t (*destroy)(void);
};
struct tuner_v2 {
    const char *name;
    ncclResult_t (*init)(size_t n_ranks, size_t n_nodes, fake_logger logger, void **context);
    ncclResult_t (*get)(void *context, int func, size_t bytes, int collnet, int nvls,
                        int n_pipe_ops, int *algorithm, int *protocol, int *n_channels);
    ncclResult_t (*destroy)(void *context);
};
struct tuner_v3 {
    const char *name;
    ncclResult_t (*init)(size_t n_ranks, size_t n_nodes, fake_logger logger, void **context);
    ncclResult_t (*get)(void *context, int func, size_t bytes, int n_pipe_ops, float **costs,
                        int n_algorithms, int n_protocols, int *n_channels);
    ncclResult_t (*destroy)(void *context);
};
struct tuner_v4 {
    const char *name;
    ncclResult_t (*init)(size_t n_ranks, size_t n_nodes, fake_logger logger, void **context);
    ncclResult_t (*get)(void *context, int func, size_t bytes, int n_pipe_ops, float **costs,
                        int n_algorithms, int n_protocols, int is_registered, int *n_channels);
    ncclResult_t (*destroy)(void *context);
};
struct tuner_v6 { /* v5 ends before get_chunk_size */
    const char *name;
    ncclResult_t (*init)(void **context, uint64_t comm_id, size_t n_ranks, size_t n_nodes,
                         fake_logger logger, struct nvl_domain *domain, void *constants);
    ncclResult_t (*get)(void *context, int func, size_t bytes, int n_pipe_ops, float **costs,
                        int n_algorithms, int n_protocols, int is_registered, int *n_channels);
    ncclResult_t (*finalize)(void *context);
    ncclResult_t (*get_chunk_size)(void *context, int func, size_t bytes, int algorithm,
                                   int protocol, int n_channels, size_t *chunk_bytes);
};
struct fake_tuner {
    int version;
    void *library, *table;
    int n_users;
};
/* ---- profiler ---- */
struct fake_profiler {
    int version;
    void *library, *table;
    int n_users;
};

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_tuner g_tuner;
static struct fake_profiler g_profiler;
static bool g_has_tuner_failed, g_has_profiler_failed; /* one failure holds for the process */

static const int *tuner_versions(void)
{
    static const int v6[] = {6, 5, 4, 3, 2, 0};
    int version = fake_version();
    if (version < 22100) {
        static const int v1[] = {1, 0};
        return v1;
    }
    if (version < 22200)
        return v6 + 4;
    if (version < 22400)
        return v6 + 3;
    if (version < 22800)
        return v6 + 2;
    return version < 23000 ? v6 + 1 : v6;
}

static bool open_tuner(void)
{
    if (g_tuner.n_users == 0 && !g_has_tuner_failed) {
        g_tuner.library = fake_plugin_open(FAKE_PLUGIN_TUNER);
        g_tuner.version = g_tuner.library ? fake_plugin_find(g_tuner.library, "ncclTunerPlugin",
                                                             tuner_versions(), &g_tuner.table)
                                          : 0;
        if (g_tuner.library && g_tuner.version == 0) {
            FAKE_INFO("the tuner plugin has no table of a version this NCCL knows");
            dlclose(g_tuner.library);
        }
        g_has_tuner_failed = g_tuner.version == 0;
    }
    if (g_has_tuner_failed)
        return false;
    g_tuner.n_users++;
    return true;
}

ncclResult_t fake_tuner_load(struct ncclComm *comm)
{
    pthread_mutex_lock(&g_lock);
    bool is_open = open_tuner();
    pthread_mutex_unlock(&g_lock);
    if (!is_open)
        return ncclSuccess;
    comm->tuner = &g_tuner;
    size_t n_ranks = (size_t)comm->n_ranks, n_nodes = (size_t)comm->link->segment.n_nodes;
    void *table = g_tuner.table;
    void **context = &comm->tuner_context;
    switch (g_tuner.version) { /* outside the lock: several inits run at once */
    case 1:
        return ((struct tuner_v1 *)table)->init(n_ranks, n_nodes, fake_log);
    case 2:
        return ((struct tuner_v2 *)table)->init(n_ranks, n_nodes, fake_log, context);
    case 3:
        return ((struct tuner_v3 *)table)->init(n_ranks, n_nodes, fake_log, context);
    case 4:
        return ((struct tuner_v4 *)table)->init(n_ranks, n_nodes, fake_log, context);
    default: {
        struct nvl_domain domain = {1, comm->n_ranks, comm->n_ranks};
        static double constants[512];
        return ((struct tuner_v6 *)table)
            ->init(context, comm->hash, n_ranks, n_nodes, fake_log, &domain, constants);
    }
    }
}

/* As NCCL: asked at every collective of more than one rank; an error fails the collective. */
ncclResult_t fake_tuner_ask(struct ncclComm *comm, const struct fake_op *op)
{
    if (!comm->tuner || comm->n_ranks == 1)
        return ncclSuccess;
    size_t bytes = op->count * fake_type_bytes(op->type);
    int func = op->call, algorithm = -1, protocol = -1, n_channels = 0;
    float costs[N_ALGORITHMS][N_PROTOCOLS];
    for (int a = 0; a < N_ALGORITHMS; a++) {
        for (int p = 0; p < N_PROTOCOLS; p++)
            costs[a][p] = 1.0f + (float)(a + p);
    }
    void *context = comm->tuner_context, *table = comm->tuner->table;
    float **flat = (float **)costs; /* the ABI's own disguise of a matrix */
    switch (comm->tuner->version) {
    case 1:
        return ((struct tuner_v1 *)table)
            ->get(func, bytes, 0, 0, 1, &algorithm, &protocol, &n_channels);
    case 2:
        return ((struct tuner_v2 *)table)
            ->get(context, func, bytes, 0, 0, 1, &algorithm, &protocol, &n_channels);
    case 3:
        return ((struct tuner_v3 *)table)
            ->get(context, func, bytes, 1, flat, N_ALGORITHMS, N_PROTOCOLS, &n_channels);
    case 4:
        return ((struct tuner_v4 *)table)
            ->get(context, func, bytes, 1, flat, N_ALGORITHMS, N_PROTOCOLS, 0, &n_channels);
    default: {
        struct tuner_v6 *tuner = table;
        ncclResult_t result =
            tuner->get(context, func, bytes, 1, flat, N_ALGORITHMS, N_PROTOCOLS, 0, &n_channels);
        size_t chunk = 1 << 17;
        if (result == ncclSuccess && comm->tuner->version == 6 && tuner->get_chunk_size)
            result = tuner->get_chunk_size(context, func, bytes, 1, 0, 1, &chunk);
        return result;
    }
    }
}

static void unload_tuner(struct ncclComm *comm)
{
    if (!comm->tuner)
        return;
    void *table = g_tuner.table;
    if (g_tuner.version == 1)
        ((struct tuner_v1 *)table)->destroy();
    else if (g_tuner.version < 5)
        ((struct tuner_v2 *)table)->destroy(comm->tuner_context); /* the same place in v2 to v4 */
    else
        ((struct tuner_v6 *)table)->finalize(comm->tuner_context);
    comm->tuner = NULL;
    pthread_mutex_lock(&g_lock);
    if (--g_tuner.n_users == 0)
        dlclose(g_tuner.library);
    pthread_mutex_unlock(&g_lock);
}

/* ---- profiler ---- */
struct profiler_v1 { /* and v2, v3 */
    const char *name;
    ncclResult_t (*init)(void **context, int *mask);
    ncclResult_t (*start)(void *context, void **event, void *description);
    ncclResult_t (*stop)(void *event);
    ncclResult_t (*record)(void *event, int state, void *args);
    ncclResult_t (*finalize)(void *context);
};
struct profiler_v4 {
    const char *name;
    ncclResult_t (*init)(void **context, int *mask, const char *comm_name, uint64_t comm_hash,
                         int n_nodes, int n_ranks, int rank, fake_logger logger);
    ncclResult_t (*start)(void *context, void **event, void *description);
    ncclResult_t (*stop)(void *event);
    ncclResult_t (*record)(void *event, int state, void *args);
    ncclResult_t (*finalize)(void *context);
};
struct profiler_v5 { /* and v6 */
    const char *name;
    ncclResult_t (*init)(void **context, uint64_t comm_id, int *mask, const char *comm_name,
                         int n_nodes, int n_ranks, int rank, fake_logger logger);
    ncclResult_t (*start)(void *context, void **event, void *description);
    ncclResult_t (*stop)(void *event);
    ncclResult_t (*record)(void *event, int state, void *args);
    ncclResult_t (*finalize)(void *context);
};

static const int *profiler_versions(void)
{
    static const int all[] = {6, 5, 4, 3, 2, 1, 0};
    int version = fake_version();
    if (version < 22400)
        return all + 5;
    if (version < 22600)
        return all + 4;
    if (version < 22700)
        return all + 3;
    if (version < 22800)
        return all + 2;
    return version < 22900 ? all + 1 : all;
}

void fake_profiler_load(struct ncclComm *comm)
{
    pthread_mutex_lock(&g_lock);
    if (g_profiler.n_users == 0 && !g_has_profiler_failed) {
        g_profiler.library = fake_plugin_open(FAKE_PLUGIN_PROFILER);
        g_profiler.version = g_profiler.library
                                 ? fake_plugin_find(g_profiler.library, "ncclProfiler",
                                                    profiler_versions(), &g_profiler.table)
                                 : 0;
        if (g_profiler.library && g_profiler.version == 0)
            dlclose(g_profiler.library);
        g_has_profiler_failed = g_profiler.version == 0;
    }
    bool is_open = !g_has_profiler_failed;
    g_profiler.n_users += is_open;
    pthread_mutex_unlock(&g_lock);
    if (!is_open)
        return;
    comm->profiler = &g_profiler;
    int mask = 0, n_nodes = comm->link->segment.n_nodes;
    const char *name = comm->name[0] ? comm->name : NULL;
    void **context = &comm->profiler_context, *table = g_profiler.table;
    ncclResult_t result;
    if (g_profiler.version < 4)
        result = ((struct profiler_v1 *)table)->init(context, &mask);
    else if (g_profiler.version == 4)
        result = ((struct profiler_v4 *)table)
                     ->init(context, &mask, name, comm->hash, n_nodes, comm->n_ranks, comm->rank,
                            fake_log);
    else
        result = ((struct profiler_v5 *)table)
                     ->init(context, comm->hash, &mask, name, n_nodes, comm->n_ranks, comm->rank,
                            fake_log);
    if (result != ncclSuccess) /* only disables it */
        FAKE_INFO("the profiler plugin refused: %d", result);
    if (mask)
        FAKE_WARN("the profiler plugin asks for events %#x, and the fake has none", (unsigned)mask);
}

static void unload_profiler(struct ncclComm *comm)
{
    if (!comm->profiler)
        return;
    if (fake_version() < 22800 || comm->profiler_context) /* one place in all versions */
        ((struct profiler_v1 *)g_profiler.table)->finalize(comm->profiler_context);
    comm->profiler = NULL;
    pthread_mutex_lock(&g_lock);
    if (--g_profiler.n_users == 0)
        dlclose(g_profiler.library);
    pthread_mutex_unlock(&g_lock);
}

void fake_plugins_unload(struct ncclComm *comm)
{
    unload_tuner(comm);
    unload_profiler(comm);
}
