/* Proves that a process is called gone when it is, and never when that cannot be known. */
// ALSO: asan
#include "board_ranks.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "liveness.h"

static void liveness__self__is_not_gone(void **state)
{
    (void)state;
    struct llane_liveness self;
    llane_liveness_self(&self);
    assert_int_equal(self.pid, getpid());
    assert_true(self.start > 0);
    assert_true(self.pid_namespace > 0);
    assert_false(llane_liveness_is_gone(&self, &self));
}

static void liveness__pid_used_again__old_process_is_gone(void **state)
{
    (void)state;
    struct llane_liveness self, old;
    llane_liveness_self(&self);
    old = self;
    old.start--;
    assert_true(llane_liveness_is_gone(&self, &old));
    old.pid_namespace++; /* in another namespace the number means somebody else */
    assert_false(llane_liveness_is_gone(&self, &old));
    old.pid_namespace = 0;
    assert_false(llane_liveness_is_gone(&self, &old));
}

struct report {
    struct llane_liveness who;
    _Atomic int is_written;
};

static int report_and_stay(void *arg)
{
    struct report *report = arg;
    llane_liveness_self(&report->who);
    atomic_store(&report->is_written, 1);
    while (pause() != 0) {
    }
    return 0;
}

static void liveness__killed_process__is_gone_before_and_after_it_is_reaped(void **state)
{
    (void)state;
    struct report *report = shared_memory(sizeof(*report));
    struct llane_liveness self;
    llane_liveness_self(&self);
    pid_t child = fork_process(report_and_stay, report);
    await(&report->is_written, 1);
    assert_false(llane_liveness_is_gone(&self, &report->who));
    kill(child, SIGKILL);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0); /* a zombie */
    assert_true(llane_liveness_is_gone(&self, &report->who));
    assert_int_equal(exit_status(child), -1);
    assert_true(llane_liveness_is_gone(&self, &report->who));
    munmap(report, sizeof(*report));
}

static void *report_from_thread(void *arg)
{
    sleep_ms(50); /* the leader has left by then */
    (void)report_and_stay(arg);
    return NULL;
}

static int leave_thread_behind(void *arg)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, report_from_thread, arg) == 0) {
        pthread_exit(NULL);
    }
    return 1;
}

static void liveness__main_thread_has_ended__process_is_not_gone(void **state)
{
    (void)state;
    struct report *report = shared_memory(sizeof(*report));
    struct llane_liveness self;
    llane_liveness_self(&self);
    pid_t child = fork_process(leave_thread_behind, report);
    await(&report->is_written, 1);
    assert_false(llane_liveness_is_gone(&self, &report->who));
    kill(child, SIGKILL);
    assert_int_equal(exit_status(child), -1);
    assert_true(llane_liveness_is_gone(&self, &report->who));
    munmap(report, sizeof(*report));
}

static int report_and_end(void *arg)
{
    llane_liveness_self(&((struct report *)arg)->who);
    return 0;
}

static int report_from_new_namespace(void *arg)
{
    if (unshare(CLONE_NEWPID) != 0) {
        return 77;
    }
    return exit_status(fork_process(report_and_end, arg));
}

static void liveness__proc_of_another_namespace__nothing_is_known(void **state)
{
    (void)state;
    struct report *report = shared_memory(sizeof(*report));
    int status = exit_status(fork_process(report_from_new_namespace, report));
    if (status == 77) {
        print_message("# no permission for a pid namespace\n");
        skip();
    }
    assert_int_equal(status, 0);
    assert_int_equal(report->who.pid, 1);
    assert_int_equal(report->who.pid_namespace, 0);
    munmap(report, sizeof(*report));
}

enum { CORE_BYTES = 128 << 20 };

struct crash {
    struct report report;
    char folder[32];
};

static int report_and_crash(void *arg)
{
    struct crash *crash = arg;
    const struct rlimit most = {RLIM_INFINITY, RLIM_INFINITY};
    char *memory = malloc(CORE_BYTES);
    if (!memory || chdir(crash->folder) != 0 || setrlimit(RLIMIT_CORE, &most) != 0) {
        return 77;
    }
    memset(memory, 1, CORE_BYTES);
    llane_liveness_self(&crash->report.who);
    atomic_store(&crash->report.is_written, 1);
    abort();
}

/* Writing a core of tens of GiB takes minutes, in which nothing else of the process ends. */
static void liveness__core_is_being_written__process_is_ending(void **state)
{
    (void)state;
    struct crash *crash = shared_memory(sizeof(*crash));
    struct llane_liveness self;
    int status = 0, was_ending = 0;
    char path[64];
    llane_liveness_self(&self);
    snprintf(crash->folder, sizeof(crash->folder), "/tmp/llane-core-XXXXXX");
    assert_non_null(mkdtemp(crash->folder));
    pid_t child = fork_process(report_and_crash, crash);
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (atomic_load(&crash->report.is_written)) {
            was_ending |= llane_liveness_is_ending(&self, &crash->report.who);
        }
        sleep_ms(1);
    }
    snprintf(path, sizeof(path), "%s/core", crash->folder);
    int has_core = unlink(path) == 0;
    snprintf(path, sizeof(path), "%s/core.%d", crash->folder, (int)child);
    has_core = (unlink(path) == 0 || has_core) && WIFSIGNALED(status) && WCOREDUMP(status);
    rmdir(crash->folder);
    munmap(crash, sizeof(*crash));
    if (!has_core) {
        print_message("# no core files here\n");
        skip();
    }
    assert_true(was_ending);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(liveness__self__is_not_gone),
        cmocka_unit_test(liveness__pid_used_again__old_process_is_gone),
        cmocka_unit_test(liveness__killed_process__is_gone_before_and_after_it_is_reaped),
        cmocka_unit_test(liveness__main_thread_has_ended__process_is_not_gone),
        cmocka_unit_test(liveness__proc_of_another_namespace__nothing_is_known),
        cmocka_unit_test(liveness__core_is_being_written__process_is_ending),
    };
    alarm(60); /* a hang is a failure too */
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
