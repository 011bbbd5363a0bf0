/*
 * Proves that a process's mark in shared memory changes when, and only when, that process ends:
 * however it ends, in whatever pid namespace, whatever its children inherited.
 */
// ALSO: asan
#include "board_ranks.h"

#include <linux/futex.h>
#include <sched.h>

#include "life.h"

enum { N_LIVES = 5 };
struct shared {
    struct llane_life lives[N_LIVES];
    _Atomic int is_held, go_on;
    _Atomic pid_t child;
    pid_t keeper; /* as its own pid namespace counts */
    int rc;
};

static void *keep(void *arg)
{
    struct shared *shared = arg;
    shared->rc = llane_life_keep();
    shared->keeper = gettid();
    atomic_store(&shared->is_held, 1);
    while (pause() != 0) {
    }
    return NULL;
}

/* As llane does: a thread keeps, another one holds. 1: it cannot be had here. */
static int hold_all(struct shared *shared)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, keep, shared) != 0) {
        return 1;
    }
    await(&shared->is_held, 1);
    for (int i = 0; i < N_LIVES && shared->rc == 0; i++) {
        shared->rc = llane_life_hold(&shared->lives[i]);
    }
    atomic_store(&shared->is_held, 2);
    return shared->rc != 0;
}

static int hold_and_stay(void *arg)
{
    if (hold_all(arg)) {
        return 1;
    }
    while (pause() != 0) {
    }
    return 0;
}

static int n_over(const struct shared *shared)
{
    int n = 0;
    for (int i = 0; i < N_LIVES; i++) {
        n += llane_life_is_over(&shared->lives[i]);
    }
    return n;
}

static void life__nobody_holds_it__not_over(void **state)
{
    (void)state;
    struct llane_life life = {0};
    assert_false(llane_life_is_over(&life));
    assert_int_equal(llane_life_hold(&life), LLANE_ENOSYS); /* no keeper in this process */
    assert_false(llane_life_is_over(&life));
}

static void life__killed__over_though_not_reaped(void **state)
{
    (void)state;
    struct shared *shared = shared_memory(sizeof(*shared));
    pid_t child = fork_process(hold_and_stay, shared);
    await(&shared->is_held, 2);
    assert_int_equal(shared->rc, 0);
    assert_int_equal(n_over(shared), 0);
    kill(child, SIGKILL);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(n_over(shared), N_LIVES);
    assert_int_equal(exit_status(child), -1);
    munmap(shared, sizeof(*shared));
}

static void life__stopped__not_over(void **state)
{
    (void)state;
    struct shared *shared = shared_memory(sizeof(*shared));
    pid_t child = fork_process(hold_and_stay, shared);
    siginfo_t info;
    await(&shared->is_held, 2);
    kill(child, SIGSTOP);
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WSTOPPED), 0);
    assert_int_equal(n_over(shared), 0);
    kill(child, SIGKILL);
    assert_int_equal(exit_status(child), -1);
    assert_int_equal(n_over(shared), N_LIVES);
    munmap(shared, sizeof(*shared));
}

static int hold_fork_and_stay(void *arg)
{
    struct shared *shared = arg;
    if (hold_all(shared)) {
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        await(&shared->go_on, 1);
        return 0;
    }
    atomic_store(&shared->child, child);
    if (shared->go_on == 0) {
        while (pause() != 0) {
        }
    }
    return 0;
}

static void life__parent_killed__over_while_its_child_lives(void **state)
{
    (void)state;
    struct shared *shared = shared_memory(sizeof(*shared));
    pid_t parent = fork_process(hold_fork_and_stay, shared);
    while (atomic_load(&shared->child) == 0) {
        sleep_ms(1);
    }
    assert_int_equal(n_over(shared), 0);
    kill(parent, SIGKILL);
    assert_int_equal(exit_status(parent), -1);
    assert_int_equal(n_over(shared), N_LIVES);
    assert_int_equal(kill(shared->child, 0), 0);
    atomic_store(&shared->go_on, 1);
    munmap(shared, sizeof(*shared));
}

static int hold_and_outlive_child(void *arg)
{
    struct shared *shared = arg;
    if (hold_all(shared)) {
        return 1;
    }
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    waitpid(child, NULL, 0);
    atomic_store(&shared->is_held, 3);
    while (pause() != 0) {
    }
    return 0;
}

static void life__child_ended__parent_is_not_over(void **state)
{
    (void)state;
    struct shared *shared = shared_memory(sizeof(*shared));
    pid_t parent = fork_process(hold_and_outlive_child, shared);
    await(&shared->is_held, 3);
    assert_int_equal(n_over(shared), 0);
    kill(parent, SIGKILL);
    assert_int_equal(exit_status(parent), -1);
    assert_int_equal(n_over(shared), N_LIVES);
    munmap(shared, sizeof(*shared));
}

/* First, last and middle of the list are let go; the rest is marked. */
static int hold_release_and_end(void *arg)
{
    struct shared *shared = arg;
    if (hold_all(shared)) {
        return 1;
    }
    llane_life_release(&shared->lives[4]);
    llane_life_release(&shared->lives[0]);
    llane_life_release(&shared->lives[2]);
    llane_life_release(&shared->lives[2]);
    return 0;
}

static void life__released__not_over_at_the_end(void **state)
{
    (void)state;
    struct shared *shared = shared_memory(sizeof(*shared));
    assert_int_equal(exit_status(fork_process(hold_release_and_end, shared)), 0);
    for (int i = 0; i < N_LIVES; i++) {
        assert_int_equal(llane_life_is_over(&shared->lives[i]), i % 2);
    }
    munmap(shared, sizeof(*shared));
}

static int hold_in_new_namespace(void *arg)
{
    struct shared *shared = arg;
    if (unshare(CLONE_NEWPID) != 0) {
        return 77;
    }
    pid_t child = fork_process(hold_and_stay, shared);
    await(&shared->is_held, 2);
    atomic_store(&shared->child, child);
    return exit_status(child) == -1 ? 0 : 1;
}

static void life__killed_in_another_pid_namespace__over(void **state)
{
    (void)state;
    struct shared *shared = shared_memory(sizeof(*shared));
    pid_t outer = fork_process(hold_in_new_namespace, shared);
    int status = 0;
    while (atomic_load(&shared->child) == 0 && waitpid(outer, &status, WNOHANG) == 0) {
        sleep_ms(1);
    }
    if (atomic_load(&shared->child) == 0) {
        assert_int_equal(WEXITSTATUS(status), 77);
        print_message("# no permission for a pid namespace\n");
        skip();
    }
    assert_in_range(shared->keeper, 2, 20); /* the first process there counts from 1 */
    assert_int_equal(shared->lives[0].word & FUTEX_TID_MASK, shared->keeper);
    assert_int_equal(n_over(shared), 0);
    kill(shared->child, SIGKILL);
    assert_int_equal(exit_status(outer), 0);
    assert_int_equal(n_over(shared), N_LIVES);
    munmap(shared, sizeof(*shared));
}

/* Links that others spoil lead the kernel astray, at most: this process neither reads nor dies of it. */
static int hold_with_spoiled_links(void *arg)
{
    struct shared *shared = arg;
    if (hold_all(shared)) {
        return 1;
    }
    for (int i = 0; i < N_LIVES; i++) {
        shared->lives[i].next = (void *)(uintptr_t)(0xdeadbeef0000 + (unsigned)i); // NOLINT
    }
    for (int i = 0; i < N_LIVES; i++) {
        llane_life_release(&shared->lives[i]);
    }
    return llane_life_hold(&shared->lives[3]);
}

static void life__links_spoiled_by_others__still_works(void **state)
{
    (void)state;
    struct shared *shared = shared_memory(sizeof(*shared));
    assert_int_equal(exit_status(fork_process(hold_with_spoiled_links, shared)), 0);
    assert_int_equal(n_over(shared), 1);
    assert_true(llane_life_is_over(&shared->lives[3]));
    munmap(shared, sizeof(*shared));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(life__nobody_holds_it__not_over),
        cmocka_unit_test(life__killed__over_though_not_reaped),
        cmocka_unit_test(life__stopped__not_over),
        cmocka_unit_test(life__parent_killed__over_while_its_child_lives),
        cmocka_unit_test(life__child_ended__parent_is_not_over),
        cmocka_unit_test(life__released__not_over_at_the_end),
        cmocka_unit_test(life__killed_in_another_pid_namespace__over),
        cmocka_unit_test(life__links_spoiled_by_others__still_works),
    };
    alarm(60); /* a hang is a failure too */
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
