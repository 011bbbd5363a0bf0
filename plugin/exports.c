/*
 * exports: the ncclX that programs meet under the preload and drop-in doors. exports.map lists them
 * together with the plugin tables (abi_*.c): nothing else leaves the object.
 */
#include "calls.h"

#define EXPORT __attribute__((visibility("default")))

#define DEFINE(name, since, params, args)                                                          \
    EXPORT ncclResult_t nccl##name params;                                                         \
    ncclResult_t nccl##name params                                                                 \
    {                                                                                              \
        const struct llane_nccl *nccl = llane_nccl_default();                                      \
        if (!nccl || !nccl->name) {                                                                \
            return llane_nccl_missing("nccl" #name);                                               \
        }                                                                                          \
        return nccl->is_left_alone ? nccl->name args : llane_call_##name(nccl, LLANE_LIST args);   \
    }
#define DEFINE_VOID(name, since)                                                                   \
    EXPORT ncclResult_t nccl##name(void);                                                          \
    ncclResult_t nccl##name(void)                                                                  \
    {                                                                                              \
        const struct llane_nccl *nccl = llane_nccl_default();                                      \
        if (!nccl || !nccl->name) {                                                                \
            return llane_nccl_missing("nccl" #name);                                               \
        }                                                                                          \
        return nccl->is_left_alone ? nccl->name() : llane_call_##name(nccl);                       \
    }

LLANE_NCCL_TAKEN(DEFINE, DEFINE_VOID)
