/*
 * helper_thread: starts a thread of llane's own. Nobody joins it, and it takes none of the program's
 * signals: a handler may count on the thread it runs in. Threads: any. Blocking: no. Errors: errno's.
 */
#ifndef LLANE_HELPER_THREAD_H
#define LLANE_HELPER_THREAD_H

#include <pthread.h>
#include <signal.h>

static inline int llane_helper_thread_start(void *(*run)(void *arg), void *arg)
{
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&thread, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return err;
}

#endif
