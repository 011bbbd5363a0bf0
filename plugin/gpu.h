/*
 * gpu: everything llane asks of a GPU runtime, and the only door to it. gpu_cuda.c implements it on
 * the CUDA runtime; tests/emu_gpu implements it on POSIX shared memory and fibers.
 *
 * Threads: every function may be called from any thread. "Current device" is per thread, as in CUDA.
 * Blocking: none waits for the GPU, except those whose comment says so.
 * Errors: 0 or LLANE_EGPU (LLANE_ENOSYS where the runtime lacks the feature); llane_gpu_error()
 * returns this thread's last failure in words. No function leaves a sticky "last error" behind that
 * the user's own error checks could trip over.
 *
 * Captures: CUDA refuses some calls while the calling thread captures, or any thread does in global
 * mode, and ends the capture for them: those that allocate, free, pin, import or synchronise, and
 * llane_gpu_graph_instantiate. In the plugin they are for helper threads, which relax their capture
 * mode first (llane_gpu_capture_mode_relax). A stream that captures may not be asked for its id, nor
 * queried, by anyone.
 *
 * Streams are the caller's cudaStream_t; NULL is the current device's legacy stream.
 */
#ifndef LLANE_GPU_H
#define LLANE_GPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;

const char *llane_gpu_error(void);
/* "cuda 13.0, driver 13.0" or "emulation". Static storage. */
const char *llane_gpu_runtime(void);
/* 1: an emulation, whose times tell nothing. */
int llane_gpu_is_emulated(void);

/* ---- devices ---- */
struct llane_gpu_identity {
    uint8_t uuid[16]; /* MIG UUID where MIG is on */
    int32_t cc_major, cc_minor;
    int32_t n_sms;
    char pci[16];      /* "0000:01:00.0" */
    int32_t numa_node; /* that it hangs off; -1: not known */
};
int llane_gpu_device_count(int *n_out);
int llane_gpu_device_get(int *device_out);
int llane_gpu_device_set(int device);
int llane_gpu_identify(int device, struct llane_gpu_identity *out);
/* primary_out: 0 when this thread's current context is one that the program made itself (a driver API
 * context, a green context): llane's memory and kernels belong to the device's primary context. */
int llane_gpu_context_is_primary(int *primary_out);
/*
 * The number of the device's primary context, which no other one ever gets: cudaDeviceReset ends a
 * context, and with it all memory, streams and events of the device, whose handles may then not even be
 * asked about. 0: there is none now, or the driver (before CUDA 12) cannot tell.
 */
uint64_t llane_gpu_context_id(int device);
/* cudaDeviceReset of the current device. For tests. */
int llane_gpu_device_reset(void);

/* ---- memory ---- */
struct llane_gpu_ipc_handle {
    uint8_t bytes[64];
};
/* Device memory on the current device; cudaMalloc. Contents undefined. */
int llane_gpu_malloc(size_t bytes, void **out);
/* Waits for every kernel on the device: tools and tests only, never a live path. */
int llane_gpu_free(void *p);
int llane_gpu_ipc_export(void *base, struct llane_gpu_ipc_handle *out);
/* Maps a peer process's allocation on the current device. */
int llane_gpu_ipc_open(const struct llane_gpu_ipc_handle *handle, void **out);
/* Lets the current device reach peer_device, both in this process; done already is success. */
int llane_gpu_peer_enable(int peer_device);
/* Pinned, portable, mapped host memory, zeroed; device_out is what kernels use. Never freed by llane. */
int llane_gpu_host_alloc(size_t bytes, void **host_out, void **device_out);
/*
 * Pins host memory of the caller's and maps it: device_out is what kernels of the current device use.
 * For the life of the process: unregistering waits for every kernel on the device.
 */
int llane_gpu_host_register(void *host, size_t bytes, void **device_out);
int llane_gpu_memset_async(void *p, int byte, size_t bytes, struct CUstream_st *stream);
/* Any direction (unified addressing). */
int llane_gpu_memcpy_async(void *to, const void *from, size_t bytes, struct CUstream_st *stream);

/* ---- streams and events ---- */
/* Non-blocking with respect to the legacy stream. */
int llane_gpu_stream_create(struct CUstream_st **out);
int llane_gpu_stream_destroy(struct CUstream_st *stream);
/* Waits for the stream. */
int llane_gpu_stream_synchronize(struct CUstream_st *stream);
/*
 * Never the same for two streams of the process. A handle is no such name: the driver gives a destroyed
 * stream's to a new one while work of the old is still under way, and cudaStreamPerThread is each
 * thread's own stream. 0: the driver cannot tell.
 * Not of a stream that captures: the driver ends the capture for it.
 */
uint64_t llane_gpu_stream_id(struct CUstream_st *stream);
/*
 * done_out: 1 when all work so far has ended. The queries disturb no capture, whichever thread's and
 * begun in whichever mode. The current device's context is made if there is none, as CUDA does.
 */
int llane_gpu_stream_query(struct CUstream_st *stream, int *done_out);
/* timed: 1 if llane_gpu_event_elapsed_us() will be asked. */
int llane_gpu_event_create(int timed, struct CUevent_st **out);
int llane_gpu_event_destroy(struct CUevent_st *event);
int llane_gpu_event_record(struct CUevent_st *event, struct CUstream_st *stream);
int llane_gpu_event_query(struct CUevent_st *event, int *done_out);
int llane_gpu_event_elapsed_us(struct CUevent_st *from, struct CUevent_st *to, float *us_out);
/* Later work on the stream waits for the event's last record. */
int llane_gpu_stream_wait_event(struct CUstream_st *stream, struct CUevent_st *event);

/* ---- stream capture and graphs ---- */
/* This thread's capture mode becomes relaxed, for the thread's life (helper threads). After
 * llane_gpu_device_set: CUDA makes a context on the current device for it. */
int llane_gpu_capture_mode_relax(void);
/* id_out: 0 when the stream is not capturing, else the capture's id (unique in the process). */
int llane_gpu_capture_id(struct CUstream_st *stream, uint64_t *id_out);
/* In a capture: the one node that what the stream captures next will hang on; NULL: none, or several. */
int llane_gpu_capture_node(struct CUstream_st *stream, void **node_out);
/* In a capture: 1 if what the stream captures next comes after that node anyway. 0 also if that would
 * take a search of more than a few hundred nodes. */
int llane_gpu_capture_is_behind(struct CUstream_st *stream, const void *node, int *is_behind_out);
/* In a capture: a node that, at every replay, waits for the event's last record made outside. */
int llane_gpu_capture_wait_external(struct CUstream_st *stream, struct CUevent_st *event);
/*
 * In a capture: a node that, at every replay, records event for work outside the graph. It hangs off
 * what the stream has captured so far and is no predecessor of what the stream captures next.
 * node_out names it for llane_gpu_capture_record_extend, valid while the capture lasts.
 */
int llane_gpu_capture_record_external(struct CUstream_st *stream, struct CUevent_st *event,
                                      void **node_out);
/* The record node waits for what the stream has captured last, instead of what it waited for; beside it,
 * in a graph that allocates or frees memory. */
int llane_gpu_capture_record_extend(struct CUstream_st *stream, void *node);
/*
 * In a capture: release(arg) is called once, when the graph that comes of it and all that was made of
 * that graph are gone, or when the capture fails. By any thread; it must not call gpu functions.
 * After an error it is not called. LLANE_ENOSYS: the driver cannot tell.
 */
int llane_gpu_capture_retain(struct CUstream_st *stream, void (*release)(void *arg), void *arg);
/* For tools and tests: capture what this thread issues to stream (mode thread-local). */
int llane_gpu_capture_begin(struct CUstream_st *stream);
int llane_gpu_capture_end(struct CUstream_st *stream, struct CUgraphExec_st **exec_out);
/* The same in two steps, where this thread has another capture under way: the second is for when that
 * has ended. It takes the graph over, also when it fails. */
int llane_gpu_capture_end_graph(struct CUstream_st *stream, struct CUgraph_st **graph_out);
int llane_gpu_graph_instantiate(struct CUgraph_st *graph, struct CUgraphExec_st **exec_out);
int llane_gpu_graph_launch(struct CUgraphExec_st *exec, struct CUstream_st *stream);
int llane_gpu_graph_destroy(struct CUgraphExec_st *exec);

/* ---- kernels ---- */
struct llane_gpu_launch {
    const void *kernel; /* from kernels/table.h */
    const void *args;   /* the kernel's one argument struct, copied by the call */
    size_t args_bytes;
    uint32_t n_blocks;
    uint32_t n_threads; /* a block, one dimension */
    struct CUstream_st *stream;
    /*
     * NULL, or where the caller keeps the graph node that its launch before this one in the same
     * capture became, NULL at first: if that is the stream's only predecessor, the kernel may be
     * launched early behind it (programmatic dependent launch), where its code waits for its
     * predecessor by itself. Receives this launch's node, NULL outside a capture. args begin with a
     * struct llane_all_reduce_args then.
     */
    void **chain;
    /* With a chain: [w], blocks of LLANE_MIN_THREADS << w threads that may be on the GPU at once. If
     * those of both fit, as wide as the wider ones, and nothing else is to come early behind it, the
     * launch before gets LLANE_FLAG_EARLY. */
    const uint32_t *fit;
};
int llane_gpu_launch(const struct llane_gpu_launch *launch);
/* A range of this thread that profilers show (NVTX, domain "llane"), where the toolkit had its headers.
 * name: in static storage. Costs next to nothing while no profiler is there. */
void llane_gpu_range_begin(const char *name);
void llane_gpu_range_end(void);
/*
 * Rounds in which a kernel polls its memory between two looks at host memory: a look crosses PCIe, so
 * seldom enough to cost nothing, and often enough for an abort to end the kernel within milliseconds.
 */
uint32_t llane_gpu_spins_per_look(void);
/*
 * Loads the kernel on the current device (lazy loading would wait for a spinning kernel) and tells
 * how many blocks of n_threads fit on one multiprocessor, those of less than four warps counted as of four.
 */
int llane_gpu_kernel_load(const void *kernel, uint32_t n_threads, uint32_t *blocks_per_sm_out);

#ifdef __cplusplus
}
#endif

#endif
