#include "life.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "err.h"

/* What is held, as this process knows it: the links in shared memory are written, never read. */
struct held {
    struct llane_life *life;
    struct held *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct held *all; /* under lock, in the order of the links */
static uint32_t keeper;  /* under lock; 0: none */
static struct robust_list_head list = {
    .list = {&list.list},
    .futex_offset = offsetof(struct llane_life, word) - offsetof(struct llane_life, next),
};

_Static_assert(sizeof(struct robust_list) == sizeof(void *),
               "the link is the struct's first member");

int llane_life_keep(void)
{
    int err = LLANE_ENOSYS;
    pthread_mutex_lock(&lock);
    if (!keeper && syscall(SYS_set_robust_list, &list, sizeof list) == 0) {
        keeper = (uint32_t)syscall(SYS_gettid);
        err = 0;
    }
    pthread_mutex_unlock(&lock);
    return err;
}

static void *link_of(const struct held *held)
{
    return held ? (void *)&held->life->next : (void *)&list.list;
}

/* The process may end between any two stores: the list is whole after each. */
static void set_link(struct held *before, struct held *to)
{
    void **link = before ? &before->life->next : (void **)&list.list.next;
    __atomic_store_n(link, link_of(to), __ATOMIC_RELEASE); /* pairs with the kernel's walk */
}

int llane_life_hold(struct llane_life *life)
{
    struct held *held = malloc(sizeof *held);
    if (!held) {
        return LLANE_ENOMEM;
    }
    pthread_mutex_lock(&lock);
    if (!keeper) {
        pthread_mutex_unlock(&lock);
        free(held);
        return LLANE_ENOSYS;
    }
    *held = (struct held){life, all};
    set_link(held, all);
    set_link(NULL, held);
    all = held;
    /* Relaxed: the word carries nothing but itself. */
    atomic_store_explicit(&life->word, keeper, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    return 0;
}

void llane_life_release(struct llane_life *life)
{
    pthread_mutex_lock(&lock);
    struct held *before = NULL, *held = all;
    while (held && held->life != life) {
        before = held;
        held = held->next;
    }
    if (held) {
        atomic_store_explicit(&life->word, 0, memory_order_relaxed);
        set_link(before, held->next);
        if (before) {
            before->next = held->next;
        } else {
            all = held->next;
        }
    }
    pthread_mutex_unlock(&lock);
    free(held);
}

int llane_life_is_over(const struct llane_life *life)
{
    return (atomic_load_explicit(&life->word, memory_order_relaxed) & FUTEX_OWNER_DIED) != 0;
}
