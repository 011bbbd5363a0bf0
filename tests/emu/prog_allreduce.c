// LDADD: tests/emu/client/client.c
/*
 * An ordinary NCCL client: all-reduces of chosen sizes, types and operations, every result compared
 * with an independent computation. `prog_allreduce --help`.
 */
#include "client/client.h"
#include "ranks.h"
#include "values.h"

#include <dlfcn.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char g_help[] =
    "prog_allreduce [options]\n"
    "Calls ncclAllReduce for every type, operation and count, compares the results and the bytes\n"
    "around them. One rank of several (start with prog_ranks), or all ranks in this process.\n"
    "Inputs differ in every call; outputs are poisoned. Status 0 when all is right, 1 if not.\n"
    "  --counts 1,3,1024     elements (1,3,4,31,1024,4097)\n"
    "  --types float32,...   or all (float32)\n"
    "  --ops sum,...         sum prod max min avg, or all (sum)\n"
    "  --iters N             times everything is done (3)\n"
    "  --batch N             calls issued before anything is awaited (1)\n"
    "  --group               a batch is one group\n"
    "  --streams N           the calls of a batch take turns on N streams (1)\n"
    "  --comms N             and on N communicators (1)\n"
    "  --kind K              rank config nonblocking scalable split halves (rank)\n"
    "  --name NAME           of the communicators, for kinds with a config\n"
    "  --in-place 0|1|2      2: every second call (0)\n"
    "  --offsets 0,1,3       rank r's buffers start so many elements off (0); list goes round\n"
    "  --graph               a batch is captured once and replayed --iters times\n"
    "  --mix                 and each replay has an eager batch before or behind it, without a "
    "wait\n"
    "                        between; on another stream with --streams 2 and an odd --batch\n"
    "  --threads N           N ranks as threads of this process\n"
    "  --all N               N ranks by one thread: ncclCommInitAll, or a group of kind config\n"
    "  --device D            all ranks on device D (rank % number of devices)\n"
    "  --sleep-ms N          before every iteration\n"
    "  --skew-ms N           rank * N more before every iteration\n"
    "  --end E               destroy finalize abort leave (destroy)\n";

static void usage(const char *why, const char *what)
{
    fprintf(stderr, "prog_allreduce: %s %s\n%s", why, what, g_help);
    exit(2);
}

static int number_of(const char *text)
{
    return atoi(text);
}

/* A comma list through `of`; "all" is 0..n_all-1. */
static int parse_list(const char *text, int (*of)(const char *), int n_all, int *out)
{
    int n = 0;
    if (n_all && strcmp(text, "all") == 0) {
        for (; n < n_all; n++)
            out[n] = n;
        return n;
    }
    char *copy = strdup(text), *rest = copy;
    for (char *word; (word = strsep(&rest, ",")); n++) {
        if (n == CLIENT_MAX || (out[n] = of(word)) < 0)
            usage("bad list", text);
    }
    free(copy);
    return n;
}

static int parse_word(const char *text, const char *const *words)
{
    for (int i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) == 0)
            return i;
    }
    usage("unknown word", text);
    return -1;
}

static void parse(int argc, char **argv, struct client_options *o)
{
    static const char *const kinds[] = {"rank",  "config", "nonblocking", "scalable",
                                        "split", "halves", NULL};
    static const char *const ends[] = {"destroy", "finalize", "abort", "leave", NULL};
    enum {
        COUNTS = 1,
        TYPES,
        OPS,
        ITERS,
        BATCH,
        GROUP,
        STREAMS,
        COMMS,
        KIND,
        NAME,
        IN_PLACE,
        OFFSETS,
        GRAPH,
        MIX,
        THREADS,
        ALL,
        DEVICE,
        SLEEP,
        SKEW,
        END,
        HELP
    };
    static const struct option table[] = {
        {"counts", 1, NULL, COUNTS},     {"types", 1, NULL, TYPES},
        {"ops", 1, NULL, OPS},           {"iters", 1, NULL, ITERS},
        {"batch", 1, NULL, BATCH},       {"group", 0, NULL, GROUP},
        {"streams", 1, NULL, STREAMS},   {"comms", 1, NULL, COMMS},
        {"kind", 1, NULL, KIND},         {"name", 1, NULL, NAME},
        {"in-place", 1, NULL, IN_PLACE}, {"offsets", 1, NULL, OFFSETS},
        {"graph", 0, NULL, GRAPH},       {"mix", 0, NULL, MIX},
        {"threads", 1, NULL, THREADS},   {"all", 1, NULL, ALL},
        {"device", 1, NULL, DEVICE},     {"sleep-ms", 1, NULL, SLEEP},
        {"skew-ms", 1, NULL, SKEW},      {"end", 1, NULL, END},
        {"help", 0, NULL, HELP},         {NULL, 0, NULL, 0},
    };
    o->n_counts = parse_list("1,3,4,31,1024,4097", number_of, 0, o->counts);
    o->n_types = parse_list("float32", values_type_of, 0, o->types);
    o->n_ops = parse_list("sum", values_op_of, 0, o->ops);
    o->n_offsets = 1;
    for (int c; (c = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        switch (c) {
        case COUNTS:
            o->n_counts = parse_list(optarg, number_of, 0, o->counts);
            break;
        case TYPES:
            o->n_types = parse_list(optarg, values_type_of, VALUES_N_TYPES, o->types);
            break;
        case OPS:
            o->n_ops = parse_list(optarg, values_op_of, VALUES_N_OPS, o->ops);
            break;
        case ITERS:
            o->n_iterations = atoi(optarg);
            break;
        case BATCH:
            o->batch = atoi(optarg);
            break;
        case GROUP:
            o->is_group = true;
            break;
        case STREAMS:
            o->n_streams = atoi(optarg);
            break;
        case COMMS:
            o->n_comms = atoi(optarg);
            break;
        case KIND:
            o->kind = (enum client_kind)parse_word(optarg, kinds);
            break;
        case NAME:
            o->name = optarg;
            break;
        case IN_PLACE:
            o->in_place = atoi(optarg);
            break;
        case OFFSETS:
            o->n_offsets = parse_list(optarg, number_of, 0, o->offsets);
            break;
        case GRAPH:
            o->is_graph = true;
            break;
        case MIX:
            o->is_graph = o->is_mixed = true;
            break;
        case THREADS:
            o->n_threads = atoi(optarg);
            break;
        case ALL:
            o->n_all = atoi(optarg);
            break;
        case DEVICE:
            o->device = atoi(optarg);
            break;
        case SLEEP:
            o->sleep_ms = atoi(optarg);
            break;
        case SKEW:
            o->skew_ms = atoi(optarg);
            break;
        case END:
            o->end = (enum client_end)parse_word(optarg, ends);
            break;
        case HELP:
            fputs(g_help, stdout);
            exit(0);
        default:
            usage("unknown option", "");
        }
    }
    if (optind != argc)
        usage("left over:", argv[optind]);
    if (o->batch < 1 || o->n_streams < 1 || o->n_streams > CLIENT_MAX || o->n_comms < 1 ||
        o->n_comms > CLIENT_MAX || o->n_threads > CLIENT_MAX || o->n_all > CLIENT_MAX ||
        (o->n_all && o->kind != CLIENT_RANK && o->kind != CLIENT_CONFIG &&
         o->kind != CLIENT_SPLIT && o->kind != CLIENT_HALVES))
        usage("numbers out of range, or --all with this --kind", "");
}

struct driver {
    struct client_set set;
    const ncclUniqueId *ids;
    pthread_t thread;
};

static void *drive(void *arg)
{
    struct driver *d = arg;
    const struct client_options *o = d->set.options;
    client_open(&d->set, d->ids);
    for (int t = 0; t < o->n_types; t++) {
        for (int op = 0; op < o->n_ops; op++) {
            for (int c = 0; c < o->n_counts; c++)
                client_run(&d->set, (ncclDataType_t)o->types[t], (ncclRedOp_t)o->ops[op],
                           (size_t)o->counts[c]);
        }
    }
    client_close(&d->set);
    return NULL;
}

/* A bit for each device with a context; what a real runtime has made is not asked. */
static uint32_t made_contexts(int device)
{
    void *symbol = dlsym(RTLD_DEFAULT, "llane_emu_contexts");
    uint32_t (*contexts)(void);
    memcpy(&contexts, &symbol, sizeof(contexts));
    return contexts ? contexts() : 1U << device;
}

int main(int argc, char **argv)
{
    static struct client_options o = {
        .n_iterations = 3, .batch = 1, .n_streams = 1, .n_comms = 1, .device = -1};
    parse(argc, argv, &o);
    setvbuf(stdout, NULL, _IOLBF, 0);
    bool is_alone = o.n_threads || o.n_all;
    int n_ranks = o.n_all ? o.n_all : o.n_threads ? o.n_threads : ranks_size();
    int n_drivers = o.n_threads ? o.n_threads : 1;

    ncclUniqueId ids[CLIENT_MAX];
    for (int c = 0; c < o.n_comms; c++) {
        char name[32];
        snprintf(name, sizeof(name), "id.%d", c);
        if (is_alone)
            RANKS_CHECK(ncclGetUniqueId(&ids[c]));
        else
            ranks_unique_id(name, ncclGetUniqueId, &ids[c]);
    }
    struct driver *drivers = calloc((size_t)n_drivers, sizeof(*drivers));
    struct client_member *members = calloc((size_t)n_ranks, sizeof(*members));
    for (int i = 0; i < n_ranks; i++)
        members[i] =
            (struct client_member){.rank = is_alone ? i : ranks_rank(), .n_ranks = n_ranks};
    for (int d = 0; d < n_drivers; d++)
        drivers[d] = (struct driver){
            .set = {.options = &o, .members = &members[d], .n_members = o.n_all ? o.n_all : 1},
            .ids = ids};
    for (int d = 1; d < n_drivers; d++)
        RANKS_CHECK(pthread_create(&drivers[d].thread, NULL, drive, &drivers[d]));
    drive(&drivers[0]);
    for (int d = 1; d < n_drivers; d++)
        RANKS_CHECK(pthread_join(drivers[d].thread, NULL));

    size_t n_wrong = 0;
    for (int d = 0; d < n_drivers; d++)
        n_wrong += drivers[d].set.n_wrong;
    printf("rank %d of %d: %llu calls, %s\n", members[0].rank, n_ranks,
           (unsigned long long)drivers[0].set.n_calls, n_wrong ? "WRONG" : "ok");
    uint32_t contexts = made_contexts(members[0].device);
    bool is_at_home = is_alone || contexts == 1U << members[0].device;
    if (!is_at_home)
        printf("rank %d: contexts on devices %#x\n", members[0].rank, contexts);
    free(members);
    free(drivers);
    return n_wrong || !is_at_home ? 1 : 0;
}
