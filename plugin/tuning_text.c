#include "tuning_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "err.h"

static const char first_line[] = "llane tuning 1\n";
static const char *const classes[LLANE_TUNING_CLASSES] = {"integer", "float"};
static const char *const algorithms[] = {"one-shot", "two-shot"};
static const char *const packets[LLANE_N_PACKETS] = {"ll", "sentinel"};
enum { N_ALGORITHMS = sizeof algorithms / sizeof *algorithms };

uint64_t llane_tuning_hash(const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ at[i]) * 0x100000001b3u;
    }
    return hash;
}

/* ---- printing ---- */

struct writer {
    char *text;
    size_t bytes, used;
    int is_full;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(w->text + w->used, w->bytes - w->used, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= w->bytes - w->used) {
        w->is_full = 1;
    } else {
        w->used += (size_t)n;
    }
}

static void put_key(struct writer *w, const char *key)
{
    while (*key) {
        int length = (int)strcspn(key, "\n");
        put(w, "= %.*s\n", length, key);
        key += length + (key[length] != '\0');
    }
}

static void put_choice(struct writer *w, int of, uint32_t bucket,
                       const struct llane_tuning_choice *c)
{
    if (c->path == LLANE_TUNING_DEFAULT) {
        return;
    }
    put(w, "%s %" PRIu64, classes[of], llane_tuning_bucket_bytes(bucket));
    if (c->path == LLANE_TUNING_NCCL) {
        put(w, " nccl\n");
    } else if (c->algorithm < N_ALGORITHMS && c->packet < LLANE_N_PACKETS) {
        put(w, " lane %s %s %u %u\n", algorithms[c->algorithm], packets[c->packet], c->n_blocks,
            c->n_threads);
    } else {
        w->is_full = 1;
    }
}

size_t llane_tuning_print(const char *key, const struct llane_tuning *tuning, char *text,
                          size_t text_bytes)
{
    struct writer w = {.text = text, .bytes = text_bytes};
    put(&w, "%s", first_line);
    put_key(&w, key);
    for (int of = 0; of < LLANE_TUNING_CLASSES; of++) {
        for (uint32_t b = 0; b < LLANE_TUNING_BUCKETS; b++) {
            put_choice(&w, of, b, &tuning->choice[of][b]);
        }
    }
    put(&w, "sum %016" PRIx64 "\n", llane_tuning_hash(text, w.used));
    return w.is_full ? 0 : w.used;
}

/* ---- parsing ---- */

/* One line without its newline. */
struct line {
    const char *at, *end;
};

/* 0: no whole line is left. */
static int take_line(const char **at, const char *end, struct line *out)
{
    const char *newline = memchr(*at, '\n', (size_t)(end - *at));
    *out = (struct line){*at, newline};
    *at = newline ? newline + 1 : *at;
    return newline != NULL;
}

static int take(struct line *line, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(line->end - line->at) < n || memcmp(line->at, text, n) != 0) {
        return 0;
    }
    line->at += n;
    return 1;
}

/* The end of the line, or one space with more behind it. */
static int take_gap(struct line *line)
{
    return line->at == line->end || (take(line, " ") && line->at < line->end);
}

/* A whole word of words; its place, or -1. */
static int take_word(struct line *line, const char *const *words, int n)
{
    for (int i = 0; i < n; i++) {
        struct line rest = *line;
        if (take(&rest, words[i]) && take_gap(&rest)) {
            *line = rest;
            return i;
        }
    }
    return -1;
}

/* Decimal, up to most; to the next space or the end. */
static int take_number(struct line *line, uint64_t most, uint64_t *out)
{
    const char *first = line->at;
    *out = 0;
    for (; line->at < line->end && *line->at >= '0' && *line->at <= '9'; line->at++) {
        *out = *out * 10 + (uint64_t)(*line->at - '0');
        if (*out > most) {
            return 0;
        }
    }
    return line->at > first && take_gap(line);
}

static int parse_lane(struct line line, struct llane_tuning_choice *out)
{
    uint64_t n_blocks, n_threads;
    int algorithm = take_word(&line, algorithms, N_ALGORITHMS);
    int packet = take_word(&line, packets, LLANE_N_PACKETS);
    if (algorithm < 0 || packet < 0 || !take_number(&line, LLANE_MAX_BLOCKS, &n_blocks) ||
        !take_number(&line, LLANE_MAX_THREADS, &n_threads) || line.at != line.end) {
        return 0;
    }
    *out = (struct llane_tuning_choice){LLANE_TUNING_LANE, (uint8_t)algorithm, (uint8_t)packet,
                                        (uint8_t)n_blocks, (uint16_t)n_threads};
    return 1;
}

/* Each size once. */
static int parse_entry(struct line line, struct llane_tuning *out)
{
    static const char *const paths[] = {"nccl", "lane"};
    uint64_t bytes;
    int of = take_word(&line, classes, LLANE_TUNING_CLASSES);
    if (of < 0 || !take_number(&line, llane_tuning_bucket_bytes(LLANE_TUNING_BUCKETS), &bytes)) {
        return 0;
    }
    uint32_t bucket = llane_tuning_bucket(bytes);
    struct llane_tuning_choice *choice = &out->choice[of][bucket];
    if (llane_tuning_bucket_bytes(bucket) != bytes || choice->path != LLANE_TUNING_DEFAULT) {
        return 0;
    }
    int path = take_word(&line, paths, 2);
    if (path == 0) {
        choice->path = LLANE_TUNING_NCCL;
        return line.at == line.end;
    }
    return path == 1 && parse_lane(line, choice);
}

static int add_to_key(struct line line, char *key, size_t *used)
{
    size_t n = (size_t)(line.end - line.at);
    if (!n || n + 2 > LLANE_TUNING_KEY_BYTES - *used || memchr(line.at, '\0', n)) {
        return 0;
    }
    memcpy(key + *used, line.at, n);
    key[*used + n] = '\n';
    *used += n + 1;
    key[*used] = '\0';
    return 1;
}

/* The last line, which ends the text. */
static int is_sum(struct line line, const char *text, const char *after, const char *end)
{
    char sum[32];
    snprintf(sum, sizeof sum, "sum %016" PRIx64, llane_tuning_hash(text, (size_t)(line.at - text)));
    return after == end && take(&line, sum) && line.at == line.end;
}

int llane_tuning_parse(const char *text, size_t n, char *key_out, struct llane_tuning *out)
{
    const char *at = text, *end = text + n;
    struct line line;
    size_t used = 0;
    int has_entries = 0;
    key_out[0] = '\0';
    memset(out, 0, sizeof *out);
    if (n < sizeof first_line - 1 || memcmp(text, first_line, sizeof first_line - 1) != 0) {
        return LLANE_EINVAL;
    }
    at += sizeof first_line - 1;
    while (take_line(&at, end, &line)) {
        if (is_sum(line, text, at, end)) {
            return 0;
        }
        if (!has_entries && take(&line, "= ")) {
            if (!add_to_key(line, key_out, &used)) {
                return LLANE_EINVAL;
            }
            continue;
        }
        has_entries = 1;
        if (!parse_entry(line, out)) {
            return LLANE_EINVAL;
        }
    }
    return LLANE_EINVAL;
}
