/* What the bench measured goes into the table of these GPUs (plugin/calibrate.h): where NCCL was faster
 * than the lane by more than noise, NCCL carries. */
#include <limits.h>
#include <string.h>

#include "bench.h"
#include "route.h"
#include "tuning_cache.h"

/* Sizes from the one measured before, which is the smaller, up to this one; how many. */
static int give_to_nccl(struct llane_tuning *tuning, enum llane_tuning_class of, size_t before,
                        size_t bytes)
{
    uint32_t first = before ? llane_tuning_bucket(before) + 1 : 0;
    uint32_t last = llane_tuning_bucket(bytes);
    for (uint32_t b = first; b <= last; b++) {
        tuning->choice[of][b] = (struct llane_tuning_choice){.path = LLANE_TUNING_NCCL};
    }
    return first <= last;
}

static int apply(const struct bench_report *report, struct llane_tuning *tuning)
{
    const struct bench_options *o = report->options;
    enum llane_tuning_class of =
        o->type->nccl >= ncclFloat16 ? LLANE_TUNING_FLOAT : LLANE_TUNING_INTEGER;
    int n = 0;
    for (int s = 0; s < o->n_sizes; s++) {
        float lane = report->times[BENCH_LANE][s].median,
              nccl = report->times[BENCH_NCCL][s].median;
        if (report->is_lane[s] && lane > 0 && nccl > 0 && llane_tuning_is_faster(nccl, lane)) {
            n += give_to_nccl(tuning, of, s ? o->sizes[s - 1] : 0, o->sizes[s]);
        }
    }
    return n;
}

/* "PATH written" or "PATH read" of rank 0's log; 0: there was no such line. */
static int find_path(const struct bench_log *log, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s", log->table);
    char *end = strrchr(path, ' ');
    if (!end) {
        return 0;
    }
    *end = '\0';
    return 1;
}

int bench_calibrate(const struct bench_report *report)
{
    struct llane_tuning tuning;
    char path[PATH_MAX], key[LLANE_TUNING_KEY_BYTES];
    if (!find_path(report->log, path) || llane_tuning_cache_open(path, key, &tuning)) {
        fprintf(stderr,
                "llane-bench: no table to write to: calibration did not come to one that it keeps "
                "(other work on the GPUs, no folder for it, or LLANE_CALIBRATE=off)\n");
        return BENCH_NO_TABLE;
    }
    int n = apply(report, &tuning);
    *strrchr(path, '/') = '\0';
    if (llane_tuning_cache_write(path, key, &tuning)) {
        fprintf(stderr, "llane-bench: %s cannot be written\n", path);
        return 1;
    }
    fprintf(stderr,
            "\n%s: NCCL carries %d of %d sizes measured with the lane; table of these GPUs in %s\n",
            report->options->type->name, n, report->options->n_sizes, path);
    return 0;
}
