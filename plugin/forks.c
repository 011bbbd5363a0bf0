#include "forks.h"

#include <stdatomic.h>
#include <stddef.h>

enum { MAX_GUARDED = 8 };

static _Atomic int is_passive;
/* Filled from the front, and read in a child: its release and acquire pair. */
static pthread_mutex_t *_Atomic guarded[MAX_GUARDED];
static atomic_int n_guarded;

int llane_forks_is_passive(void)
{
    /* Relaxed: written before the child's only thread runs. */
    return atomic_load_explicit(&is_passive, memory_order_relaxed);
}

void llane_forks_set_passive(void)
{
    atomic_store_explicit(&is_passive, 1, memory_order_relaxed);
}

static void in_child(void)
{
    for (int i = 0; i < MAX_GUARDED; i++) {
        pthread_mutex_t *lock = atomic_load_explicit(&guarded[i], memory_order_acquire);
        if (lock && pthread_mutex_trylock(lock)) {
            llane_forks_set_passive();
        } else if (lock) {
            pthread_mutex_unlock(lock);
        }
    }
}

static void watch(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

void llane_forks_guard(pthread_mutex_t *lock)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch);
    int i = atomic_fetch_add_explicit(&n_guarded, 1, memory_order_relaxed);
    if (i < MAX_GUARDED) {
        atomic_store_explicit(&guarded[i], lock, memory_order_release);
    }
}
