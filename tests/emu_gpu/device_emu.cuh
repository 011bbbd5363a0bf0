/*
 * Device primitives, the emulation's side: kernels/device.cuh includes this file when LLANE_EMU is
 * defined and kernels are compiled as host code. Same names and meaning as there.
 *
 * One CUDA thread is one fiber of its stream's worker thread. Fibers change places only inside
 * llane_poll_pause(), llane_block_sync(), llane_block_or() and (torn accesses) llane_store16() and
 * llane_load16(); between those, code of one grid is not interleaved. Kernels of other streams and
 * of other processes run truly at the same time.
 *
 * A kernel:
 *     LLANE_KERNEL(llane_kernel_one_shot_ll_f32, struct llane_one_shot_args)
 *     {
 *         one_shot_ll<float>(args);
 *     }
 * Templates are instantiated in the body. The table takes (const void *)llane_kernel_one_shot_ll_f32;
 * a kernel is declared elsewhere with LLANE_KERNEL_DECLARE(name, args_type).
 */
#ifndef LLANE_DEVICE_EMU_CUH
#define LLANE_DEVICE_EMU_CUH

#include <stdint.h>

#include "../../kernels/table.h"
#include "emu.h"

#define LLANE_DEVICE static inline

#define LLANE_KERNEL_DECLARE(name, args_type) extern "C" void name(const void *llane_args)

#define LLANE_KERNEL(name, args_type)                                                              \
    static void name##_body(const args_type &args);                                                \
    LLANE_KERNEL_DECLARE(name, args_type);                                                         \
    extern "C" void name(const void *llane_args)                                                   \
    {                                                                                              \
        name##_body(*static_cast<const args_type *>(llane_args));                                  \
    }                                                                                              \
    static void name##_body([[maybe_unused]] const args_type &args)

/* blockIdx.x, gridDim.x, threadIdx.x, blockDim.x */
LLANE_DEVICE uint32_t llane_block_id(void)
{
    return llane_emu_self()->block;
}

LLANE_DEVICE uint32_t llane_n_blocks(void)
{
    return llane_emu_self()->n_blocks;
}

LLANE_DEVICE uint32_t llane_thread_id(void)
{
    return llane_emu_self()->thread;
}

LLANE_DEVICE uint32_t llane_n_threads(void)
{
    return llane_emu_self()->n_threads;
}

/* Streams run their kernels one after another: nothing to wait for, nobody to let go. */
LLANE_DEVICE void llane_wait_for_predecessor(void)
{
}

LLANE_DEVICE void llane_wait_for_predecessor_with(uint64_t)
{
}

LLANE_DEVICE void llane_release_dependents(void)
{
}

/* __syncthreads() */
LLANE_DEVICE void llane_block_sync(void)
{
    llane_emu_block_barrier();
}

/* __syncthreads_or(): every thread gets whether any thread's value was not zero. */
LLANE_DEVICE int llane_block_or(int value)
{
    return llane_emu_block_or(value);
}

/* Peer traffic: `to` is 16-byte aligned; each 8-byte half is whole, the pair may be seen torn. Pairs
 * with llane_load16 in the kernel of the memory's owner. */
LLANE_DEVICE void llane_store16(void *to, uint64_t low, uint64_t high)
{
    llane_emu_store16(to, low, high);
}

/* Pairs with llane_store16 of a peer's kernel. */
LLANE_DEVICE void llane_load16(const void *from, uint64_t *low, uint64_t *high)
{
    llane_emu_load16(from, low, high);
}

/* The same if is_wanted, else nothing. */
LLANE_DEVICE void llane_load16_if(bool is_wanted, const void *from, uint64_t *low, uint64_t *high)
{
    if (is_wanted)
        llane_emu_load16(from, low, high);
}

/* A word of mapped host memory. Pairs with the host's release store (abort word). */
LLANE_DEVICE uint32_t llane_load_system32(const uint32_t *from)
{
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

/* A release store. Pairs with the host's acquire load (dead word, probe results). */
LLANE_DEVICE void llane_store_system32(uint32_t *to, uint32_t value)
{
    llane_emu_store4(to, value);
}

/* To a mapped word, in a poll loop: never faulty, and nothing that came. Pairs with a host access. */
LLANE_DEVICE void llane_store_sign(uint32_t *to, uint32_t value)
{
    __atomic_store_n(to, value, __ATOMIC_RELAXED);
}

/* Cells live in local memory. Kernels of one lane are ordered by events, so relaxed is enough; the
 * accesses are atomic because the busy mark is there for the day when they are not ordered. Pairs
 * with llane_advance_cell of the lane's previous kernel. */
typedef uint64_t llane_emu_cell_half __attribute__((may_alias));

LLANE_DEVICE struct llane_cell llane_load_cell(const struct llane_cell *from)
{
    const llane_emu_cell_half *half = reinterpret_cast<const llane_emu_cell_half *>(from);
    struct llane_cell cell;
    llane_emu_cell_half *to = reinterpret_cast<llane_emu_cell_half *>(&cell);
    to[0] = __atomic_load_n(&half[0], __ATOMIC_RELAXED);
    to[1] = __atomic_load_n(&half[1], __ATOMIC_RELAXED);
    return cell;
}

/* Pairs with llane_load_cell of the lane's next kernel, or of one that overlaps this one. */
LLANE_DEVICE void llane_advance_cell(struct llane_cell *cell, uint32_t ll_op, uint32_t sentinel_op)
{
    __atomic_store_n(&cell->ll_op, ll_op, __ATOMIC_RELAXED);
    __atomic_store_n(&cell->sentinel_op, sentinel_op, __ATOMIC_RELAXED);
    __atomic_store_n(&cell->busy, 0, __ATOMIC_RELAXED);
}

/* Between two polls: other fibers run, which is sleep enough. */
LLANE_DEVICE void llane_poll_pause(uint32_t sleep_ns)
{
    (void)sleep_ns;
    llane_emu_yield();
}

/* %clock64: cycles of a nanosecond */
LLANE_DEVICE uint64_t llane_clock(void)
{
    return llane_emu_timer_ns();
}

/* %globaltimer */
LLANE_DEVICE uint64_t llane_timer_ns(void)
{
    return llane_emu_timer_ns();
}

#endif
