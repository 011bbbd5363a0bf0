// The GPU's own arithmetic, conversions and buffer accesses give the bits that test_reduce proves of the host's.
/*
 * Every float32 through each narrowing against the one done by hand; all types, operations and
 * awkward values against kernel_oracle.h; every alignment and tail. Exits 0, 1, or 77 without a GPU.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../unit/kernel_oracle.h"
#include "kernels/local.cuh"

#define MUST(call)                                                                                 \
    do {                                                                                           \
        const cudaError_t err = (call);                                                            \
                                                                                                   \
        if (err != cudaSuccess) {                                                                  \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString(err));                                                      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static unsigned n_failed;

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;

    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static void *shared(size_t bytes)
{
    void *p;

    MUST(cudaMallocManaged(&p, bytes));
    memset(p, 0, bytes);
    return p;
}

static void finish(void)
{
    MUST(cudaGetLastError());
    MUST(cudaDeviceSynchronize());
}

/* ---- every float32 ---- */

template <int FRACTION, int BIAS, int LARGEST, int NAN_BITS>
__device__ uint32_t narrow_by_hand(float x)
{
    const uint32_t sign = llane_float_bits(x) >> 31 << (sizeof(uint32_t) * 8 - 1);

    if (x != x)
        return NAN_BITS;
    return sign >> (NAN_BITS > 0xff ? 16 : 24) | llane_small_narrow<FRACTION, BIAS, LARGEST>(x);
}

__global__ void narrow_all(unsigned long long *n_wrong, uint32_t *example)
{
    const uint64_t stride = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < 1ull << 32; i += stride) {
        const float x = llane_float_from((uint32_t)i);
        const uint32_t rounded = (uint32_t)((i + 0x7fff + (i >> 16 & 1)) >> 16);
        const bool is_wrong[4] = {
            llane_float16::narrow(x) != narrow_by_hand<10, 15, 0x7c00, 0x7fff>(x),
            llane_bfloat16::narrow(x) != (x != x ? 0x7fff : rounded),
            llane_float8_e4m3::narrow(x) != narrow_by_hand<3, 7, 0x7e, 0x7f>(x),
            llane_float8_e5m2::narrow(x) != narrow_by_hand<2, 15, 0x7b, 0x7f>(x)};

        for (int k = 0; k < 4; k++) {
            if (is_wrong[k]) {
                atomicAdd(&n_wrong[k], 1);
                example[k] = (uint32_t)i;
            }
        }
    }
}

static void check_narrow(void)
{
    static const char *const names[] = {"float16", "bfloat16", "float8_e4m3", "float8_e5m2"};
    unsigned long long *n_wrong = (unsigned long long *)shared(4 * sizeof(*n_wrong));
    uint32_t *example = (uint32_t *)shared(4 * sizeof(*example));

    narrow_all<<<2048, 256>>>(n_wrong, example);
    finish();
    for (int k = 0; k < 4; k++) {
        printf("%s: %llu of 2^32 floats are narrowed otherwise than by hand", names[k], n_wrong[k]);
        printf(n_wrong[k] ? ", %#x for one\n" : "\n", example[k]);
        n_failed += n_wrong[k] != 0;
    }
}

/* ---- operations ---- */

enum { N_PACKETS = 65536 };

/* payloads: all packets of rank 0, then of rank 1, ... */
template <class T, int W>
__global__ void combine(uint32_t op, const llane_payload<W> *payloads, llane_payload<W> *out,
                        uint32_t n_ranks)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const typename T::wide f = llane_acc_factor<T>(n_ranks);
    llane_acc<T, W> acc;

    for (uint32_t base = 0; base < n_ranks; base += 4) {
        llane_payload<W> group[4];

        for (uint32_t g = 0; g < 4; g++) {
            group[g] = payloads[(base + g < n_ranks ? base + g : 0) * N_PACKETS + i];
            llane_payload_contribute<T, W>(&group[g]);
        }
        llane_acc_add<T, W, 4>(&acc, op, group, n_ranks - base, base == 0, f);
    }
    out[i] = llane_acc_finish<T, W>(&acc, op, f);
}

/* Element `lane` of packet i of a rank: two ranks see every pattern of 16 bits. */
static uint64_t element(const struct format *f, uint32_t n_ranks, uint32_t rank, uint32_t i,
                        uint32_t lane)
{
    const uint64_t partners[] = {0, 1, format_nan(f), format_sign_bit(f)};
    const uint64_t h = mix(mix(n_ranks, i), mix(rank, lane));
    const uint32_t kind = i / 4 % (ORACLE_N_SPICES + 1);

    if (n_ranks == 2 && f->bytes <= 2 && lane < 4)
        return lane / 2 == rank ? i & format_all_ones(f) : partners[(lane + i / 256) % 4];
    return kind < ORACLE_N_SPICES ? oracle_spiced_bits(f, h, kind, rank == i / 40 % n_ranks)
                                  : oracle_plain_bits(f, h);
}

template <class T, int W> static void check_combine(enum llane_type type, uint32_t n_ranks)
{
    const struct format *f = format_of(type);
    const uint32_t n_lanes = W * (uint32_t)T::LANES;
    const uint32_t n_packets = n_ranks == 2 ? N_PACKETS : N_PACKETS / 16;
    const size_t bytes = N_PACKETS * sizeof(llane_payload<W>);
    uint8_t *in = (uint8_t *)shared(bytes * n_ranks), *out = (uint8_t *)shared(bytes);

    for (uint32_t r = 0; r < n_ranks; r++)
        for (uint32_t i = 0; i < n_packets; i++)
            for (uint32_t lane = 0; lane < n_lanes; lane++)
                oracle_store(f, in + r * bytes + (i * n_lanes + lane) * f->bytes,
                             element(f, n_ranks, r, i, lane));
    for (uint32_t op = 0; op < LLANE_N_OPS; op++) {
        unsigned n_wrong = 0;

        combine<T, W><<<n_packets / 256, 256>>>(op, (llane_payload<W> *)in, (llane_payload<W> *)out,
                                                n_ranks);
        finish();
        for (uint32_t i = 0; i < n_packets; i++) {
            for (uint32_t lane = 0; lane < n_lanes; lane++) {
                uint64_t bits[LLANE_MAX_RANKS], expected, got = 0;
                double distance;

                for (uint32_t r = 0; r < n_ranks; r++)
                    bits[r] = element(f, n_ranks, r, i, lane);
                expected = oracle_reduce(f, (enum llane_kernel_op)op, bits, n_ranks, &distance);
                memcpy(&got, out + (i * n_lanes + lane) * f->bytes, f->bytes);
                if (got == expected || n_wrong++ > 3)
                    continue;
                printf("%s, op %u, %u ranks: %#llx, not %#llx, of", f->name, op, n_ranks,
                       (unsigned long long)got, (unsigned long long)expected);
                for (uint32_t r = 0; r < n_ranks; r++)
                    printf(" %#llx", (unsigned long long)bits[r]);
                printf("\n");
            }
        }
        n_failed += n_wrong != 0;
    }
    MUST(cudaFree(in));
    MUST(cudaFree(out));
}

/* ---- the caller's buffers ---- */

template <class T, int W> __global__ void copy(const uint8_t *in, uint8_t *out, uint64_t count)
{
    for (uint32_t i = threadIdx.x; i < llane_local_n_packets<T, W>(count); i += blockDim.x)
        llane_local_store<T, W>(out, count, i, llane_local_load<T, W>(in, count, i));
}

template <class T, int W> static void check_local(enum llane_type type)
{
    enum { ROOM = 256, UNTOUCHED = 0xc3 };
    const uint32_t bytes = format_of(type)->bytes;
    uint8_t *in = (uint8_t *)shared(ROOM), *out = (uint8_t *)shared(ROOM);

    for (uint32_t i = 0; i < ROOM; i++)
        in[i] = (uint8_t)mix(9, i);
    for (uint32_t shift = 0; shift < 24; shift += bytes) {
        for (uint64_t count = 1; count <= 50; count += count < 20 ? 1 : 7) {
            uint8_t expected[ROOM];

            if (count * bytes > 150)
                break;
            memset(out, UNTOUCHED, ROOM);
            memset(expected, UNTOUCHED, ROOM);
            memcpy(expected + 16 - shift % 16, in + shift, count * bytes);
            copy<T, W><<<1, 32>>>(in + shift, out + 16 - shift % 16, count);
            finish();
            if (memcmp(out, expected, ROOM) != 0) {
                printf("%s: %u elements at %u copied wrongly\n", format_of(type)->name,
                       (unsigned)count, shift);
                n_failed++;
            }
        }
    }
    MUST(cudaFree(in));
    MUST(cudaFree(out));
}

template <class T> static void check_type(enum llane_type type)
{
    static const uint32_t n_ranks[] = {2, 3, 8, 16};

    for (uint32_t n : n_ranks) {
        check_combine<T, 1>(type, n);
        if (T::IS_FLOAT)
            check_combine<T, 2>(type, n);
    }
    check_local<T, 1>(type);
    check_local<T, 2>(type);
    printf("%s done\n", format_of(type)->name);
}

int main()
{
    int n_devices = 0;

    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    check_narrow();
    check_type<llane_int8>(LLANE_TYPE_I8);
    check_type<llane_uint8>(LLANE_TYPE_U8);
    check_type<llane_int32>(LLANE_TYPE_I32);
    check_type<llane_uint32>(LLANE_TYPE_U32);
    check_type<llane_int64>(LLANE_TYPE_I64);
    check_type<llane_uint64>(LLANE_TYPE_U64);
    check_type<llane_float16>(LLANE_TYPE_F16);
    check_type<llane_float32>(LLANE_TYPE_F32);
    check_type<llane_float64>(LLANE_TYPE_F64);
    check_type<llane_bfloat16>(LLANE_TYPE_BF16);
    check_type<llane_float8_e4m3>(LLANE_TYPE_E4M3);
    check_type<llane_float8_e5m2>(LLANE_TYPE_E5M2);
    printf(n_failed ? "%u checks failed\n" : "all right\n", n_failed);
    return n_failed != 0;
}
