/*
 * sizes: buckets of message sizes, for statistics. Bucket b holds messages of up to 2^b bytes and more
 * than 2^(b-1); the last one all that are larger. Pure.
 */
#ifndef LLANE_SIZES_H
#define LLANE_SIZES_H

#include <stdint.h>

enum { LLANE_SIZE_BUCKETS = 36 };

static inline int llane_size_bucket(uint64_t bytes)
{
    int bits = bytes > 1 ? 64 - __builtin_clzll(bytes - 1) : 0;
    return bits < LLANE_SIZE_BUCKETS ? bits : LLANE_SIZE_BUCKETS - 1;
}

static inline uint64_t llane_size_most_bytes(int bucket)
{
    return bucket < LLANE_SIZE_BUCKETS - 1 ? 1ull << bucket : UINT64_MAX;
}

#endif
