/*
 * A plugin with every table, which writes down how it is used. Member types are the test's own, so
 * that neither the fake's nor ext-headers' declarations are trusted. TABLES_FAIL=env|tuner|profiler makes that
 * init fail.
 */
#include "nccl_abi.h"
#include "record.h"

#include <malloc.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);

static ncclResult_t fail(const char *what)
{
    const char *wanted = getenv("TABLES_FAIL");
    return wanted && strcmp(wanted, what) == 0 ? ncclInternalError : ncclSuccess;
}

static ncclResult_t tuner_init(int version, size_t n_ranks, size_t n_nodes, logger log,
                               void **context, uint64_t id)
{
    record("tuner v%d init ranks %zu nodes %zu id %s\n", version, n_ranks, n_nodes,
           id ? "given" : "none");
    log(3, 0, __FILE__, __LINE__, "tuner v%d says hello", version);
    if (context)
        *context = (void *)(intptr_t)(0x1000 + version);
    return fail("tuner");
}

static ncclResult_t tuner_get(int version, const void *context, int func, size_t bytes)
{
    record("tuner v%d get func %d bytes %zu context %s\n", version, func, bytes,
           version == 1 || (intptr_t)context == 0x1000 + version ? "right" : "wrong");
    return ncclSuccess;
}

static ncclResult_t tuner_end(int version, const void *context)
{
    record("tuner v%d end context %s\n", version,
           version == 1 || (intptr_t)context == 0x1000 + version ? "right" : "wrong");
    return ncclSuccess;
}

/* ---- v1: no context ---- */
static ncclResult_t init_1(size_t n_ranks, size_t n_nodes, logger log)
{
    return tuner_init(1, n_ranks, n_nodes, log, NULL, 0);
}
static ncclResult_t get_1(int func, size_t bytes, int collnet, int nvls, int n_pipe_ops,
                          int *algorithm, int *protocol, int *n_channels)
{
    (void)collnet, (void)nvls, (void)n_pipe_ops, (void)algorithm, (void)protocol;
    return *n_channels < 0 ? ncclInternalError : tuner_get(1, NULL, func, bytes);
}
static ncclResult_t end_1(void)
{
    return tuner_end(1, NULL);
}
EXPORT const struct {
    const char *name;
    ncclResult_t (*init)(size_t, size_t, logger);
    ncclResult_t (*get)(int, size_t, int, int, int, int *, int *, int *);
    ncclResult_t (*end)(void);
} ncclTunerPlugin_v1 = {"tables", init_1, get_1, end_1};

/* ---- v2 ---- */
static ncclResult_t init_2(size_t n_ranks, size_t n_nodes, logger log, void **context)
{
    return tuner_init(2, n_ranks, n_nodes, log, context, 0);
}
static ncclResult_t get_2(void *context, int func, size_t bytes, int collnet, int nvls,
                          int n_pipe_ops, int *algorithm, int *protocol, int *n_channels)
{
    (void)collnet, (void)nvls, (void)n_pipe_ops, (void)algorithm, (void)protocol, (void)n_channels;
    return tuner_get(2, context, func, bytes);
}
static ncclResult_t end_2(void *context)
{
    return tuner_end(2, context);
}
EXPORT const struct {
    const char *name;
    ncclResult_t (*init)(size_t, size_t, logger, void **);
    ncclResult_t (*get)(void *, int, size_t, int, int, int, int *, int *, int *);
    ncclResult_t (*end)(void *);
} ncclTunerPlugin_v2 = {"tables", init_2, get_2, end_2};

/* ---- v3 ---- */
static ncclResult_t init_3(size_t n_ranks, size_t n_nodes, logger log, void **context)
{
    return tuner_init(3, n_ranks, n_nodes, log, context, 0);
}
static ncclResult_t get_3(void *context, int func, size_t bytes, int n_pipe_ops, float **costs,
                          int n_algorithms, int n_protocols, int *n_channels)
{
    const float *flat = (const float *)costs; /* the whole matrix must be readable */
    (void)n_pipe_ops, (void)n_channels;
    return flat[n_algorithms * n_protocols - 1] > 0 ? tuner_get(3, context, func, bytes)
                                                    : ncclInternalError;
}
static ncclResult_t end_3(void *context)
{
    return tuner_end(3, context);
}
EXPORT const struct {
    const char *name;
    ncclResult_t (*init)(size_t, size_t, logger, void **);
    ncclResult_t (*get)(void *, int, size_t, int, float **, int, int, int *);
    ncclResult_t (*end)(void *);
} ncclTunerPlugin_v3 = {"tables", init_3, get_3, end_3};

/* ---- v4 ---- */
static ncclResult_t init_4(size_t n_ranks, size_t n_nodes, logger log, void **context)
{
    return tuner_init(4, n_ranks, n_nodes, log, context, 0);
}
static ncclResult_t get_4(void *context, int func, size_t bytes, int n_pipe_ops, float **costs,
                          int n_algorithms, int n_protocols, int is_registered, int *n_channels)
{
    (void)n_pipe_ops, (void)costs, (void)n_algorithms, (void)n_protocols, (void)n_channels;
    return is_registered ? ncclInternalError : tuner_get(4, context, func, bytes);
}
static ncclResult_t end_4(void *context)
{
    return tuner_end(4, context);
}
EXPORT const struct {
    const char *name;
    ncclResult_t (*init)(size_t, size_t, logger, void **);
    ncclResult_t (*get)(void *, int, size_t, int, float **, int, int, int, int *);
    ncclResult_t (*end)(void *);
} ncclTunerPlugin_v4 = {"tables", init_4, get_4, end_4};

/* ---- v5 and v6 ---- */
#define TUNER_WITH_ID(n)                                                                           \
    static ncclResult_t init_##n(void **context, uint64_t id, size_t n_ranks, size_t n_nodes,      \
                                 logger log, int *domain, void *constants)                         \
    {                                                                                              \
        return domain[2] == (int)n_ranks && constants                                              \
                   ? tuner_init(n, n_ranks, n_nodes, log, context, id)                             \
                   : ncclInternalError;                                                            \
    }                                                                                              \
    static ncclResult_t get_##n(void *context, int func, size_t bytes, int n_pipe_ops,             \
                                float **costs, int n_algorithms, int n_protocols,                  \
                                int is_registered, int *n_channels)                                \
    {                                                                                              \
        (void)n_pipe_ops, (void)costs, (void)n_algorithms, (void)n_protocols, (void)n_channels;    \
        return is_registered ? ncclInternalError : tuner_get(n, context, func, bytes);             \
    }                                                                                              \
    static ncclResult_t end_##n(void *context)                                                     \
    {                                                                                              \
        return tuner_end(n, context);                                                              \
    }                                                                                              \
    EXPORT const struct {                                                                          \
        const char *name;                                                                          \
        ncclResult_t (*init)(void **, uint64_t, size_t, size_t, logger, int *, void *);            \
        ncclResult_t (*get)(void *, int, size_t, int, float **, int, int, int, int *);             \
        ncclResult_t (*end)(void *);                                                               \
        void *chunk; /* v6 only, NULL allowed */                                                   \
    } ncclTunerPlugin_v##n = {"tables", init_##n, get_##n, end_##n, NULL};
TUNER_WITH_ID(5)
TUNER_WITH_ID(6)

/* ---- profiler: v1 to v3, v4, v5 and v6 ---- */
static ncclResult_t profiler_init(int version, void **context, int *mask, const char *name,
                                  uint64_t id, int n_nodes, int n_ranks, int rank)
{
    record("profiler v%d init ranks %d nodes %d rank %d id %s name %s\n", version, n_ranks, n_nodes,
           rank, id ? "given" : "none", name ? name : "none");
    *mask = 0;
    *context = (void *)(intptr_t)(0x2000 + version);
    return fail("profiler");
}
#define PROFILER_INIT_OLD(n)                                                                       \
    static ncclResult_t profiler_init_##n(void **context, int *mask)                               \
    {                                                                                              \
        return profiler_init(n, context, mask, NULL, 0, 0, 0, 0);                                  \
    }
#define PROFILER_INIT_ID(n)                                                                        \
    static ncclResult_t profiler_init_##n(void **context, uint64_t id, int *mask,                  \
                                          const char *name, int n_nodes, int n_ranks, int rank,    \
                                          logger log)                                              \
    {                                                                                              \
        log(3, 0, __FILE__, __LINE__, "profiler v%d says hello", n);                               \
        return profiler_init(n, context, mask, name, id, n_nodes, n_ranks, rank);                  \
    }
static ncclResult_t profiler_init_4(void **context, int *mask, const char *name, uint64_t id,
                                    int n_nodes, int n_ranks, int rank, logger log)
{
    log(3, 0, __FILE__, __LINE__, "profiler v4 says hello");
    return profiler_init(4, context, mask, name, id, n_nodes, n_ranks, rank);
}
#define PROFILER(n, ...)                                                                           \
    static ncclResult_t profiler_end_##n(void *context)                                            \
    {                                                                                              \
        record("profiler v%d end context %s\n", n,                                                 \
               (intptr_t)context == 0x2000 + (n) ? "right" : "wrong");                             \
        return ncclSuccess;                                                                        \
    }                                                                                              \
    EXPORT const struct {                                                                          \
        const char *name;                                                                          \
        ncclResult_t (*init)(__VA_ARGS__);                                                         \
        void *start, *stop, *event_state; /* no event is asked for */                              \
        ncclResult_t (*end)(void *);                                                               \
    } ncclProfiler_v##n = {"tables", profiler_init_##n, NULL, NULL, NULL, profiler_end_##n};
PROFILER_INIT_OLD(1)
PROFILER_INIT_OLD(2)
PROFILER_INIT_OLD(3)
PROFILER_INIT_ID(5)
PROFILER_INIT_ID(6)
PROFILER(1, void **, int *)
PROFILER(2, void **, int *)
PROFILER(3, void **, int *)
PROFILER(4, void **, int *, const char *, uint64_t, int, int, int, logger)
PROFILER(5, void **, uint64_t, int *, const char *, int, int, int, logger)
PROFILER(6, void **, uint64_t, int *, const char *, int, int, int, logger)

/* ---- env ---- */
static ncclResult_t env_init_1(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix)
{
    record("env v1 init %d.%d.%d%s\n", major, minor, patch, suffix);
    return fail("env");
}
static ncclResult_t env_init_2(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix,
                               logger log)
{
    record("env v2 init %d.%d.%d%s\n", major, minor, patch, suffix);
    log(3, 0, __FILE__, __LINE__, "env says hello");
    return fail("env");
}
static ncclResult_t env_end(void)
{
    record("env end\n");
    return ncclSuccess;
}
static const char *env_get(const char *name)
{
    return getenv(name);
}
EXPORT const struct {
    const char *name;
    ncclResult_t (*init)(uint8_t, uint8_t, uint8_t, const char *);
    ncclResult_t (*end)(void);
    const char *(*get)(const char *);
} ncclEnvPlugin_v1 = {"tables", env_init_1, env_end, env_get};
EXPORT const struct {
    const char *name;
    ncclResult_t (*init)(uint8_t, uint8_t, uint8_t, const char *, logger);
    ncclResult_t (*end)(void);
    const char *(*get)(const char *);
} ncclEnvPlugin_v2 = {"tables", env_init_2, env_end, env_get};

__attribute__((constructor)) static void on_load(void)
{
    record("loaded\n");
}

__attribute__((destructor)) static void on_unload(void)
{
    record("unloaded\n");
}
