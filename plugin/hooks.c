#include "hooks.h"

#include "calls.h"

static inline const struct llane_nccl *copy_of(int set)
{
    /* Acquire: pairs with the release store in interpose. Seen at once: it was stored before what led
     * here, which orders nothing by itself on aarch64. */
    while (!atomic_load_explicit(&llane_nccl_copies[set].is_filled, memory_order_acquire)) {
    }
    return &llane_nccl_copies[set];
}

#define HOOK(set, name, params, args)                                                              \
    static ncclResult_t hook_##set##_##name params                                                 \
    {                                                                                              \
        return llane_call_##name(copy_of(set), LLANE_LIST args);                                   \
    }
#define HOOK_VOID(set, name)                                                                       \
    static ncclResult_t hook_##set##_##name(void)                                                  \
    {                                                                                              \
        return llane_call_##name(copy_of(set));                                                    \
    }

#define HOOK_0(name, since, params, args) HOOK(0, name, params, args)
#define HOOK_1(name, since, params, args) HOOK(1, name, params, args)
#define HOOK_2(name, since, params, args) HOOK(2, name, params, args)
#define HOOK_3(name, since, params, args) HOOK(3, name, params, args)
#define HOOK_0_VOID(name, since) HOOK_VOID(0, name)
#define HOOK_1_VOID(name, since) HOOK_VOID(1, name)
#define HOOK_2_VOID(name, since) HOOK_VOID(2, name)
#define HOOK_3_VOID(name, since) HOOK_VOID(3, name)

LLANE_NCCL_TAKEN(HOOK_0, HOOK_0_VOID)
LLANE_NCCL_TAKEN(HOOK_1, HOOK_1_VOID)
LLANE_NCCL_TAKEN(HOOK_2, HOOK_2_VOID)
LLANE_NCCL_TAKEN(HOOK_3, HOOK_3_VOID)
_Static_assert(LLANE_MAX_NCCL_COPIES == 4, "one set of hooks a copy");

#define AS_ANY(set, name) (void (*)(void))(hook_##set##_##name)
#define ROW(name, since, params, args)                                                             \
    {"nccl" #name, {AS_ANY(0, name), AS_ANY(1, name), AS_ANY(2, name), AS_ANY(3, name)}},
#define ROW_VOID(name, since) ROW(name, since, (void), ())

const struct llane_hook llane_hooks[LLANE_N_HOOKS] = {LLANE_NCCL_TAKEN(ROW, ROW_VOID)};
