/* LL lines in the words of one_shot.cuh: payloads of 8 bytes as plain integers. */
#ifndef LLANE_KERNELS_LINES_CUH
#define LLANE_KERNELS_LINES_CUH

#include "local.cuh"

template <class T> struct llane_line_sum {
    llane_acc<T, 1> acc;
};

template <class T> LLANE_DEVICE uint32_t llane_local_n_lines(uint64_t count)
{
    return llane_local_n_packets<T, 1>(count);
}

template <class T>
LLANE_DEVICE uint64_t llane_local_load(const void *buffer, uint64_t count, uint32_t line)
{
    llane_payload<1> p = llane_local_load<T, 1>(buffer, count, line);

    llane_payload_contribute<T, 1>(&p);
    return p.word[0];
}

template <class T>
LLANE_DEVICE void llane_local_store(void *buffer, uint64_t count, uint32_t line, uint64_t payload)
{
    const llane_payload<1> p = {{payload}};

    llane_local_store<T, 1>(buffer, count, line, p);
}

template <class T, int GROUP>
LLANE_DEVICE void llane_line_add(struct llane_line_sum<T> *sum, uint32_t op,
                                 const uint64_t *payloads, uint32_t n_payloads, bool is_first,
                                 typename T::wide f)
{
    llane_payload<1> p[GROUP];

    LLANE_UNROLL
    for (int i = 0; i < GROUP; i++)
        p[i].word[0] = payloads[i];
    llane_acc_add<T, 1, GROUP>(&sum->acc, op, p, n_payloads, is_first, f);
}

template <class T>
LLANE_DEVICE uint64_t llane_line_finish(const struct llane_line_sum<T> *sum, uint32_t op,
                                        typename T::wide f)
{
    return llane_acc_finish<T, 1>(&sum->acc, op, f).word[0];
}

#endif
