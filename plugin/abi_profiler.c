/*
 * abi_profiler: the profiler plugin tables. init is a door, as a tuner's is; from NCCL 2.27 on it
 * brings the communicator's id, for which its tuners have to wait until 2.28, and its name. No event
 * is asked for, so that NCCL calls nothing else but finalize.
 *
 * Threads: several inits may run at once; nothing here calls NCCL (its logger excepted). Blocking:
 * finalize, as llane_calls_end_context. Errors: none.
 */
#include "calls.h"
#include "config.h"
#include "contexts.h"
#include "profiler_abi.h"
#include "startup.h"

static const char name[] = "llane";

static ncclResult_t init_v5(void **ctx, uint64_t comm_id, int *mask, const char *comm_name,
                            int n_nodes, int n_ranks, int rank, llane_nccl_logger logger)
{
    (void)rank; /* ncclCommUserRank says it in every version */
    *mask = 0;
    *ctx = NULL;
    if (llane_config()->enable) {
        *ctx = llane_context_add(ctx, (size_t)n_ranks, (size_t)n_nodes, comm_id, comm_name);
        llane_startup_plugin("profiler", logger);
    }
    return ncclSuccess;
}

static ncclResult_t init_v4(void **ctx, int *mask, const char *comm_name, uint64_t comm_hash,
                            int n_nodes, int n_ranks, int rank, llane_nccl_logger logger)
{
    return init_v5(ctx, comm_hash, mask, comm_name, n_nodes, n_ranks, rank, logger);
}

static ncclResult_t init_v1(void **ctx, int *mask)
{
    return init_v5(ctx, 0, mask, NULL, 0, 0, 0, NULL);
}

static ncclResult_t start_event(void *ctx, void **event, void *description)
{
    (void)ctx, (void)description;
    *event = NULL;
    return ncclSuccess;
}

static ncclResult_t stop_event(void *event)
{
    (void)event;
    return ncclSuccess;
}

static ncclResult_t record_event_state(void *event, int state, void *args)
{
    (void)event, (void)state, (void)args;
    return ncclSuccess;
}

static ncclResult_t finalize(void *ctx)
{
    llane_calls_end_context(ctx);
    return ncclSuccess;
}

#define TABLE(version, type)                                                                       \
    extern const struct llane_profiler_v##type ncclProfiler_v##version                             \
        __attribute__((visibility("default")));                                                    \
    const struct llane_profiler_v##type ncclProfiler_v##version = {                                \
        name, init_v##type, start_event, stop_event, record_event_state, finalize}

TABLE(1, 1);
TABLE(2, 1);
TABLE(3, 1);
TABLE(4, 4);
TABLE(5, 5);
TABLE(6, 5);
