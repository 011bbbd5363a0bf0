/*
 * The caller's own buffers, read and written a line's payload at a time: line i is the 8 bytes of
 * the message from 8*i on. Element-aligned pointers are enough; alignment picks how the local buffer
 * is touched and never what a line holds. Lanes behind the message's end read as zero bits and are
 * not written.
 */
#ifndef LLANE_KERNELS_LOCAL_CUH
#define LLANE_KERNELS_LOCAL_CUH

#include "reduce.cuh"

LLANE_DEVICE bool llane_local_is_aligned(const void *buffer)
{
    return ((uintptr_t)buffer & (LLANE_LINE_PAYLOAD - 1)) == 0;
}

template <class T> LLANE_DEVICE uint32_t llane_local_n_lines(uint64_t count)
{
    return (uint32_t)((count + T::LANES - 1) / T::LANES);
}

template <class T>
LLANE_DEVICE uint64_t llane_local_load(const void *buffer, uint64_t count, uint32_t line)
{
    const typename T::bits *elements = (const typename T::bits *)buffer + (uint64_t)line * T::LANES;
    const uint64_t n_left = count - (uint64_t)line * T::LANES;
    uint64_t payload = 0;

    if (n_left >= T::LANES && llane_local_is_aligned(buffer))
        return *(const uint64_t *)elements;
    LLANE_UNROLL
    for (int lane = 0; lane < T::LANES; lane++)
        if ((uint64_t)lane < n_left)
            payload |= (uint64_t)elements[lane] << (lane * 8 * (int)sizeof(typename T::bits));
    return payload;
}

template <class T>
LLANE_DEVICE void llane_local_store(void *buffer, uint64_t count, uint32_t line, uint64_t payload)
{
    typename T::bits *elements = (typename T::bits *)buffer + (uint64_t)line * T::LANES;
    const uint64_t n_left = count - (uint64_t)line * T::LANES;

    if (n_left >= T::LANES && llane_local_is_aligned(buffer)) {
        *(uint64_t *)elements = payload;
        return;
    }
    LLANE_UNROLL
    for (int lane = 0; lane < T::LANES; lane++)
        if ((uint64_t)lane < n_left)
            elements[lane] = llane_payload_lane<T>(payload, lane);
}

#endif
