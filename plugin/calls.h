/*
 * calls: what llane does with each NCCL call it takes over. One function a call; `nccl` is the copy
 * the caller meant. Any call that llane does not fully understand goes to nccl->X, whose return
 * code is the answer.
 *
 * Threads: any. Blocking: as the NCCL call itself (LLANE_WAIT apart); ends also wait for the lane and,
 * a second each at most, for llane's own threads to let the communicator go. Errors: NCCL's.
 */
#ifndef LLANE_CALLS_H
#define LLANE_CALLS_H

#include "real_nccl.h"

#define LLANE_DECLARE(name, since, params, args)                                                   \
    ncclResult_t llane_call_##name(const struct llane_nccl *nccl, LLANE_LIST params);
#define LLANE_DECLARE_VOID(name, since)                                                            \
    ncclResult_t llane_call_##name(const struct llane_nccl *nccl);
LLANE_NCCL_TAKEN(LLANE_DECLARE, LLANE_DECLARE_VOID)
#undef LLANE_DECLARE
#undef LLANE_DECLARE_VOID

/* NCCL ends this plugin context (contexts.h), hence its communicator, whose address may be used again. If
 * llane has not seen the end, it is now; NCCL's thread waits for llane's as in other ends. */
void llane_calls_end_context(void *ctx);

#endif
