/*
 * interpose: finds every libnccl in the process and points its callers at llane's hooks.
 *
 * For each copy (an object that defines pncclAllReduce and is called libnccl): pin it, read its real
 * functions, then rewrite
 *   1. the values of the taken ncclX in its in-memory .dynsym: every later dlsym, lazy binding and
 *      dlopen resolves to a hook;
 *   2. the JUMP_SLOT, GLOB_DAT and absolute slots of other objects that already hold its address.
 * Before that libnccl's own slots of those names are bound to the originals, whatever they lead to:
 * NCCL calls some of its public functions itself (ncclCommGetAsyncError wherever it asks whether a
 * communicator is ready), also while llane waits for its answer with a lock held. Where that is
 * refused the copy is left alone: nothing of it is rewritten, and exported calls pass straight on. (Where
 * it is refused later, for a slot that a resolver has filled meanwhile, that is said.)
 * Left alone: lazy slots nobody has used yet (1 covers them), slots bound to a pncclX (tools that
 * want the original), llane's own, instructions. An object's slots are
 * redirected all or none: one that keeps NCCL's GroupEnd beside our AllReduce would never launch.
 *
 * Owns llane_nccl_copies and what was written. Threads: any; a lock orders scans. Blocking: on
 * another thread's scan; on the dynamic linker's lock for as long as a dlopen elsewhere needs it,
 * but never while it holds the lock of its own. One race stays: a dlopen in another thread that is
 * just making an object read-only when a *later* scan writes to it; the scan of the constructor
 * runs inside the dynamic linker's lock, where that cannot be.
 * Errors: none reach the caller. What cannot be redirected stays with NCCL and is said once.
 */
#ifndef LLANE_INTERPOSE_H
#define LLANE_INTERPOSE_H

#include <stdint.h>

#include "real_nccl.h"

/*
 * Idempotent, and cheap while nothing was loaded or unloaded. Call it wherever NCCL or the program
 * passes by before a communicator exists: the constructor, plugin inits, creation hooks. The first
 * call after something was redirected goes over all slots once more: a thread that was inside the
 * lazy resolver may have stored the old address meanwhile.
 * LLANE_ENABLE=0: finds the real functions for exported calls and redirects nothing.
 */
void llane_interpose_scan(void);

struct llane_interpose_summary {
    uint32_t n_copies;                       /* libnccls found; copy i is llane_nccl_copies[i] */
    uint32_t n_redirected;                   /* of them, with their .dynsym rewritten */
    uint32_t n_sites[LLANE_MAX_NCCL_COPIES]; /* slots of other objects rewritten for each copy */
    uint32_t n_refused; /* objects whose slots were left alone: read-only pages, too many */
};
void llane_interpose_summarize(struct llane_interpose_summary *out);

/*
 * Call after a scan with the logger that NCCL passed: if it lies in no libnccl, this NCCL is linked
 * statically into something, which is said once.
 */
void llane_interpose_check_logger(uintptr_t logger);

#endif
