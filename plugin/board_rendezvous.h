/*
 * board_rendezvous: how the ranks of one communicator find one shared memory, knowing nothing in
 * common but an id. Whoever binds the id's abstract unix socket first makes a sealed memfd and hands
 * it to everyone who connects; the others connect. When the creator dies too early the next one to
 * bind makes a new memory: ranks can thereby end up on different memories, which the board's
 * verdicts make harmless (none gets past arrival without all ranks).
 *
 * Owns: the listening socket and the mapping in a struct llane_rendezvous.
 * Threads: helper threads; one struct is used by one thread at a time. Several may belong to one
 * process. Blocking: find sleeps and polls until the memory is there or `cancel` is set; nothing
 * else waits. Errors: LLANE_ECANCELED, LLANE_ESYS (errno tells), LLANE_ENOMEM.
 *
 * Trust: both sides want the other's uid to be their own. The server reads nothing from a client and
 * keeps no state for it. A client accepts only a memfd of exactly the size it asked for that can
 * neither shrink nor grow, so that reading it can never raise SIGBUS; its contents are untrusted.
 */
#ifndef LLANE_BOARD_RENDEZVOUS_H
#define LLANE_BOARD_RENDEZVOUS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct llane_rendezvous {
    void *memory; /* shared; all zero for the creator */
    size_t bytes;
    int listener;  /* -1: not the creator, or no longer serving */
    int memory_fd; /* kept only while serving, else -1 */
    int is_creator;
    pid_t owner; /* a forked child must not disturb its parent's socket */
};

enum { LLANE_RENDEZVOUS_NAME_BYTES = 64 };

/*
 * The socket's name, without the leading zero byte. The id is the key of the hash, not its text: the
 * name is public in /proc/net/unix and must say nothing about an id that NCCL treats as a secret.
 */
void llane_rendezvous_name(const uint64_t id[2], uint32_t uid, int n_ranks,
                           char out[LLANE_RENDEZVOUS_NAME_BYTES]);

/* cancel may be NULL. On failure *out holds nothing. */
int llane_rendezvous_find(const char *name, size_t bytes, const _Atomic int *cancel,
                          struct llane_rendezvous *out);

/* Hands the memory to all who are waiting at the socket. No-op if not serving. Never blocks. */
void llane_rendezvous_serve(struct llane_rendezvous *meet);

/* Stops serving; the memory stays. Idempotent. */
void llane_rendezvous_stop(struct llane_rendezvous *meet);

/* Stops serving and unmaps. Accepts a zeroed struct whose listener and memory_fd are -1. */
void llane_rendezvous_end(struct llane_rendezvous *meet);

#endif
