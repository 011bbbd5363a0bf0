/*
 * bench: what the files of llane-bench share. The parent (bench.c, bench_ranks.c, bench_report.c)
 * starts the program again once a rank; ranks (bench_rank.c, bench_measure.c, bench_floor.c,
 * bench_check.c) write what they find into struct bench_shared, a memfd that all of them map.
 * Linked twice: with CUDA and real NCCL, and with the emulated GPU and the tests' NCCL.
 *
 * Both ways are taken on one communicator in one process: ncclAllReduce is llane's hook and
 * pncclAllReduce is NCCL itself, which llane never sees.
 */
#ifndef LLANE_BENCH_H
#define LLANE_BENCH_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "nccl_abi.h"
#include "rank_env.h"

enum {
    BENCH_MAX_RANKS = 16,
    BENCH_MAX_SIZES = 64,
    BENCH_MAX_ENV = 64,
    BENCH_MAX_SAMPLES = 10000,
    BENCH_MAX_OPS = 1000,
    BENCH_LINE_BYTES = 512,
    BENCH_MAX_WARNINGS = 16,
};

/* ---- options (bench_options.c) ---- */

/* Floats: the widths of exponent and mantissa; integers: 0. */
struct bench_type {
    const char *name, *alias;
    ncclDataType_t nccl;
    uint32_t bytes;
    int is_signed;
    int exponent_bits, mantissa_bits;
};

enum bench_mode { BENCH_EAGER, BENCH_GRAPH, BENCH_PRODUCER };

struct bench_options {
    int n_ranks;
    int n_gpus; /* 0: as many as there are */
    int n_sizes;
    size_t sizes[BENCH_MAX_SIZES]; /* bytes, whole elements, ascending */
    const struct bench_type *type;
    ncclRedOp_t op;
    enum bench_mode mode;
    int n_ops;     /* operations of a graph, or of an eager burst */
    int n_samples; /* replays or bursts measured for each way and size */
    int timeout_s; /* without progress */
    int does_breakdown, does_overhead, does_calibrate, skips_nccl, starts_mps;
    const char *memory; /* LLANE_MEMORY for the ranks; NULL: as it is */
    int plant_rank;     /* tests: this rank damages what it is about to check; -1: none */
    const char *json, *csv, *plot;
    int n_env;
    const char *env[BENCH_MAX_ENV]; /* NAME=VALUE for the ranks */
};

/* Exits with 0 after --help and with 2, having named what is wrong, after a bad option. */
void bench_options_parse(int argc, char **argv, int is_emulated, struct bench_options *out);
const char *bench_op_name(ncclRedOp_t op);
const char *bench_mode_name(enum bench_mode mode);
/* "8", "64K", "1M" */
void bench_format_bytes(size_t bytes, char *text, size_t text_bytes);

/* ---- what ranks and parent share ---- */

enum bench_path { BENCH_LANE, BENCH_NCCL, BENCH_N_PATHS };

/* Microseconds an operation. */
struct bench_times {
    float median, p99, min;
};

enum { BENCH_SPIN, BENCH_SLEEP, BENCH_N_POLLS };

/* Means over an operation's blocks: what their first threads did, and what is left of op_us. */
struct bench_inside {
    float op_us; /* 0: not traced */
    float launch_us, push_us, poll_us, reduce_us, end_us;
};

/* Written by its rank alone, read by the parent when the rank has ended. */
struct bench_result {
    struct bench_times times[BENCH_N_PATHS][BENCH_MAX_SIZES];
    uint64_t wrong[BENCH_N_PATHS][BENCH_MAX_SIZES];
    uint64_t checked[BENCH_N_PATHS][BENCH_MAX_SIZES];
    float producer_us[BENCH_MAX_SIZES];           /* the producer alone */
    float cpu_us[BENCH_N_PATHS][BENCH_MAX_SIZES]; /* an eager call, until it returns */
    float cpu_launch_us;                          /* a bare kernel launch, until it returns */
    struct bench_inside inside[BENCH_N_POLLS][BENCH_MAX_SIZES];
    uint64_t n_lane_path_calls; /* ncclAllReduce */
    int is_done;
};

enum bench_stage {
    BENCH_STAGE_START,
    BENCH_STAGE_NCCL,
    BENCH_STAGE_LANE,
    BENCH_STAGE_FLOOR,
    BENCH_STAGE_CAPTURE,
    BENCH_STAGE_CHECK,
    BENCH_STAGE_TIME,
    BENCH_STAGE_DONE,
};

/* Where a rank is, for the progress line and for the message about a hang. */
struct bench_place {
    _Atomic int stage; /* enum bench_stage */
    _Atomic int size;  /* index */
    _Atomic int path;
    _Atomic uint32_t n_steps; /* only ever grows while the rank gets on */
};

struct bench_shared {
    /* The flags of ranks 0 and 1 where they go through host memory, a page each. */
    _Alignas(4096) uint8_t flag_page[2][4096];
    struct bench_place place[BENCH_MAX_RANKS];
    /* Rank 0 writes the id before it sets the flag; the others read it after they saw the flag. */
    _Atomic int is_id_ready;
    ncclUniqueId id;
    /* bench_barrier's, see there. */
    _Atomic uint32_t n_arrived, n_barriers;
    /* bench_floor's: memory of ranks 0 and 1, written before a barrier and read after it. */
    uint8_t flag_memory[2][64];
    _Atomic int n_flag_refusals;
    /* bench_trace's, likewise, of all ranks. */
    uint8_t trace_memory[BENCH_MAX_RANKS][64];
    _Atomic int n_trace_refusals;
    int is_flag_in_host_memory; /* rank 0's */
    float empty_us, flag_us;    /* rank 0's; 0: not measured */
    double direct_ns, through_ns, added_ns;
    struct bench_result result[BENCH_MAX_RANKS];
};

/* What a set of rank processes does. */
struct bench_phase {
    int is_logged; /* rank 0's log has a line a call, which costs time */
    int does_check, does_time;
};

/* ---- ranks ---- */

struct bench_rank {
    struct bench_shared *shared;
    const struct bench_options *options;
    struct bench_phase phase;
    int rank;
    int is_emulated;
    ncclComm_t comm;
    struct CUstream_st *stream;
};

/* Runs a rank to its end; the exit status. */
int bench_rank_main(struct bench_shared *shared, const struct bench_options *options,
                    struct bench_phase phase, int rank);
/* Says where the rank is; every call counts as progress. */
void bench_at(const struct bench_rank *r, enum bench_stage stage);
/* All ranks leave it together, about. Polls. */
void bench_barrier(const struct bench_rank *r);
double bench_now_us(void);
/* End the process with a line that names the rank. */
void bench_check_gpu(const struct bench_rank *r, int err, const char *what);
void bench_check_nccl(const struct bench_rank *r, ncclResult_t result, const char *what);
_Noreturn void bench_rank_die(const struct bench_rank *r, const char *what, const char *why);
void bench_all_reduce(const struct bench_rank *r, enum bench_path path, const void *in, void *out,
                      size_t count);
float bench_median(float *us, int n); /* sorts */

/* Empty kernel in a graph, one-way flag. All ranks call it. */
void bench_floor_measure(struct bench_rank *r);
/* CPU time of a bare kernel launch. */
float bench_floor_launch_us(struct bench_rank *r);
/* CPU time that llane adds to a call that it hands on. A communicator of one rank. */
void bench_overhead_measure(struct bench_rank *r);

/* One size's operations: graphs or bursts. */
struct bench_work {
    size_t bytes, count;
    int n_buffers,
        n_slots;   /* operation i works on buffer i % n_buffers, which holds slot b % n_slots */
    size_t stride; /* from buffer to buffer */
    uint8_t *source, *in, *out; /* device; source in producer mode alone */
    struct CUgraphExec_st *graph[BENCH_N_PATHS], *producer;
};
void bench_measure_open(struct bench_rank *r, struct bench_work *work);
void bench_measure_close(struct bench_rank *r, struct bench_work *work);
/* All operations once, and waits for them. */
void bench_measure_run_once(struct bench_rank *r, struct bench_work *work, enum bench_path path);
void bench_measure_times(struct bench_rank *r, struct bench_work *work, int size);

/* bench_trace.c: all ranks call both; open: 0 where peer memory cannot be had. */
int bench_trace_open(struct bench_rank *r);
void bench_trace_size(struct bench_rank *r, const struct bench_work *work, int size);

/* ---- reference (bench_check.c): host only ---- */

struct bench_reference {
    const struct bench_type *type;
    ncclRedOp_t op;
    int n_ranks;
    size_t capacity; /* elements */
    double *value;   /* of floats */
    double *tolerance;
    uint64_t *integer; /* of integers, cut to the type */
    double *narrow;    /* all values of an 8- or 16-bit float */
};
/* 0, or -1 without memory. */
int bench_reference_open(struct bench_reference *ref, const struct bench_type *type, ncclRedOp_t op,
                         int n_ranks, size_t capacity);
void bench_reference_close(struct bench_reference *ref);
/* A rank's contribution; seed says which of several. */
void bench_reference_fill(const struct bench_reference *ref, int rank, uint64_t seed, void *to,
                          size_t count);
/* What all ranks must get for the contributions of this seed. */
void bench_reference_compute(struct bench_reference *ref, uint64_t seed, size_t count);
uint64_t bench_reference_count_wrong(const struct bench_reference *ref, const void *got,
                                     size_t count);
/* "|error| <= ..." for the report. */
void bench_reference_describe(const struct bench_type *type, ncclRedOp_t op, int n_ranks,
                              char *text, size_t text_bytes);

/* ---- parent ---- */

/* What rank 0's log said. */
struct bench_log {
    char route[BENCH_MAX_SIZES][BENCH_LINE_BYTES]; /* of the size's last call: "lane ..." or not */
    char startup[BENCH_LINE_BYTES];
    char lane[BENCH_LINE_BYTES];      /* "active from ...", "inactive: ..." */
    char placement[BENCH_LINE_BYTES]; /* of rank 0's host memory, where it has some */
    uint64_t lane_calls, nccl_calls;  /* LLANE_STATS */
    char table[BENCH_LINE_BYTES];     /* "PATH written" or "PATH read": its table */
    int has_stats;
    int n_warnings;
    char warning[BENCH_MAX_WARNINGS][BENCH_LINE_BYTES]; /* llane's, any rank's */
};

/*
 * Runs the ranks of a phase and reads rank 0's log. 0: all ended well. Else they have been killed,
 * the reason has been said, and the exit status is returned (128 + signal after a signal).
 */
int bench_ranks_run(char **argv, const struct bench_options *options, const struct rank_env *around,
                    struct bench_phase phase, struct bench_shared *shared, struct bench_log *log);

struct bench_report {
    const struct bench_options *options;
    const struct rank_env *around;
    const struct bench_shared *shared;
    const struct bench_log *log;
    struct bench_times times[BENCH_N_PATHS][BENCH_MAX_SIZES]; /* of the slowest rank, each */
    float producer_us[BENCH_MAX_SIZES];
    float cpu_us[BENCH_N_PATHS][BENCH_MAX_SIZES], cpu_launch_us;
    uint64_t wrong[BENCH_MAX_SIZES], checked[BENCH_MAX_SIZES];
    int is_lane[BENCH_MAX_SIZES];
    float floor_us;   /* 0: not measured */
    size_t threshold; /* largest size for the lane; 0: no lane */
};
void bench_report_make(const struct bench_options *options, const struct rank_env *around,
                       const struct bench_shared *shared, const struct bench_log *log,
                       struct bench_report *out);
/* What an operation of the lane moves over a rank's link where all pairs use host memory, polls that
 * find nothing left out. 0: not known. */
struct bench_link_bytes {
    uint64_t out, in;
};
struct bench_link_bytes bench_report_link_bytes(const struct bench_report *report, int size);
/* The mean of all ranks; op_us 0: not traced. */
struct bench_inside bench_report_inside(const struct bench_report *report, int poll, int size);
void bench_format_version(int version, char *text, size_t bytes);
/* bench_table.c */
void bench_report_head(const struct bench_options *options, const struct rank_env *around);
void bench_report_text(const struct bench_report *report);
/* bench_report.c */
/* 0, or -1 with a line that says what failed. */
int bench_report_json(const struct bench_report *report, FILE *file);
int bench_report_csv(const struct bench_report *report, FILE *file);
int bench_report_files(const struct bench_report *report);
/* bench_calibrate.c: writes where NCCL was faster into the table of these GPUs. 0, or why not is said:
 * 1, or BENCH_NO_TABLE if there is none yet, as where two passes differed: another run may have one. */
enum { BENCH_NO_TABLE = 3 };
int bench_calibrate(const struct bench_report *report);
/* Looked at before anything is measured. */
int bench_report_can_plot(void);
/* 0, or what the options name cannot be opened to be written, which has been said. */
int bench_report_try_files(const struct bench_options *options);

#endif
