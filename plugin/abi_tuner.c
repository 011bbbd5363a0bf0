/*
 * abi_tuner: the tuner plugin tables. init is the door through which llane learns of communicators and
 * of NCCL's logger. Every answer leaves NCCL's choice as it is, unless LLANE_NCCL_TUNING names a file
 * that says otherwise.
 *
 * Threads: several inits may run at once, with the communicator's device current; nothing here
 * calls NCCL (its logger excepted). Errors: none, ever: one from init can hang the creation of a
 * communicator, one from get_coll_info fails the user's collective.
 */
#include "calls.h"
#include "config.h"
#include "contexts.h"
#include "nccl_tuning.h"
#include "startup.h"
#include "tuner_abi.h"

static const char name[] = "llane";

static void *enter(void **ctx_slot, size_t n_ranks, size_t n_nodes, uint64_t comm_id,
                   llane_nccl_logger logger)
{
    if (!llane_config()->enable) {
        return NULL;
    }
    void *ctx = ctx_slot ? llane_context_add(ctx_slot, n_ranks, n_nodes, comm_id, NULL) : NULL;
    llane_startup_plugin("tuner", logger);
    (void)llane_nccl_tuning(); /* read here, not at the first collective */
    return ctx;
}

/* ---- what NCCL asks at each collective ---- */

static const struct llane_nccl_tuning_row *find_row(const struct llane_nccl_call *call)
{
    const struct llane_nccl_tuning *tuning = llane_config()->enable ? llane_nccl_tuning() : NULL;
    return tuning ? llane_nccl_tuning_find(tuning, call) : NULL;
}

static const struct llane_nccl_tuning_row *row_for(void *ctx, int func, size_t n_bytes)
{
    size_t n_ranks, n_nodes;
    if (!llane_config()->nccl_tuning || !llane_context_sizes(ctx, &n_ranks, &n_nodes)) {
        return NULL;
    }
    const struct llane_nccl_call call = {func, n_bytes, n_ranks, n_nodes};
    return find_row(&call);
}

static ncclResult_t init_v1(size_t n_ranks, size_t n_nodes, llane_nccl_logger logger)
{
    enter(NULL, n_ranks, n_nodes, 0, logger);
    return ncclSuccess;
}

static ncclResult_t init_v2(size_t n_ranks, size_t n_nodes, llane_nccl_logger logger, void **ctx)
{
    void *value = enter(ctx, n_ranks, n_nodes, 0, logger);
    if (ctx) {
        *ctx = value;
    }
    return ncclSuccess;
}

static ncclResult_t init_v5(void **ctx, uint64_t comm_id, size_t n_ranks, size_t n_nodes,
                            llane_nccl_logger logger, void *nvl_domains, void *constants)
{
    (void)nvl_domains;
    (void)constants;
    void *value = enter(ctx, n_ranks, n_nodes, comm_id, logger);
    if (ctx) {
        *ctx = value;
    }
    return ncclSuccess;
}

static ncclResult_t get_coll_info_v1(int func, size_t n_bytes, int coll_net, int nvls,
                                     int n_pipe_ops, int *algo, int *proto, int *n_channels)
{
    /* Which communicator, v1 does not say: only lines for any number of ranks and nodes fit, since a
     * guess could differ from rank to rank. */
    const struct llane_nccl_call call = {.func = func, .bytes = n_bytes};
    const struct llane_nccl_tuning_row *row = llane_config()->nccl_tuning ? find_row(&call) : NULL;
    (void)n_pipe_ops;
    if (row) {
        llane_nccl_tuning_set_choice(row, coll_net, nvls, algo, proto, n_channels);
    }
    return ncclSuccess;
}

static ncclResult_t get_coll_info_v2(void *ctx, int func, size_t n_bytes, int coll_net, int nvls,
                                     int n_pipe_ops, int *algo, int *proto, int *n_channels)
{
    const struct llane_nccl_tuning_row *row = row_for(ctx, func, n_bytes);
    (void)n_pipe_ops;
    if (row) {
        llane_nccl_tuning_set_choice(row, coll_net, nvls, algo, proto, n_channels);
    }
    return ncclSuccess;
}

static ncclResult_t get_coll_info_v3(void *ctx, int func, size_t n_bytes, int n_pipe_ops,
                                     float **cost_table, int n_algos, int n_protos, int *n_channels)
{
    const struct llane_nccl_tuning_row *row = row_for(ctx, func, n_bytes);
    (void)n_pipe_ops;
    if (row) {
        /* The type of the ABI hides a matrix. */
        llane_nccl_tuning_set_cost(row, (float *)cost_table, n_algos, n_protos, n_channels);
    }
    return ncclSuccess;
}

static ncclResult_t get_coll_info_v4(void *ctx, int func, size_t n_bytes, int n_pipe_ops,
                                     float **cost_table, int n_algos, int n_protos, int reg_buff,
                                     int *n_channels)
{
    (void)reg_buff;
    return get_coll_info_v3(ctx, func, n_bytes, n_pipe_ops, cost_table, n_algos, n_protos,
                            n_channels);
}

static ncclResult_t destroy_v1(void)
{
    return ncclSuccess;
}

static ncclResult_t destroy_v2(void *ctx)
{
    llane_calls_end_context(ctx);
    return ncclSuccess;
}

#define TABLE(version)                                                                             \
    extern const struct llane_tuner_v##version ncclTunerPlugin_v##version                          \
        __attribute__((visibility("default")));                                                    \
    const struct llane_tuner_v##version ncclTunerPlugin_v##version

TABLE(1) = {name, init_v1, get_coll_info_v1, destroy_v1};
TABLE(2) = {name, init_v2, get_coll_info_v2, destroy_v2};
TABLE(3) = {name, init_v2, get_coll_info_v3, destroy_v2};
TABLE(4) = {name, init_v2, get_coll_info_v4, destroy_v2};
TABLE(5) = {name, init_v5, get_coll_info_v4, destroy_v2};
TABLE(6) = {name, init_v5, get_coll_info_v4, destroy_v2, NULL};
