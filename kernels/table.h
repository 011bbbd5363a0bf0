/*
 * The kernels as the host sees them: argument structs, device state, and one table of addresses.
 * Plain C; included by host C, by CUDA sources and by the emulation.
 *
 * A kernel takes one argument struct by value. llane_kernel_table[k] is what llane_gpu_launch()
 * wants: on CUDA the host stub's address for cudaLaunchKernelExC, in the emulation a
 * `void thread(const void *args)` that runs one CUDA thread.
 */
#ifndef LLANE_KERNELS_TABLE_H
#define LLANE_KERNELS_TABLE_H

#include <stdint.h>

enum {
    LLANE_MAX_RANKS = 16,
    LLANE_MAX_BLOCKS = 64, /* cells a lane has; no launch is wider */
    /* A block of an all-reduce: each cell has a thread (cells.cuh), and all are whole warps
     * (several.cuh). */
    LLANE_MIN_THREADS = 64,
    LLANE_MAX_THREADS = 512,      /* what the kernels are compiled for */
    LLANE_PACKET_BYTES = 16,      /* in a slot, of either family */
    LLANE_LL_PAYLOAD = 8,         /* bytes of the message that an LL packet carries */
    LLANE_SHARED_GENERATIONS = 4, /* of a sentinel slot that several ranks may read */
    LLANE_STRIPE_BYTES =
        2048, /* what every 32nd LL operation zeroes in each slot, see packets.cuh */
};

/*
 * One per possible block, all equal between launches; written by the lane's own kernels alone: `dead` by
 * whoever finds the lane lost, the rest by the block that owns the cell.
 */
struct llane_cell {
    uint32_t ll_op; /* number of the next LL operation = its flag: 1, 2, .. 2^32-1, 4, 5, .. */
    uint32_t sentinel_op; /* number of the next sentinel operation, likewise */
    uint32_t busy;        /* a kernel is between entry and exit on this lane */
    uint32_t dead;        /* LLANE_DEAD_*: later kernels leave at once. Only ever set. */
};

/* Packets from the start of a generation of the rank's own shared sentinel slot that its last two
 * sentinel operations may have stored; one copy per possible block, as cells. */
struct llane_extent {
    uint32_t last, before_last;
};

/* A lane's state on its device. */
struct llane_cells {
    struct llane_cell cell[LLANE_MAX_BLOCKS];
    struct llane_extent extent[LLANE_MAX_BLOCKS];
};

enum {
    LLANE_DEAD_NOT = 0,
    LLANE_DEAD_ABORT = 1,   /* the abort word was raised while a kernel polled */
    LLANE_DEAD_OVERLAP = 2, /* two kernels of one lane ran at once */
};

enum llane_packet { LLANE_LL, LLANE_SENTINEL, LLANE_N_PACKETS };

/* Of the message, in a packet. */
static inline uint32_t llane_payload_bytes(enum llane_packet packet)
{
    return packet == LLANE_LL ? LLANE_LL_PAYLOAD : LLANE_PACKET_BYTES;
}

/* The least w for which LLANE_MIN_THREADS << w is n_threads or more. */
static inline uint32_t llane_width_of(uint32_t n_threads)
{
    uint32_t w = 0;
    while ((uint32_t)LLANE_MIN_THREADS << w < n_threads) {
        w++;
    }
    return w;
}

/*
 * Mapped host memory, one per lane, alive as long as the process. `abort` is written by the host
 * and read by polling kernels; `dead` is written by a kernel that gave up (LLANE_DEAD_*) and read
 * by the host. `waiting` is a kernel's sign that it still polls for packets of a family, stored with
 * each look at `abort`: its operation's number, never 0, which the host puts back.
 */
struct llane_lane_words {
    uint32_t abort;
    uint32_t dead;
    uint32_t waiting[LLANE_N_PACKETS];
};

enum llane_kernel_op {
    LLANE_OP_SUM = 0,
    LLANE_OP_AVG = 1,
    LLANE_OP_PROD = 2,
    LLANE_OP_MIN = 3,
    LLANE_OP_MAX = 4,
    LLANE_N_OPS
};

/* NCCL's datatypes in the order of ncclDataType_t: X(NAME, suffix of kernels' names). */
#define LLANE_INTEGER_TYPES(X)                                                                     \
    X(I8, i8)                                                                                      \
    X(U8, u8)                                                                                      \
    X(I32, i32)                                                                                    \
    X(U32, u32)                                                                                    \
    X(I64, i64)                                                                                    \
    X(U64, u64)
#define LLANE_FLOAT_TYPES(X)                                                                       \
    X(F16, f16)                                                                                    \
    X(F32, f32)                                                                                    \
    X(F64, f64)                                                                                    \
    X(BF16, bf16)                                                                                  \
    X(E4M3, e4m3)                                                                                  \
    X(E5M2, e5m2)
#define LLANE_TYPES(X) LLANE_INTEGER_TYPES(X) LLANE_FLOAT_TYPES(X)

/* Equal to ncclDataType_t. */
enum llane_type {
#define LLANE_TYPE_MEMBER(name, suffix) LLANE_TYPE_##name,
    LLANE_TYPES(LLANE_TYPE_MEMBER)
#undef LLANE_TYPE_MEMBER
        LLANE_N_TYPES
};

/*
 * PLAIN: in and out are aligned to a packet's payload, 8 or 16 bytes, and the message is a whole number
 *   of them, for two-shot of n_ranks of them: the fast path of the common types.
 * SLEEP: threads sleep between two rounds of a poll loop, longer each time.
 * EARLY: what is launched early behind this kernel in its graph is the lane's next kernel alone, which
 *   has room beside it: it may come as soon as this one runs, and waits there for this one's end.
 */
enum { LLANE_FLAG_PLAIN = 1, LLANE_FLAG_SLEEP = 2, LLANE_FLAG_EARLY = 4 };

/* One-shot over shared slots: up to so many packets in a message, and with more than two ranks, each
 * reader has a copy of its own, of whole lines. */
enum { LLANE_COPIED_PACKETS = 1024, LLANE_LINE_PACKETS = 8 };

/*
 * A slot is what one source rank writes and this rank reads: two generations of slot_bytes each,
 * generation g at +g * slot_bytes. slot_bytes is a multiple of 2 * LLANE_STRIPE_BYTES. Each packet
 * family has slots of its own.
 * A message has to fit. A shard is an n_ranks-th of its packets, rounded up. One-shot: all packets in
 * slot_bytes; two-shot: a shard's packets in half of it; ring: half a shard's, rounded up, 2 n_ranks - 2
 * times, with 2 ranks twice that; islands: 5 times an (n_ranks / 2)-th of all packets, rounded up.
 */
struct llane_all_reduce_args {
    /* What every kernel reads comes first: a kernel fetches its arguments by lines, each for itself. */
    struct llane_cells *cells; /* own memory */
    const void *in;            /* count elements, element-aligned */
    void *out;                 /* may equal in */
    uint64_t count;            /* > 0 */
    uint64_t slot_bytes;
    uint32_t rank, n_ranks;
    uint32_t op;             /* enum llane_kernel_op */
    uint32_t flags;          /* LLANE_FLAG_*: how this rank goes about it, nothing that peers see */
    uint32_t spins_per_look; /* poll rounds between two looks at the abort word; > 0 */
    uint32_t chunk_packets;  /* ring: packets that take all steps before the next do; 0: all */
    /* send: [s], peer memory, this rank's slot at rank (rank + 1 + s) mod n_ranks, s from 0 to
     * n_ranks - 2. recv: [r], own memory, rank r's slot; the own entry is unused but a valid address. */
    struct {
        uint8_t *send, *recv;
    } slot[LLANE_MAX_RANKS];
    struct llane_lane_words *words; /* device address of the mapped host words */
    /*
     * For the kernels of llane_shared_table alone. Bit r of shared: this rank and rank r read each
     * other's shared slots, which lie in host memory; [r].recv is rank r's, [].send of it is unused. A
     * shared slot has 2 generations of shared_slot_bytes (a multiple of LLANE_STRIPE_BYTES), for
     * sentinel packets LLANE_SHARED_GENERATIONS. n_ranks packets more than the message's have to fit.
     */
    uint32_t shared;
    uint64_t shared_slot_bytes;
    uint8_t *shared_slot; /* this rank's own */
};

/*
 * The probe: LLANE_PROBE_SEND stores a pattern derived from nonce, source and destination into the
 * area of every peer, LLANE_PROBE_CHECK polls the peers' areas for this rank until all came or
 * timeout_ns of the GPU's global timer passed. One block.
 */
enum { LLANE_PROBE_BYTES = 1024 };
struct llane_probe_args {
    uint64_t nonce;
    uint64_t timeout_ns;
    uint32_t rank, n_ranks;
    uint32_t peers; /* bit r: rank r takes part; the others' areas are not touched */
    uint8_t *send[LLANE_MAX_RANKS]; /* an area of LLANE_PROBE_BYTES that rank r checks */
    uint8_t *recv[LLANE_MAX_RANKS]; /* the one that rank r fills, zeroed before the verdict */
    uint32_t *result;               /* mapped host memory, n_ranks words: see LLANE_PROBE_* */
    struct llane_lane_words *words;
};
enum {
    LLANE_PROBE_PENDING = 0,
    LLANE_PROBE_GOOD = 1,
    LLANE_PROBE_MISSING = 2,
    LLANE_PROBE_WRONG = 3
};

/* Of a thread in an all-reduce kernel, in order: for tools that trace it. */
enum llane_moment { LLANE_ENTERED, LLANE_PUSHED, LLANE_FINISHED, LLANE_LEFT, LLANE_N_MOMENTS };

enum llane_kernel { LLANE_KERNEL_PROBE_SEND, LLANE_KERNEL_PROBE_CHECK, LLANE_N_KERNELS };

enum llane_algorithm {
    LLANE_ONE_SHOT,
    LLANE_TWO_SHOT,
    LLANE_RING,
    LLANE_ISLANDS,
    LLANE_N_ALGORITHMS
};

#ifdef __cplusplus
extern "C" {
#endif
extern const void *const llane_kernel_table[LLANE_N_KERNELS];
/* NULL where there is no such kernel: integers have no sentinel packets; ring and islands have
 * neither those nor shared slots. */
extern const void *const llane_all_reduce_table[LLANE_N_TYPES][LLANE_N_ALGORITHMS][LLANE_N_PACKETS];
/* The same for lanes that have pairs of ranks with shared slots. */
extern const void *const llane_shared_table[LLANE_N_TYPES][LLANE_N_ALGORITHMS][LLANE_N_PACKETS];
#ifdef __cplusplus
}
#endif

#endif
