/* Which path carries which size: the last of set-up's steps. */
#include "setup_steps.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

#include "calibrate_lane.h"
#include "config.h"
#include "err.h"
#include "tuning_text.h"
#include "version.h"

int32_t llane_setup_pcie_generation(const struct llane_gpu_identity *gpu)
{
    static const double transfers_of[] = {64, 32, 16, 8, 5, 2.5}; /* 10^9 a second: 6, 5, ..., 1 */
    char path[80];
    double transfers = 0; /* "32.0 GT/s PCIe" */
    int n = snprintf(path, sizeof path, "/sys/bus/pci/devices/%.*s/max_link_speed",
                     (int)sizeof gpu->pci, gpu->pci);
    for (int i = 0; i < n && i < (int)sizeof path; i++) {
        path[i] = (char)tolower((unsigned char)path[i]);
    }
    FILE *file = fopen(path, "re");
    if (!file) {
        return 0;
    }
    int n_read = fscanf(file, "%lf", &transfers);
    fclose(file);
    int32_t generation = n_read == 1 ? 6 : 0;
    while (generation && transfers < transfers_of[6 - generation]) {
        generation--;
    }
    return generation;
}

/* Nodes that GPUs are known to hang off. */
static uint32_t count_nodes(const struct llane_setup *s)
{
    uint32_t n = 0;
    for (int r = 0; r < s->comm->n_ranks; r++) {
        int is_first = s->identity[r].gpu.numa_node >= 0;
        for (int before = 0; before < r; before++) {
            is_first &= s->identity[before].gpu.numa_node != s->identity[r].gpu.numa_node;
        }
        n += (uint32_t)is_first;
    }
    return n ? n : 1;
}

/* From exchanged facts alone, so equal on all ranks. */
static void describe_machine(struct llane_setup *s)
{
    struct llane_route_limits *limits = &s->lane->limits;
    limits->n_sockets = count_nodes(s);
    limits->ranks_per_gpu = 1;
    limits->generation = UINT32_MAX;
    for (int r = 0; r < s->comm->n_ranks; r++) {
        uint32_t generation =
            (uint32_t)s->identity[r].pcie_generation; /* 0, unknown, is the least */
        limits->generation = generation < limits->generation ? generation : limits->generation;
        uint32_t n = llane_setup_ranks_on_gpu_of(s, r);
        limits->ranks_per_gpu = n > limits->ranks_per_gpu ? n : limits->ranks_per_gpu;
    }
    limits->memory = limits->has_host_pairs                     ? LLANE_MEMORY_HOST
                     : limits->ranks_per_gpu == limits->n_ranks ? LLANE_MEMORY_ONE_GPU
                                                                : LLANE_MEMORY_PEER;
}

static void add(char *key, size_t *used, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void add(char *key, size_t *used, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(key + *used, LLANE_TUNING_KEY_BYTES - *used, format, args);
    va_end(args);
    *used += n > 0 ? (size_t)n : 0;
}

/* "580.65.06"; the runtime only tells the CUDA version that a driver is for. Empty: not known. */
static void read_driver_release(char release[32])
{
    FILE *file = fopen("/sys/module/nvidia/version", "re");
    if (!file || fscanf(file, "%31s", release) != 1) {
        release[0] = '\0';
    }
    if (file) {
        fclose(file);
    }
}

/* All that times depend on. It fits: 16 GPUs are 16 lines of less than 64 bytes. */
static void make_key(const struct llane_setup *s, char key[LLANE_TUNING_KEY_BYTES])
{
    const struct llane_route_limits *l = &s->lane->limits;
    size_t used = 0;
    char release[32];
    read_driver_release(release);
    add(key, &used, "llane %s %.40s\nnccl %d\n%.100s %s\n", LLANE_VERSION, llane_build_id(),
        s->comm->nccl->version, llane_gpu_runtime(), release);
    add(key, &used, "memory %s\nmax_bytes %" PRIu64 "\nranks %u\nblocks %u",
        llane_memory_text(l->memory), l->max_bytes, l->n_ranks, l->max_blocks);
    for (int w = 0; w < LLANE_N_WIDTHS; w++) {
        add(key, &used, " %u", l->fit[w]);
    }
    add(key, &used, "\n");
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        add(key, &used, "gpu ");
        for (size_t i = 0; i < sizeof s->identity[r].gpu.uuid; i++) {
            add(key, &used, "%02x", s->identity[r].gpu.uuid[i]);
        }
        add(key, &used, "\n");
    }
}

static enum llane_inactive_reason reason_of(const struct llane_setup *s, int err,
                                            const struct llane_verdict *verdict)
{
    switch (err) {
    case 0:
        return LLANE_INACTIVE_NONE;
    case LLANE_ECANCELED:
        return LLANE_INACTIVE_CANCELED;
    case LLANE_EREFUSED:
        return llane_setup_reason_of(s, verdict);
    case LLANE_EINVAL:
        return LLANE_INACTIVE_RECORD;
    default:
        return LLANE_INACTIVE_INTERNAL;
    }
}

enum llane_inactive_reason llane_setup_tune(struct llane_setup *s)
{
    struct llane_comm *comm = s->comm;
    struct llane_calibrate_lane lane = {s->lane, s->stream, s->scratch, &comm->cancel, comm->rank};
    const struct llane_calibrate_source source = llane_calibrate_lane_source(&lane);
    char key[LLANE_TUNING_KEY_BYTES], directory[PATH_MAX];
    describe_machine(s);
    make_key(s, key);
    const struct llane_calibrate_args args = {
        .board = s->board,
        .first_step =
            1 + (s->lane->limits.has_host_pairs ? LLANE_SETUP_HOST_PROBE : LLANE_SETUP_PROBE),
        .rank = comm->rank,
        .n_ranks = comm->n_ranks,
        .cancel = &comm->cancel,
        .refusal = llane_setup_vote_of(LLANE_INACTIVE_CALIBRATION),
        .source = &source,
        .mode = (enum llane_calibrate_mode)llane_config()->calibrate,
        .budget_ms = (double)llane_config()->calibrate_ms,
        .has_clock = !llane_gpu_is_emulated(),
        .key = key,
        .directory = llane_config_cache_directory(directory, sizeof directory) ? directory : NULL,
    };
    struct llane_verdict verdict = {0};
    int err = llane_calibrate(&args, &s->lane->limits, &verdict);
    if (err) {
        llane_setup_give_up(s);
    }
    return reason_of(s, err, &verdict);
}
