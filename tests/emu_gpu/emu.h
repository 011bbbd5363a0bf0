/*
 * The emulated GPU beyond plugin/gpu.h: what test programs, the fake NCCL and the host-compiled
 * kernels use. One shared library a process (libllane-emu.so), so that streams and memory are
 * common to the plugin, the fake NCCL and the program.
 *
 * The process's "GPUs": EMU_DEVICES of them (default 8), restricted and renumbered by
 * CUDA_VISIBLE_DEVICES as CUDA does. UUIDs depend on the physical number alone, so that two
 * processes agree on which GPU is which.
 */
#ifndef LLANE_EMU_H
#define LLANE_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* Runs fn(arg) on the stream's worker in order (captured like any other work; then `arg` must live
 * as long as the graph). It may block, as a NCCL kernel may. */
int llane_emu_host_call(struct CUstream_st *stream, void (*fn)(void *arg), void *arg);
/* Then ended(arg), once the stream says of the call that it has ended; later work need not wait for it. */
int llane_emu_host_call_then(struct CUstream_st *stream, void (*fn)(void *arg),
                             void (*ended)(void *arg), void *arg);

/* Nodes that a CUDA graph would have: work, external waits and records; not what orders streams. */
struct CUgraphExec_st;
size_t llane_emu_graph_nodes(const struct CUgraphExec_st *exec);
/* And how often one of its streams waits for an event of the capture: an edge more each. */
size_t llane_emu_graph_waits(const struct CUgraphExec_st *exec);

/* How often this process called llane_gpu_free(): tests assert that a live path never did. */
uint64_t llane_emu_free_calls(void);

/* Devices, a bit each, on which CUDA would have made a context for this process by now. */
uint32_t llane_emu_contexts(void);

/* ---- for kernels: one CUDA thread is one fiber ---- */
struct llane_emu_thread {
    uint32_t block, n_blocks, thread, n_threads;
};
/* The running fiber's place in its grid. */
const struct llane_emu_thread *llane_emu_self(void);
/* Lets other fibers run; called from every poll loop. Also lets other processes run when idle. */
void llane_emu_yield(void);
/* __syncthreads: all n_threads fibers of the block. */
void llane_emu_block_barrier(void);
/* __syncthreads_or: the barrier above; all get whether any fiber's value was not zero. */
int llane_emu_block_or(int value);
/* Nanoseconds, monotonic: %globaltimer. */
uint64_t llane_emu_timer_ns(void);
/*
 * Peer memory traffic, the only way that kernels touch slots. An 8-byte access is whole; a 16-byte
 * access is two 8-byte accesses in random order with a possible yield between (torn).
 */
void llane_emu_store16(void *to, uint64_t low, uint64_t high);
void llane_emu_load16(const void *from, uint64_t *low, uint64_t *high);
/* Smaller stores of kernels, whole; faults apply where they go to another device's memory. */
void llane_emu_store8(void *to, uint64_t value);
void llane_emu_store4(void *to, uint32_t value);

/*
 * Faults, read from the environment at load: EMU_FAULTS="mirror:2>0,drop:1>*,delay_us:0>1=500,..."
 * (source>destination physical devices, "*" for all, destination also "host", registered host memory;
 * kinds: mirror, drop, delay_us, flip, flip_late:...=N after N good stores, torn: one half of a 16-byte
 * store is lost; no_peer: memory does not open). EMU_MAX_PEERS: how many other devices one can reach.
 * EMU_SEED seeds the fiber order and the tearing. EMU_FAIL="ipc_open,malloc,kernel_load" makes those
 * calls fail in this process; "primary" makes the current context one of the program's own. EMU_CC=80:
 * compute capability 8.0. EMU_NODES=0011: the NUMA node of each physical device. EMU_RANGES=1: says
 * where ranges begin and end. EMU_LAUNCHES=1: says how all-reduces are launched. EMU_CAPTURE=thread,
 * global or relaxed: the mode that captures begin in.
 * EMU_END_US: how much later than it did an operation has ended for whoever asks its stream.
 * EMU_QUERY_US: how long a question for an event takes before it looks. EMU_LOAD_US: how long it takes
 * to load a kernel. EMU_KILL="ipc_open:2": SIGKILL in the second such call (as named in EMU_FAIL) of
 * threads whose names begin with "llane-".
 */

#ifdef __cplusplus
}
#endif

#endif
