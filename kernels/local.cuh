/*
 * The caller's own buffers, read and written a packet's payload at a time: packet i is the 8*W bytes
 * of the message from 8*W*i on. Element-aligned pointers are enough; alignment picks how the local
 * buffer is touched and never what a packet holds. Lanes behind the message's end read as zero bits
 * and are not written. index < llane_local_n_packets(count).
 */
#ifndef LLANE_KERNELS_LOCAL_CUH
#define LLANE_KERNELS_LOCAL_CUH

#include "reduce.cuh"

template <class T, int W> LLANE_DEVICE uint32_t llane_local_n_packets(uint64_t count)
{
    return (uint32_t)((count + W * T::LANES - 1) / (W * T::LANES));
}

template <int W> LLANE_DEVICE bool llane_local_is_aligned(const void *buffer)
{
    return ((uintptr_t)buffer & (sizeof(llane_payload<W>) - 1)) == 0;
}

template <class T, int W>
LLANE_DEVICE llane_payload<W> llane_local_load(const void *buffer, uint64_t count, uint32_t index)
{
    const uint64_t first = (uint64_t)index * (W * T::LANES);
    const typename T::bits *elements = (const typename T::bits *)buffer + first;
    const uint64_t n_left = count - first;
    llane_payload<W> p;

    if (n_left >= W * T::LANES && llane_local_is_aligned<W>(buffer))
        return *(const llane_payload<W> *)elements;
    LLANE_UNROLL
    for (int w = 0; w < W; w++) {
        p.word[w] = 0;
        LLANE_UNROLL
        for (int lane = 0; lane < T::LANES; lane++)
            if ((uint64_t)(w * T::LANES + lane) < n_left)
                p.word[w] |= (uint64_t)elements[w * T::LANES + lane]
                             << (lane * 8 * (int)sizeof(typename T::bits));
    }
    return p;
}

template <class T, int W>
LLANE_DEVICE void llane_local_store(void *buffer, uint64_t count, uint32_t index,
                                    const llane_payload<W> &p)
{
    const uint64_t first = (uint64_t)index * (W * T::LANES);
    typename T::bits *elements = (typename T::bits *)buffer + first;
    const uint64_t n_left = count - first;

    if (n_left >= W * T::LANES && llane_local_is_aligned<W>(buffer)) {
        *(llane_payload<W> *)elements = p;
        return;
    }
    LLANE_UNROLL
    for (int lane = 0; lane < W * T::LANES; lane++)
        if ((uint64_t)lane < n_left)
            elements[lane] = llane_payload_lane<T, W>(p, lane);
}

#endif
