// Proves that waiting for a lock ends by its deadline whatever is done to the time of day meanwhile.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "backoff.h"

/* Stands in for the C library's. The time of day is an hour ahead: as if it were set back by an hour right
 * after it was asked for. */
#ifndef __SANITIZE_THREAD__ /* see llane_lock_within */
int clock_gettime(clockid_t clock, struct timespec *out)
{
    long status = syscall(SYS_clock_gettime, clock, out);
    if (clock == CLOCK_REALTIME) {
        out->tv_sec += 3600;
    }
    return (int)status;
}
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int status_of_other;

static void *ask(void *ms)
{
    status_of_other = llane_lock_within(&lock, *(long *)ms);
    if (!status_of_other) {
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static void ask_in_a_thread(long ms)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, ask, &ms), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void lock_within__held__gives_up_in_time(void **state)
{
    (void)state;
    pthread_mutex_lock(&lock);
    int64_t start = llane_now_ms();
    ask_in_a_thread(1020);
    int64_t end = llane_now_ms();
    pthread_mutex_unlock(&lock);
    assert_int_not_equal(status_of_other, 0);
    assert_in_range(end - start, 1000, 20000);
}

static void lock_within__free__held(void **state)
{
    (void)state;
    ask_in_a_thread(20);
    assert_int_equal(status_of_other, 0);
    ask_in_a_thread(20);
    assert_int_equal(status_of_other, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lock_within__held__gives_up_in_time),
        cmocka_unit_test(lock_within__free__held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
