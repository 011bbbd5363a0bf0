/*
 * The NCCL API as a client program sees it: what nccl.h would declare, for the fake library itself
 * and for test programs on machines without NCCL's header. Prototypes of the calls that llane takes
 * over come from plugin/nccl_calls.h, so that fake, client and plugin cannot drift apart.
 */
#ifndef FAKE_NCCL_CLIENT_H
#define FAKE_NCCL_CLIENT_H

#include "nccl_abi.h"
#include "nccl_calls.h"

#include <limits.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The members up to 2.28's; `size` says how many of them the caller knows. */
struct llane_opaque_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
    int traffic_class;
    const char *comm_name;
    int collnet_enable;
    int cta_policy;
    int shrink_share;
    int nvls_ctas;
    int n_channels_per_net_peer;
    int nvlink_centric_sched;
};
enum { FAKE_CONFIG_UNSET = INT_MIN };
#define FAKE_CONFIG_MAGIC 0xcafebeefu
#define FAKE_CONFIG_INIT                                                                           \
    {                                                                                              \
        .size = sizeof(ncclConfig_t), .magic = FAKE_CONFIG_MAGIC, .version = 22809,                \
        .blocking = FAKE_CONFIG_UNSET, .cga_cluster_size = FAKE_CONFIG_UNSET,                      \
        .min_ctas = FAKE_CONFIG_UNSET, .max_ctas = FAKE_CONFIG_UNSET, .net_name = NULL,            \
        .split_share = FAKE_CONFIG_UNSET, .traffic_class = FAKE_CONFIG_UNSET, .comm_name = NULL,   \
        .collnet_enable = FAKE_CONFIG_UNSET, .cta_policy = FAKE_CONFIG_UNSET,                      \
        .shrink_share = FAKE_CONFIG_UNSET, .nvls_ctas = FAKE_CONFIG_UNSET,                         \
        .n_channels_per_net_peer = FAKE_CONFIG_UNSET, .nvlink_centric_sched = FAKE_CONFIG_UNSET    \
    }

struct llane_opaque_sim_info {
    size_t size;
    unsigned magic;
    unsigned version;
    float estimated_time;
};

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;
enum { FAKE_SHRINK_ABORT = 1 };

/* The calls of the client API that llane neither takes over nor makes itself. */
#define FAKE_NCCL_REST(X)                                                                          \
    X(GetUniqueId, 20000, (ncclUniqueId * id), (id))                                               \
    X(CommGetUniqueId, 22900, (ncclComm_t comm, ncclUniqueId * id), (comm, id))                    \
    X(MemAlloc, 21900, (void **memory, size_t bytes), (memory, bytes))                             \
    X(MemFree, 21900, (void *memory), (memory))                                                    \
    X(CommRegister, 21900, (const ncclComm_t comm, void *buffer, size_t bytes, void **handle),     \
      (comm, buffer, bytes, handle))                                                               \
    X(CommDeregister, 21900, (const ncclComm_t comm, void *handle), (comm, handle))                \
    X(RedOpCreatePreMulSum, 21100,                                                                 \
      (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,   \
       ncclComm_t comm),                                                                           \
      (op, scalar, datatype, residence, comm))                                                     \
    X(RedOpDestroy, 21100, (ncclRedOp_t op, ncclComm_t comm), (op, comm))

#define FAKE_DECLARE(name, since, params, args)                                                    \
    ncclResult_t nccl##name params;                                                                \
    ncclResult_t pnccl##name params;
#define FAKE_DECLARE_VOID(name, since)                                                             \
    ncclResult_t nccl##name(void);                                                                 \
    ncclResult_t pnccl##name(void);
LLANE_NCCL_TAKEN(FAKE_DECLARE, FAKE_DECLARE_VOID)
LLANE_NCCL_OWN(FAKE_DECLARE)
FAKE_NCCL_REST(FAKE_DECLARE)
#undef FAKE_DECLARE
#undef FAKE_DECLARE_VOID
const char *ncclGetErrorString(ncclResult_t result);
const char *pncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
const char *pncclGetLastError(ncclComm_t comm);

#ifdef __cplusplus
}
#endif

#endif
