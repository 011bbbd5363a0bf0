#include "report.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "ab.h"
#include "backoff.h"
#include "comm.h"
#include "config.h"
#include "gpu.h"
#include "helper_thread.h"
#include "log.h"
#include "shadow.h"
#include "stats.h"

enum { LOOK_MS = 10 };

/* Relaxed, but for n_turns: each is a word of its own that starts or ends something. */
static _Atomic int is_asked, is_leaving, is_running;
static _Atomic int any_device;   /* that the process uses */
static _Atomic unsigned n_turns; /* of looks that began or ended: odd while one is under way */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void on_signal(int number)
{
    (void)number;
    atomic_store_explicit(&is_asked, 1, memory_order_relaxed);
}

static void collect(struct llane_comm *comm)
{
    struct llane_lane *lane = atomic_load_explicit(&comm->lane, memory_order_acquire);
    if (lane && lane->ab) {
        llane_ab_collect(lane->ab);
    }
    if (lane && lane->shadow) {
        llane_shadow_collect(lane->shadow);
    }
}

static void *thread_main(void *unused)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000L};
    (void)pthread_setname_np(pthread_self(), "llane-report");
    /* Else the next call would make a context on device 0. */
    (void)llane_gpu_device_set(atomic_load_explicit(&any_device, memory_order_relaxed));
    /* Looks at events must not end the captures of other threads. */
    (void)llane_gpu_capture_mode_relax();
    while (!atomic_load_explicit(&is_leaving, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&n_turns, 1, memory_order_relaxed);
        llane_comm_for_all(collect);
        if (atomic_exchange_explicit(&is_asked, 0, memory_order_relaxed)) {
            llane_comm_for_all(llane_stats_print_now);
        }
        /* Release pairs with llane_report_wait_for_look: all communicators are let go. */
        atomic_fetch_add_explicit(&n_turns, 1, memory_order_release);
        nanosleep(&pause, NULL);
    }
    atomic_store_explicit(&is_running, 0, memory_order_relaxed);
    return unused;
}

/* The program's own action stays: the signal is then not ours. */
static void take_signal(void)
{
    static const int numbers[] = {0, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    int number = numbers[llane_config()->report_signal];
    struct sigaction before, ours = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigfillset(&ours.sa_mask);
    if (!number || sigaction(number, NULL, &before)) {
        return;
    }
    if (before.sa_flags & SA_SIGINFO || before.sa_handler != SIG_DFL) {
        LLANE_WARN("LLANE_REPORT_SIGNAL: the program has an action of its own for signal %d; no "
                   "report on it",
                   number);
    } else {
        sigaction(number, &ours, NULL);
    }
}

static void start(void)
{
    atomic_store_explicit(&is_running, 1, memory_order_relaxed);
    int err = llane_helper_thread_start(thread_main, NULL);
    if (err) {
        atomic_store_explicit(&is_running, 0, memory_order_relaxed);
        LLANE_INFO("no thread for reports");
        return;
    }
    take_signal();
}

void llane_report_start(int device)
{
    atomic_store_explicit(&any_device, device, memory_order_relaxed);
    pthread_once(&once, start);
}

/* A look that holds the communicator found it in the table, under the lock that took it out. */
void llane_report_wait_for_look(void)
{
    int64_t deadline = llane_now_ms() + 1000;
    struct llane_backoff backoff = {0};
    unsigned now = atomic_load_explicit(&n_turns, memory_order_acquire);
    while (now % 2 && atomic_load_explicit(&n_turns, memory_order_acquire) == now &&
           llane_now_ms() < deadline) {
        llane_backoff_sleep(&backoff);
    }
}

void llane_report_end(void)
{
    int64_t deadline = llane_now_ms() + 1000;
    struct llane_backoff backoff = {0};
    atomic_store_explicit(&is_leaving, 1, memory_order_relaxed);
    while (atomic_load_explicit(&is_running, memory_order_relaxed) && llane_now_ms() < deadline) {
        llane_backoff_sleep(&backoff);
    }
}
