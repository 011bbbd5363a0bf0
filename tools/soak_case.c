/* What a case of the soak is. */
#include "soak.h"

static const struct soak_type types[] = {
    {"int8", ncclInt8, 1, 1, 0, 0},
    {"uint8", ncclUint8, 1, 0, 0, 0},
    {"int32", ncclInt32, 4, 1, 0, 0},
    {"uint32", ncclUint32, 4, 0, 0, 0},
    {"int64", ncclInt64, 8, 1, 0, 0},
    {"uint64", ncclUint64, 8, 0, 0, 0},
    {"float16", ncclFloat16, 2, 1, 5, 10},
    {"float32", ncclFloat32, 4, 1, 8, 23},
    {"float64", ncclFloat64, 8, 1, 11, 52},
    {"bfloat16", ncclBfloat16, 2, 1, 8, 7},
    {"float8e4m3", ncclFloat8e4m3, 1, 1, 4, 3},
    {"float8e5m2", ncclFloat8e5m2, 1, 1, 5, 2},
};
enum { N_TYPES = sizeof types / sizeof *types, N_OPS = 5, MAX_SHIFT = 8 };

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

const char *soak_op_name(ncclRedOp_t op)
{
    static const char *const names[] = {"sum", "prod", "max", "min", "avg"};
    return names[op];
}

/* Averages of floats are exact for a power of two of ranks alone. */
static ncclRedOp_t fit_op(ncclRedOp_t op, const struct soak_type *type, int n_ranks)
{
    int is_power = (n_ranks & (n_ranks - 1)) == 0;
    return op == ncclAvg && type->mantissa_bits && !is_power ? ncclSum : op;
}

struct soak_case soak_case_of(uint64_t seed, uint64_t number, size_t max_bytes, int n_ranks)
{
    uint64_t dice = mix(seed, number), more = mix(dice, 1);
    struct soak_case c = {.number = number, .seed = dice, .type = &types[dice % N_TYPES]};
    /* As many of 4 to 8 bytes as of 128 to 256 KiB. */
    int n_octaves = 1;
    while ((max_bytes >> n_octaves) != 0) {
        n_octaves++;
    }
    uint64_t below = 1ull << (1 + (more >> 8) % (uint64_t)n_octaves);
    uint64_t bytes = below / 2 + mix(dice, 2) % (below / 2 ? below / 2 : 1);
    bytes = bytes > max_bytes ? max_bytes : bytes;
    if (more >> 4 & 1) {
        bytes &= ~(uint64_t)(16 * (unsigned)n_ranks - 1); /* what has code of its own */
    }
    c.op = fit_op((ncclRedOp_t)(dice / N_TYPES % N_OPS), c.type, n_ranks);
    c.count = bytes / c.type->bytes ? bytes / c.type->bytes : 1;
    c.is_in_place = (int)(more & 1);
    c.is_graph = (int)(more >> 1 & 1);
    c.n_ops = 1 + (int)((more >> 16) % SOAK_MAX_OPS);
    c.n_replays = 1 + (int)((more >> 24) % SOAK_MAX_REPLAYS);
    return c;
}

size_t soak_case_shift(const struct soak_case *c, int rank, int op, int is_out)
{
    uint64_t dice = mix(c->seed, (uint64_t)(rank * SOAK_MAX_OPS + op));
    int is_shifted = dice >> 8 & 1;
    return is_shifted ? mix(dice, (uint64_t)(is_out && !c->is_in_place)) % MAX_SHIFT : 0;
}

uint64_t soak_case_seed(const struct soak_case *c, int op, int replay)
{
    return mix(c->seed, (uint64_t)(1000 + replay * SOAK_MAX_OPS + op));
}
