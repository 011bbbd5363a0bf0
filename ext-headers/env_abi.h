/*
 * NCCL's environment plugin tables v1 and v2 in our own words. NCCL loads the plugin inside its
 * one-time initialisation: init must not call back into NCCL (its logger excepted), and an error
 * from it stops NCCL. get_env answers for every variable that NCCL reads from then on; its result
 * must stay valid until the variable is asked for again.
 */
#ifndef LLANE_ENV_ABI_H
#define LLANE_ENV_ABI_H

#include "nccl_abi.h"

/* NCCL 2.28. */
struct llane_env_v1 {
    const char *name;
    ncclResult_t (*init)(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix);
    ncclResult_t (*finalize)(void);
    const char *(*get_env)(const char *name);
};

/* NCCL 2.30. */
struct llane_env_v2 {
    const char *name;
    ncclResult_t (*init)(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix,
                         llane_nccl_logger logger);
    ncclResult_t (*finalize)(void);
    const char *(*get_env)(const char *name);
};

#define LLANE_ABI_ENV(type)                                                                        \
    _Static_assert(offsetof(struct type, name) == 0 * sizeof(void *), #type ".name");              \
    _Static_assert(offsetof(struct type, init) == 1 * sizeof(void *), #type ".init");              \
    _Static_assert(offsetof(struct type, finalize) == 2 * sizeof(void *), #type ".finalize");      \
    _Static_assert(offsetof(struct type, get_env) == 3 * sizeof(void *), #type ".get_env");        \
    _Static_assert(sizeof(struct type) == 4 * sizeof(void *), #type)
LLANE_ABI_ENV(llane_env_v1);
LLANE_ABI_ENV(llane_env_v2);
#undef LLANE_ABI_ENV

#endif
