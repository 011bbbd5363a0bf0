/*
 * real_nccl: one table of real functions (pncclX) for each libnccl copy in the process.
 *
 * Owns the tables; they live for the life of the process and each copy they point into is pinned.
 * Threads: tables are filled under interpose's lock before any hook of theirs is published, and
 * never change afterwards. Nothing here blocks.
 */
#ifndef LLANE_REAL_NCCL_H
#define LLANE_REAL_NCCL_H

#include <stdatomic.h>

#include "nccl_abi.h"
#include "nccl_calls.h"

enum { LLANE_MAX_NCCL_COPIES = 4 };

struct llane_nccl {
    int version;          /* as ncclGetVersion reports it: 22809 is 2.28.9 */
    char path[1024];      /* the file it was loaded from */
    int is_left_alone;    /* exports.c passes its calls straight on: its own may be among them */
    atomic_int is_filled; /* the last that interpose stores, before anything leads to a hook */
#define LLANE_MEMBER(name, since, params, args) ncclResult_t(*name) params;
#define LLANE_MEMBER_VOID(name, since) ncclResult_t (*name)(void);
    LLANE_NCCL_TAKEN(LLANE_MEMBER, LLANE_MEMBER_VOID)
    LLANE_NCCL_OWN(LLANE_MEMBER)
#undef LLANE_MEMBER
#undef LLANE_MEMBER_VOID
};

/* Entry i belongs to the hooks of set i. Filled by interpose alone. */
extern struct llane_nccl llane_nccl_copies[LLANE_MAX_NCCL_COPIES];

/*
 * Fills a table from the pncclX of that very object. LLANE_EINVAL if it lacks a call that NCCL has
 * had since 2.0: then it is no libnccl. version and path are interpose's to fill.
 */
struct llane_elf_image;
int llane_nccl_fill(struct llane_nccl *nccl, const struct llane_elf_image *image);

/* Names the copy that llane_nccl_default() returns from now on, unless one was named before. */
void llane_nccl_default_set(const struct llane_nccl *nccl);

/* What a call returns that no libnccl in this process has: said once, ncclSystemError. */
ncclResult_t llane_nccl_missing(const char *call);

/*
 * The copy that an exported ncclX (preload and drop-in doors) stands for: the next libnccl after
 * llane in the caller's scope, else the first one loaded. NULL if there is none. Never blocks on
 * the fast path (one atomic load).
 */
const struct llane_nccl *llane_nccl_default(void);

#endif
