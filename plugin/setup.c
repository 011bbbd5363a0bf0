#include "setup.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backoff.h"
#include "config.h"
#include "err.h"
#include "helper_thread.h"
#include "log.h"
#include "report.h"
#include "setup_steps.h"
#include "tuning_text.h"

/* A helper thread, until it has let go of its communicator: the last one to do so asks the GPU. */
struct running {
    struct llane_comm *comm;
    struct running *next;
};
static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;
static struct running *all_running; /* under running_lock */
static _Atomic int is_leaving;

static struct running *enter(struct llane_comm *comm)
{
    struct running *running = malloc(sizeof *running);
    if (running) {
        running->comm = comm;
        pthread_mutex_lock(&running_lock);
        running->next = all_running;
        all_running = running;
        pthread_mutex_unlock(&running_lock);
    }
    return running;
}

static void leave(struct running *running)
{
    pthread_mutex_lock(&running_lock);
    struct running **link = &all_running;
    while (*link != running) {
        link = &(*link)->next;
    }
    *link = running->next;
    pthread_mutex_unlock(&running_lock);
    free(running);
}

void llane_setup_wait_for_end(const struct llane_comm *comm)
{
    int64_t deadline = llane_now_ms() + 1000;
    struct llane_backoff backoff = {0};
    for (;;) {
        pthread_mutex_lock(&running_lock);
        const struct running *r = all_running;
        while (r && comm && r->comm != comm) {
            r = r->next;
        }
        pthread_mutex_unlock(&running_lock);
        if (!r || llane_now_ms() >= deadline) {
            return;
        }
        llane_backoff_sleep(&backoff);
    }
}

/* Rank 0 finds the number; the others wait until it is final, for LLANE_WAIT and the log. */
static int await_switch(struct llane_comm *comm, struct llane_switch *sw, uint64_t *number_out)
{
    if (comm->rank == 0) {
        return llane_switch_propose(sw, comm->n_ranks, &comm->cancel, number_out);
    }
    struct llane_backoff backoff = {0};
    while (!llane_switch_is_confirmed(sw, number_out)) {
        if (llane_is_canceled(&comm->cancel)) {
            return LLANE_ECANCELED;
        }
        llane_backoff_sleep(&backoff);
    }
    return 0;
}

static enum llane_inactive_reason go_live(struct llane_setup *s, uint64_t *number_out)
{
    struct llane_switch *sw = llane_board_switch(s->board);
    int err = await_switch(s->comm, sw, number_out);
    if (err == LLANE_ECANCELED) {
        return LLANE_INACTIVE_CANCELED;
    }
    if (err) {
        (void)llane_switch_give_up(sw); /* its numbers make no sense */
        return LLANE_INACTIVE_RECORD;
    }
    if (*number_out != LLANE_SWITCH_NEVER) {
        return LLANE_INACTIVE_NONE;
    }
    int gone = llane_board_find_gone(s->board); /* not every rank can see it */
    if (gone >= 0) {
        LLANE_INFO("rank %d: rank %d is gone", s->comm->rank, gone);
    }
    return LLANE_INACTIVE_DIED;
}

static const char *memory_text(const struct llane_setup *s)
{
    uint32_t n_peers = 0;
    for (int r = 0; r < s->comm->n_ranks; r++) {
        n_peers += (uint32_t)__builtin_popcount(llane_setup_peers_of(s, r));
    }
    if (s->lane->limits.has_host_pairs) {
        return n_peers ? "peer memory, some pairs over host memory" : "host memory";
    }
    return llane_setup_ranks_on_gpu_of(s, s->comm->rank) == (uint32_t)s->comm->n_ranks
               ? "device memory of one GPU"
               : "peer memory";
}

static void log_active(const struct llane_setup *s, const struct llane_lane *lane, uint64_t number)
{
    const char *name = s->comm->options.name;
    LLANE_INFO("rank %d of %d: active from all-reduce %" PRIu64 " over %s, %" PRIu64 " to %" PRIu64
               " bytes, at most %u blocks, %" PRIu64 " KiB of staging memory, table %08x%s%s%s",
               s->comm->rank, s->comm->n_ranks, number, memory_text(s), lane->limits.min_bytes,
               lane->limits.max_bytes, lane->limits.max_blocks, lane->staging->bytes >> 10,
               (unsigned)llane_tuning_hash(&lane->limits.tuning, sizeof lane->limits.tuning),
               name[0] ? ", name \"" : "", name, name[0] ? "\"" : "");
}

/* Not at the process's end, which the program's other threads may have left in any state. */
static void say_inactive(const struct llane_comm *comm, enum llane_inactive_reason reason)
{
    if (!atomic_load_explicit(&is_leaving, memory_order_relaxed)) {
        LLANE_INFO("rank %d of %d: inactive: %s", comm->rank, comm->n_ranks,
                   llane_inactive_text((int)reason));
    }
}

static void end_without(struct llane_setup *s, enum llane_inactive_reason reason)
{
    struct llane_comm *comm = s->comm;
    if (atomic_load_explicit(&comm->lane, memory_order_relaxed) != s->lane) {
        llane_lane_bury(s->lane); /* not published: nobody else's */
    }
    llane_comm_set_inactive(comm, reason);
    say_inactive(comm, reason);
    if (s->board) {
        llane_board_linger(s->board, &comm->cancel);
    }
}

static void finish(struct llane_setup *s, enum llane_inactive_reason reason)
{
    struct llane_comm *comm = s->comm;
    uint64_t number = 0;
    /* Relaxed: a number of its own, for statistics. */
    atomic_store_explicit(&comm->setup_ms, llane_now_ms() - comm->setup_start_ms,
                          memory_order_relaxed);
    if (s->stream) {
        llane_gpu_stream_destroy(s->stream);
    }
    if (reason) {
        end_without(s, reason);
        return;
    }
    reason = go_live(s, &number);
    if (reason && reason != LLANE_INACTIVE_CANCELED) {
        end_without(s, reason);
        return;
    }
    if (reason) {
        say_inactive(comm, reason);
    } else {
        log_active(s, atomic_load_explicit(&comm->lane, memory_order_relaxed), number);
    }
    atomic_store_explicit(&comm->is_settled, 1, memory_order_release);
}

static void *thread_main(void *arg)
{
    struct running *running = arg;
    struct llane_comm *comm = running->comm;
    struct llane_setup s = {.comm = comm};
    (void)pthread_setname_np(pthread_self(), "llane-setup");
    finish(&s, llane_setup_run_steps(&s));
    llane_comm_release(comm);
    leave(running);
    return NULL;
}

void llane_setup_start(struct llane_comm *comm)
{
    if (llane_config()->report_signal) {
        llane_report_start(comm->device);
    }
    llane_comm_hold(comm);
    struct running *running = enter(comm);
    int is_late = atomic_load_explicit(&is_leaving, memory_order_relaxed);
    int err = !running ? ENOMEM : is_late ? 0 : llane_helper_thread_start(thread_main, running);
    if (err) {
        LLANE_INFO("rank %d of %d: inactive: no thread for its set-up: %s", comm->rank,
                   comm->n_ranks, strerror(err));
    }
    if (err || is_late) {
        llane_comm_set_inactive(comm, LLANE_INACTIVE_INTERNAL);
        llane_comm_release(comm);
        if (running) {
            leave(running);
        }
    }
}

/* This rank's user thread waits: S may be chosen without another call of its. 1 once done. */
static int stand_by(struct llane_comm *comm)
{
    struct llane_switch *sw = atomic_load_explicit(&comm->switch_word, memory_order_acquire);
    if (sw) {
        pthread_mutex_lock(&comm->lock);
        comm->has_posted = 1;
        llane_switch_stand_by(sw, comm->rank, comm->n_all_reduces + (uint64_t)comm->leaves_first);
        pthread_mutex_unlock(&comm->lock);
    }
    return sw != NULL;
}

void llane_setup_wait(struct llane_comm *const *comms, size_t n)
{
    int64_t deadline = llane_now_ms() + (int64_t)llane_config()->wait_timeout_ms;
    struct llane_backoff backoff = {0};
    size_t n_settled = 0;
    char *has_stood_by = calloc(n, 1);
    while (has_stood_by && n_settled < n) {
        n_settled = 0;
        for (size_t i = 0; i < n; i++) {
            has_stood_by[i] = has_stood_by[i] || stand_by(comms[i]);
            n_settled += atomic_load_explicit(&comms[i]->is_settled, memory_order_acquire) != 0;
        }
        if (n_settled < n && llane_now_ms() > deadline) {
            LLANE_WARN("rank %d: LLANE_WAIT: no verdict within %" PRIu64
                       " ms: not all ranks have come with their first all-reduce; NCCL carries on",
                       comms[0]->rank, llane_config()->wait_timeout_ms);
            break;
        }
        if (n_settled < n) {
            llane_backoff_sleep(&backoff);
        }
    }
    free(has_stood_by);
}

static void cancel(struct llane_comm *comm)
{
    atomic_store_explicit(&comm->cancel, 1, memory_order_relaxed);
}

void llane_setup_end_all(void)
{
    atomic_store_explicit(&is_leaving, 1, memory_order_relaxed);
    llane_comm_for_all(cancel);
    llane_setup_wait_for_end(NULL);
}
