/*
 * A tuning file that somebody wrote, read by nccl_tuning's parser; what it accepts is then applied to
 * tables of costs. libFuzzer's entry; tests/unit/test_nccl_tuning_fuzz.c runs the seeds and changed
 * copies of them without libFuzzer.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_tuning.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(int holds)
{
    if (!holds) {
        abort();
    }
}

static void apply(const struct llane_nccl_tuning_row *row)
{
    float costs[7 * 3];
    int algo = -1, proto = -1, n_channels = 0;
    for (int i = 0; i < 7 * 3; i++) {
        costs[i] = (float)(i % 5) - 1.0f;
    }
    llane_nccl_tuning_set_cost(row, costs, 7, 3, &n_channels);
    llane_nccl_tuning_set_cost(row, costs, 2, 1, &n_channels);
    llane_nccl_tuning_set_choice(row, 1, 1, &algo, &proto, &n_channels);
    check(algo >= -1 && algo < 7 && proto >= -1 && proto < 3);
    check(n_channels >= 0 && n_channels <= LLANE_NCCL_TUNING_CHANNELS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct llane_nccl_tuning *tuning = NULL;
    int line = 0;
    const char *why = NULL;
    char *text = malloc(n + 1);
    check(text != NULL);
    memcpy(text, data, n);
    text[n] = '\0';
    if (llane_nccl_tuning_parse(text, &tuning, &line, &why)) {
        check(line >= 1 && (size_t)line <= n + 1 && why);
    } else {
        for (size_t i = 0; i < tuning->n_rows; i++) {
            const struct llane_nccl_tuning_row *row = &tuning->rows[i];
            check(row->min_bytes <= row->max_bytes);
            const struct llane_nccl_call call = {row->func, row->max_bytes, row->n_ranks,
                                                 row->n_nodes};
            check(llane_nccl_tuning_find(tuning, &call) != NULL);
            apply(row);
        }
    }
    free(tuning);
    free(text);
    return 0;
}
