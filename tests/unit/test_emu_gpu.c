/*
 * Proves that the emulated GPU keeps CUDA's rules where llane depends on them (order, events, capture,
 * what blocks and what does not) and that its tearing and its faults really happen.
 *
 * The library reads its environment at its first use and does not survive a fork after it, so every
 * test body runs in a child of its own, and this process never touches the library.
 */
// ALSO: tsan asan
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "emu.h"
#include "err.h"
#include "gpu.h"

/* In a child there is no test to fail, only an exit status. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition,                    \
                    llane_gpu_error());                                                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define GOOD(call) CHECK((call) == 0)
#define REFUSED(call) CHECK((call) == LLANE_EGPU)

enum { CHILD_LIMIT_S = 60 };

#ifdef __SANITIZE_THREAD__
/* Else every child would end with a second of sleep. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "atexit_sleep_ms=20";
}
#endif

static pid_t start(const char *environment, void (*body)(void *shared), void *shared)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char copy[512], *rest = copy, *entry;
        snprintf(copy, sizeof copy, "%s", environment);
        while ((entry = strsep(&rest, " "))) {
            char *value = strchr(entry, '=');
            if (!value)
                continue;
            *value++ = 0;
            setenv(entry, value, 1);
        }
        alarm(CHILD_LIMIT_S);
        body(shared);
        exit(0);
    }
    return pid;
}

static int finish(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void run(const char *environment, void (*body)(void *shared))
{
    assert_int_equal(finish(start(environment, body, NULL)), 0);
}

/* Memory that parent and children share, for handles and flags. */
static void *shared_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

/* Flags between threads and processes of a test: every set_flag pairs with get_flag elsewhere. */
static void set_flag(uint32_t *flag, uint32_t value)
{
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

static uint32_t get_flag(const uint32_t *flag)
{
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static void sleep_us(long us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static void await_flag(const uint32_t *flag, uint32_t value)
{
    while (get_flag(flag) != value)
        sleep_us(100);
}

static void launch(void (*kernel)(const void *), const void *args, size_t bytes, uint32_t n_blocks,
                   uint32_t n_threads, struct CUstream_st *stream)
{
    struct llane_gpu_launch l = {.kernel = (const void *)(uintptr_t)kernel,
                                 .args = args,
                                 .args_bytes = bytes,
                                 .n_blocks = n_blocks,
                                 .n_threads = n_threads,
                                 .stream = stream};
    GOOD(llane_gpu_launch(&l));
}

static struct CUstream_st *new_stream(void)
{
    struct CUstream_st *stream;
    GOOD(llane_gpu_stream_create(&stream));
    return stream;
}

static struct CUevent_st *new_event(int timed)
{
    struct CUevent_st *event;
    GOOD(llane_gpu_event_create(timed, &event));
    return event;
}

static int stream_is_done(struct CUstream_st *stream)
{
    int done;
    GOOD(llane_gpu_stream_query(stream, &done));
    return done;
}

static int event_is_done(struct CUevent_st *event)
{
    int done;
    GOOD(llane_gpu_event_query(event, &done));
    return done;
}

/* ---- work to put on streams ---- */

static uint32_t log_entries[64], n_log_entries;
static void append_to_log(void *arg)
{
    uint32_t i = __atomic_fetch_add(&n_log_entries, 1, __ATOMIC_ACQ_REL); /* pairs with itself */
    set_flag(&log_entries[i], (uint32_t)(uintptr_t)arg);
}

static void put(struct CUstream_st *stream, uintptr_t value)
{
    GOOD(llane_emu_host_call(stream, append_to_log, (void *)value));
}

/* Checks the log against a list that ends in 0, and empties it. */
static void check_log(const uint32_t *expected)
{
    uint32_t i;
    for (i = 0; expected[i]; i++)
        CHECK(i < get_flag(&n_log_entries) && get_flag(&log_entries[i]) == expected[i]);
    CHECK(get_flag(&n_log_entries) == i);
    set_flag(&n_log_entries, 0);
}
#define CHECK_LOG(...) check_log((const uint32_t[]){__VA_ARGS__, 0})

struct spin_args {
    uint32_t *until; /* ends when set */
};
static void spin_kernel(const void *p)
{
    const struct spin_args *args = p;
    while (!get_flag(args->until))
        llane_emu_yield();
}

static uint32_t gate;
static void spin_on(struct CUstream_st *stream, uint32_t *until)
{
    struct spin_args args = {until};
    launch(spin_kernel, &args, sizeof args, 1, 32, stream);
}

/* ---- streams ---- */

static void body_stream_order(void *unused)
{
    (void)unused;
    struct CUstream_st *a = new_stream(), *b = new_stream();
    uint8_t *memory, host[256];
    GOOD(llane_gpu_malloc(sizeof host, (void **)&memory));
    CHECK(memory[0] == 0xA5 && memory[255] == 0xA5);
    spin_on(a, &gate);
    put(a, 1);
    put(b, 2);
    GOOD(llane_gpu_memset_async(memory, 7, 256, a));
    GOOD(llane_gpu_memcpy_async(host, memory, 256, a));
    GOOD(llane_gpu_stream_synchronize(b));
    CHECK_LOG(2);
    CHECK(!stream_is_done(a) && stream_is_done(b));
    set_flag(&gate, 1);
    GOOD(llane_gpu_stream_synchronize(a));
    CHECK(stream_is_done(a));
    CHECK_LOG(1);
    for (int i = 0; i < 256; i++)
        CHECK(host[i] == 7);
    for (uintptr_t i = 1; i <= 3; i++)
        put(NULL, i);
    GOOD(llane_gpu_stream_synchronize(NULL));
    CHECK_LOG(1, 2, 3);
}

static void stream__two_streams__in_order_each_and_independent(void **state)
{
    (void)state;
    run("", body_stream_order);
}

static void body_stream_destroy(void *unused)
{
    (void)unused;
    struct CUstream_st *a = new_stream();
    spin_on(a, &gate);
    put(a, 9);
    GOOD(llane_gpu_stream_destroy(a));
    REFUSED(llane_gpu_stream_synchronize(a));
    REFUSED(llane_emu_host_call(a, append_to_log, NULL));
    set_flag(&gate, 1);
    await_flag(&n_log_entries, 1);
    CHECK_LOG(9);
    REFUSED(llane_gpu_stream_destroy(NULL));
}

static void stream_destroy__pending_work__ends_and_handle_is_dead(void **state)
{
    (void)state;
    run("", body_stream_destroy);
}

/* ---- events ---- */

static void body_events(void *unused)
{
    (void)unused;
    struct CUstream_st *a = new_stream(), *b = new_stream(), *c = new_stream();
    struct CUevent_st *event = new_event(0), *never = new_event(0);
    static uint32_t second_gate;
    CHECK(event_is_done(never));
    GOOD(llane_gpu_stream_wait_event(b, never));
    spin_on(a, &gate);
    put(a, 1);
    GOOD(llane_gpu_event_record(event, a));
    CHECK(!event_is_done(event));
    GOOD(llane_gpu_stream_wait_event(b, event));
    put(b, 2);
    /* A later record concerns neither b's wait ... */
    spin_on(a, &second_gate);
    GOOD(llane_gpu_event_record(event, a));
    GOOD(llane_gpu_stream_wait_event(c, event));
    put(c, 3);
    set_flag(&gate, 1);
    GOOD(llane_gpu_stream_synchronize(b));
    CHECK_LOG(1, 2);
    /* ... nor ends early for those that waited after it. */
    sleep_us(5000);
    CHECK(!stream_is_done(c) && !event_is_done(event));
    set_flag(&second_gate, 1);
    GOOD(llane_gpu_stream_synchronize(c));
    CHECK(event_is_done(event));
    CHECK_LOG(3);
    GOOD(llane_gpu_event_destroy(never));
    REFUSED(llane_gpu_event_record(never, a));
}

static void event__recorded_twice__wait_means_the_record_before_it(void **state)
{
    (void)state;
    run("", body_events);
}

static void nap(void *us)
{
    sleep_us((long)(intptr_t)us);
}

static void body_elapsed(void *unused)
{
    (void)unused;
    struct CUevent_st *from = new_event(1), *to = new_event(1), *plain = new_event(0);
    float us;
    REFUSED(llane_gpu_event_elapsed_us(from, to, &us));
    GOOD(llane_gpu_event_record(from, NULL));
    GOOD(llane_emu_host_call(NULL, nap, (void *)20000));
    GOOD(llane_gpu_event_record(to, NULL));
    GOOD(llane_gpu_event_record(plain, NULL));
    REFUSED(llane_gpu_event_elapsed_us(from, to, &us));
    GOOD(llane_gpu_stream_synchronize(NULL));
    GOOD(llane_gpu_event_elapsed_us(from, to, &us));
    CHECK(us >= 20000 && us < 10e6F);
    REFUSED(llane_gpu_event_elapsed_us(from, plain, &us));
}

static void event_elapsed__timed_and_done__measures_the_work(void **state)
{
    (void)state;
    run("", body_elapsed);
}

static void body_wrong_device(void *unused)
{
    (void)unused;
    struct CUstream_st *on_0 = new_stream();
    GOOD(llane_gpu_device_set(1));
    struct CUevent_st *of_1 = new_event(0);
    REFUSED(llane_gpu_event_record(of_1, on_0));
    struct spin_args args = {&gate};
    struct llane_gpu_launch l = {.kernel = (const void *)(uintptr_t)spin_kernel,
                                 .args = &args,
                                 .args_bytes = sizeof args,
                                 .n_blocks = 1,
                                 .n_threads = 1,
                                 .stream = on_0};
    REFUSED(llane_gpu_launch(&l));
    REFUSED(llane_gpu_device_set(8));
    REFUSED(llane_gpu_device_set(-1));
}

static void stream__used_from_another_device__refused_as_by_cuda(void **state)
{
    (void)state;
    run("", body_wrong_device);
}

/* ---- kernels ---- */

enum { BLOCKS = 3, THREADS = 64 };
struct barrier_args {
    uint32_t *values; /* BLOCKS * THREADS */
    uint32_t *sums;   /* one a thread: what it saw after the barrier */
    uint32_t *votes;
    uint32_t rounds, leave_early;
};

static void barrier_kernel(const void *p)
{
    const struct barrier_args *args = p;
    const struct llane_emu_thread *self = llane_emu_self();
    uint32_t *values = args->values + (size_t)self->block * self->n_threads;
    uint32_t mine = self->block * self->n_threads + self->thread;
    if (self->thread < args->leave_early)
        return;
    for (uint32_t round = 1; round <= args->rounds; round++) {
        values[self->thread] = round;
        if (self->thread % 7 == round % 7)
            llane_emu_yield();
        llane_emu_block_barrier();
        for (uint32_t i = args->leave_early; i < self->n_threads; i++)
            args->sums[mine] += values[i];
        /* In odd rounds one thread of block 1 votes. */
        int vote = round % 2 == 1 && self->block == 1 && self->thread == 33;
        args->votes[mine] += llane_emu_block_or(vote) != 0;
    }
}

static void body_barrier(void *unused)
{
    (void)unused;
    static uint32_t values[BLOCKS * THREADS], sums[BLOCKS * THREADS], votes[BLOCKS * THREADS];
    for (uint32_t leave_early = 0; leave_early <= 5; leave_early += 5) {
        memset(sums, 0, sizeof sums);
        memset(votes, 0, sizeof votes);
        struct barrier_args args = {values, sums, votes, 10, leave_early};
        launch(barrier_kernel, &args, sizeof args, BLOCKS, THREADS, NULL);
        memset(&args, 0, sizeof args); /* the launch has its own copy */
        GOOD(llane_gpu_stream_synchronize(NULL));
        for (uint32_t i = 0; i < BLOCKS * THREADS; i++) {
            uint32_t here = i % THREADS >= leave_early;
            CHECK(sums[i] == here * 55 * (THREADS - leave_early));
            CHECK(votes[i] == (here && i / THREADS == 1 ? 5U : 0U));
        }
    }
}

static void kernel__barriers__all_threads_of_the_block_and_no_other(void **state)
{
    (void)state;
    run("EMU_SEED=3", body_barrier);
}

struct order_args {
    uint32_t *order, *n;
};
static void order_kernel(const void *p)
{
    const struct order_args *args = p;
    args->order[(*args->n)++] = llane_emu_self()->thread;
}

static void body_order(void *shared)
{
    uint32_t *order = shared, n = 0;
    struct order_args args = {order, &n};
    launch(order_kernel, &args, sizeof args, 1, THREADS, NULL);
    GOOD(llane_gpu_stream_synchronize(NULL));
    CHECK(n == THREADS);
}

static void kernel__seeds__decide_the_order_of_threads(void **state)
{
    (void)state;
    uint32_t(*orders)[THREADS] = shared_memory(3 * sizeof *orders);
    assert_int_equal(finish(start("EMU_SEED=5", body_order, orders[0])), 0);
    assert_int_equal(finish(start("EMU_SEED=5", body_order, orders[1])), 0);
    assert_int_equal(finish(start("EMU_SEED=6", body_order, orders[2])), 0);
    assert_memory_equal(orders[0], orders[1], sizeof orders[0]);
    assert_memory_not_equal(orders[0], orders[2], sizeof orders[0]);
}

struct deep_args {
    uint32_t *sum;
};
/* Uses much of its stack and floating point across switches. */
static double deep(uint32_t level, double value)
{
    volatile uint8_t ballast[400];
    ballast[level % 400] = 1;
    llane_emu_yield();
    double below = level ? deep(level - 1, value * 1.5) : value;
    return below + ballast[level % 400];
}
static void deep_kernel(const void *p)
{
    const struct deep_args *args = p;
    uint32_t thread = llane_emu_self()->thread;
    double expected = (double)thread, result = deep(30, (double)thread);
    for (int i = 0; i < 30; i++)
        expected *= 1.5;
    args->sum[thread] += result == expected + 31;
}

static void body_deep(void *unused)
{
    (void)unused;
    static uint32_t sum[1024];
    struct deep_args args = {sum};
    for (int i = 0; i < 3; i++)
        launch(deep_kernel, &args, sizeof args, 1, 1024, NULL);
    GOOD(llane_gpu_stream_synchronize(NULL));
    for (int i = 0; i < 1024; i++)
        CHECK(sum[i] == 3);
}

static void kernel__1024_deep_threads__keep_their_stacks_and_registers(void **state)
{
    (void)state;
    run("", body_deep);
}

static void body_bad_launches(void *unused)
{
    (void)unused;
    struct llane_gpu_launch good = {.kernel = (const void *)(uintptr_t)spin_kernel,
                                    .n_blocks = 1,
                                    .n_threads = 1},
                            bad;
    bad = good, bad.kernel = NULL;
    REFUSED(llane_gpu_launch(&bad));
    bad = good, bad.n_threads = 1025;
    REFUSED(llane_gpu_launch(&bad));
    bad = good, bad.n_blocks = 0;
    REFUSED(llane_gpu_launch(&bad));
    bad = good, bad.args_bytes = 1 << 20;
    REFUSED(llane_gpu_launch(&bad));
    uint32_t blocks;
    GOOD(llane_gpu_kernel_load(good.kernel, 256, &blocks));
    CHECK(blocks == 8);
    REFUSED(llane_gpu_kernel_load(NULL, 256, &blocks));
}

static void launch__bad_shapes__refused(void **state)
{
    (void)state;
    run("", body_bad_launches);
}

/* ---- torn accesses ---- */

enum { TEAR_ROUNDS = 3000 };
struct tear_args {
    uint64_t *line;
    uint32_t *torn, *broken, *done;
};

/* Block 0 writes {n, n}, block 1 reads. */
static void tear_kernel(const void *p)
{
    const struct tear_args *args = p;
    if (llane_emu_self()->block == 0) {
        for (uint64_t n = 1; n <= TEAR_ROUNDS; n++) {
            /* Both 32-bit parts change, so that a half that is not whole would show. */
            llane_emu_store16(args->line, n << 32 | n, n << 32 | n);
            llane_emu_yield();
        }
        *args->done = 1;
        return;
    }
    while (!*args->done) {
        uint64_t low, high;
        llane_emu_load16(args->line, &low, &high);
        *args->broken += (uint32_t)(low >> 32) != (uint32_t)low;
        *args->broken += (uint32_t)(high >> 32) != (uint32_t)high;
        args->torn[0] += low < high;
        args->torn[1] += high < low;
        llane_emu_yield();
    }
}

static void body_tear(void *unused)
{
    (void)unused;
    uint32_t torn[2] = {0, 0}, broken = 0, done = 0;
    uint64_t *line;
    GOOD(llane_gpu_malloc(4096, (void **)&line));
    line[0] = line[1] = 0;
    struct tear_args args = {line, torn, &broken, &done};
    launch(tear_kernel, &args, sizeof args, 2, 1, NULL);
    GOOD(llane_gpu_stream_synchronize(NULL));
    CHECK(broken == 0);
    CHECK(torn[0] > TEAR_ROUNDS / 100 && torn[1] > TEAR_ROUNDS / 100);
    CHECK(line[0] == line[1] && (uint32_t)line[0] == TEAR_ROUNDS);
}

static void store16__a_reader__sees_either_half_first_and_halves_whole(void **state)
{
    (void)state;
    run("", body_tear);
}

/* ---- memory and processes ---- */

enum { LINES = 512 };
struct copy_args {
    uint64_t *to, base;
};
static void fill_kernel(const void *p)
{
    const struct copy_args *args = p;
    const struct llane_emu_thread *self = llane_emu_self();
    for (uint32_t i = self->thread; i < LINES; i += self->n_threads) {
        uint64_t *to = args->to + 2 * (size_t)i, low = args->base + i;
        switch (i % 4) {
        case 0: /* stores of every width meet the faults */
            llane_emu_store8(to, low);
            llane_emu_store4((uint8_t *)to + 8, (uint32_t)~low);
            llane_emu_store4((uint8_t *)to + 12, (uint32_t)(~low >> 32));
            break;
        default:
            llane_emu_store16(to, low, ~low);
        }
    }
}

struct count_args {
    const uint64_t *from;
    uint64_t base;
    uint32_t *good;
};
static void count_kernel(const void *p)
{
    const struct count_args *args = p;
    const struct llane_emu_thread *self = llane_emu_self();
    for (uint32_t i = self->thread; i < LINES; i += self->n_threads) {
        uint64_t low, high;
        llane_emu_load16(args->from + 2 * (size_t)i, &low, &high);
        *args->good += low == args->base + i && high == ~(args->base + i);
    }
}

static void fill(uint64_t *to, uint64_t base)
{
    struct copy_args args = {to, base};
    launch(fill_kernel, &args, sizeof args, 1, 32, NULL);
    GOOD(llane_gpu_stream_synchronize(NULL));
}

/* How many lines the current device's kernel finds as fill() left them. */
static uint32_t count(const uint64_t *from, uint64_t base)
{
    uint32_t good = 0;
    struct count_args args = {from, base, &good};
    launch(count_kernel, &args, sizeof args, 1, 32, NULL);
    GOOD(llane_gpu_stream_synchronize(NULL));
    return good;
}

struct ipc_shared {
    struct llane_gpu_ipc_handle handle;
    uint32_t step;
    uint32_t owner_sees; /* of LINES */
    uint32_t writer_sees;
};

static void body_ipc_owner(void *p)
{
    struct ipc_shared *shared = p;
    uint64_t *memory;
    void *other;
    GOOD(llane_gpu_malloc(LINES * 16, (void **)&memory));
    REFUSED(llane_gpu_ipc_export(memory + 1, &shared->handle));
    GOOD(llane_gpu_ipc_export(memory, &shared->handle));
    REFUSED(llane_gpu_ipc_open(&shared->handle, &other)); /* as in CUDA: not in the same process */
    set_flag(&shared->step, 1);
    await_flag(&shared->step, 2);
    shared->owner_sees = count(memory, 1000);
    fill(memory, 2000);
    GOOD(llane_gpu_free(memory));
    set_flag(&shared->step, 3);
    await_flag(&shared->step, 4);
}

static void body_ipc_peer(void *p)
{
    struct ipc_shared *shared = p;
    void *memory, *again;
    await_flag(&shared->step, 1);
    GOOD(llane_gpu_device_set(1));
    GOOD(llane_gpu_ipc_open(&shared->handle, &memory));
    GOOD(llane_gpu_ipc_open(&shared->handle, &again));
    CHECK(memory == again);
    REFUSED(llane_gpu_free(memory));
    fill(memory, 1000);
    shared->writer_sees = count(memory, 1000);
    set_flag(&shared->step, 2);
    await_flag(&shared->step, 3);
    if (shared->owner_sees == LINES)
        CHECK(count(memory, 2000) == LINES); /* the mapping outlives the exporter's free */
    set_flag(&shared->step, 4);
}

static void body_ipc_late(void *p)
{
    struct ipc_shared *shared = p;
    void *memory;
    REFUSED(llane_gpu_ipc_open(&shared->handle, &memory));
    memset(&shared->handle, 0, sizeof shared->handle);
    REFUSED(llane_gpu_ipc_open(&shared->handle, &memory));
}

static struct ipc_shared *run_ipc(const char *environment)
{
    struct ipc_shared *shared = shared_memory(sizeof *shared);
    pid_t owner = start(environment, body_ipc_owner, shared);
    pid_t peer = start(environment, body_ipc_peer, shared);
    assert_int_equal(finish(peer), 0);
    assert_int_equal(finish(owner), 0);
    return shared;
}

static void ipc__two_processes__share_memory(void **state)
{
    (void)state;
    struct ipc_shared *shared = run_ipc("");
    assert_int_equal(shared->owner_sees, LINES);
    assert_int_equal(shared->writer_sees, LINES);
    assert_int_equal(finish(start("", body_ipc_late, shared)), 0);
}

static void body_free_blocks_thread(void *unused)
{
    (void)unused;
    sleep_us(30000);
    set_flag(&gate, 1);
}

static void body_free(void *unused)
{
    (void)unused;
    struct CUstream_st *a = new_stream(), *opener = new_stream();
    void *memory, *more, *host, *device;
    GOOD(llane_gpu_malloc(100, &memory));
    GOOD(llane_gpu_malloc(100, &more));
    spin_on(a, &gate);
    /* These do not wait. */
    void *third;
    GOOD(llane_gpu_malloc(1 << 20, &third));
    GOOD(llane_gpu_host_alloc(5000, &host, &device));
    CHECK(((uint8_t *)host)[4999] == 0 && host == device);
    CHECK(!stream_is_done(a) && llane_emu_free_calls() == 0);
    GOOD(llane_emu_host_call(opener, body_free_blocks_thread, NULL));
    GOOD(llane_gpu_free(memory));
    CHECK(get_flag(&gate) == 1 && stream_is_done(a));
    CHECK(llane_emu_free_calls() == 1);
    REFUSED(llane_gpu_free(memory));
    GOOD(llane_gpu_free(NULL));
    /* A kernel of another device does not matter. */
    set_flag(&gate, 0);
    GOOD(llane_gpu_device_set(1));
    spin_on(NULL, &gate);
    GOOD(llane_gpu_free(more));
    CHECK(!stream_is_done(NULL));
    set_flag(&gate, 1);
}

static void free__kernel_spins_on_the_device__waits_for_it(void **state)
{
    (void)state;
    run("", body_free);
}

static struct {
    struct CUstream_st *stream;
    void *memory, *host;
    uint32_t n_begun, n_back;
} held;

static void call_malloc(void)
{
    void *more;
    GOOD(llane_gpu_malloc(100, &more));
}

static void call_host_alloc(void)
{
    void *host, *device;
    GOOD(llane_gpu_host_alloc(100, &host, &device));
}

static void call_memcpy(void)
{
    GOOD(llane_gpu_memcpy_async(held.host, held.host, 8, held.stream));
}

static void call_event_create(void)
{
    struct CUevent_st *event;
    GOOD(llane_gpu_event_create(0, &event));
}

static void call_stream_create(void)
{
    (void)new_stream();
}

static void call_free(void)
{
    GOOD(llane_gpu_free(held.memory));
}

static void (*const waiting_calls[])(void) = {call_free,   call_malloc,       call_host_alloc,
                                              call_memcpy, call_event_create, call_stream_create};
enum { N_WAITING_CALLS = sizeof waiting_calls / sizeof *waiting_calls };

static void *make_waiting_call(void *number)
{
    __atomic_fetch_add(&held.n_begun, 1, __ATOMIC_RELEASE);
    waiting_calls[(uintptr_t)number]();
    __atomic_fetch_add(&held.n_back, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void body_free_holds_up(void *unused)
{
    (void)unused;
    pthread_t threads[N_WAITING_CALLS];
    void *device;
    struct CUevent_st *event;
    int is_done = 0;
    struct CUstream_st *a = new_stream();
    held.stream = new_stream();
    GOOD(llane_gpu_event_create(0, &event));
    GOOD(llane_gpu_malloc(100, &held.memory));
    GOOD(llane_gpu_host_alloc(100, &held.host, &device));
    spin_on(a, &gate);
    GOOD(llane_gpu_event_record(event, a));
    for (uintptr_t i = 0; i < N_WAITING_CALLS; i++) {
        GOOD(pthread_create(&threads[i], NULL, make_waiting_call, (void *)i));
        await_flag(&held.n_begun, (uint32_t)i + 1);
        sleep_us(10000);
    }
    CHECK(get_flag(&held.n_back) == 0);
    GOOD(llane_gpu_event_query(event, &is_done));
    CHECK(!is_done && !stream_is_done(a) && stream_is_done(held.stream));
    GOOD(llane_gpu_device_set(1));
    call_malloc();
    set_flag(&gate, 1);
    for (int i = 0; i < N_WAITING_CALLS; i++)
        GOOD(pthread_join(threads[i], NULL));
}

static void free__waits_for_a_kernel__other_threads_calls_wait_too(void **state)
{
    (void)state;
    run("", body_free_holds_up);
}

static void empty_kernel(const void *unused)
{
    (void)unused;
}

static void body_lazy(void *unused)
{
    (void)unused;
    struct CUstream_st *a = new_stream(), *b = new_stream(), *opener = new_stream();
    uint32_t blocks;
    GOOD(llane_gpu_kernel_load((const void *)(uintptr_t)order_kernel, 32, &blocks));
    spin_on(a, &gate);
    uint32_t order[4], n = 0;
    struct order_args args = {order, &n};
    launch(order_kernel, &args, sizeof args, 1, 4, b); /* loaded: does not wait */
    GOOD(llane_gpu_stream_synchronize(b));
    CHECK(n == 4 && !stream_is_done(a));
    GOOD(llane_emu_host_call(opener, body_free_blocks_thread, NULL));
    launch(empty_kernel, NULL, 0, 1, 4, b); /* first use: does */
    CHECK(get_flag(&gate) == 1);
}

static void launch__kernel_never_loaded__waits_for_the_device(void **state)
{
    (void)state;
    run("", body_lazy);
}

/* ---- faults ---- */

/* Device 0 writes into device 1's memory: how many lines each of them finds there afterwards. */
static void write_across(uint64_t **memory_out, uint32_t *owner_sees, uint32_t *writer_sees)
{
    GOOD(llane_gpu_device_set(1));
    GOOD(llane_gpu_malloc(LINES * 16, (void **)memory_out));
    GOOD(llane_gpu_device_set(0));
    GOOD(llane_gpu_peer_enable(1));
    GOOD(llane_gpu_peer_enable(1));
    REFUSED(llane_gpu_peer_enable(0));
    fill(*memory_out, 3000);
    *writer_sees = count(*memory_out, 3000);
    GOOD(llane_gpu_device_set(1));
    *owner_sees = count(*memory_out, 3000);
}

static void body_no_fault(void *unused)
{
    (void)unused;
    uint64_t *memory;
    uint32_t owner, writer;
    write_across(&memory, &owner, &writer);
    CHECK(owner == LINES && writer == LINES);
}

static void body_mirror(void *unused)
{
    (void)unused;
    uint64_t *memory;
    uint32_t owner, writer;
    write_across(&memory, &owner, &writer);
    CHECK(owner == 0 && writer == LINES);
    for (size_t i = 0; i < 2 * LINES; i++)
        CHECK(memory[i] == 0xA5A5A5A5A5A5A5A5U);
    fill(memory, 3000); /* the owner's own stores land */
    CHECK(count(memory, 3000) == LINES);
}

static void body_drop(void *unused)
{
    (void)unused;
    uint64_t *memory;
    uint32_t owner, writer;
    write_across(&memory, &owner, &writer);
    CHECK(owner == 0 && writer == 0);
}

static void body_flip(void *unused)
{
    (void)unused;
    uint64_t *memory;
    uint32_t owner, writer;
    write_across(&memory, &owner, &writer);
    CHECK(owner == writer && owner > LINES / 2 && owner < LINES);
    int bits = 0;
    for (uint64_t i = 0; i < LINES; i++)
        bits += __builtin_popcountll(memory[2 * i] ^ (3000 + i)) +
                __builtin_popcountll(memory[2 * i + 1] ^ ~(3000 + i));
    /* One bit in each bad line; three stores made some of them. */
    CHECK(bits >= LINES - (int)owner && bits <= LINES - (int)owner + LINES / 32);
}

struct post_args {
    uint64_t *to;
    uint64_t *posted_ns, *done_ns;
};
static void post_kernel(const void *p)
{
    const struct post_args *args = p;
    uint64_t low, high, begin = llane_emu_timer_ns();
    llane_emu_store16(args->to, 1, 1);
    *args->posted_ns = llane_emu_timer_ns() - begin;
    do {
        llane_emu_yield();
        llane_emu_load16(args->to, &low, &high);
    } while (low != 1);
    *args->done_ns = llane_emu_timer_ns() - begin;
}

static void body_delay(void *unused)
{
    (void)unused;
    uint64_t *memory, posted = 0, done = 0;
    uint32_t owner, writer;
    write_across(&memory, &owner, &writer); /* a kernel's end waits for its stores */
    CHECK(owner == LINES && writer == LINES);
    memory[0] = 0;
    GOOD(llane_gpu_device_set(0));
    struct post_args args = {memory, &posted, &done};
    launch(post_kernel, &args, sizeof args, 1, 1, NULL);
    GOOD(llane_gpu_stream_synchronize(NULL));
    CHECK(done >= 20000000);
    CHECK(posted < 20000000); /* the store itself does not wait */
}

static void faults__each_kind__does_what_it_says(void **state)
{
    (void)state;
    run("", body_no_fault);
    run("EMU_FAULTS=drop:1>0,mirror:2>*,flip:*>2,delay_us:2>1=9999999", body_no_fault);
    run("EMU_FAULTS=mirror:0>1", body_mirror);
    run("EMU_FAULTS=drop:0>1", body_drop);
    run("EMU_FAULTS=drop:*>*", body_drop);
    run("EMU_FAULTS=flip:0>*", body_flip);
    run("EMU_FAULTS=delay_us:0>1=20000", body_delay);
}

static void faults__physical_numbers__hold_behind_visible_devices(void **state)
{
    (void)state;
    run("CUDA_VISIBLE_DEVICES=5,3 EMU_FAULTS=drop:5>3", body_drop);
    run("CUDA_VISIBLE_DEVICES=5,3 EMU_FAULTS=drop:0>1,drop:3>5", body_no_fault);
}

static void faults__mirror_between_processes__read_back_is_no_proof(void **state)
{
    (void)state;
    struct ipc_shared *shared = run_ipc("EMU_FAULTS=mirror:1>0");
    assert_int_equal(shared->owner_sees, 0);
    assert_int_equal(shared->writer_sees, LINES);
}

static void faults__unreadable__stop_the_program(void **state)
{
    (void)state;
    const char *bad[] = {"EMU_FAULTS=lose:0>1",  "EMU_FAULTS=drop:0-1", "EMU_FAULTS=delay_us:0>1",
                         "EMU_FAULTS=drop:0>99", "EMU_FAIL=melloc",     "EMU_DEVICES=99"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_not_equal(finish(start(bad[i], body_no_fault, NULL)), 0);
}

static void body_peer_not_enabled(void *unused)
{
    (void)unused;
    void *memory;
    GOOD(llane_gpu_malloc(LINES * 16, &memory));
    GOOD(llane_gpu_device_set(1));
    fill(memory, 0);
}

static void peer__not_enabled__kernel_dies(void **state)
{
    (void)state;
    assert_int_not_equal(finish(start("", body_peer_not_enabled, NULL)), 0);
}

static void body_fail(void *unused)
{
    (void)unused;
    void *p, *q;
    struct llane_gpu_ipc_handle handle;
    struct CUstream_st *stream;
    uint32_t blocks;
    REFUSED(llane_gpu_malloc(100, &p));
    CHECK(strstr(llane_gpu_error(), "malloc"));
    memset(&handle, 0, sizeof handle);
    REFUSED(llane_gpu_ipc_open(&handle, &p));
    CHECK(strstr(llane_gpu_error(), "EMU_FAIL"));
    REFUSED(llane_gpu_kernel_load((const void *)(uintptr_t)spin_kernel, 32, &blocks));
    GOOD(llane_gpu_host_alloc(100, &p, &q));
    GOOD(llane_gpu_stream_create(&stream));
}

static void fail__named_calls__fail_and_no_other(void **state)
{
    (void)state;
    run("EMU_FAIL=malloc,ipc_open,kernel_load", body_fail);
}

/* ---- devices ---- */

struct identities {
    int n;
    struct llane_gpu_identity device[8];
};
static void body_identify(void *p)
{
    struct identities *out = p;
    GOOD(llane_gpu_device_count(&out->n));
    for (int i = 0; i < out->n && i < 8; i++)
        GOOD(llane_gpu_identify(i, &out->device[i]));
    CHECK(strcmp(llane_gpu_runtime(), "emulation") == 0);
    REFUSED(llane_gpu_identify(out->n, &out->device[0]));
}

static void identify_in(const char *environment, struct identities *out)
{
    struct identities *shared = shared_memory(sizeof *shared);
    assert_int_equal(finish(start(environment, body_identify, shared)), 0);
    *out = *shared;
    munmap(shared, sizeof *shared);
}

static void visible_devices__restrict_and_renumber__uuids_stay(void **state)
{
    (void)state;
    struct identities all, some;
    identify_in("", &all);
    assert_int_equal(all.n, 8);
    assert_int_equal(all.device[0].cc_major, 9);
    assert_string_equal(all.device[0].pci, "0000:01:00.0");
    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(all.device[i].uuid, all.device[j].uuid, 16);
    }
    identify_in("EMU_DEVICES=3", &some);
    assert_int_equal(some.n, 3);
    identify_in("CUDA_VISIBLE_DEVICES=6,2", &some);
    assert_int_equal(some.n, 2);
    assert_memory_equal(&some.device[0], &all.device[6], sizeof all.device[0]);
    assert_memory_equal(&some.device[1], &all.device[2], sizeof all.device[0]);
    identify_in("CUDA_VISIBLE_DEVICES=1,17,2", &some); /* the list ends at a bad entry */
    assert_int_equal(some.n, 1);
    identify_in("CUDA_VISIBLE_DEVICES=", &some);
    assert_int_equal(some.n, 0);
    char by_uuid[128], *end = by_uuid + sprintf(by_uuid, "CUDA_VISIBLE_DEVICES=GPU-");
    for (int i = 0; i < 16; i++)
        end += sprintf(end, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                       all.device[4].uuid[i]);
    identify_in(by_uuid, &some);
    assert_int_equal(some.n, 1);
    assert_memory_equal(some.device[0].uuid, all.device[4].uuid, 16);
}

/* ---- capture ---- */

static struct CUgraphExec_st *end_capture(struct CUstream_st *stream)
{
    struct CUgraphExec_st *exec;
    GOOD(llane_gpu_capture_end(stream, &exec));
    return exec;
}

static void body_capture(void *unused)
{
    (void)unused;
    struct CUstream_st *a = new_stream(), *b = new_stream(), *c = new_stream();
    struct CUevent_st *fork = new_event(0), *join = new_event(0);
    uint64_t id_a, id_b, id_c;
    GOOD(llane_gpu_capture_id(a, &id_a));
    CHECK(id_a == 0);
    GOOD(llane_gpu_capture_begin(a));
    put(a, 1);
    GOOD(llane_gpu_event_record(fork, a));
    GOOD(llane_gpu_stream_wait_event(b, fork)); /* b joins */
    put(b, 2);
    GOOD(llane_gpu_event_record(join, b));
    GOOD(llane_gpu_stream_wait_event(a, join));
    put(a, 3);
    GOOD(llane_gpu_capture_id(a, &id_a));
    GOOD(llane_gpu_capture_id(b, &id_b));
    GOOD(llane_gpu_capture_id(c, &id_c));
    CHECK(id_a != 0 && id_a == id_b && id_c == 0);
    struct CUgraphExec_st *exec = end_capture(a);
    GOOD(llane_gpu_capture_id(b, &id_b));
    CHECK(id_b == 0 && n_log_entries == 0);
    REFUSED(llane_gpu_stream_wait_event(c, join)); /* recorded in a capture that is over */
    for (int i = 0; i < 2; i++)
        GOOD(llane_gpu_graph_launch(exec, i ? a : c));
    GOOD(llane_gpu_stream_synchronize(c));
    GOOD(llane_gpu_stream_synchronize(a));
    CHECK_LOG(1, 2, 3, 1, 2, 3);
    GOOD(llane_gpu_graph_launch(exec, a));
    GOOD(llane_gpu_graph_destroy(exec)); /* what was launched still runs */
    GOOD(llane_gpu_stream_synchronize(a));
    CHECK_LOG(1, 2, 3);
    uint64_t id_next;
    GOOD(llane_gpu_capture_begin(a));
    GOOD(llane_gpu_capture_id(a, &id_next));
    CHECK(id_next != 0 && id_next != id_a);
    GOOD(llane_gpu_graph_destroy(end_capture(a)));
}

static void capture__forked_and_joined_streams__replay_in_order(void **state)
{
    (void)state;
    run("", body_capture);
}

struct meet_args {
    uint32_t *mine, *other;
};
static void meet_kernel(const void *p)
{
    const struct meet_args *args = p;
    uint32_t round = get_flag(args->mine) + 1;
    set_flag(args->mine, round);
    while (get_flag(args->other) < round)
        llane_emu_yield();
}

static void body_branches_meet(void *unused)
{
    (void)unused;
    static uint32_t left, right;
    struct CUstream_st *a = new_stream();
    struct CUevent_st *fork = new_event(0);
    GOOD(llane_gpu_device_set(1));
    struct CUstream_st *b = new_stream();
    struct CUevent_st *join = new_event(0);
    GOOD(llane_gpu_capture_begin(a));
    GOOD(llane_gpu_event_record(fork, a));
    GOOD(llane_gpu_stream_wait_event(b, fork));
    struct meet_args for_a = {&left, &right}, for_b = {&right, &left};
    launch(meet_kernel, &for_b, sizeof for_b, 1, 1, b);
    GOOD(llane_gpu_event_record(join, b));
    GOOD(llane_gpu_device_set(0));
    launch(meet_kernel, &for_a, sizeof for_a, 1, 1, a);
    GOOD(llane_gpu_stream_wait_event(a, join));
    struct CUgraphExec_st *exec = end_capture(a);
    for (int i = 0; i < 3; i++)
        GOOD(llane_gpu_graph_launch(exec, a));
    GOOD(llane_gpu_graph_destroy(exec));
    GOOD(llane_gpu_stream_synchronize(a));
    CHECK(get_flag(&left) == 3 && get_flag(&right) == 3);
}

static void capture__two_devices_wait_for_each_other__branches_run_at_once(void **state)
{
    (void)state;
    run("", body_branches_meet);
}

static void body_external(void *unused)
{
    (void)unused;
    struct CUstream_st *a = new_stream(), *eager = new_stream();
    struct CUevent_st *before = new_event(0), *after = new_event(0);
    static uint32_t gates[2];
    void *node;
    GOOD(llane_gpu_capture_begin(a));
    GOOD(llane_gpu_capture_wait_external(a, before));
    put(a, 1);
    GOOD(llane_gpu_capture_record_external(a, after, &node));
    put(a, 2);
    GOOD(llane_gpu_capture_record_extend(a, node));
    REFUSED(llane_gpu_capture_record_extend(a, &node));
    struct CUgraphExec_st *exec = end_capture(a);
    REFUSED(llane_gpu_capture_record_extend(a, node));
    for (int i = 0; i < 2; i++) {
        spin_on(eager, &gates[i]);
        GOOD(llane_gpu_event_record(before, eager));
        GOOD(llane_gpu_graph_launch(exec, a));
        GOOD(llane_gpu_stream_wait_event(eager, after));
        put(eager, 3);
        sleep_us(3000);
        CHECK(get_flag(&n_log_entries) == 0 && !event_is_done(after));
        set_flag(&gates[i], 1);
        GOOD(llane_gpu_stream_synchronize(eager));
        CHECK(event_is_done(after));
        CHECK_LOG(1, 2, 3);
    }
    GOOD(llane_gpu_graph_destroy(exec));
    REFUSED(llane_gpu_capture_wait_external(a, before)); /* not capturing */
}

static void capture__external_nodes__order_replay_and_eager_work(void **state)
{
    (void)state;
    run("", body_external);
}

static void body_capture_errors(void *unused)
{
    (void)unused;
    struct CUstream_st *a = new_stream(), *b = new_stream();
    struct CUevent_st *outside = new_event(0), *inside = new_event(0);
    struct CUgraphExec_st *exec;
    void *memory;
    int done;
    GOOD(llane_gpu_event_record(outside, b));
    REFUSED(llane_gpu_capture_begin(NULL));
    REFUSED(llane_gpu_capture_end(a, &exec));

    GOOD(llane_gpu_capture_begin(a));
    REFUSED(llane_gpu_capture_begin(a));
    REFUSED(llane_gpu_stream_synchronize(a)); /* breaks the capture */
    REFUSED(llane_emu_host_call(a, append_to_log, NULL));
    REFUSED(llane_gpu_capture_end(a, &exec));

    GOOD(llane_gpu_capture_begin(a));
    REFUSED(llane_gpu_stream_wait_event(a, outside));
    REFUSED(llane_gpu_capture_end(a, &exec));

    GOOD(llane_gpu_capture_begin(a)); /* fork without join */
    GOOD(llane_gpu_event_record(inside, a));
    GOOD(llane_gpu_stream_wait_event(b, inside));
    REFUSED(llane_gpu_capture_end(b, &exec));
    REFUSED(llane_gpu_event_query(inside, &done));
    put(b, 1);
    REFUSED(llane_gpu_capture_end(a, &exec));

    GOOD(llane_gpu_capture_begin(a)); /* unsafe calls break it */
    REFUSED(llane_gpu_malloc(100, &memory));
    REFUSED(llane_emu_host_call(a, append_to_log, NULL));
    REFUSED(llane_gpu_capture_end(a, &exec));
    GOOD(llane_gpu_capture_begin(a));
    REFUSED(llane_gpu_stream_synchronize(b));
    REFUSED(llane_gpu_capture_end(a, &exec));
    GOOD(llane_gpu_capture_begin(a));
    GOOD(llane_gpu_event_query(outside, &done)); /* relaxed by itself */
    GOOD(llane_gpu_stream_query(b, &done));
    GOOD(llane_gpu_graph_destroy(end_capture(a)));

    struct CUgraph_st *graph;
    for (int i = 0; i < 2; i++) { /* no graph is made ready while another capture is under way */
        GOOD(llane_gpu_capture_begin(a));
        GOOD(llane_gpu_capture_begin(b));
        GOOD(llane_gpu_capture_end_graph(b, &graph));
        if (i == 0)
            REFUSED(llane_gpu_graph_instantiate(graph, &exec));
        else
            GOOD(llane_gpu_graph_destroy(end_capture(a)));
        if (i == 0)
            REFUSED(llane_gpu_capture_end(a, &exec));
        else
            GOOD(llane_gpu_graph_instantiate(graph, &exec));
    }
    GOOD(llane_gpu_graph_destroy(exec));

    GOOD(llane_gpu_capture_begin(a));
    GOOD(llane_gpu_capture_mode_relax());
    GOOD(llane_gpu_malloc(100, &memory));
    GOOD(llane_gpu_event_query(outside, &done));
    GOOD(llane_gpu_graph_destroy(end_capture(a)));
    put(a, 5); /* the stream is an ordinary one again */
    GOOD(llane_gpu_stream_synchronize(a));
    CHECK_LOG(5);
}

static void capture__what_cuda_forbids__refused(void **state)
{
    (void)state;
    run("", body_capture_errors);
}

static void *query_then_allocate(void *outside)
{
    int done;
    void *memory;
    GOOD(llane_gpu_event_query(outside, &done));
    return (void *)(intptr_t)(llane_gpu_malloc(100, &memory) != 0);
}

static void *relax_and_allocate(void *outside)
{
    GOOD(llane_gpu_capture_mode_relax());
    return query_then_allocate(outside);
}

/* What came of it in another thread, and whether this thread's capture was harmed. */
static void capture_beside(void *(*main)(void *), int *was_refused_out, int *is_harmed_out)
{
    struct CUstream_st *a = new_stream();
    struct CUgraphExec_st *exec;
    pthread_t thread;
    void *was_refused;
    GOOD(llane_gpu_capture_begin(a));
    CHECK(pthread_create(&thread, NULL, main, new_event(0)) == 0);
    CHECK(pthread_join(thread, &was_refused) == 0);
    *was_refused_out = was_refused != NULL;
    *is_harmed_out = llane_gpu_capture_end(a, &exec) != 0;
    if (!*is_harmed_out)
        GOOD(llane_gpu_graph_destroy(exec));
}

static void body_capture_beside_others(void *is_global)
{
    int was_refused, is_harmed;
    capture_beside(relax_and_allocate, &was_refused, &is_harmed);
    CHECK(!was_refused && !is_harmed);
    capture_beside(query_then_allocate, &was_refused, &is_harmed);
    CHECK(was_refused == (is_global != NULL) && is_harmed == was_refused);
}

static void capture__unsafe_calls_of_other_threads__break_global_ones_alone(void **state)
{
    (void)state;
    int is_global = 1;
    run("", body_capture_beside_others);
    run("EMU_CAPTURE=relaxed", body_capture_beside_others);
    assert_int_equal(finish(start("EMU_CAPTURE=global", body_capture_beside_others, &is_global)),
                     0);
}

/* ---- the end ---- */

static void body_exit_while_spinning(void *unused)
{
    (void)unused;
    spin_on(NULL, &gate);
    spin_on(new_stream(), &gate);
}

static void body_fork_after_use(void *unused)
{
    (void)unused;
    spin_on(NULL, &gate);
    pid_t pid = fork();
    if (pid == 0)
        exit(0);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void exit__kernels_spin__does_not_wait(void **state)
{
    (void)state;
    run("", body_exit_while_spinning);
    run("", body_fork_after_use);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream__two_streams__in_order_each_and_independent),
        cmocka_unit_test(stream_destroy__pending_work__ends_and_handle_is_dead),
        cmocka_unit_test(event__recorded_twice__wait_means_the_record_before_it),
        cmocka_unit_test(event_elapsed__timed_and_done__measures_the_work),
        cmocka_unit_test(stream__used_from_another_device__refused_as_by_cuda),
        cmocka_unit_test(kernel__barriers__all_threads_of_the_block_and_no_other),
        cmocka_unit_test(kernel__seeds__decide_the_order_of_threads),
        cmocka_unit_test(kernel__1024_deep_threads__keep_their_stacks_and_registers),
        cmocka_unit_test(launch__bad_shapes__refused),
        cmocka_unit_test(store16__a_reader__sees_either_half_first_and_halves_whole),
        cmocka_unit_test(ipc__two_processes__share_memory),
        cmocka_unit_test(free__kernel_spins_on_the_device__waits_for_it),
        cmocka_unit_test(free__waits_for_a_kernel__other_threads_calls_wait_too),
        cmocka_unit_test(launch__kernel_never_loaded__waits_for_the_device),
        cmocka_unit_test(faults__each_kind__does_what_it_says),
        cmocka_unit_test(faults__physical_numbers__hold_behind_visible_devices),
        cmocka_unit_test(faults__mirror_between_processes__read_back_is_no_proof),
        cmocka_unit_test(faults__unreadable__stop_the_program),
        cmocka_unit_test(peer__not_enabled__kernel_dies),
        cmocka_unit_test(fail__named_calls__fail_and_no_other),
        cmocka_unit_test(visible_devices__restrict_and_renumber__uuids_stay),
        cmocka_unit_test(capture__forked_and_joined_streams__replay_in_order),
        cmocka_unit_test(capture__two_devices_wait_for_each_other__branches_run_at_once),
        cmocka_unit_test(capture__external_nodes__order_replay_and_eager_work),
        cmocka_unit_test(capture__what_cuda_forbids__refused),
        cmocka_unit_test(capture__unsafe_calls_of_other_threads__break_global_ones_alone),
        cmocka_unit_test(exit__kernels_spin__does_not_wait),
    };
    return cmocka_run_group_tests_name("emu_gpu", tests, NULL, NULL);
}
