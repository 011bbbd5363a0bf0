// Proves that a forked child waits for no lock that a thread of its parent held at the fork: it is passive,
// and NCCL's. One whose parent's threads were elsewhere is a process as any.
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "forks.h"
#include "interpose.h"
#include "log.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t is_inside, may_leave;

/* The child's status: what run(), which may not hang, returns. */
static int status_of_child(int (*run)(void))
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        _exit(run());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void *hold(void *unused)
{
    pthread_mutex_lock(&lock);
    sem_post(&is_inside);
    sem_wait(&may_leave);
    pthread_mutex_unlock(&lock);
    return unused;
}

static void forks__lock_free_or_held__child_passive_only_then(void **state)
{
    (void)state;
    pthread_t thread;
    llane_forks_guard(&lock);
    assert_int_equal(status_of_child(llane_forks_is_passive), 0);
    assert_int_equal(pthread_create(&thread, NULL, hold, NULL), 0);
    sem_wait(&is_inside);
    assert_int_equal(WEXITSTATUS(status_of_child(llane_forks_is_passive)), 1);
    sem_post(&may_leave);
    pthread_join(thread, NULL);
    assert_int_equal(status_of_child(llane_forks_is_passive), 0);
    assert_int_equal(llane_forks_is_passive(), 0);
}

/* Called by interpose with its lock held. */
static void log_that_waits(int level, unsigned long flags, const char *file, int line,
                           const char *format, ...)
{
    (void)level, (void)flags, (void)file, (void)line, (void)format;
    sem_post(&is_inside);
    sem_wait(&may_leave);
}

static void *look_at_foreign_logger(void *unused)
{
    llane_interpose_check_logger((uintptr_t)&lock); /* no libnccl's: it warns */
    return unused;
}

static int scan_in_child(void)
{
    struct llane_interpose_summary summary;
    llane_interpose_scan();
    llane_interpose_summarize(&summary);
    llane_interpose_check_logger((uintptr_t)&lock);
    return llane_forks_is_passive() && summary.n_copies == 0 ? 0 : 1;
}

static void interpose__another_thread_scans_at_the_fork__child_goes_on(void **state)
{
    (void)state;
    pthread_t thread;
    llane_log_set_nccl(log_that_waits);
    assert_int_equal(pthread_create(&thread, NULL, look_at_foreign_logger, NULL), 0);
    sem_wait(&is_inside);
    assert_int_equal(status_of_child(scan_in_child), 0);
    sem_post(&may_leave);
    pthread_join(thread, NULL);
}

int main(void)
{
    sem_init(&is_inside, 0, 0);
    sem_init(&may_leave, 0, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks__lock_free_or_held__child_passive_only_then),
        cmocka_unit_test(interpose__another_thread_scans_at_the_fork__child_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
