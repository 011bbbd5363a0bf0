/*
 * What other ranks tell at set-up: identities, configuration, kernels' sizes. Whatever is accepted must
 * give every all-reduce a launch that the kernels are made for. The first two bytes are the number of
 * ranks and this rank, the rest the records, over and over. libFuzzer's entry;
 * tests/unit/test_records_fuzz.c runs the seeds and changed copies of them without libFuzzer.
 */
#include "plugin/setup_steps.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Values from data, in the order of the record's own, so that seeds can be read and small. */
static void fill(void *to, size_t bytes, const uint8_t *data, size_t n, size_t *at)
{
    uint8_t *out = to;
    for (size_t i = 0; i < bytes; i++) {
        out[i] = data[(*at)++ % n];
    }
}

static void check_plan(const struct llane_route_limits *limits, size_t count, ncclDataType_t type,
                       ncclRedOp_t op)
{
    if (llane_route_choose(limits, count, type, op) != LLANE_ROUTE_LANE) {
        return;
    }
    struct llane_plan plan = llane_route_plan(limits, count, type, op);
    if (plan.type >= LLANE_N_TYPES || plan.algorithm >= LLANE_N_ALGORITHMS ||
        plan.packet >= LLANE_N_PACKETS || plan.op >= LLANE_N_OPS || plan.n_blocks < 1 ||
        plan.n_blocks > LLANE_MAX_BLOCKS || plan.n_threads < LLANE_MIN_THREADS ||
        plan.n_threads > LLANE_MAX_THREADS || plan.n_threads % 32 != 0 ||
        !llane_all_reduce_table[plan.type][plan.algorithm][plan.packet]) {
        abort();
    }
}

static void check_all_plans(const struct llane_route_limits *limits)
{
    for (int type = 0; type < LLANE_N_TYPES; type++) {
        for (int op = ncclSum; op <= ncclAvg; op++) {
            for (size_t count = 1; count < (size_t)1 << 28; count *= 61) {
                check_plan(limits, count, (ncclDataType_t)type, (ncclRedOp_t)op);
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct llane_setup s;
    static struct llane_comm comm;
    static struct llane_lane lane;
    size_t at = 0;
    if (n < 3) {
        return 0;
    }
    memset(&s, 0, sizeof s);
    memset(&lane, 0, sizeof lane);
    comm.n_ranks = 2 + data[0] % (LLANE_MAX_RANKS - 1);
    comm.rank = data[1] % comm.n_ranks;
    s.comm = &comm;
    s.lane = &lane;
    fill(s.identity, sizeof s.identity, data + 2, n - 2, &at);
    fill(s.resources, sizeof s.resources, data + 2, n - 2, &at);
    (void)look_at_settings(&s);
    s.identity[comm.rank].limits = s.identity[0].limits; /* differing is said, which costs time */
    if (!adopt_limits(&s) && !agree_on_width(&s)) {
        check_all_plans(&lane.limits);
    }
    for (uint64_t word = 0, i = 0; i < 4; i++) {
        fill(&word, sizeof word, data + 2, n - 2, &at);
        const struct llane_verdict verdict = {.rank = (int)(word & 0xffff),
                                              .reason = (uint32_t)(word >> 32)};
        if (!llane_inactive_text((int)reason_of(&verdict))) {
            abort();
        }
    }
    return 0;
}
