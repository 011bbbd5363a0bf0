/*
 * hooks: what redirected call sites are pointed at. One set of functions for each libnccl copy, so
 * that a call reaches the copy it was meant for; a set's functions pass their copy's table to calls.
 *
 * Owns nothing that changes. Threads: any. The functions are local to hooks.c: an exported name
 * could bind to libnccl's own symbol when a slot's new value is computed.
 */
#ifndef LLANE_HOOKS_H
#define LLANE_HOOKS_H

#include "real_nccl.h"

enum {
#define LLANE_HOOK_ID(name, since, params, args) LLANE_HOOK_##name,
#define LLANE_HOOK_ID_VOID(name, since) LLANE_HOOK_##name,
    LLANE_NCCL_TAKEN(LLANE_HOOK_ID, LLANE_HOOK_ID_VOID)
#undef LLANE_HOOK_ID
#undef LLANE_HOOK_ID_VOID
        LLANE_N_HOOKS
};

struct llane_hook {
    const char *name; /* the symbol that callers bind to: "ncclAllReduce" */
    void (*sets[LLANE_MAX_NCCL_COPIES])(void);
};

extern const struct llane_hook llane_hooks[LLANE_N_HOOKS];

#endif
