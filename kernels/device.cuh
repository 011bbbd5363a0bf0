/*
 * The few things kernels ask of the machine. This file has them for CUDA; tests/emu_gpu has a twin,
 * device_emu.cuh, with the same names for kernels compiled as host code (-DLLANE_EMU).
 *
 * llane_store16/llane_load16 are the only way that kernels touch a slot. An aligned 8-byte half
 * arrives whole; the two halves of a line may arrive apart and in any order, and so may lines.
 * Nothing here is a fence: a packet validates itself.
 */
#ifndef LLANE_KERNELS_DEVICE_CUH
#define LLANE_KERNELS_DEVICE_CUH

#include <stdint.h>

#include "table.h"

#ifdef LLANE_EMU

#include "device_emu.cuh"

#define LLANE_UNROLL
#define LLANE_NO_UNROLL

/* As llane_store16, one half. */
LLANE_DEVICE void llane_store8(void *to, uint64_t value)
{
    llane_emu_store8(to, value);
}

#else

#define LLANE_DEVICE static __device__ __forceinline__

#define LLANE_KERNEL_DECLARE(name, args_type) extern "C" __global__ void name(args_type args)

/* A kernel's head; its body names the argument struct `args`. */
#define LLANE_KERNEL(name, args_type)                                                              \
    extern "C" __global__ void __launch_bounds__(LLANE_MAX_THREADS)                                \
        name(const __grid_constant__ args_type args)

#define LLANE_UNROLL _Pragma("unroll")
#define LLANE_NO_UNROLL _Pragma("unroll 1")

LLANE_DEVICE uint32_t llane_block_id()
{
    return blockIdx.x;
}

LLANE_DEVICE uint32_t llane_n_blocks()
{
    return gridDim.x;
}

LLANE_DEVICE uint32_t llane_thread_id()
{
    return threadIdx.x;
}

LLANE_DEVICE uint32_t llane_n_threads()
{
    return blockDim.x;
}

LLANE_DEVICE void llane_block_sync()
{
    __syncthreads();
}

/* A block sync that also tells every thread whether any thread's value was not zero. */
LLANE_DEVICE int llane_block_or(int value)
{
    return __syncthreads_or(value);
}

/*
 * Programmatic dependent launch. Waits until the kernel before this one in its stream has ended and
 * its writes can be seen; at once if this kernel was launched the ordinary way.
 */
LLANE_DEVICE void llane_wait_for_predecessor()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/*
 * The same, by threads that have what went into at_hand: left to itself, the compiler computes and
 * fetches all that it can behind the wait, and not while the kernel in front still runs.
 */
LLANE_DEVICE void llane_wait_for_predecessor_with([[maybe_unused]] uint64_t at_hand)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p;\n"
                 "setp.ne.u64 p, %0, 0;\n"
                 "@p griddepcontrol.wait;\n"
                 "@!p griddepcontrol.wait;}" ::"l"(at_hand)
                 : "memory");
#endif
}

/* This block lets a kernel behind this one be launched; once all blocks have, it may wait there. */
LLANE_DEVICE void llane_release_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Pairs with llane_load16 in the kernel of the rank that owns the slot. */
LLANE_DEVICE void llane_store16(void *to, uint64_t low, uint64_t high)
{
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(low), "l"(high)
                 : "memory");
}

/* As llane_store16, one half. */
LLANE_DEVICE void llane_store8(void *to, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

/* Pairs with llane_store16 in the kernel of the rank that fills the slot. */
LLANE_DEVICE void llane_load16(const void *from, uint64_t *low_out, uint64_t *high_out)
{
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(*low_out), "=l"(*high_out)
                 : "l"(from)
                 : "memory");
}

/* The same if is_wanted, else nothing. Told so, the compiler loads into the registers of the old value and
 * needs no second ones. */
LLANE_DEVICE void llane_load16_if(bool is_wanted, const void *from, uint64_t *low, uint64_t *high)
{
    asm volatile("{.reg .pred p;\n"
                 "setp.ne.u32 p, %3, 0;\n"
                 "@p ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];}"
                 : "+l"(*low), "+l"(*high)
                 : "l"(from), "r"((uint32_t)is_wanted)
                 : "memory");
}

/* Pairs with llane_load_system32 of another kernel, or with a host access to a mapped word. */
LLANE_DEVICE void llane_store_system32(uint32_t *to, uint32_t value)
{
    asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

/* To a mapped word, in a poll loop. Pairs with a host access. */
LLANE_DEVICE void llane_store_sign(uint32_t *to, uint32_t value)
{
    llane_store_system32(to, value);
}

/* Pairs with llane_store_system32 of another kernel, or with a host access to a mapped word. */
LLANE_DEVICE uint32_t llane_load_system32(const uint32_t *from)
{
    uint32_t value;

    asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

/*
 * Pairs with the llane_store_system32 that the previous kernel of the lane left the cell with; the
 * end of that kernel orders the two. Volatile, because an overlapping kernel may be writing.
 */
LLANE_DEVICE struct llane_cell llane_load_cell(const struct llane_cell *from)
{
    struct llane_cell cell;

    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(cell.ll_op), "=r"(cell.sentinel_op), "=r"(cell.busy), "=r"(cell.dead)
                 : "l"(from)
                 : "memory");
    return cell;
}

/* The numbers, and no longer busy. Pairs with llane_load_cell in the next kernel of the lane; the end of
 * this one orders the two. */
LLANE_DEVICE void llane_advance_cell(struct llane_cell *cell, uint32_t ll_op, uint32_t sentinel_op)
{
    asm volatile("st.relaxed.sys.global.v2.b32 [%0], {%1, %2};\n"
                 "st.relaxed.sys.global.b32 [%3], %4;" ::"l"(cell),
                 "r"(ll_op), "r"(sentinel_op), "l"(&cell->busy), "r"(0)
                 : "memory");
}

/* One round of a poll loop failed. The hardware's other warps need no help. 0: no sleep. */
LLANE_DEVICE void llane_poll_pause(uint32_t sleep_ns)
{
    if (sleep_ns != 0)
        __nanosleep(sleep_ns);
}

/* Cycles of this multiprocessor. */
LLANE_DEVICE uint64_t llane_clock()
{
    uint64_t now;

    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    return now;
}

LLANE_DEVICE uint64_t llane_timer_ns()
{
    uint64_t now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
}

#endif

/* Threads of the whole grid, and the running thread's number among them. */
LLANE_DEVICE uint32_t llane_grid_threads()
{
    return llane_n_blocks() * llane_n_threads();
}

LLANE_DEVICE uint32_t llane_grid_thread()
{
    return llane_block_id() * llane_n_threads() + llane_thread_id();
}

#endif
