/*
 * A grid of CUDA threads as fibers of the calling OS thread: round-robin over a seeded order, at most
 * one running, all blocks resident. A fiber gives way in poll loops, barriers and torn accesses.
 *
 * Idle: when a whole round only polled, other processes get the CPU (sched_yield), and after many
 * such rounds a sleep that grows, because ranks are processes that share few cores.
 */
#define _GNU_SOURCE
#include "emu_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define HAS_ASAN 1
#else
#define HAS_ASAN 0
#endif

enum {
    STACK_BYTES = 64 * 1024,
    GUARD_BYTES = 4096,
    STACK_STRIDE = STACK_BYTES + GUARD_BYTES,
    SLAB_STACKS = 64,
    /* Stacks lie a power of two apart: without an offset of their own all tops share cache sets. */
    COLOURS = 32,
    COLOUR_BYTES = 128,
    IDLE_YIELDS = 2000,
    IDLE_SLEEP_MAX_US = 500
};

struct emu_block {
    uint32_t live;    /* fibers that have not returned */
    uint32_t arrived; /* of them, at the barrier */
    uint32_t generation;
    int any[2]; /* llane_emu_block_or, by barrier generation */
};

/* Lives at the top of its own stack, one cache line: a switch then touches one page, not two. */
struct emu_fiber {
    _Alignas(64) void *context; /* saved stack pointer, or ucontext_t */
    union {
        struct emu_block *block;
        struct emu_fiber *next_free; /* in the pool */
    };
    struct llane_emu_thread self;
    bool at_barrier, ended;
    uint32_t barrier_generation;
    uint8_t *stack; /* lowest usable byte */
    void *asan_stack;
};

struct grid {
    emu_kernel_fn kernel;
    const void *args;
    void *scheduler; /* context of the thread itself */
    void *asan_stack;
    const void *asan_bottom;
    size_t asan_bytes;
};

/* The pointers are read at every access and switch, hence the fast TLS model; it has little room when
 * the library is loaded late, so the big struct stays out of it. */
static _Thread_local struct emu_worker worker_state = {.device = -1, .random = 1, .tlb_device = -1};
static _Thread_local __attribute__((tls_model("initial-exec"))) struct emu_worker *self_worker;
static _Thread_local __attribute__((tls_model("initial-exec"))) struct emu_fiber *running;
static _Thread_local __attribute__((tls_model("initial-exec"))) struct grid *grid;

struct emu_worker *emu_worker(void)
{
    if (!self_worker)
        self_worker = &worker_state;
    return self_worker;
}

/* ---- stacks: a pool of the process ---- */

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct emu_fiber *pool;

static void pool_grow(void)
{
    uint8_t *slab = mmap(NULL, (size_t)SLAB_STACKS * STACK_STRIDE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED)
        emu_die("no memory for fiber stacks");
    for (int i = 0; i < SLAB_STACKS; i++) {
        uint8_t *guard = slab + (size_t)i * STACK_STRIDE;
        if (mprotect(guard, GUARD_BYTES, PROT_NONE) < 0)
            emu_die("no guard page for a fiber stack (vm.max_map_count?)");
        uint8_t *top = guard + STACK_STRIDE - (size_t)(i % COLOURS) * COLOUR_BYTES;
        struct emu_fiber *fiber = (struct emu_fiber *)(void *)(top - sizeof(struct emu_fiber));
        fiber->stack = guard + GUARD_BYTES;
        fiber->next_free = pool;
        pool = fiber;
    }
}

static void pool_take(struct emu_fiber **fibers, uint32_t n)
{
    pthread_mutex_lock(&pool_lock);
    for (uint32_t i = 0; i < n; i++) {
        if (!pool)
            pool_grow();
        fibers[i] = pool;
        pool = pool->next_free;
    }
    pthread_mutex_unlock(&pool_lock);
}

/* In reverse, so that the next grid finds them in the same order, warm. */
static void pool_give(struct emu_fiber **fibers, uint32_t n)
{
    pthread_mutex_lock(&pool_lock);
    for (uint32_t i = n; i-- > 0;) {
        fibers[i]->next_free = pool;
        pool = fibers[i];
    }
    pthread_mutex_unlock(&pool_lock);
}

/* ---- context switch ---- */

static void fiber_main(void);

#if defined(__x86_64__)
/* Saves the callee-saved registers on this stack, its pointer in *save, and continues on `load`. */
void llane_emu_switch(void **save, void *load) __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".p2align 4\n"
        ".globl llane_emu_switch\n"
        ".hidden llane_emu_switch\n"
        ".type llane_emu_switch,@function\n"
        "llane_emu_switch:\n"
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r12\n"
        "  pushq %r13\n"
        "  pushq %r14\n"
        "  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n"
        "  popq %r14\n"
        "  popq %r13\n"
        "  popq %r12\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  ret\n"
        ".size llane_emu_switch,.-llane_emu_switch\n");

/* Six registers and fiber_main as the address that `ret` takes; then rsp is 8 modulo 16, as at any
 * function's entry. */
static void *context_new(uint8_t *top)
{
    void **sp = (void **)(void *)top - 2;
    memset(sp, 0, 2 * sizeof *sp);
    *sp = (void *)(uintptr_t)fiber_main;
    sp -= 6;
    memset(sp, 0, 6 * sizeof *sp);
    return sp;
}

#elif defined(__aarch64__)
void llane_emu_switch(void **save, void *load) __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".p2align 4\n"
        ".globl llane_emu_switch\n"
        ".hidden llane_emu_switch\n"
        ".type llane_emu_switch,%function\n"
        "llane_emu_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp, #0]\n"
        "  stp x21, x22, [sp, #16]\n"
        "  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n"
        "  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n"
        "  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n"
        "  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp, #0]\n"
        "  ldp x21, x22, [sp, #16]\n"
        "  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n"
        "  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n"
        "  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n"
        "  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n"
        ".size llane_emu_switch,.-llane_emu_switch\n");

static void *context_new(uint8_t *top)
{
    void **sp = (void **)(void *)(top - 160);
    memset(sp, 0, 160);
    sp[11] = (void *)(uintptr_t)fiber_main; /* x30 */
    return sp;
}

#else
#include <ucontext.h>

/* A context is a ucontext_t: at the top of its stack, or in the frame of emu_grid_run(). */
static void llane_emu_switch(void **save, void *load)
{
    swapcontext(*save, load);
}

static void *context_new(uint8_t *top)
{
    ucontext_t *context = (ucontext_t *)(void *)(top - ((sizeof(ucontext_t) + 63) & ~63UL));
    getcontext(context);
    context->uc_stack.ss_sp = top - (STACK_BYTES - 2 * COLOURS * COLOUR_BYTES);
    context->uc_stack.ss_size = (size_t)((uint8_t *)context - (uint8_t *)context->uc_stack.ss_sp);
    context->uc_link = NULL;
    makecontext(context, fiber_main, 0);
    return context;
}
#define CONTEXT_IS_UCONTEXT 1
#endif

static void switch_to_fiber(struct emu_fiber *fiber)
{
    running = fiber;
#if HAS_ASAN
    __sanitizer_start_switch_fiber(&grid->asan_stack, fiber->stack, STACK_BYTES);
#endif
    llane_emu_switch(&grid->scheduler, fiber->context);
#if HAS_ASAN
    __sanitizer_finish_switch_fiber(grid->asan_stack, NULL, NULL);
#endif
    running = NULL;
}

/* Does not return either when the fiber has ended. */
__attribute__((no_sanitize("thread"))) static void switch_to_scheduler(struct emu_fiber *fiber)
{
#if HAS_ASAN
    /* NULL: this fiber will not run again, its fake stack goes. */
    __sanitizer_start_switch_fiber(fiber->ended ? NULL : &fiber->asan_stack, grid->asan_bottom,
                                   grid->asan_bytes);
#endif
    llane_emu_switch(&fiber->context, grid->scheduler);
#if HAS_ASAN
    __sanitizer_finish_switch_fiber(fiber->asan_stack, NULL, NULL);
#endif
}

/* ---- barriers ---- */

/* All live fibers of the block are here: let them go. */
static void barrier_release_if_full(struct emu_block *block)
{
    if (block->arrived == 0 || block->arrived < block->live)
        return;
    block->arrived = 0;
    block->generation++;
    /* The slot of the next barrier: its last use is over, all its readers have arrived since. */
    block->any[block->generation & 1] = 0;
}

int llane_emu_block_or(int value)
{
    struct emu_fiber *fiber = running;
    if (!fiber)
        emu_die("a block barrier outside a kernel");
    struct emu_block *block = fiber->block;
    uint32_t generation = block->generation;
    block->any[generation & 1] |= value != 0;
    block->arrived++;
    self_worker->progressed = true;
    barrier_release_if_full(block);
    if (block->generation == generation) {
        fiber->barrier_generation = generation;
        fiber->at_barrier = true;
        switch_to_scheduler(fiber);
        fiber->at_barrier = false;
    }
    return block->any[generation & 1];
}

void llane_emu_block_barrier(void)
{
    llane_emu_block_or(0);
}

/* ---- fibers ---- */

/* Never returns: instrumented, its frame would stay poisoned on a stack that is used again, and stay on
 * the thread sanitizer's list of calls. */
__attribute__((no_sanitize("address", "thread"), noreturn)) static void fiber_main(void)
{
    struct emu_fiber *fiber = running;
#if HAS_ASAN
    __sanitizer_finish_switch_fiber(NULL, &grid->asan_bottom, &grid->asan_bytes);
#endif
    grid->kernel(grid->args);
    fiber->ended = true;
    self_worker->progressed = true;
    /* As on the device: a thread that has left is not waited for. */
    fiber->block->live--;
    barrier_release_if_full(fiber->block);
    switch_to_scheduler(fiber);
    emu_die("a fiber ran on after its end");
}

const struct llane_emu_thread *llane_emu_self(void)
{
    if (!running)
        emu_die("llane_emu_self() outside a kernel");
    return &running->self;
}

void emu_fiber_give_way(void)
{
    if (running)
        switch_to_scheduler(running);
}

void llane_emu_yield(void)
{
    if (running)
        switch_to_scheduler(running);
    else
        sched_yield();
}

static void idle(uint32_t rounds)
{
    if (rounds < IDLE_YIELDS) {
        sched_yield();
        return;
    }
    uint32_t us = 20 + (rounds - IDLE_YIELDS);
    usleep(us < IDLE_SLEEP_MAX_US ? us : IDLE_SLEEP_MAX_US);
}

static void prefetch(const struct emu_fiber *fiber)
{
    __builtin_prefetch(fiber);
    __builtin_prefetch(fiber->context);
}

static void run_rounds(struct emu_fiber **order, uint32_t n_live)
{
    uint32_t idle_rounds = 0;
    while (n_live > 0) {
        self_worker->progressed = false;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n_live; i++) {
            struct emu_fiber *fiber = order[i];
            if (i + 1 < n_live)
                prefetch(order[i + 1]);
            bool blocked =
                fiber->at_barrier && fiber->block->generation == fiber->barrier_generation;
            if (!blocked)
                switch_to_fiber(fiber);
            if (!fiber->ended)
                order[kept++] = fiber;
        }
        n_live = kept;
        emu_access_land(self_worker, false);
        idle_rounds = self_worker->progressed ? 0 : idle_rounds + 1;
        if (idle_rounds > 0)
            idle(idle_rounds);
    }
}

static void shuffle(struct emu_fiber **order, uint32_t n)
{
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = emu_random(&self_worker->random) % (i + 1);
        struct emu_fiber *swapped = order[i];
        order[i] = order[j];
        order[j] = swapped;
    }
}

void emu_grid_run(emu_kernel_fn kernel, const void *args, uint32_t n_blocks, uint32_t n_threads,
                  int physical_device, uint64_t seed)
{
    uint32_t n = n_blocks * n_threads;
    struct emu_block *blocks = calloc(n_blocks, sizeof *blocks);
    struct emu_fiber **fibers = malloc(2 * n * sizeof(struct emu_fiber *));
    if (!blocks || !fibers)
        emu_die("out of host memory for a grid of %u fibers", n);
    struct emu_fiber **order = fibers + n;
    struct grid this_grid = {.kernel = kernel, .args = args};
#ifdef CONTEXT_IS_UCONTEXT
    ucontext_t scheduler;
    this_grid.scheduler = &scheduler;
#endif
    struct emu_worker *worker = emu_worker();
    worker->grid_memory[0] = blocks;
    worker->grid_memory[1] = fibers;
    grid = &this_grid;
    worker->device = physical_device;
    worker->random = seed | 1;
    pool_take(fibers, n);
    for (uint32_t i = 0; i < n; i++) {
        struct emu_fiber *fiber = fibers[i];
        fiber->block = &blocks[i / n_threads];
        fiber->block->live++;
        fiber->self = (struct llane_emu_thread){i / n_threads, n_blocks, i % n_threads, n_threads};
        fiber->at_barrier = fiber->ended = false;
        fiber->asan_stack = NULL;
        fiber->context = context_new((uint8_t *)fiber);
        order[i] = fiber;
    }
    shuffle(order, n);
    run_rounds(order, n);
    emu_access_land(worker, true); /* a kernel's end waits for its stores */
    grid = NULL;
    worker->grid_memory[0] = worker->grid_memory[1] = NULL;
    pool_give(fibers, n);
    free(fibers);
    free(blocks);
}
