/*
 * Values of variables as the environment brings them: each of a text's lines is parsed as every kind,
 * and what is accepted lies within its bounds. libFuzzer's entry; tests/unit/test_config_fuzz.c runs the
 * seeds and changed copies of them without libFuzzer.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct {
    enum llane_config_kind kind;
    uint64_t min, max;
    const char *words;
} rows[] = {
#define LLANE_FUZZ_ROW(field, variable, kind, def, min, max, words, doc)                           \
    {LLANE_KIND_##kind, min, max, words},
    LLANE_CONFIG(LLANE_FUZZ_ROW)
#undef LLANE_FUZZ_ROW
};

static void parse(const char *text)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t value = 0;
        if (rows[i].kind != LLANE_KIND_TEXT &&
            !llane_config_parse(rows[i].kind, text, rows[i].min, rows[i].max, rows[i].words,
                                &value) &&
            (value < rows[i].min || value > rows[i].max)) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1), *rest = text;
    if (!text) {
        abort();
    }
    memcpy(text, data, n);
    text[n] = '\0';
    for (char *line; (line = strsep(&rest, "\n"));) {
        parse(line);
    }
    free(text);
    return 0;
}
