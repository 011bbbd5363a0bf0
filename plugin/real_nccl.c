#include "real_nccl.h"

#include <stdatomic.h>

#include "elf_image.h"
#include "err.h"
#include "interpose.h"
#include "log.h"

struct llane_nccl llane_nccl_copies[LLANE_MAX_NCCL_COPIES];

/* Release store in llane_nccl_default_set, acquire load in llane_nccl_default: the reader of the
 * pointer sees the table that it points at filled. */
static _Atomic(const struct llane_nccl *) default_copy;

static uintptr_t address_of(const struct llane_elf_image *image, const char *name)
{
    const ElfW(Sym) *symbol = llane_elf_find(image, name);
    return symbol ? image->bias + symbol->st_value : 0;
}

int llane_nccl_fill(struct llane_nccl *nccl, const struct llane_elf_image *image)
{
    int is_complete = 1;
#define FILL(name, since, params, args)                                                            \
    nccl->name = (ncclResult_t(*) params)address_of(image, "pnccl" #name);                         \
    is_complete &= nccl->name != NULL || (since) > 20000;
#define FILL_VOID(name, since) FILL(name, since, (void), ())
    LLANE_NCCL_TAKEN(FILL, FILL_VOID)
    LLANE_NCCL_OWN(FILL)
    return is_complete ? 0 : LLANE_EINVAL;
}

void llane_nccl_default_set(const struct llane_nccl *nccl)
{
    const struct llane_nccl *none = NULL;
    /* Release: pairs with the acquire load in llane_nccl_default. */
    atomic_compare_exchange_strong_explicit(&default_copy, &none, nccl, memory_order_release,
                                            memory_order_relaxed);
}

const struct llane_nccl *llane_nccl_default(void)
{
    /* Acquire: pairs with the release store in llane_nccl_default_set. */
    const struct llane_nccl *nccl = atomic_load_explicit(&default_copy, memory_order_acquire);
    if (!nccl) {
        llane_interpose_scan();
        nccl = atomic_load_explicit(&default_copy, memory_order_acquire); /* as above */
    }
    return nccl;
}

ncclResult_t llane_nccl_missing(const char *call)
{
    static atomic_flag is_said = ATOMIC_FLAG_INIT;
    /* Relaxed: only counts, orders nothing. */
    if (!atomic_flag_test_and_set_explicit(&is_said, memory_order_relaxed)) {
        const struct llane_nccl *nccl = llane_nccl_default();
        LLANE_WARN("%s was called, but %s%s", call,
                   nccl ? "this NCCL does not have it: " : "no shared libnccl is loaded",
                   nccl ? nccl->path : "");
    }
    return ncclSystemError;
}
