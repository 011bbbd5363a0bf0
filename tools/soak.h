/*
 * soak: what the files of llane-soak share. The parent (soak.c) starts the program again once a rank;
 * ranks (soak_rank.c) run all-reduces of random size, type and operation on one communicator, eager
 * and in graphs, and compare every word with what soak_reference.c says. All that a case is follows from
 * the seed and its number, so that any case can be run again alone.
 */
#ifndef LLANE_SOAK_H
#define LLANE_SOAK_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_abi.h"

enum { SOAK_MAX_RANKS = 16, SOAK_MAX_OPS = 4, SOAK_MAX_REPLAYS = 3 };

struct soak_options {
    int n_ranks, n_gpus; /* 0: as many as there are */
    int starts_mps;
    int seconds;
    size_t max_bytes;
    uint64_t seed, from, n_cases; /* n_cases 0: until the time is over */
    int plant_rank;               /* tests: this rank damages a word of case `from` + 1; -1: none */
};

/* ---- cases (soak_case.c): pure ---- */

struct soak_type {
    const char *name;
    ncclDataType_t nccl;
    uint32_t bytes;
    int is_signed;                    /* of integers */
    int exponent_bits, mantissa_bits; /* of floats; integers: 0 */
};

struct soak_case {
    uint64_t number, seed;
    const struct soak_type *type;
    ncclRedOp_t op;
    size_t count;
    int is_in_place, is_graph;
    int n_ops, n_replays; /* operations behind each other; replays with new contributions */
};
const char *soak_op_name(ncclRedOp_t op);
struct soak_case soak_case_of(uint64_t seed, uint64_t number, size_t max_bytes, int n_ranks);
/* Elements that a rank's buffers of an operation are shifted by. */
size_t soak_case_shift(const struct soak_case *c, int rank, int op, int is_out);
/* The seed of one operation's contributions in one replay. */
uint64_t soak_case_seed(const struct soak_case *c, int op, int replay);

/* ---- reference (soak_reference.c): pure, shares nothing with the kernels ---- */

/*
 * Contributions are chosen so that the result is exact in any order and with any intermediate
 * precision: integers of any bits; floats that are small whole numbers, or powers of two for prod. So
 * there is one right bit pattern.
 */
uint64_t soak_contribution(const struct soak_case *c, uint64_t seed, int n_ranks, int rank,
                           size_t i);
uint64_t soak_expected(const struct soak_case *c, uint64_t seed, int n_ranks, size_t i);
uint64_t soak_load(const void *from, uint32_t bytes, size_t i);
void soak_store(void *to, uint32_t bytes, size_t i, uint64_t bits);

/* ---- what ranks and parent share ---- */

struct soak_failure {
    _Atomic int is_claimed; /* the first one that finds a wrong word describes it */
    int rank, op, replay;
    uint64_t number; /* of the case */
    size_t index;    /* of the element */
    uint64_t got, expected;
    _Atomic int is_described;
};

struct soak_shared {
    ncclUniqueId id;
    _Atomic int is_id_ready;
    _Atomic uint64_t n_allowed;                       /* cases below it may begin */
    _Atomic int is_over;                              /* rank 0: no case beyond n_allowed */
    _Atomic uint64_t n_done[SOAK_MAX_RANKS], n_words; /* cases; elements compared */
    struct soak_failure failure;
};

int soak_rank_main(struct soak_shared *shared, const struct soak_options *options, int rank);

#endif
