#include "watch.h"

#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backoff.h"
#include "config.h"
#include "forks.h"
#include "helper_thread.h"
#include "log.h"

enum {
    LOOK_EVERY_MS = 100,
    LOOKS_A_THOROUGH_ONE = 5,
    /* A running kernel whose packets are all there ends much sooner. */
    STUCK_FOR_SURE_MS = 300,
    /* A kernel that still waits gives a sign far more often. */
    SILENT_FOR_SURE_MS = 3 * LOOK_EVERY_MS,
};

/* The last kernel that gave a sign that it waits for packets of a family. */
struct waiting {
    uint32_t op;
    int64_t since_ms, heard_ms;
    int64_t known_ms; /* that it has waited */
};

struct llane_watched {
    struct llane_lane *lane;
    struct llane_presence *presence; /* this rank's */
    int n_ranks;
    _Atomic int *failure;
    struct waiting waiting[LLANE_N_PACKETS];
    int64_t looked_ms; /* at them */
    struct llane_watched *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct llane_watched *all; /* under lock */
static int is_over;               /* under lock: the process is leaving */
static unsigned n_looks;          /* under lock */

/* ---- words ---- */

static uint64_t read_number(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static uint32_t state_of(const struct llane_presence *presence)
{
    /* Acquire pairs with llane_watch_leave: the count is the last one. */
    return atomic_load_explicit(&presence->state, memory_order_acquire);
}

static struct llane_presence *peer_of(const struct llane_watched *w, int rank)
{
    return llane_board_presence(w->lane->board, rank);
}

static int is_gone(const struct llane_watched *w, int rank)
{
    return llane_board_is_gone(w->lane->board, rank,
                               n_looks % LOOKS_A_THOROUGH_ONE ? LLANE_BOARD_QUICK
                                                              : LLANE_BOARD_THOROUGH);
}

/* ---- failing ---- */

static const char *what_happened(uint32_t state)
{
    return state == LLANE_PRESENT           ? "died"
           : state == LLANE_PRESENCE_LEFT   ? "destroyed the communicator"
           : state == LLANE_PRESENCE_EXITED ? "ended without destroying the communicator"
                                            : "aborted the communicator";
}

static void fail(const struct llane_watched *w, ncclResult_t result, int is_stopping)
{
    /* Release pairs with the acquire of every call. */
    atomic_store_explicit(w->failure, result, memory_order_release);
    if (is_stopping) {
        llane_lane_abort(w->lane);
    }
}

static const char *what_follows(void)
{
    return llane_config()->on_death
               ? "its kernels are stopped (LLANE_ON_DEATH=stop)"
               : "kernels that need that rank wait until the communicator is aborted";
}

static void fail_for(const struct llane_watched *w, int rank)
{
    const struct llane_presence *mine = w->presence, *peer = peer_of(w, rank);
    LLANE_WARN("rank %d: rank %d (pid %d) %s. Its last all-reduce on the lane was call %" PRIu64
               " of %" PRIu64 " bytes, this rank's is call %" PRIu64 " of %" PRIu64
               " bytes. The communicator reports ncclRemoteError; %s",
               w->lane->rank, rank, (int)llane_board_pid(w->lane->board, rank),
               what_happened(state_of(peer)), read_number(&peer->number), read_number(&peer->bytes),
               read_number(&mine->number), read_number(&mine->bytes), what_follows());
    fail(w, ncclRemoteError, llane_config()->on_death != 0);
}

/* The rank that is farthest behind, which is the one most likely waited for. */
static void fail_for_time(const struct llane_watched *w)
{
    int last = 0;
    for (int r = 1; r < w->n_ranks; r++) {
        if (read_number(&peer_of(w, r)->n_operations) <
            read_number(&peer_of(w, last)->n_operations)) {
            last = r;
        }
    }
    const struct llane_presence *mine = w->presence, *peer = peer_of(w, last);
    LLANE_WARN("rank %d: all-reduce call %" PRIu64 " of %" PRIu64
               " bytes, or a graph's, has waited for other ranks for LLANE_TIMEOUT_S=%" PRIu64
               " seconds. Farthest behind is rank %d (pid %d) with call %" PRIu64 " of %" PRIu64
               " bytes. The communicator reports ncclRemoteError; %s",
               w->lane->rank, read_number(&mine->number), read_number(&mine->bytes),
               llane_config()->timeout_s, last, (int)llane_board_pid(w->lane->board, last),
               read_number(&peer->number), read_number(&peer->bytes), what_follows());
    fail(w, ncclRemoteError, llane_config()->on_death != 0);
}

/* What was summed of calls that differ is garbage on all ranks: nothing is worth waiting for. */
static void fail_where_ranks_disagree(const struct llane_watched *w)
{
    char words[256];
    if (w->lane->is_checked &&
        llane_check_tell(llane_board_check(w->lane->board), w->n_ranks, words, sizeof words)) {
        LLANE_WARN("rank %d: the ranks disagree on %s. The communicator reports ncclInvalidUsage; "
                   "its kernels are stopped",
                   w->lane->rank, words);
        fail(w, ncclInvalidUsage, 1);
    }
}

/* ---- looking ---- */

/*
 * Whether a kernel waits, and which, it tells by itself in host memory. The driver is not asked: while a
 * thread of the program is in cudaFree, which waits for that very kernel, copies would wait too.
 */
static void look_at_kernel(struct llane_watched *w, int64_t now_ms)
{
    struct llane_lane_words *words = &w->lane->staging->mapped->words;
    /* After a pause of this thread alone, or of the process, a sign may be as old as the last look. */
    int64_t given_ms = now_ms - w->looked_ms > SILENT_FOR_SURE_MS ? w->looked_ms : now_ms;
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        struct waiting *k = &w->waiting[p];
        /* Pairs with the store in llane_poll_must_stop. */
        uint32_t op = __atomic_exchange_n(&words->waiting[p], 0, __ATOMIC_RELAXED);
        if (op) {
            k->known_ms = op == k->op ? given_ms - k->since_ms : 0;
            k->since_ms = op == k->op ? k->since_ms : now_ms;
            k->op = op;
            k->heard_ms = now_ms;
        }
    }
    w->looked_ms = now_ms;
}

/* The first sign may be an old one: its time counts from the look that found it. */
static int64_t waited_ms(const struct llane_watched *w, int64_t now_ms)
{
    int64_t most_ms = 0;
    for (int p = 0; p < LLANE_N_PACKETS; p++) {
        const struct waiting *k = &w->waiting[p];
        int64_t ms = now_ms - k->heard_ms < SILENT_FOR_SURE_MS ? k->known_ms : 0;
        most_ms = ms > most_ms ? ms : most_ms;
    }
    return most_ms;
}

static int is_live(const struct llane_watched *w)
{
    uint64_t number;
    return llane_switch_is_confirmed(llane_board_switch(w->lane->board), &number) &&
           number != LLANE_SWITCH_NEVER;
}

/*
 * 1: an operation of this rank needs a rank that has left. The peer launched fewer than this rank did;
 * or a kernel of ours, a graph's perhaps, runs on though all that the peer's kernels had to store for
 * it is there: they stopped with the peer's process, or were aborted.
 */
static int needs(struct llane_watched *w, int rank, uint32_t state, int64_t now_ms)
{
    if (state != LLANE_PRESENT &&
        read_number(&w->presence->n_operations) > read_number(&peer_of(w, rank)->n_operations)) {
        return 1;
    }
    if (state != LLANE_PRESENCE_ABORTED && !is_gone(w, rank)) {
        return 0;
    }
    look_at_kernel(w, now_ms);
    return waited_ms(w, now_ms) > STUCK_FOR_SURE_MS;
}

/* Ours may have been finalized meanwhile: then only a kernel that waits is of interest. */
static int is_needed(struct llane_watched *w, int rank, uint32_t state, int64_t now_ms)
{
    if (state_of(w->presence) == LLANE_PRESENT && state == LLANE_PRESENT) {
        return is_gone(w, rank);
    }
    return needs(w, rank, state, now_ms);
}

static void look_at_peers(struct llane_watched *w, int64_t now_ms)
{
    for (int r = 0; r < w->n_ranks; r++) {
        if (r != w->lane->rank && is_needed(w, r, state_of(peer_of(w, r)), now_ms)) {
            fail_for(w, r);
            return;
        }
    }
}

/*
 * Before the switch the calls are NCCL's, and there is no lane that could fail: without that rank it never
 * goes live, and set-up's kernels, which may wait for it, end. The switch's word makes all ranks see the
 * death alike: either none reports it or, where the switch was confirmed first, all do.
 */
static void look_before_the_switch(struct llane_watched *w)
{
    for (int r = 0; r < w->n_ranks; r++) {
        if (is_gone(w, r) && llane_switch_give_up(llane_board_switch(w->lane->board))) {
            llane_lane_abort(w->lane);
            return;
        }
    }
}

static void look_at_clock(struct llane_watched *w, int64_t now_ms)
{
    if (llane_config()->timeout_s && is_live(w)) {
        look_at_kernel(w, now_ms);
        if (waited_ms(w, now_ms) > (int64_t)llane_config()->timeout_s * 1000) {
            fail_for_time(w);
        }
    }
}

static int is_of_interest(const struct llane_watched *w)
{
    return state_of(w->presence) != LLANE_PRESENCE_ABORTED &&
           atomic_load_explicit(w->failure, memory_order_relaxed) == ncclSuccess;
}

static void look(void)
{
    int64_t now_ms = llane_now_ms();
    n_looks++;
    for (struct llane_watched *w = all; w; w = w->next) {
        if (is_of_interest(w)) {
            fail_where_ranks_disagree(w);
        }
        if (is_of_interest(w) && is_live(w)) {
            look_at_peers(w, now_ms);
        } else if (is_of_interest(w)) {
            look_before_the_switch(w);
        }
        if (is_of_interest(w)) {
            look_at_clock(w, now_ms);
        }
    }
}

/* ---- the thread ---- */

static sem_t is_kept;

static void *thread_main(void *unused)
{
    (void)unused;
    (void)pthread_setname_np(pthread_self(), "llane-watch");
    if (llane_life_keep()) {
        LLANE_INFO("no robust futexes here: a peer's death is noticed in one pid namespace only");
    }
    sem_post(&is_kept);
    for (;;) {
        struct timespec ts = {.tv_nsec = LOOK_EVERY_MS * 1000000L};
        nanosleep(&ts, NULL);
        pthread_mutex_lock(&lock);
        if (!is_over) {
            look();
        }
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

/* A look takes no time, but the process may be stopped or starved: a second is waited for it. */
static int lock_in_time(void)
{
    return llane_lock_within(&lock, 1000);
}

/* The CUDA runtime has registered its own end earlier, so no look meets it. */
static void stop_looking(void)
{
    if (!llane_forks_is_passive() && !lock_in_time()) {
        is_over = 1;
        pthread_mutex_unlock(&lock);
    }
}

static void start_thread(void)
{
    sem_init(&is_kept, 0, 0);
    int err = llane_helper_thread_start(thread_main, NULL);
    if (err) {
        LLANE_WARN("no thread to watch the ranks: a peer's death will not be noticed: %s",
                   strerror(err));
        return;
    }
    while (sem_wait(&is_kept)) {
    }
    (void)atexit(stop_looking);
}

void llane_watch_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_thread);
}

struct llane_watched *llane_watch_begin(struct llane_lane *lane, int n_ranks, _Atomic int *failure)
{
    struct llane_watched *w = calloc(1, sizeof *w);
    if (!w) {
        return NULL;
    }
    w->lane = lane;
    w->presence = llane_board_presence(lane->board, lane->rank);
    w->n_ranks = n_ranks;
    w->failure = failure;
    pthread_mutex_lock(&lock);
    w->next = all;
    all = w;
    pthread_mutex_unlock(&lock);
    return w;
}

void llane_watch_disagreement(struct llane_watched *w)
{
    if (w) {
        pthread_mutex_lock(&lock);
        if (is_of_interest(w)) {
            fail_where_ranks_disagree(w);
        }
        pthread_mutex_unlock(&lock);
    }
}

void llane_watch_leave(struct llane_watched *w, enum llane_presence_state how)
{
    uint32_t present = LLANE_PRESENT;
    if (w) {
        /* Release pairs with state_of. The first reason stays. */
        atomic_compare_exchange_strong_explicit(&w->presence->state, &present, (uint32_t)how,
                                                memory_order_release, memory_order_relaxed);
    }
}

void llane_watch_end(struct llane_watched *w)
{
    if (!w) {
        return;
    }
    llane_watch_leave(w, LLANE_PRESENCE_LEFT);
    pthread_mutex_lock(&lock);
    struct llane_watched **link = &all;
    while (*link != w) {
        link = &(*link)->next;
    }
    *link = w->next;
    pthread_mutex_unlock(&lock);
    free(w);
}

void llane_watch_exit(void)
{
    if (lock_in_time()) {
        return;
    }
    is_over = 1;
    for (struct llane_watched *w = all; w; w = w->next) {
        llane_watch_leave(w, LLANE_PRESENCE_EXITED);
    }
    pthread_mutex_unlock(&lock);
}
