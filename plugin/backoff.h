/*
 * backoff: how a helper thread waits for something it can only poll: sleeps from 50 us that double
 * to 1 ms, and to 10 ms once a second has gone by (an arrival may take hours). Helper threads only,
 * never a user's call (LLANE_WAIT apart). No errors. And deadlines, for any thread.
 */
#ifndef LLANE_BACKOFF_H
#define LLANE_BACKOFF_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

struct llane_backoff {
    long sleep_us; /* 0 before the first sleep */
    long slept_us; /* in all */
};

enum {
    LLANE_BACKOFF_FIRST_US = 50,
    LLANE_BACKOFF_MAX_US = 1000,
    LLANE_BACKOFF_PATIENT_US = 10000,
    LLANE_BACKOFF_PATIENT_AFTER_US = 1000000,
};

static inline void llane_backoff_sleep(struct llane_backoff *backoff)
{
    long max_us = backoff->slept_us < LLANE_BACKOFF_PATIENT_AFTER_US ? LLANE_BACKOFF_MAX_US
                                                                     : LLANE_BACKOFF_PATIENT_US;
    long us = backoff->sleep_us == 0 ? LLANE_BACKOFF_FIRST_US : 2 * backoff->sleep_us;
    us = us < max_us ? us : max_us;
    backoff->sleep_us = us;
    backoff->slept_us += us;
    struct timespec ts = {.tv_sec = 0, .tv_nsec = us * 1000};
    nanosleep(&ts, NULL); /* cut short by a signal: the caller's loop looks again, no harm */
}

/* Milliseconds of a clock that only goes forward: for deadlines. */
static inline int64_t llane_now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* For a lock whose holder may not come back from the driver. 0: it is held. */
static inline int llane_lock_within(pthread_mutex_t *lock, long ms)
{
#ifdef __SANITIZE_THREAD__ /* gcc 12's knows no pthread_mutex_clocklock: the lock would be none */
    clockid_t clock = CLOCK_REALTIME;
#else
    clockid_t clock = CLOCK_MONOTONIC;
#endif
    struct timespec deadline;
    clock_gettime(clock, &deadline);
    deadline.tv_nsec += ms % 1000 * 1000000;
    deadline.tv_sec += ms / 1000 + deadline.tv_nsec / 1000000000;
    deadline.tv_nsec %= 1000000000;
    return clock == CLOCK_REALTIME ? pthread_mutex_timedlock(lock, &deadline)
                                   : pthread_mutex_clocklock(lock, clock, &deadline);
}

/* Relaxed: the flag carries no data, it only ends a wait. NULL is "never". */
static inline int llane_is_canceled(const _Atomic int *cancel)
{
    return cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed) != 0;
}

#endif
