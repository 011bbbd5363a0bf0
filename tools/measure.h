/*
 * llane-measure: what GPUs of this host do with each other's memory, in processes of their own, so
 * that a GPU that hangs takes nobody along. `llane doctor` starts it and reads its lines
 * (tools/doctor_measured.c says which).
 *
 * Owns: one memory that the parent and all ranks share. Threads: each process has one. Blocking:
 * barriers end when a rank has failed or died or BARRIER_SECONDS have passed.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdatomic.h>
#include <stdint.h>

#include "peers.h"
#include "table.h"

struct measure_pair { /* what one rank does to another's memory; written by that rank alone */
    int is_claimed, is_open;
    char why[80];
    uint32_t probe; /* LLANE_PROBE_* as its owner found it; written by the owner */
    float latency_us, write_gbs, read_gbs;
};

struct measure_gpu {
    char pci[16];
    struct llane_remote_memory memory;
    float host_latency_us, to_gbs, from_gbs;
};

struct measure_shared {
    int n;
    int is_emulated;
    char runtime[80];
    _Atomic int has_failed;
    _Atomic uint32_t n_arrived, turn;
    struct measure_gpu gpus[LLANE_MAX_RANKS];
    struct measure_pair pairs[LLANE_MAX_RANKS][LLANE_MAX_RANKS];
    char trouble[160]; /* the first, under has_failed */
    _Atomic uint32_t n_loading;
};

/* Both return a process's exit status. */
int measure_rank(struct measure_shared *shared, int rank);
int measure_load(struct measure_shared *shared, int rank);

/* Marks the run as failed with these words, unless it is already; always 1. */
int measure_fail(struct measure_shared *shared, const char *what);

#endif
