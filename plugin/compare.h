/*
 * compare: do two results of one all-reduce agree? Pure.
 *
 * Integers, minima and maxima have to be the same values. Other operations on floats round in an order
 * of their own: with n ranks, u half a unit in the last place at 1, and M the largest magnitude among
 * both results and this rank's contribution, the difference may be 2 (n + 2) u M; for a product, M is
 * the element's own magnitude. That is a bound for sums whose contributions are alike in size on all
 * ranks, since the others' are not known here. One NaN is as good as another.
 */
#ifndef LLANE_COMPARE_H
#define LLANE_COMPARE_H

#include <stddef.h>
#include <stdint.h>

#include "nccl_abi.h"

struct llane_comparison {
    uint64_t n_other_bits; /* elements whose bits are not the same */
    uint64_t n_beyond;     /* of these, those that differ by more than rounding explains */
    size_t first_beyond;   /* where n_beyond is not 0 */
    double first_a, first_b;
};

struct llane_compared {
    const void *in, *a, *b; /* this rank's contribution, and two results */
    size_t count;
    ncclDataType_t datatype;
    ncclRedOp_t op;
    int n_ranks;
};

void llane_compare(const struct llane_compared *what, struct llane_comparison *out);

#endif
