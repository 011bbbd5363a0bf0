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

/*
 * Calls that NCCL always carries. On a communicator whose lane is live they keep their place among the
 * lane's operations; each row has parameters called comm and stream for that.
 */
#define LLANE_NCCL_ORDERED(X)                                                                      \
    X(Reduce, 20000,                                                                               \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,                \
       ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream),                            \
      (sendbuff, recvbuff, count, datatype, op, root, comm, stream))                               \
    X(Bcast, 20000,                                                                                \
      (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,               \
       cudaStream_t stream),                                                                       \
      (buff, count, datatype, root, comm, stream))                                                 \
    X(Broadcast, 20200,                                                                            \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,      \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (sendbuff, recvbuff, count, datatype, root, comm, stream))                                   \
    X(AllGather, 20000,                                                                            \
      (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,            \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (sendbuff, recvbuff, sendcount, datatype, comm, stream))                                     \
    X(ReduceScatter, 20000,                                                                        \
      (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,            \
       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream),                                      \
      (sendbuff, recvbuff, recvcount, datatype, op, comm, stream))                                 \
    X(AlltoAll, 22800,                                                                             \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,                \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (sendbuff, recvbuff, count, datatype, comm, stream))                                         \
    X(Gather, 22800,                                                                               \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,      \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (sendbuff, recvbuff, count, datatype, root, comm, stream))                                   \
    X(Scatter, 22800,                                                                              \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,      \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (sendbuff, recvbuff, count, datatype, root, comm, stream))                                   \
    X(Send, 20700,                                                                                 \
      (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,     \
       cudaStream_t stream),                                                                       \
      (sendbuff, count, datatype, peer, comm, stream))                                             \
    X(Recv, 20700,                                                                                 \
      (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,           \
       cudaStream_t stream),                                                                       \
      (recvbuff, count, datatype, peer, comm, stream))                                             \
    X(ReduceConfig, 23200,                                                                         \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,                \
       ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,                             \
       const ncclCollConfig_t *config),                                                            \
      (sendbuff, recvbuff, count, datatype, op, root, comm, stream, config))                       \
    X(BroadcastConfig, 23200,                                                                      \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,      \
       ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),                      \
      (sendbuff, recvbuff, count, datatype, root, comm, stream, config))                           \
    X(AllGatherConfig, 23200,                                                                      \
      (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,            \
       ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),                      \
      (sendbuff, recvbuff, sendcount, datatype, comm, stream, config))                             \
    X(ReduceScatterConfig, 23200,                                                                  \
      (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,            \
       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),      \
      (sendbuff, recvbuff, recvcount, datatype, op, comm, stream, config))                         \
    X(AlltoAllConfig, 23200,                                                                       \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,                \
       ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),                      \
      (sendbuff, recvbuff, count, datatype, comm, stream, config))                                 \
    X(GatherConfig, 23200,                                                                         \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,      \
       ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),                      \
      (sendbuff, recvbuff, count, datatype, root, comm, stream, config))                           \
    X(ScatterConfig, 23200,                                                                        \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,      \
       ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),                      \
      (sendbuff, recvbuff, count, datatype, root, comm, stream, config))                           \
    X(PutSignal, 22900,                                                                            \
      (const void *localbuff, size_t count, ncclDataType_t datatype, int peer,                     \
       ncclWindow_t window, size_t offset, int signal, int context, unsigned flags,                \
       ncclComm_t comm, cudaStream_t stream),                                                      \
      (localbuff, count, datatype, peer, window, offset, signal, context, flags, comm, stream))    \
    X(Signal, 22900,                                                                               \
      (int peer, int signal, int context, unsigned flags, ncclComm_t comm, cudaStream_t stream),   \
      (peer, signal, context, flags, comm, stream))                                                \
    X(WaitSignal, 22900,                                                                           \
      (int n, ncclWaitSignalDesc_t *descriptions, ncclComm_t comm, cudaStream_t stream),           \
      (n, descriptions, comm, stream))

#define LLANE_NCCL_TAKEN(X, V)                                                                     \
    X(AllReduce, 20000,                                                                            \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,                \
       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream),                                      \
      (sendbuff, recvbuff, count, datatype, op, comm, stream))                                     \
    X(AllReduceConfig, 23200,                                                                      \
      (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,                \
       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),      \
      (sendbuff, recvbuff, count, datatype, op, comm, stream, config))                             \
    LLANE_NCCL_ORDERED(X)                                                                          \
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
    X(CommGrow, 22900,                                                                             \
      (ncclComm_t parent, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *comm,          \
       ncclConfig_t *config),                                                                      \
      (parent, nranks, id, rank, comm, config))                                                    \
    X(CommSuspend, 22907, (ncclComm_t comm, int flags), (comm, flags))                             \
    X(CommResume, 22907, (ncclComm_t comm), (comm))                                                \
    X(CommGetAsyncError, 20400, (ncclComm_t comm, ncclResult_t * result), (comm, result))          \
    X(CommFinalize, 21400, (ncclComm_t comm), (comm))                                              \
    X(CommDestroy, 20000, (ncclComm_t comm), (comm))                                               \
    X(CommAbort, 20400, (ncclComm_t comm), (comm))                                                 \
    X(CommRevoke, 22807, (ncclComm_t comm, int flags), (comm, flags))

#define LLANE_NCCL_OWN(X)                                                                          \
    X(GetVersion, 20000, (int *version), (version))                                                \
    X(CommCount, 20000, (const ncclComm_t comm, int *count), (comm, count))                        \
    X(CommUserRank, 20000, (const ncclComm_t comm, int *rank), (comm, rank))                       \
    X(CommCuDevice, 20000, (const ncclComm_t comm, int *device), (comm, device))

#endif
