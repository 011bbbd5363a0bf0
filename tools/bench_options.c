/* The command line of llane-bench. */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { LARGEST_BYTES = 1 << 30 };

static const struct bench_type types[] = {
    {"int8", "char", ncclInt8, 1, 1, 0, 0},
    {"uint8", NULL, ncclUint8, 1, 0, 0, 0},
    {"int32", "int", ncclInt32, 4, 1, 0, 0},
    {"uint32", NULL, ncclUint32, 4, 0, 0, 0},
    {"int64", NULL, ncclInt64, 8, 1, 0, 0},
    {"uint64", NULL, ncclUint64, 8, 0, 0, 0},
    {"float16", "half", ncclFloat16, 2, 1, 5, 10},
    {"float32", "float", ncclFloat32, 4, 1, 8, 23},
    {"float64", "double", ncclFloat64, 8, 1, 11, 52},
    {"bfloat16", NULL, ncclBfloat16, 2, 1, 8, 7},
    {"float8e4m3", "f8e4m3", ncclFloat8e4m3, 1, 1, 4, 3},
    {"float8e5m2", "f8e5m2", ncclFloat8e5m2, 1, 1, 5, 2},
};
static const char *const op_names[] = {"sum", "prod", "max", "min", "avg"};
static const char *const memory_names[] = {"auto", "p2p", "host"};
static const char *const mode_names[] = {"eager", "graph", "producer"};

const char *bench_op_name(ncclRedOp_t op)
{
    return op_names[op];
}

const char *bench_mode_name(enum bench_mode mode)
{
    return mode_names[mode];
}

void bench_format_bytes(size_t bytes, char *text, size_t text_bytes)
{
    static const char *const suffixes[] = {"", "K", "M", "G"};
    int step = 0;
    while (step < 3 && bytes && bytes % 1024 == 0) {
        bytes /= 1024;
        step++;
    }
    snprintf(text, text_bytes, "%zu%s", bytes, suffixes[step]);
}

static const char help_text[] =
    "llane bench: real NCCL and the lane, on one communicator of the same processes, in turns\n"
    "\n"
    "  --ranks N              rank processes, 2 to 16 (2)\n"
    "  --gpus N               GPUs to spread them over (all); several ranks may share one\n"
    "  --mps                  start a private MPS daemon for ranks that share a GPU, and stop it\n"
    "  --memory M             auto, p2p or host: what the lane goes over (LLANE_MEMORY)\n"
    "  --sizes MIN:MAX:FACTOR bytes; K, M and G allowed; also MIN:MAX (factor 2) or one size\n"
    "                         (8:1M:2; emulated 8:64K:4)\n"
    "  --type T               int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 "
    "bfloat16\n"
    "                         float8e4m3 float8e5m2 (float32)\n"
    "  --op OP                sum prod max min avg (sum)\n"
    "  --mode M               graph: a CUDA graph of back-to-back operations (default)\n"
    "                         eager: a burst of calls; wall time up to the end of the last\n"
    "                         producer: a plain kernel before each operation of a graph; the time\n"
    "                         that the operation adds\n"
    "  --ops N                operations of a graph or burst, each with buffers of its own (100;\n"
    "                         emulated 10)\n"
    "  --reps N               graphs or bursts measured for each size and way (100; emulated 8)\n"
    "  --skip-nccl            measure the lane alone (sweeps)\n"
    "  --breakdown            also: CPU time of a call beside a bare launch, and where the "
    "graph's\n"
    "                         time goes\n"
    "  --overhead             instead: CPU time that llane adds to a call that it hands on to "
    "NCCL\n"
    "  --calibrate            write where NCCL was faster into the table that llane keeps for "
    "these\n"
    "                         GPUs (`llane calibrate` does it all)\n"
    "  --env NAME=VALUE       for the ranks; may be repeated. What they log and where,\n"
    "                         and LLANE_STATS, are the bench's own\n"
    "  --json                 print JSON instead of the table; --json=FILE writes it beside it\n"
    "  --csv FILE, --plot FILE.svg|png\n"
    "  --timeout S            end the ranks after S seconds without progress (60)\n"
    "  --emulate              on the emulated GPU: results count, times say nothing about a GPU\n";

static _Noreturn void refuse(const char *option, const char *value, const char *wanted)
{
    fprintf(stderr, "llane-bench: %s %s: %s\n", option, value, wanted);
    exit(2);
}

static int parse_int(const char *option, const char *text, int min, int max)
{
    char *end, wanted[64];
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < min || value > max) {
        snprintf(wanted, sizeof wanted, "a number from %d to %d is expected", min, max);
        refuse(option, text, wanted);
    }
    return (int)value;
}

/* A size with its suffix; *end is behind it. 0: not one, or too large. */
static size_t parse_size(const char *text, const char **end)
{
    char *after;
    if (!isdigit((unsigned char)*text)) {
        return 0;
    }
    errno = 0;
    unsigned long long value = strtoull(text, &after, 10);
    const char *suffix = strchr("KMG", toupper((unsigned char)*after));
    if (*after && suffix) {
        unsigned shift = 10u * (unsigned)(suffix - "KMG" + 1);
        value = value > LARGEST_BYTES ? LARGEST_BYTES + 1ull : value << shift;
        after++;
    }
    *end = after;
    return errno || value > LARGEST_BYTES ? 0 : (size_t)value;
}

static void parse_sizes(const char *text, struct bench_options *out)
{
    static const char wanted[] = "MIN:MAX:FACTOR is expected, 1 <= MIN <= MAX <= 1G, 2 <= FACTOR "
                                 "<= 1024, at most 64 sizes";
    const char *at = text;
    size_t min = parse_size(at, &at), max = min;
    long factor = 2;
    if (min && *at == ':') {
        max = parse_size(at + 1, &at);
        if (max && *at == ':') {
            char *end;
            factor = strtol(at + 1, &end, 10);
            factor = end == at + 1 ? 0 : factor;
            at = end;
        }
    }
    if (!min || !max || *at || min > max || factor < 2 || factor > 1024) {
        refuse("--sizes", text, wanted);
    }
    out->n_sizes = 0;
    for (size_t bytes = min; bytes <= max; bytes *= (size_t)factor) {
        if (out->n_sizes == BENCH_MAX_SIZES) {
            refuse("--sizes", text, wanted);
        }
        out->sizes[out->n_sizes++] = bytes;
    }
}

/* Whole elements, at least one, none twice. */
static void fit_sizes(struct bench_options *options)
{
    int n = 0;
    for (int s = 0; s < options->n_sizes; s++) {
        size_t count = options->sizes[s] / options->type->bytes;
        size_t bytes = (count ? count : 1) * options->type->bytes;
        if (n == 0 || options->sizes[n - 1] != bytes) {
            options->sizes[n++] = bytes;
        }
    }
    options->n_sizes = n;
}

static const struct bench_type *parse_type(const char *text)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!strcmp(text, types[i].name) || (types[i].alias && !strcmp(text, types[i].alias))) {
            return &types[i];
        }
    }
    refuse("--type", text, "not a type of NCCL's; `llane bench --help` lists them");
}

static int parse_name(const char *option, const char *text, const char *const *names, int n)
{
    char wanted[128] = "";
    for (int i = 0; i < n; i++) {
        if (!strcmp(text, names[i])) {
            return i;
        }
        size_t used = strlen(wanted);
        snprintf(wanted + used, sizeof wanted - used, "%s%s", i ? ", " : "", names[i]);
    }
    size_t used = strlen(wanted);
    snprintf(wanted + used, sizeof wanted - used, " are known");
    refuse(option, text, wanted);
}

static void add_env(struct bench_options *options, const char *text)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text) {
        refuse("--env", text, "NAME=VALUE is expected");
    }
    if (options->n_env == BENCH_MAX_ENV) {
        refuse("--env", text, "too many");
    }
    options->env[options->n_env++] = text;
}

static const char *plot_file(const char *text)
{
    const char *dot = strrchr(text, '.');
    if (!dot || (strcmp(dot, ".svg") != 0 && strcmp(dot, ".png") != 0)) {
        refuse("--plot", text, "a name that ends in .svg or .png is expected");
    }
    return text;
}

enum {
    OPT_RANKS,
    OPT_GPUS,
    OPT_MPS,
    OPT_MEMORY,
    OPT_SIZES,
    OPT_TYPE,
    OPT_OP,
    OPT_MODE,
    OPT_OPS,
    OPT_REPS,
    OPT_SKIP_NCCL,
    OPT_BREAKDOWN,
    OPT_OVERHEAD,
    OPT_CALIBRATE,
    OPT_ENV,
    OPT_JSON,
    OPT_CSV,
    OPT_PLOT,
    OPT_TIMEOUT,
    OPT_EMULATE,
    OPT_HELP,
    OPT_PLANT,
    FIRST_OPT = 256, /* beyond any character that getopt_long returns */
};

static const struct option long_options[] = {
    {"ranks", required_argument, NULL, FIRST_OPT + OPT_RANKS},
    {"gpus", required_argument, NULL, FIRST_OPT + OPT_GPUS},
    {"mps", no_argument, NULL, FIRST_OPT + OPT_MPS},
    {"memory", required_argument, NULL, FIRST_OPT + OPT_MEMORY},
    {"sizes", required_argument, NULL, FIRST_OPT + OPT_SIZES},
    {"type", required_argument, NULL, FIRST_OPT + OPT_TYPE},
    {"op", required_argument, NULL, FIRST_OPT + OPT_OP},
    {"mode", required_argument, NULL, FIRST_OPT + OPT_MODE},
    {"ops", required_argument, NULL, FIRST_OPT + OPT_OPS},
    {"reps", required_argument, NULL, FIRST_OPT + OPT_REPS},
    {"skip-nccl", no_argument, NULL, FIRST_OPT + OPT_SKIP_NCCL},
    {"breakdown", no_argument, NULL, FIRST_OPT + OPT_BREAKDOWN},
    {"calibrate", no_argument, NULL, FIRST_OPT + OPT_CALIBRATE},
    {"overhead", no_argument, NULL, FIRST_OPT + OPT_OVERHEAD},
    {"env", required_argument, NULL, FIRST_OPT + OPT_ENV},
    {"json", optional_argument, NULL, FIRST_OPT + OPT_JSON},
    {"csv", required_argument, NULL, FIRST_OPT + OPT_CSV},
    {"plot", required_argument, NULL, FIRST_OPT + OPT_PLOT},
    {"timeout", required_argument, NULL, FIRST_OPT + OPT_TIMEOUT},
    {"emulate", no_argument, NULL, FIRST_OPT + OPT_EMULATE},
    {"help", no_argument, NULL, FIRST_OPT + OPT_HELP},
    {"plant-error", required_argument, NULL, FIRST_OPT + OPT_PLANT}, /* for the tests */
    {NULL, 0, NULL, 0},
};

static void take(int option, const char *value, int is_emulated, struct bench_options *out)
{
    switch (option - FIRST_OPT) {
    case OPT_RANKS:
        out->n_ranks = parse_int("--ranks", value, 2, BENCH_MAX_RANKS);
        break;
    case OPT_GPUS:
        out->n_gpus = parse_int("--gpus", value, 1, 1024);
        break;
    case OPT_MPS:
        out->starts_mps = 1;
        break;
    case OPT_MEMORY:
        out->memory = memory_names[parse_name("--memory", value, memory_names, 3)];
        break;
    case OPT_SIZES:
        parse_sizes(value, out);
        break;
    case OPT_TYPE:
        out->type = parse_type(value);
        break;
    case OPT_OP:
        out->op = (ncclRedOp_t)parse_name("--op", value, op_names, 5);
        break;
    case OPT_MODE:
        out->mode = (enum bench_mode)parse_name("--mode", value, mode_names, 3);
        break;
    case OPT_OPS:
        out->n_ops = parse_int("--ops", value, 1, BENCH_MAX_OPS);
        break;
    case OPT_REPS:
        out->n_samples = parse_int("--reps", value, 1, BENCH_MAX_SAMPLES);
        break;
    case OPT_SKIP_NCCL:
        out->skips_nccl = 1;
        break;
    case OPT_BREAKDOWN:
        out->does_breakdown = 1;
        break;
    case OPT_OVERHEAD:
        out->does_overhead = 1;
        break;
    case OPT_CALIBRATE:
        out->does_calibrate = 1;
        break;
    case OPT_ENV:
        add_env(out, value);
        break;
    case OPT_JSON:
        out->json = value ? value : "-";
        break;
    case OPT_CSV:
        out->csv = value;
        break;
    case OPT_PLOT:
        out->plot = plot_file(value);
        break;
    case OPT_TIMEOUT:
        out->timeout_s = parse_int("--timeout", value, 1, 86400);
        break;
    case OPT_EMULATE:
        if (!is_emulated) {
            refuse("--emulate", "", "this is the program for GPUs; start it as `llane bench`");
        }
        break;
    case OPT_PLANT:
        out->plant_rank = parse_int("--plant-error", value, 0, BENCH_MAX_RANKS - 1);
        break;
    case OPT_HELP:
        fputs(help_text, stdout);
        exit(0);
    default:
        fprintf(stderr, "llane-bench: `llane bench --help` lists the options\n");
        exit(2);
    }
}

void bench_options_parse(int argc, char **argv, int is_emulated, struct bench_options *out)
{
    int option;
    *out = (struct bench_options){
        .n_ranks = 2,
        .mode = BENCH_GRAPH,
        .n_ops = is_emulated ? 10 : 100,
        .n_samples = is_emulated ? 8 : 100,
        .timeout_s = 60,
        .plant_rank = -1,
    };
    out->type = parse_type("float32");
    parse_sizes(is_emulated ? "8:64K:4" : "8:1M:2", out);
    optind = 1;
    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        take(option, optarg, is_emulated, out);
    }
    if (optind < argc) {
        refuse("argument", argv[optind], "not expected");
    }
    fit_sizes(out);
    if (out->does_breakdown && out->mode != BENCH_GRAPH) {
        refuse("--breakdown", "", "needs --mode graph");
    }
    if (out->does_calibrate && (out->does_overhead || out->skips_nccl)) {
        refuse("--calibrate", "", "needs both ways' times");
    }
    if (out->does_overhead) {
        out->n_ranks = 1;
        out->does_breakdown = 0;
    }
}
