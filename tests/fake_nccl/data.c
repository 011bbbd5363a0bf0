/* The data calls: their checks in NCCL's order, and user-defined operators. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_USER_OP = ncclAvg + 1, FLOAT8_CC = 90 };

/* Types that the chosen version knows. */
static bool is_type(ncclDataType_t type)
{
    int n_types = fake_version() >= 22400 ? FAKE_N_TYPES : ncclBfloat16 + 1;
    return (int)type >= 0 && (int)type < n_types;
}

static bool is_float8(ncclDataType_t type)
{
    return type == ncclFloat8e4m3 || type == ncclFloat8e5m2;
}

static const struct fake_user_op *user_op(const struct ncclComm *comm, ncclRedOp_t op)
{
    int i = (int)op - FIRST_USER_OP;
    return i >= 0 && i < FAKE_MAX_USER_OPS && comm->user_ops[i].is_used ? &comm->user_ops[i] : NULL;
}

static bool is_checking_pointers(void)
{
    const char *old = fake_getenv("NCCL_CHECK_POINTERS");
    const char *mode = fake_version() >= 22907 ? fake_getenv("NCCL_CHECK_MODE") : NULL;
    return (old && strcmp(old, "1") == 0) || (mode && strcmp(mode, "DEFAULT") != 0);
}

static bool needs_send_buffer(const struct ncclComm *comm, const struct fake_op *op)
{
    return op->call != FAKE_RECV && (op->call != FAKE_BROADCAST || op->root == comm->rank);
}

static bool needs_recv_buffer(const struct ncclComm *comm, const struct fake_op *op)
{
    return op->call != FAKE_SEND && (op->call != FAKE_REDUCE || op->root == comm->rank);
}

/* The order of these checks is NCCL's and part of what callers may rely on. */
static ncclResult_t check(const struct ncclComm *comm, struct fake_op *op, bool *is_empty_out)
{
    ncclResult_t result = fake_comm_check(comm);
    if (result != ncclSuccess)
        return result;
    bool has_root = op->call == FAKE_BROADCAST || op->call == FAKE_REDUCE || op->call >= FAKE_SEND;
    if (has_root && (op->root < 0 || op->root >= comm->n_ranks))
        return ncclInvalidArgument;
    if (!is_type(op->type))
        return ncclInvalidArgument;
    const struct fake_user_op *user = user_op(comm, op->op);
    if ((int)op->op < 0 || ((int)op->op >= FIRST_USER_OP && !user))
        return ncclInvalidArgument;
    if (is_checking_pointers() &&
        ((needs_send_buffer(comm, op) && !op->send) || (needs_recv_buffer(comm, op) && !op->recv)))
        return ncclInvalidArgument;
    *is_empty_out = op->count == 0;
    if (op->count == 0)
        return ncclSuccess;
    bool is_reduction =
        op->call == FAKE_ALL_REDUCE || op->call == FAKE_REDUCE || op->call == FAKE_REDUCE_SCATTER;
    if (is_reduction && is_float8(op->type) && comm->cc < FLOAT8_CC)
        return ncclInvalidArgument;
    if (user) {
        if (user->type != op->type)
            return ncclInvalidArgument;
        op->is_premul = true; /* the operator may be destroyed right after this call */
        op->op = ncclSum;
        memcpy(op->scalar, user->scalar, sizeof(op->scalar));
        op->scalar_device = user->scalar_device;
    }
    return ncclSuccess;
}

static ncclResult_t enqueue(struct ncclComm *comm, struct fake_op op)
{
    bool is_empty = false;
    fake_group_begin();
    ncclResult_t result = check(comm, &op, &is_empty);
    if (result == ncclSuccess && !is_empty)
        result = fake_group_check_capture(comm, op.stream);
    if (result == ncclSuccess && !is_empty) {
        struct fake_op *copy = malloc(sizeof(*copy));
        if (!copy)
            abort();
        *copy = op;
        fake_group_add_op(comm, copy);
    }
    return fake_group_finish(result);
}

FAKE_API(ncclResult_t, AllReduce,
         (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream))
{
    return enqueue(comm, (struct fake_op){.call = FAKE_ALL_REDUCE,
                                          .send = sendbuff,
                                          .recv = recvbuff,
                                          .count = count,
                                          .type = datatype,
                                          .op = op,
                                          .stream = stream});
}

FAKE_API(ncclResult_t, Broadcast,
         (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
          ncclComm_t comm, cudaStream_t stream))
{
    return enqueue(comm, (struct fake_op){.call = FAKE_BROADCAST,
                                          .send = sendbuff,
                                          .recv = recvbuff,
                                          .count = count,
                                          .type = datatype,
                                          .root = root,
                                          .stream = stream});
}

FAKE_API(ncclResult_t, Reduce,
         (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
          ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream))
{
    return enqueue(comm, (struct fake_op){.call = FAKE_REDUCE,
                                          .send = sendbuff,
                                          .recv = recvbuff,
                                          .count = count,
                                          .type = datatype,
                                          .op = op,
                                          .root = root,
                                          .stream = stream});
}

FAKE_API(ncclResult_t, AllGather,
         (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
          ncclComm_t comm, cudaStream_t stream))
{
    return enqueue(comm, (struct fake_op){.call = FAKE_ALL_GATHER,
                                          .send = sendbuff,
                                          .recv = recvbuff,
                                          .count = sendcount,
                                          .type = datatype,
                                          .stream = stream});
}

FAKE_API(ncclResult_t, ReduceScatter,
         (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream))
{
    return enqueue(comm, (struct fake_op){.call = FAKE_REDUCE_SCATTER,
                                          .send = sendbuff,
                                          .recv = recvbuff,
                                          .count = recvcount,
                                          .type = datatype,
                                          .op = op,
                                          .stream = stream});
}

FAKE_API(ncclResult_t, Bcast,
         (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
          cudaStream_t stream))
{
    return ncclBroadcast(buff, buff, count, datatype, root, comm, stream); /* as NCCL does */
}

FAKE_API(ncclResult_t, AllReduceConfig,
         (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config))
{
    (void)config;
    return pncclAllReduce(sendbuff, recvbuff, count, datatype, op, comm, stream);
}

/* As sends and receives of one group; n_sends, n_receives: with all ranks, or with root alone. */
static ncclResult_t pairwise(const void *sendbuff, void *recvbuff, size_t count,
                             ncclDataType_t datatype, int root, bool sends_all, bool receives_all,
                             ncclComm_t comm, cudaStream_t stream)
{
    ncclResult_t result = fake_comm_check(comm), r = ncclSuccess;
    size_t bytes =
        result == ncclSuccess && is_type(datatype) ? count * fake_type_bytes(datatype) : 0;
    fake_group_begin();
    if (result == ncclSuccess && (!is_type(datatype) || root >= comm->n_ranks))
        result = ncclInvalidArgument;
    for (int peer = 0; result == ncclSuccess && peer < comm->n_ranks; peer++) {
        bool is_root = peer == root;
        if (sends_all || is_root)
            r = pncclSend((const char *)sendbuff + (sends_all ? (size_t)peer * bytes : 0), count,
                          datatype, peer, comm, stream);
        if (r == ncclSuccess && (receives_all || is_root))
            r = pncclRecv((char *)recvbuff + (receives_all ? (size_t)peer * bytes : 0), count,
                          datatype, peer, comm, stream);
        result = r;
    }
    return fake_group_finish(result);
}

FAKE_API(ncclResult_t, AlltoAll,
         (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
          ncclComm_t comm, cudaStream_t stream))
{
    return pairwise(sendbuff, recvbuff, count, datatype, -1, true, true, comm, stream);
}

FAKE_API(ncclResult_t, Gather,
         (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
          ncclComm_t comm, cudaStream_t stream))
{
    bool is_root = fake_comm_is_valid(comm) && comm->rank == root;
    return pairwise(sendbuff, recvbuff, count, datatype, root, false, is_root, comm, stream);
}

FAKE_API(ncclResult_t, Scatter,
         (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
          ncclComm_t comm, cudaStream_t stream))
{
    bool is_root = fake_comm_is_valid(comm) && comm->rank == root;
    return pairwise(sendbuff, recvbuff, count, datatype, root, is_root, false, comm, stream);
}

FAKE_API(ncclResult_t, Send,
         (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
          cudaStream_t stream))
{
    return enqueue(comm, (struct fake_op){.call = FAKE_SEND,
                                          .send = sendbuff,
                                          .count = count,
                                          .type = datatype,
                                          .root = peer,
                                          .stream = stream});
}

FAKE_API(ncclResult_t, Recv,
         (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
          cudaStream_t stream))
{
    return enqueue(comm, (struct fake_op){.call = FAKE_RECV,
                                          .recv = recvbuff,
                                          .count = count,
                                          .type = datatype,
                                          .root = peer,
                                          .stream = stream});
}

FAKE_API(ncclResult_t, RedOpCreatePreMulSum,
         (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
          ncclComm_t comm))
{
    ncclResult_t result = fake_comm_check(comm);
    if (result != ncclSuccess)
        return result;
    if (!op || !scalar || !is_type(datatype))
        return ncclInvalidArgument;
    pthread_mutex_lock(&comm->lock);
    int i = 0;
    while (i < FAKE_MAX_USER_OPS && comm->user_ops[i].is_used)
        i++;
    if (i < FAKE_MAX_USER_OPS) {
        struct fake_user_op *user = &comm->user_ops[i];
        *user = (struct fake_user_op){.is_used = true, .type = datatype};
        if (residence == ncclScalarHostImmediate)
            memcpy(user->scalar, scalar, fake_type_bytes(datatype));
        else
            user->scalar_device = scalar;
        *op = (ncclRedOp_t)(FIRST_USER_OP + i);
    }
    pthread_mutex_unlock(&comm->lock);
    return i < FAKE_MAX_USER_OPS ? ncclSuccess : ncclInternalError;
}

FAKE_API(ncclResult_t, RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))
{
    ncclResult_t result = fake_comm_check(comm);
    if (result != ncclSuccess)
        return result;
    if (!user_op(comm, op))
        return ncclInvalidArgument;
    comm->user_ops[(int)op - FIRST_USER_OP].is_used = false;
    return ncclSuccess;
}
