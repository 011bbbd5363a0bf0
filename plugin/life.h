/*
 * life: a mark in shared memory by which others see that the process which set it has ended, however
 * it ended. The kernel changes the mark (a robust futex) while it takes the process down, before it
 * gives back any memory or file; it does so across pid namespaces, for nobody but the process itself
 * (a forked child inherits nothing of it), and not while the process is merely stopped.
 *
 * Owns: the robust futex list of one thread, the keeper, in place of the C library's: that thread must
 * take no robust mutex. The list's links lie in the shared memory, where only the kernel follows them,
 * with checks of its own.
 * Threads: any; one short lock. Blocking: no. Errors: LLANE_ENOSYS (no keeper), LLANE_ENOMEM.
 */
#ifndef LLANE_LIFE_H
#define LLANE_LIFE_H

#include <stdatomic.h>
#include <stdint.h>

/* In shared memory; all zero: not held. */
struct llane_life {
    void *next; /* for the kernel alone */
    _Atomic uint32_t
        word; /* the keeper's thread id while held, from the kernel's hand a mark after it */
    uint32_t reserved;
};

/* The calling thread becomes the process's keeper, once, and must not end before the process does.
 * 0, or LLANE_ENOSYS where the kernel has no such thing. */
int llane_life_keep(void);

int llane_life_hold(struct llane_life *life);
/* Before the memory is unmapped. A mark that is not held is left alone. */
void llane_life_release(struct llane_life *life);

/* The process that held it has ended. */
int llane_life_is_over(const struct llane_life *life);

#endif
