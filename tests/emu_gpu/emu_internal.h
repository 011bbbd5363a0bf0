/*
 * What the parts of the emulated GPU share. Files:
 *   emu_device.c  devices, environment, errors      emu_memory.c  allocations, IPC
 *   emu_access.c  torn and faulty peer accesses     emu_fiber.c   grids of fibers
 *   emu_stream.c  streams, workers, copies          emu_event.c   events
 *   emu_graph.c   stream capture and replay
 *
 * Locks: one mutex a stream, one an event, one for captures (emu_graph.c), one for allocations. Not
 * one for all: the thread sanitizer would then see order between plugin threads where there is none.
 * Order in which they nest: capture, event, stream. Streams and events are never given back to malloc, so
 * a use after destroy is found and named instead of crashing.
 */
#ifndef LLANE_EMU_INTERNAL_H
#define LLANE_EMU_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include "../../plugin/err.h"
#include "../../plugin/gpu.h"
#include "emu.h"
#pragma GCC visibility pop

/* EMU_HOST: as an owner of memory, registered host memory. */
enum { EMU_MAX_DEVICES = 16, EMU_HOST = EMU_MAX_DEVICES };

/* ---- emu_device.c ---- */

enum emu_fault_kind {
    EMU_FAULT_MIRROR = 1,
    EMU_FAULT_DROP = 2,
    EMU_FAULT_DELAY = 4,
    EMU_FAULT_FLIP = 8,
    EMU_FAULT_TORN = 16,     /* one half of a 16-byte store is lost, now and then */
    EMU_FAULT_NO_PEER = 32,  /* the device cannot reach the other one at all */
    EMU_FAULT_FLIP_LATE = 64 /* as FLIP, once so many stores of a kernel's worker went well */
};

enum emu_capture_mode { EMU_CAPTURE_THREAD_LOCAL, EMU_CAPTURE_GLOBAL, EMU_CAPTURE_RELAXED };

struct emu_config {
    int n_devices;                 /* visible */
    int physical[EMU_MAX_DEVICES]; /* of visible device i */
    uint64_t seed;
    bool has_faults;
    /* [source][destination], physical; EMU_HOST is a destination too. */
    uint8_t faults[EMU_MAX_DEVICES][EMU_MAX_DEVICES + 1];
    uint32_t delay_us[EMU_MAX_DEVICES][EMU_MAX_DEVICES + 1];
    uint32_t n_good[EMU_MAX_DEVICES][EMU_MAX_DEVICES + 1]; /* FLIP_LATE */
    int max_peers;                      /* that a device can reach, as EMU_MAX_PEERS says */
    char fail[256];                     /* EMU_FAIL with a comma at both ends */
    char kill[32];                      /* EMU_KILL: the call, */
    uint32_t n_kill;                    /* and which of them */
    enum emu_capture_mode capture_mode; /* that captures begin in */
    uint32_t end_us;   /* from an operation's last act to the stream's word of it */
    uint32_t query_us; /* from a question for an event to the look at it */
    uint32_t load_us;  /* to load a kernel */
};

/* Parsed at the first call into the library. */
const struct emu_config *emu_config(void);
/* Sets llane_gpu_error() and returns LLANE_EGPU. */
int emu_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* 0, or LLANE_EGPU when EMU_FAIL names the call. */
int emu_check_fail(const char *call);
int emu_current_device(void);
int emu_current_physical(void);
/* For a stream's worker: fn(arg) of a host call sees the stream's device. */
void emu_set_current_device(int device);
/* Lets the current device reach physical device `to`; the error if the fault table or the limit of
 * peers is against it. */
int emu_peer_open(const char *call, int to);
/* May kernels of device `from` touch memory of `to` (physical, both in this process)? */
bool emu_peer_is_enabled(int from, int to);
/* Ends the process with a message: what a GPU would answer with an illegal address. */
void emu_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* ---- emu_memory.c ---- */

struct emu_region {
    uint8_t *base;
    size_t bytes;
    int owner;     /* physical device, or EMU_HOST */
    bool imported; /* another process's allocation */
    int fd;        /* own allocations */
    uint64_t inode;
    /* Made by mirrored stores: what device [source] believes it wrote, and which words. */
    uint64_t *shadow[EMU_MAX_DEVICES];
    uint8_t *shadow_valid[EMU_MAX_DEVICES];
    struct emu_region *next;
};

/* The region that holds p, or NULL (host memory). Valid until freed. */
struct emu_region *emu_region_find(const void *p);
/*
 * As cudaFree while it waits for kernels: until then other threads' allocations, copies and creations on
 * that device wait too, which they do behind no kernel by itself. Queries and launches go on.
 */
void emu_wait_for_frees(int physical);
/* Grows at every free: cached look-ups of an older number are void. */
uint64_t emu_region_generation(void);

/* ---- emu_fiber.c ---- */

typedef void (*emu_kernel_fn)(const void *args);

/* xorshift64*: order of fibers, tearing. */
static inline uint32_t emu_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return (uint32_t)((x * 0x2545f4914f6cdd1dULL) >> 32);
}

enum { EMU_TLB_ENTRIES = 256 };
struct emu_tlb_entry {
    uint64_t page; /* address >> 12, 0 = empty */
    struct emu_region *region;
    uint32_t faults;
};

struct emu_delayed {
    uint64_t due_ns;
    void *to;
    uint64_t low, high; /* high: 16-byte stores only */
    uint32_t bytes;     /* 4, 8, 16 */
};

/* One a thread that runs kernels or touches peer memory. */
struct emu_worker {
    void *grid_memory[2]; /* of the running grid, for leak checkers: they do not see its stack */
    int device;           /* physical device of the running kernel; -1 = none yet */
    uint64_t random;
    uint32_t n_doubtful_stores; /* to where FLIP_LATE is */
    bool progressed;            /* some fiber did more than poll since the round began */
    /* Cache of emu_region_find() and of the fault table for this device. */
    uint64_t tlb_generation;
    int tlb_device;
    struct emu_tlb_entry tlb[EMU_TLB_ENTRIES];
    /* Posted stores that have not landed yet, in order: a ring of capacity 2^n. */
    struct emu_delayed *delayed;
    size_t delayed_capacity, delayed_first, delayed_count;
};

struct emu_worker *emu_worker(void);
/* Runs a whole grid on the calling thread; returns when its last fiber has returned. */
void emu_grid_run(emu_kernel_fn kernel, const void *args, uint32_t n_blocks, uint32_t n_threads,
                  int physical_device, uint64_t seed);
/* The running fiber gives way in the middle of an access (no-op outside a fiber). */
void emu_fiber_give_way(void);

/* ---- emu_access.c ---- */

/* Lands delayed stores that are due; all of them, waiting, when `all`. */
void emu_access_land(struct emu_worker *worker, bool all);

/* ---- emu_stream.c ---- */

enum emu_op_kind {
    EMU_OP_KERNEL,
    EMU_OP_MEMSET,
    EMU_OP_MEMCPY,
    EMU_OP_HOST_CALL,
    EMU_OP_WAIT,  /* for a position of another stream */
    EMU_OP_STAMP, /* a timed event's time */
    /* In graphs only: */
    EMU_OP_START,
    EMU_OP_WAIT_NODE,
    EMU_OP_WAIT_EXTERNAL,
    EMU_OP_RECORD_EXTERNAL,
};

struct CUstream_st;

/* Work up to and including operation number `seq` of `stream`. */
struct emu_position {
    struct CUstream_st *stream; /* NULL = nothing to wait for */
    uint64_t seq;
};

struct emu_op {
    struct emu_op *next;
    enum emu_op_kind kind;
    union {
        struct {
            emu_kernel_fn fn;
            uint32_t n_blocks, n_threads;
            int device; /* physical */
        } kernel;
        struct {
            void *to;
            const void *from; /* memcpy */
            int byte;         /* memset */
            size_t bytes;
        } copy;
        struct {
            void (*fn)(void *arg);
            void (*ended)(void *arg); /* or NULL */
            void *arg;
        } host;
        struct emu_position wait;
        struct {
            struct CUevent_st *event;
            uint64_t ticket;
        } stamp;
        size_t node;              /* EMU_OP_WAIT_NODE */
        struct CUevent_st *event; /* EMU_OP_WAIT_EXTERNAL, EMU_OP_RECORD_EXTERNAL */
    } u;
    size_t args_bytes;
    _Alignas(16) uint8_t args[]; /* EMU_OP_KERNEL */
};

struct emu_capture;

struct CUstream_st {
    uint32_t magic;
    uint32_t number; /* in order of creation */
    int device;      /* visible number */
    pthread_mutex_t mutex;
    pthread_cond_t work; /* the worker waits here */
    pthread_cond_t done; /* everybody who waits for `completed` */
    struct emu_op *head, **tail;
    uint64_t issued, completed;
    uint32_t n_waiters;
    bool has_worker, worker_sleeps, destroyed;
    /* Set and cleared under the capture lock; read without it to see "not capturing". */
    struct emu_capture *capture;
    uint32_t branch;
    struct CUstream_st *next_all;
};

/* The stream behind a handle (NULL: the current device's default stream), or NULL and an error. */
struct CUstream_st *emu_stream_resolve(struct CUstream_st *handle);
struct CUstream_st *emu_stream_new(int device);
/* Pending work ends, then the worker leaves. */
void emu_stream_retire(struct CUstream_st *stream);
struct emu_op *emu_op_new(enum emu_op_kind kind, size_t args_bytes);
/* Into the stream, capturing or not; takes the op over. */
int emu_issue(struct CUstream_st *stream, struct emu_op *op);
/* Into the queue, whatever the capture state; returns its position. */
struct emu_position emu_stream_push(struct CUstream_st *stream, struct emu_op *op);
struct emu_position emu_stream_position(struct CUstream_st *stream);
/* Later work of `stream` waits for `position`. */
int emu_stream_push_wait(struct CUstream_st *stream, struct emu_position position);
bool emu_position_is_done(struct emu_position position);
void emu_position_wait(struct emu_position position);
/* Waits until all streams of the device (visible number) have ended what they hold now. */
void emu_device_drain(int device);

/* ---- emu_event.c ---- */

struct CUevent_st {
    uint32_t magic;
    int device; /* visible number */
    bool timed, destroyed;
    bool lost; /* with its device's context */
    pthread_mutex_t mutex;
    bool recorded;
    struct emu_position last; /* of the last record made outside captures */
    uint64_t ticket;          /* number of that record */
    uint64_t stamped_ticket;  /* record whose time `ns` is */
    uint64_t ns;
    uint64_t capture_id; /* last record was made in this capture, else 0 */
    size_t capture_node;
    struct CUevent_st *next_all;
};

/* Checks the handle; 0 or LLANE_EGPU. */
int emu_event_check(struct CUevent_st *event);
/* The device was reset: its events may not be used any more, nor its memory. */
void emu_events_lose(int device);
void emu_memory_lose(int device);
/* The last record made outside, at this moment. */
struct emu_position emu_event_last(struct CUevent_st *event);
/* Records the stream's present end. */
void emu_event_record_now(struct CUevent_st *event, struct CUstream_st *stream);
void emu_event_stamp(struct CUevent_st *event, uint64_t ticket);

/* ---- emu_graph.c ---- */

bool emu_stream_is_capturing(struct CUstream_st *stream);
/* Appends a node to the stream's capture; takes the op over. */
int emu_capture_append(struct CUstream_st *stream, struct emu_op *op);
/* The stream's place in its capture, for an ordinary event record. */
int emu_capture_place(struct CUstream_st *stream, uint64_t *id_out, size_t *node_out);
/* `stream` waits for a node of capture `id`: joins it, or an error. */
int emu_capture_join(struct CUstream_st *stream, uint64_t id, size_t node);
/*
 * What CUDA calls unsafe: an error, and the end of the captures that forbid it, those of this thread and
 * the global ones of all. Not for a thread in relaxed mode, nor because of a relaxed capture.
 */
int emu_check_unsafe(const char *call);
/* This thread's mode, cudaThreadExchangeStreamCaptureMode; returns the mode before. */
bool emu_exchange_relaxed(bool is_relaxed);
/* A forbidden call broke the stream's capture: its end fails. */
void emu_capture_invalidate(struct CUstream_st *stream);

#endif
