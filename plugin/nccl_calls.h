/*
 * The NCCL calls that llane takes over, one row each: it generates the table of real functions, the
 * per-copy hooks, the exported symbols and the list that `make lint` checks exports against.
 *
 * X(name, since, params, args): `since` is the NCCL version (major*10000+minor*100+patch) that
 * introduced it; a copy that lacks a call has NULL there and its symbol is never redirected.
 * V(name, since): a call without arguments. LLANE_LIST(params) drops a row's parentheses, so that
 * an argument can be put before them.
 * Calls llane only makes itself (never hooks) are in LLANE_NCCL_OWN.
 */
#ifndef LLANE_NCCL_CALLS_H
#define LLANE_NCCL_CALLS_H

#define LLANE_LIST(...) __VA_ARGS__

#define LLANE_NCCL_TAKEN(X, V)                                                                     \
    X(AllReduce, 20000,                                                                            \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,                \
       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream),                                      \
      (sendbuff, recvbuff, count, datatype, op, comm, stream))                                     \
    V(GroupStart, 20000)                                                                           \
    V(GroupEnd, 20000)                                                                             \
    X(GroupSimulateEnd, 22200, (ncclSimInfo_t * info), (info))                                     \
    X(CommInitRank, 20000, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank),             \
      (comm, nranks, id, rank))                                                                    \
    X(CommInitAll, 20000, (ncclComm_t * comms, int ndev, const int *devlist),                      \
      (comms, ndev, devlist))                                                                      \
    X(CommInitRankConfig, 21400,                                                                   \
      (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config),            \
      (comm, nranks, id, rank, config))                                                            \
    X(CommInitRankScalable, 22300,                                                                 \
      (ncclComm_t * comm, int nranks, int rank, int n_ids, ncclUniqueId *ids,                      \
       ncclConfig_t *config),                                                                      \
      (comm, nranks, rank, n_ids, ids, config))                                                    \
    X(CommSplit, 21800,                                                                            \
      (ncclComm_t parent, int color, int key, ncclComm_t *comm, ncclConfig_t *config),             \
      (parent, color, key, comm, config))                                                          \
    X(CommShrink, 22700,                                                                           \
      (ncclComm_t parent, int *excluded, int n_excluded, ncclComm_t *comm, ncclConfig_t *config,   \
       int flags),                                                                                 \
      (parent, excluded, n_excluded, comm, config, flags))                                         \
    X(CommFinalize, 21400, (ncclComm_t comm), (comm))                                              \
    X(CommDestroy, 20000, (ncclComm_t comm), (comm))                                               \
    X(CommAbort, 20400, (ncclComm_t comm), (comm))                                                 \
    X(CommRevoke, 22807, (ncclComm_t comm, int flags), (comm, flags))

#define LLANE_NCCL_OWN(X)                                                                          \
    X(GetVersion, 20000, (int *version), (version))                                                \
    X(CommCount, 20000, (const ncclComm_t comm, int *count), (comm, count))                        \
    X(CommUserRank, 20000, (const ncclComm_t comm, int *rank), (comm, rank))                       \
    X(CommCuDevice, 20000, (const ncclComm_t comm, int *device), (comm, device))                   \
    X(CommGetAsyncError, 20400, (ncclComm_t comm, ncclResult_t * result), (comm, result))

#endif
