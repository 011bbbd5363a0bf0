/*
 * forks: whether a process is a child that fork made and that is to leave llane alone. It is passive
 * where its parent had communicators, since CUDA is of no use to it, and where another thread of the
 * parent was inside llane, since what that thread held stays held. Then all its calls are NCCL's: no
 * lock of llane's is taken that is not known to be free. Any other child is a process as any.
 *
 * Threads: any. Blocking: no. Errors: none.
 */
#ifndef LLANE_FORKS_H
#define LLANE_FORKS_H

#include <pthread.h>

int llane_forks_is_passive(void);

/* Before the lock is first taken: a child is passive if another thread holds it at the fork. */
void llane_forks_guard(pthread_mutex_t *lock);

/* In a child, by a pthread_atfork handler. */
void llane_forks_set_passive(void);

#endif
