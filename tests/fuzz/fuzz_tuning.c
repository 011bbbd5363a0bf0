/*
 * The file of a tuning table, which anybody may have edited. What is accepted must print as the same
 * text, and be judged without harm. libFuzzer's entry; tests/unit/test_tuning_fuzz.c runs the seeds and
 * changed copies of them without libFuzzer. The sum is set right first, or nothing else would be met.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/route.h"
#include "plugin/tuning_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int accepts(const char *text, size_t n)
{
    static char key[LLANE_TUNING_KEY_BYTES], again[2 * LLANE_TUNING_TEXT_BYTES];
    static char key_again[LLANE_TUNING_KEY_BYTES];
    struct llane_tuning tuning, tuning_again;
    if (llane_tuning_parse(text, n, key, &tuning)) {
        return 0;
    }
    struct llane_route_limits limits = {.max_bytes = 1 << 20,
                                        .n_ranks = 4,
                                        .max_blocks = LLANE_MAX_BLOCKS,
                                        .fit = {64, 64, 64, 64}};
    if (llane_route_can_use(&limits, &tuning)) {
        limits.tuning = tuning;
        llane_route_fill_defaults(&limits);
        for (size_t count = 1; count <= 1 << 18; count *= 2) {
            struct llane_plan plan = llane_route_plan(&limits, count, ncclFloat32, ncclSum);
            if (!plan.n_blocks || plan.n_blocks > LLANE_MAX_BLOCKS ||
                plan.n_threads < LLANE_MIN_THREADS || plan.n_threads > LLANE_MAX_THREADS) {
                abort();
            }
        }
    }
    size_t length = llane_tuning_print(key, &tuning, again, sizeof again);
    if (!length || llane_tuning_parse(again, length, key_again, &tuning_again) ||
        strcmp(key, key_again) != 0 || memcmp(&tuning, &tuning_again, sizeof tuning) != 0) {
        abort();
    }
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n > LLANE_TUNING_TEXT_BYTES) {
        return 0;
    }
    char *text = malloc(n + 32);
    if (!text) {
        abort();
    }
    memcpy(text, data, n);
    accepts(text, n);
    int tail = snprintf(text + n, 32, "sum %016" PRIx64 "\n", llane_tuning_hash(text, n));
    accepts(text, n + (size_t)tail);
    free(text);
    return 0;
}
