/*
 * values: inputs that differ by rank, call and element, and what must come out, computed in double or
 * 64-bit integers with nothing taken from the code under test.
 *
 * Float inputs are small integers, so that sums, minima and maxima are exact in every type and any
 * order of adding; averages and products are allowed the type's rounding. Integers use their whole
 * range and wrap.
 */
#ifndef LLANE_TEST_VALUES_H
#define LLANE_TEST_VALUES_H

#include "nccl_abi.h"

#include <stddef.h>
#include <stdint.h>

enum { VALUES_N_TYPES = 12, VALUES_N_OPS = 5 };

const char *values_type_name(ncclDataType_t type);
const char *values_op_name(ncclRedOp_t op);
/* -1 when unknown. */
int values_type_of(const char *name);
int values_op_of(const char *name);
size_t values_type_bytes(ncclDataType_t type);

/* What rank `rank` contributes to call `call`. */
void values_fill(ncclDataType_t type, ncclRedOp_t op, int rank, uint64_t call, size_t count,
                 void *to);
/* Number of wrong elements of the all-reduce of n ranks; the first is described in `words`. */
size_t values_check(ncclDataType_t type, ncclRedOp_t op, int n, uint64_t call, size_t count,
                    const void *got, char *words, size_t words_bytes);

#endif
