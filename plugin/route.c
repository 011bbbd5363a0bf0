#include "route.h"

/*
 * Where the thresholds come from: the model (model.h), or limits->tuning where calibration or a file
 * filled it. Widths: as measured on one H200 (docs/tuning.md).
 */
enum { THREADS = 128, BLOCKS_WIDE = 32, THREADS_WIDE = 256 };

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

static const struct llane_tuning_choice *choice_for(const struct llane_route_limits *limits,
                                                    uint64_t bytes, ncclDataType_t datatype)
{
    enum llane_tuning_class of = is_float(datatype) ? LLANE_TUNING_FLOAT : LLANE_TUNING_INTEGER;
    return &limits->tuning.choice[of][llane_tuning_bucket(bytes)];
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
    if (count * size < limits->min_bytes) {
        return LLANE_ROUTE_TOO_SMALL;
    }
    return choice_for(limits, count * size, datatype)->path == LLANE_TUNING_NCCL
               ? LLANE_ROUTE_SLOWER
               : LLANE_ROUTE_LANE;
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* Ring and islands, which have LL packets and private slots only. */
static int is_private_ll(uint32_t algorithm)
{
    return algorithm == 1 + LLANE_RING || algorithm == 1 + LLANE_ISLANDS;
}

/* Over host memory slots are shared. */
static uint32_t algorithm_of(const struct llane_route_limits *limits)
{
    return is_private_ll(limits->algorithm) && limits->has_host_pairs ? 1 + LLANE_TWO_SHOT
                                                                      : limits->algorithm;
}

/*
 * The largest message that one-shot is taken for, but where it is forced: slots are sized for it. It
 * leaves calibration room around what the model finds best.
 */
static uint64_t one_shot_room(uint32_t n_ranks, enum llane_packet packet)
{
    uint64_t sentinel = (8ull << 20) / ((uint64_t)n_ranks * n_ranks);
    return packet == LLANE_LL ? sentinel / 2 : sentinel;
}

static int has_room(const struct llane_route_limits *limits, enum llane_algorithm algorithm,
                    enum llane_packet packet, uint64_t bytes)
{
    return algorithm != LLANE_ONE_SHOT || limits->algorithm == 1 + LLANE_ONE_SHOT ||
           bytes <= one_shot_room(limits->n_ranks, packet);
}

uint32_t llane_route_fit(uint32_t n_sms, uint32_t blocks_per_sm, uint32_t n_sharing)
{
    uint64_t fit = (uint64_t)n_sms * blocks_per_sm / n_sharing;
    uint64_t most = n_sharing == 1 ? LLANE_MAX_BLOCKS : UINT32_MAX;
    return (uint32_t)(fit < most ? fit : most);
}

/* Blocks of n_threads that may run at once. */
static uint32_t most_blocks(const struct llane_route_limits *limits, uint32_t n_threads)
{
    uint32_t fit = limits->fit[llane_width_of(n_threads)];
    uint32_t most = fit < limits->max_blocks ? fit : limits->max_blocks;
    return most ? most : 1;
}

/* Of the widest launch that calls may have. */
static uint32_t most_threads(const struct llane_route_limits *limits)
{
    uint32_t most = 0;
    for (uint32_t threads = LLANE_MIN_THREADS; threads <= LLANE_MAX_THREADS; threads *= 2) {
        uint32_t wide = limits->n_threads ? limits->n_threads : threads;
        uint32_t blocks = most_blocks(limits, wide);
        if (limits->n_blocks && limits->n_blocks < blocks) {
            blocks = limits->n_blocks;
        }
        most = blocks * wide > most ? blocks * wide : most;
    }
    return most;
}

static struct llane_model_machine machine_of(const struct llane_route_limits *limits)
{
    return (struct llane_model_machine){
        .memory = limits->memory,
        .n_ranks = limits->n_ranks,
        .ranks_per_gpu = limits->ranks_per_gpu,
        .n_sockets = limits->n_sockets,
        .generation = limits->generation,
        .n_threads = most_threads(limits),
    };
}

/* What the model finds fastest; its time. */
static double model_best(const struct llane_route_limits *limits, uint64_t bytes,
                         enum llane_tuning_class of, struct llane_tuning_choice *out)
{
    const struct llane_model_machine machine = machine_of(limits);
    double best_us = 0;
    *out = (struct llane_tuning_choice){.path = LLANE_TUNING_DEFAULT};
    for (int a = LLANE_ONE_SHOT; a <= LLANE_TWO_SHOT; a++) {
        for (int p = LLANE_LL; p <= (of == LLANE_TUNING_FLOAT ? LLANE_SENTINEL : LLANE_LL); p++) {
            enum llane_algorithm algorithm = (enum llane_algorithm)a;
            enum llane_packet packet = (enum llane_packet)p;
            double us = llane_model_lane_us(&machine, algorithm, packet, bytes);
            if (has_room(limits, algorithm, packet, bytes) &&
                (out->path == LLANE_TUNING_DEFAULT || us < best_us)) {
                *out = (struct llane_tuning_choice){
                    .path = LLANE_TUNING_LANE, .algorithm = (uint8_t)a, .packet = (uint8_t)p};
                best_us = us;
            }
        }
    }
    return best_us;
}

/* What carries bytes, whatever the table says about NCCL. Forced kernels come before it. */
static struct llane_tuning_choice lane_choice(const struct llane_route_limits *limits,
                                              uint64_t bytes, ncclDataType_t datatype)
{
    struct llane_tuning_choice choice = *choice_for(limits, bytes, datatype);
    enum llane_tuning_class of = is_float(datatype) ? LLANE_TUNING_FLOAT : LLANE_TUNING_INTEGER;
    if (choice.path != LLANE_TUNING_LANE) {
        (void)model_best(limits, bytes, of, &choice);
    }
    if (limits->packet && of == LLANE_TUNING_FLOAT) {
        choice.packet = (uint8_t)(limits->packet - 1);
    }
    uint32_t algorithm = algorithm_of(limits);
    if (is_private_ll(algorithm)) {
        choice.packet = LLANE_LL;
    }
    if (algorithm) {
        choice.algorithm = (uint8_t)(algorithm - 1);
    } else if (!has_room(limits, (enum llane_algorithm)choice.algorithm,
                         (enum llane_packet)choice.packet, bytes)) {
        choice.algorithm = LLANE_TWO_SHOT;
    }
    return choice;
}

static uint32_t n_shards(enum llane_algorithm algorithm, uint32_t n_ranks)
{
    return algorithm == LLANE_ONE_SHOT ? 1 : algorithm == LLANE_ISLANDS ? n_ranks / 2 : n_ranks;
}

/* A packet a thread as long as blocks last: first more blocks, as long as each finds a multiprocessor of
 * its own beside the other ranks', then wider ones. */
static uint32_t threads_by_size(const struct llane_route_limits *limits, uint64_t packets)
{
    uint32_t threads = limits->n_ranks <= 2 && !limits->has_host_pairs ? THREADS_WIDE : THREADS;
    uint32_t own = limits->fit[LLANE_N_WIDTHS - 1];
    uint32_t blocks = own < BLOCKS_WIDE ? own : BLOCKS_WIDE;
    if (packets <= LLANE_MIN_THREADS) {
        threads = LLANE_MIN_THREADS;
    } else if (packets > (uint64_t)blocks * threads) {
        threads = THREADS_WIDE;
    }
    while (threads < LLANE_MAX_THREADS && packets > (uint64_t)limits->max_blocks * threads) {
        threads *= 2;
    }
    return threads;
}

static void choose_width(const struct llane_route_limits *limits, uint64_t bytes,
                         const struct llane_tuning_choice *choice, struct llane_plan *plan)
{
    uint64_t packets = divide_up(bytes, llane_payload_bytes(plan->packet));
    packets = divide_up(packets, n_shards(plan->algorithm, limits->n_ranks));
    plan->n_threads = limits->n_threads   ? limits->n_threads
                      : choice->n_threads ? choice->n_threads
                                          : threads_by_size(limits, packets);
    uint64_t blocks = divide_up(packets, plan->n_threads);
    if (limits->n_blocks) {
        blocks = limits->n_blocks;
    } else if (choice->n_blocks && blocks > choice->n_blocks) {
        blocks = choice->n_blocks;
    }
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

static struct llane_plan plan_of(const struct llane_route_limits *limits, uint64_t bytes,
                                 const struct llane_tuning_choice *choice)
{
    struct llane_plan plan = {.algorithm = (enum llane_algorithm)choice->algorithm,
                              .packet = (enum llane_packet)choice->packet};
    choose_width(limits, bytes, choice, &plan);
    return plan;
}

struct llane_plan llane_route_plan(const struct llane_route_limits *limits, size_t count,
                                   ncclDataType_t datatype, ncclRedOp_t op)
{
    uint64_t bytes = count * llane_route_type_bytes(datatype);
    struct llane_tuning_choice choice = lane_choice(limits, bytes, datatype);
    struct llane_plan plan = plan_of(limits, bytes, &choice);
    plan.type = (enum llane_type)datatype;
    plan.op = op_of(op);
    plan.chunk_packets = (uint32_t)divide_up(limits->chunk_bytes, LLANE_LL_PAYLOAD);
    return plan;
}

/* ---- the table ---- */

double llane_route_lane_us(const struct llane_route_limits *limits, enum llane_algorithm algorithm,
                           enum llane_packet packet, uint64_t bytes)
{
    const struct llane_model_machine machine = machine_of(limits);
    return llane_model_lane_us(&machine, algorithm, packet, bytes);
}

double llane_route_nccl_us(const struct llane_route_limits *limits, uint64_t bytes)
{
    const struct llane_model_machine machine = machine_of(limits);
    return llane_model_nccl_us(&machine, bytes);
}

void llane_route_fill_defaults(struct llane_route_limits *limits)
{
    int is_forced = limits->algorithm || limits->packet;
    for (int of = 0; of < LLANE_TUNING_CLASSES; of++) {
        for (uint32_t b = 0; b < LLANE_TUNING_BUCKETS; b++) {
            struct llane_tuning_choice *choice = &limits->tuning.choice[of][b];
            uint64_t bytes = llane_tuning_bucket_bytes(b);
            if (choice->path != LLANE_TUNING_DEFAULT) {
                continue;
            }
            double us = model_best(limits, bytes, (enum llane_tuning_class)of, choice);
            if (!is_forced && llane_tuning_is_faster(llane_route_nccl_us(limits, bytes), us)) {
                choice->path = LLANE_TUNING_NCCL;
            }
        }
    }
}

static int is_same_launch(const struct llane_plan *a, const struct llane_plan *b)
{
    return a->algorithm == b->algorithm && a->packet == b->packet && a->n_blocks == b->n_blocks &&
           a->n_threads == b->n_threads;
}

/* The place of the choice among those found so far, entered at the end if new; -1: no room. */
static int enter(const struct llane_route_limits *limits, uint64_t bytes,
                 const struct llane_tuning_choice *choice, struct llane_tuning_choice *found,
                 int *n)
{
    struct llane_plan plan = plan_of(limits, bytes, choice);
    for (int i = 0; i < *n; i++) {
        struct llane_plan other = plan_of(limits, bytes, &found[i]);
        if (is_same_launch(&plan, &other)) {
            return i;
        }
    }
    if (*n == LLANE_TUNING_CANDIDATES) {
        return -1;
    }
    found[*n] = *choice;
    return (*n)++;
}

int llane_route_candidates(const struct llane_route_limits *limits, uint32_t bucket,
                           struct llane_tuning_choice out[LLANE_TUNING_CANDIDATES],
                           uint32_t usable_out[LLANE_TUNING_CLASSES],
                           int default_out[LLANE_TUNING_CLASSES])
{
    static const struct {
        uint8_t n_blocks;
        uint16_t n_threads;
    } widths[] = {{0, 0}, {0, 512}, {16, 0}};
    uint64_t bytes = llane_tuning_bucket_bytes(bucket);
    int n = 0;
    for (int of = 0; of < LLANE_TUNING_CLASSES; of++) {
        struct llane_tuning_choice choice;
        (void)model_best(limits, bytes, (enum llane_tuning_class)of, &choice);
        default_out[of] = enter(limits, bytes, &choice, out, &n);
    }
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        for (int a = LLANE_ONE_SHOT; a <= LLANE_TWO_SHOT; a++) {
            for (int p = 0; p < LLANE_N_PACKETS; p++) {
                const struct llane_tuning_choice choice = {LLANE_TUNING_LANE, (uint8_t)a,
                                                           (uint8_t)p, widths[w].n_blocks,
                                                           widths[w].n_threads};
                if (has_room(limits, (enum llane_algorithm)a, (enum llane_packet)p, bytes)) {
                    (void)enter(limits, bytes, &choice, out, &n);
                }
            }
        }
    }
    usable_out[LLANE_TUNING_INTEGER] = usable_out[LLANE_TUNING_FLOAT] = 0;
    for (int i = 0; i < n; i++) {
        usable_out[LLANE_TUNING_FLOAT] |= 1u << i;
        usable_out[LLANE_TUNING_INTEGER] |= out[i].packet == LLANE_LL ? 1u << i : 0;
    }
    return n;
}

static int can_use(const struct llane_route_limits *limits, enum llane_tuning_class of,
                   uint32_t bucket)
{
    const struct llane_tuning_choice *c = &limits->tuning.choice[of][bucket];
    enum llane_packet last = of == LLANE_TUNING_FLOAT ? LLANE_SENTINEL : LLANE_LL;
    int is_whole = c->n_threads % 32 == 0 && c->n_threads <= LLANE_MAX_THREADS &&
                   (!c->n_threads || c->n_threads >= LLANE_MIN_THREADS);
    return c->path != LLANE_TUNING_LANE
               ? c->path == LLANE_TUNING_DEFAULT || c->path == LLANE_TUNING_NCCL
               : c->algorithm <= LLANE_TWO_SHOT && c->packet <= last && is_whole &&
                     c->n_blocks <= LLANE_MAX_BLOCKS &&
                     has_room(limits, (enum llane_algorithm)c->algorithm,
                              (enum llane_packet)c->packet, llane_tuning_bucket_bytes(bucket));
}

int llane_route_can_use(const struct llane_route_limits *limits, const struct llane_tuning *tuning)
{
    struct llane_route_limits with = *limits;
    int is_usable = 1;
    with.tuning = *tuning;
    for (int of = 0; of < LLANE_TUNING_CLASSES; of++) {
        for (uint32_t b = 0; b < LLANE_TUNING_BUCKETS; b++) {
            is_usable &= can_use(&with, (enum llane_tuning_class)of, b);
        }
    }
    return is_usable;
}

const char *llane_plan_text(const struct llane_plan *plan)
{
    static const char *const texts[LLANE_N_ALGORITHMS][LLANE_N_PACKETS] = {
        {"one-shot LL", "one-shot sentinel"},
        {"two-shot LL", "two-shot sentinel"},
        {"ring LL", "none"},
        {"islands LL", "none"},
    };
    return texts[plan->algorithm][plan->packet];
}

/* What table.h asks of a slot for the algorithms that only a name chooses. */
static uint64_t named_packets(const struct llane_route_limits *limits, uint64_t message)
{
    uint32_t n_ranks = limits->n_ranks;
    uint64_t half = divide_up(divide_up(message, n_ranks), 2);
    switch (limits->algorithm) {
    case 1 + LLANE_RING:
        return 2ull * (n_ranks - 1) * half * (n_ranks == 2 ? 2 : 1);
    case 1 + LLANE_ISLANDS:
        return 5 * divide_up(message, n_ranks / 2);
    default:
        return 0;
    }
}

/* Forced by name, every algorithm has to be able to carry every size. */
uint64_t llane_route_slot_bytes(const struct llane_route_limits *limits, enum llane_packet packet)
{
    uint64_t max = limits->max_bytes ? limits->max_bytes : 1;
    uint64_t one_shot = one_shot_room(limits->n_ranks, packet);
    if (limits->algorithm == 1 + LLANE_ONE_SHOT || one_shot > max) {
        one_shot = max;
    }
    uint64_t message = divide_up(one_shot, llane_payload_bytes(packet));
    uint64_t shards = 2 * divide_up(divide_up(max, llane_payload_bytes(packet)), limits->n_ranks);
    uint64_t packets = message > shards ? message : shards;
    uint64_t named = named_packets(limits, divide_up(max, llane_payload_bytes(packet)));
    packets = named > packets ? named : packets;
    uint64_t grain = 2ull * LLANE_STRIPE_BYTES;
    return divide_up(packets * LLANE_PACKET_BYTES, grain) * grain;
}

/* n_ranks shards, rounded up, whatever the algorithm. */
uint64_t llane_route_shared_slot_bytes(const struct llane_route_limits *limits,
                                       enum llane_packet packet)
{
    uint64_t packets = divide_up(limits->max_bytes, llane_payload_bytes(packet)) + limits->n_ranks;
    return divide_up(packets * LLANE_PACKET_BYTES, LLANE_STRIPE_BYTES) * LLANE_STRIPE_BYTES;
}
