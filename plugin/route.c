#include "route.h"

/*
 * Which algorithm and packets carry a message, by rank count: the one table. A row holds up to
 * n_ranks ranks; sizes are the largest message in bytes, as measured on one H200 (docs/tuning.md):
 * floats go by LL up to ll_one_shot, then by sentinel packets; sentinel messages one-shot up to
 * sentinel_one_shot, LL messages (all integers) up to integer_one_shot, larger ones two-shot.
 */
static const struct row {
    uint32_t n_ranks;
    uint32_t n_threads; /* of a block, while blocks are few */
    uint64_t ll_one_shot, sentinel_one_shot, integer_one_shot;
} rows[] = {
    {2, 256, 4 << 10, 1 << 20, 512 << 10},
    {4, 128, 1 << 10, 256 << 10, 128 << 10},
    {8, 128, 0, 64 << 10, 32 << 10},
    {LLANE_MAX_RANKS, 128, 0, 32 << 10, 16 << 10},
};

/*
 * The same where a pair of ranks goes through host memory. There one-shot reads n-1 messages over a
 * rank's link and two-shot 2(n-1)/n, for two more ways over it: not yet measured. No size here is
 * above that of the rows above, as private slots are made for those.
 */
static const struct row host_rows[] = {
    {2, 256, 1 << 10, 1 << 20, 512 << 10},
    {4, 256, 512, 32 << 10, 16 << 10},
    {8, 256, 0, 16 << 10, 8 << 10},
    {LLANE_MAX_RANKS, 256, 0, 8 << 10, 4 << 10},
};

enum { BLOCKS_WIDE = 32, THREADS_WIDE = 256 };

const char *llane_route_text(enum llane_route route)
{
    static const char *const texts[] = {
#define LLANE_ROUTE_STRING(name, text) text,
        LLANE_ROUTES(LLANE_ROUTE_STRING)
#undef LLANE_ROUTE_STRING
    };
    return (unsigned)route < LLANE_N_ROUTES ? texts[route] : "unknown";
}

size_t llane_route_type_bytes(ncclDataType_t datatype)
{
    switch (datatype) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    }
    return 0;
}

static int is_float(ncclDataType_t datatype)
{
    return datatype >= ncclFloat16;
}

static int is_float8(ncclDataType_t datatype)
{
    return datatype == ncclFloat8e4m3 || datatype == ncclFloat8e5m2;
}

enum llane_route llane_route_choose(const struct llane_route_limits *limits, size_t count,
                                    ncclDataType_t datatype, ncclRedOp_t op)
{
    size_t size = llane_route_type_bytes(datatype);
    if (!size || (is_float8(datatype) && !limits->has_float8)) {
        return LLANE_ROUTE_DATATYPE;
    }
    if (op < ncclSum || op > ncclAvg) {
        return LLANE_ROUTE_OPERATION;
    }
    if (count == 0) {
        return LLANE_ROUTE_EMPTY;
    }
    if (count > limits->max_bytes / size) {
        return LLANE_ROUTE_TOO_LARGE;
    }
    return count * size < limits->min_bytes ? LLANE_ROUTE_TOO_SMALL : LLANE_ROUTE_LANE;
}

static const struct row *first_row_of(const struct row *row, uint32_t n_ranks)
{
    while (row->n_ranks < n_ranks) {
        row++;
    }
    return row;
}

static const struct row *row_of(const struct llane_route_limits *limits)
{
    return first_row_of(limits->has_host_pairs ? host_rows : rows, limits->n_ranks);
}

static uint64_t payload_bytes(enum llane_packet packet)
{
    return packet == LLANE_LL ? LLANE_LL_PAYLOAD : LLANE_PACKET_BYTES;
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* Over host memory there is no ring: its slots are a neighbour's alone. */
static uint32_t algorithm_of(const struct llane_route_limits *limits)
{
    return limits->algorithm == 1 + LLANE_RING && limits->has_host_pairs ? 1 + LLANE_TWO_SHOT
                                                                         : limits->algorithm;
}

static void choose_kernel(const struct llane_route_limits *limits, uint64_t bytes, int is_of_floats,
                          struct llane_plan *plan)
{
    const struct row *row = row_of(limits);
    if (is_of_floats && algorithm_of(limits) != 1 + LLANE_RING) {
        plan->packet = limits->packet              ? (enum llane_packet)(limits->packet - 1)
                       : bytes <= row->ll_one_shot ? LLANE_LL
                                                   : LLANE_SENTINEL;
    } else {
        plan->packet = LLANE_LL;
    }
    uint64_t one_shot = plan->packet == LLANE_LL ? row->integer_one_shot : row->sentinel_one_shot;
    uint32_t algorithm = algorithm_of(limits);
    plan->algorithm = algorithm           ? (enum llane_algorithm)(algorithm - 1)
                      : bytes <= one_shot ? LLANE_ONE_SHOT
                                          : LLANE_TWO_SHOT;
}

/* Blocks of n_threads that may run at once. */
static uint32_t most_blocks(const struct llane_route_limits *limits, uint32_t n_threads)
{
    int width = 0;
    while ((uint32_t)LLANE_MIN_THREADS << width < n_threads) {
        width++;
    }
    uint32_t fit = limits->fit[width];
    uint32_t most = fit < limits->max_blocks ? fit : limits->max_blocks;
    return most ? most : 1;
}

/* A packet a thread as long as blocks last: first more blocks, then wider ones. */
static void choose_width(const struct llane_route_limits *limits, uint64_t bytes,
                         struct llane_plan *plan)
{
    uint64_t packets = divide_up(bytes, payload_bytes(plan->packet));
    if (plan->algorithm != LLANE_ONE_SHOT) {
        packets = divide_up(packets, limits->n_ranks);
    }
    uint32_t threads = row_of(limits)->n_threads;
    if (packets <= LLANE_MIN_THREADS) {
        threads = LLANE_MIN_THREADS;
    } else if (packets > (uint64_t)BLOCKS_WIDE * threads) {
        threads = THREADS_WIDE;
    }
    while (threads < LLANE_MAX_THREADS && packets > (uint64_t)limits->max_blocks * threads) {
        threads *= 2;
    }
    plan->n_threads = limits->n_threads ? limits->n_threads : threads;
    uint64_t blocks = limits->n_blocks ? limits->n_blocks : divide_up(packets, plan->n_threads);
    uint32_t most = most_blocks(limits, plan->n_threads);
    plan->n_blocks = blocks < most ? (uint32_t)blocks : most;
}

static enum llane_kernel_op op_of(ncclRedOp_t op)
{
    switch (op) {
    case ncclProd:
        return LLANE_OP_PROD;
    case ncclMax:
        return LLANE_OP_MAX;
    case ncclMin:
        return LLANE_OP_MIN;
    case ncclAvg:
        return LLANE_OP_AVG;
    default:
        return LLANE_OP_SUM;
    }
}

struct llane_plan llane_route_plan(const struct llane_route_limits *limits, size_t count,
                                   ncclDataType_t datatype, ncclRedOp_t op)
{
    uint64_t bytes = count * llane_route_type_bytes(datatype);
    struct llane_plan plan = {.type = (enum llane_type)datatype, .op = op_of(op)};
    choose_kernel(limits, bytes, is_float(datatype), &plan);
    choose_width(limits, bytes, &plan);
    plan.chunk_packets = (uint32_t)divide_up(limits->chunk_bytes, LLANE_LL_PAYLOAD);
    return plan;
}

const char *llane_plan_text(const struct llane_plan *plan)
{
    static const char *const texts[LLANE_N_ALGORITHMS][LLANE_N_PACKETS] = {
        {"one-shot LL", "one-shot sentinel"},
        {"two-shot LL", "two-shot sentinel"},
        {"ring LL", "none"},
    };
    return texts[plan->algorithm][plan->packet];
}

/* What table.h asks of a slot for a ring: both of its channels where they share one. */
static uint64_t ring_packets(uint64_t message, uint32_t n_ranks)
{
    uint64_t half = divide_up(divide_up(message, n_ranks), 2);
    return 2ull * (n_ranks - 1) * half * (n_ranks == 2 ? 2 : 1);
}

/* Forced by name, every algorithm has to be able to carry every size. */
uint64_t llane_route_slot_bytes(const struct llane_route_limits *limits, enum llane_packet packet)
{
    const struct row *row = first_row_of(rows, limits->n_ranks);
    uint64_t max = limits->max_bytes ? limits->max_bytes : 1;
    uint64_t one_shot = packet == LLANE_LL ? row->integer_one_shot : row->sentinel_one_shot;
    if (limits->algorithm == 1 + LLANE_ONE_SHOT || one_shot > max) {
        one_shot = max;
    }
    uint64_t message = divide_up(one_shot, payload_bytes(packet));
    uint64_t shards = 2 * divide_up(divide_up(max, payload_bytes(packet)), limits->n_ranks);
    uint64_t packets = message > shards ? message : shards;
    if (limits->algorithm == 1 + LLANE_RING) {
        packets = ring_packets(divide_up(max, payload_bytes(packet)), limits->n_ranks);
    }
    uint64_t grain = 2ull * LLANE_STRIPE_BYTES;
    return divide_up(packets * LLANE_PACKET_BYTES, grain) * grain;
}

/* n_ranks shards, rounded up, whatever the algorithm. */
uint64_t llane_route_shared_slot_bytes(const struct llane_route_limits *limits,
                                       enum llane_packet packet)
{
    uint64_t packets = divide_up(limits->max_bytes, payload_bytes(packet)) + limits->n_ranks;
    return divide_up(packets * LLANE_PACKET_BYTES, LLANE_STRIPE_BYTES) * LLANE_STRIPE_BYTES;
}
