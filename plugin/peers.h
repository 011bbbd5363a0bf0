/*
 * peers: pointers to other ranks' staging memory.
 *
 * Owns: the mappings, one per peer allocation, device and process; kept until the process ends, so
 * that an allocation that its owner uses again for a new lane needs no second mapping and nothing is
 * closed under a spinning kernel.
 * Threads: any; one lock. Blocking: the mapping call itself (set-up's helper thread).
 * Errors: LLANE_EGPU, LLANE_ENOMEM, LLANE_ESYS (no randomness to be had).
 */
#ifndef LLANE_PEERS_H
#define LLANE_PEERS_H

#include <stdint.h>

#include "gpu.h"

/* Equal ids mean one process, hence one address space. Random, since pids repeat across namespaces. */
struct llane_address_space {
    uint64_t token[2];
    int64_t pid; /* tells a forked child, which inherits the token, from its parent */
};
int llane_address_space_self(struct llane_address_space *out);
int llane_address_space_is_same(const struct llane_address_space *a,
                                const struct llane_address_space *b);

/* What a rank tells the others of its staging memory. */
struct llane_remote_memory {
    struct llane_address_space owner;
    uint64_t address;    /* in the owner's address space */
    int32_t device;      /* in the owner's numbering */
    int32_t is_exported; /* handle is one; else only threads of the owner's process reach it */
    struct llane_gpu_ipc_handle handle;
};

/* A pointer by which kernels of the current device reach it. LLANE_EREFUSED: it is not exported. */
int llane_peers_map(const struct llane_remote_memory *memory, int device, uint8_t **out);

#endif
