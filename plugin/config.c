#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "err.h"
#include "log.h"

struct row {
    const char *variable;
    enum llane_config_kind kind;
    uint64_t def, min, max;
    const char *words;
    const char *doc;
    size_t offset;
};

static const struct row rows[] = {
#define LLANE_ROW(field, variable, kind, def, min, max, words, doc)                                \
    {"LLANE_" #variable,                                                                           \
     LLANE_KIND_##kind,                                                                            \
     def,                                                                                          \
     min,                                                                                          \
     max,                                                                                          \
     words,                                                                                        \
     doc,                                                                                          \
     offsetof(struct llane_config, field)},
    LLANE_CONFIG(LLANE_ROW)
#undef LLANE_ROW
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static struct llane_config the_config;
static int debug_has_calls;
static pthread_once_t once = PTHREAD_ONCE_INIT;

extern char **environ;

static void *field_of(struct llane_config *config, const struct row *row)
{
    return (char *)config + row->offset;
}

/* A set-uid process gets no settings from whoever started it. */
static const char *read_env(const char *name)
{
    return secure_getenv(name);
}

/* The n-th of words divided by single spaces, its length in length_out; NULL if there are fewer. */
static const char *word_at(const char *words, uint64_t n, size_t *length_out)
{
    for (; n && words; n--) {
        words = strchr(words, ' ');
        words = words ? words + 1 : NULL;
    }
    *length_out = words ? strcspn(words, " ") : 0;
    return words;
}

static int parse_word(const char *text, const char *words, uint64_t *out)
{
    size_t length;
    const char *word;
    for (uint64_t n = 0; (word = word_at(words, n, &length)); n++) {
        if (strlen(text) == length && !strncasecmp(word, text, length)) {
            *out = n;
            return 0;
        }
    }
    return LLANE_EINVAL;
}

int llane_config_parse(enum llane_config_kind kind, const char *text, uint64_t min, uint64_t max,
                       const char *words, uint64_t *out)
{
    if (kind == LLANE_KIND_WORD) {
        return parse_word(text, words, out);
    }
    if (!isdigit((unsigned char)text[0])) {
        return LLANE_EINVAL;
    }
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno) {
        return LLANE_EINVAL;
    }
    if (kind == LLANE_KIND_SIZE && *end) {
        static const char suffixes[] = "KMG";
        const char *suffix = strchr(suffixes, toupper((unsigned char)*end));
        if (!suffix) {
            return LLANE_EINVAL;
        }
        unsigned shift = 10u * (unsigned)(suffix - suffixes + 1);
        if (value > UINT64_MAX >> shift) {
            return LLANE_EINVAL;
        }
        value <<= shift;
        end++;
    }
    if (*end || value < min || value > max) {
        return LLANE_EINVAL;
    }
    *out = value;
    return 0;
}

/* What the user would write: "64K" where it is a whole number of K, as the user would write it. */
static void format_value(const struct row *row, uint64_t value, char *text, size_t bytes)
{
    static const char *const suffixes[] = {"", "K", "M", "G"};
    int step = 0;
    if (row->kind == LLANE_KIND_WORD) {
        size_t length;
        const char *word = word_at(row->words, value, &length);
        snprintf(text, bytes, "%.*s", (int)length, word ? word : "");
        return;
    }
    while (row->kind == LLANE_KIND_SIZE && step < 3 && value && value % 1024 == 0) {
        value /= 1024;
        step++;
    }
    snprintf(text, bytes, "%" PRIu64 "%s", value, suffixes[step]);
}

static void format_range(const struct row *row, char *text, size_t bytes)
{
    char min[32], max[32];
    if (row->kind == LLANE_KIND_WORD || row->kind == LLANE_KIND_TEXT) {
        snprintf(text, bytes, "%s%s", row->kind == LLANE_KIND_WORD ? "one of: " : "", row->words);
        return;
    }
    format_value(row, row->min, min, sizeof min);
    format_value(row, row->max, max, sizeof max);
    snprintf(text, bytes, "%s to %s%s", min, max,
             row->kind == LLANE_KIND_SIZE ? " (bytes; K, M, G allowed)" : "");
}

static const struct row *find_row(const char *name, size_t length)
{
    for (int i = 0; i < N_ROWS; i++) {
        if (strlen(rows[i].variable) == length && !strncmp(rows[i].variable, name, length)) {
            return &rows[i];
        }
    }
    return NULL;
}

/* What the build and the tests set for their own programs, which then load the plugin. */
static bool is_of_the_tests(const char *name, size_t length)
{
    static const char *const names[] = {"LLANE_BUILD", "LLANE_V", "LLANE_DEMO",
                                        "LLANE_REQUIRE_GPUS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) == length && !strncmp(names[i], name, length)) {
            return true;
        }
    }
    return !strncmp(name, "LLANE_TEST_", 11);
}

/* As NCCL reads it: names divided by commas, a leading ^ takes them away. */
static int subsystems_have_calls(const char *list)
{
    if (!list) {
        return 0;
    }
    int is_inverted = list[0] == '^';
    int has = 0;
    char copy[256], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", list + is_inverted);
    for (char *name = strtok_r(copy, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        has |= !strcasecmp(name, "COLL") || !strcasecmp(name, "ALL");
    }
    return has != is_inverted;
}

static void read_nccl_settings(void)
{
    debug_has_calls =
        llane_config_debug_is_info() && subsystems_have_calls(read_env("NCCL_DEBUG_SUBSYS"));
}

static void warn_about_unknown_names(void)
{
    for (char **entry = environ; entry && *entry; entry++) {
        const char *equals = strchr(*entry, '=');
        if (strncmp(*entry, "LLANE_", 6) != 0 || !equals) {
            continue;
        }
        size_t length = (size_t)(equals - *entry);
        if (!find_row(*entry, length) && !is_of_the_tests(*entry, length)) {
            LLANE_WARN("%.*s is not a variable of this version of llane and is ignored "
                       "(docs/config.md lists them)",
                       (int)length, *entry);
        }
    }
}

/* A copy: the program may change its environment. */
static void read_text(const struct row *row, const char *text)
{
    *(const char **)field_of(&the_config, row) = text && text[0] ? strdup(text) : NULL;
}

static void read_number(const struct row *row, const char *text)
{
    uint64_t *field = field_of(&the_config, row);
    *field = row->def;
    if (text && text[0] &&
        llane_config_parse(row->kind, text, row->min, row->max, row->words, field)) {
        char accepts[128], def[32];
        format_range(row, accepts, sizeof accepts);
        format_value(row, row->def, def, sizeof def);
        LLANE_WARN("%s=%s is not accepted: it takes %s; %s is used", row->variable, text, accepts,
                   def);
    }
}

static void parse_all(void)
{
    for (int i = 0; i < N_ROWS; i++) {
        const char *text = read_env(rows[i].variable);
        if (rows[i].kind == LLANE_KIND_TEXT) {
            read_text(&rows[i], text);
        } else {
            read_number(&rows[i], text);
        }
    }
    warn_about_unknown_names();
    read_nccl_settings();
}

const struct llane_config *llane_config(void)
{
    pthread_once(&once, parse_all);
    return &the_config;
}

const char *llane_config_getenv(const char *name)
{
    return getenv(name);
}

int llane_config_debug_is_info(void)
{
    const char *level = read_env("NCCL_DEBUG");
    return level && (!strcasecmp(level, "INFO") || !strcasecmp(level, "ABORT") ||
                     !strcasecmp(level, "TRACE"));
}

int llane_config_debug_has_calls(void)
{
    llane_config();
    return debug_has_calls;
}

int llane_config_nccl_number(const char *name, int *out)
{
    const char *text = read_env(name);
    char *end;
    long value = text ? strtol(text, &end, 0) : 0;
    if (!text || end == text) {
        return 0;
    }
    *out = (int)value;
    return 1;
}

int llane_config_nccl_comm_id(void)
{
    return read_env("NCCL_COMM_ID") != NULL;
}

int llane_config_nccl_checks(void)
{
    int value;
    const char *mode = read_env("NCCL_CHECK_MODE");
    return (llane_config_nccl_number("NCCL_CHECK_POINTERS", &value) && value == 1) ||
           (mode && (!strcasecmp(mode, "DEBUG_LOCAL") || !strcasecmp(mode, "DEBUG_GLOBAL")));
}

int llane_config_cache_directory(char *path, size_t bytes)
{
    const char *cache = read_env("XDG_CACHE_HOME"), *home = read_env("HOME");
    /* Relative ones are to be ignored, says the XDG specification. */
    int n = cache && cache[0] == '/' ? snprintf(path, bytes, "%s/llane", cache)
            : home && home[0] == '/' ? snprintf(path, bytes, "%s/.cache/llane", home)
                                     : 0;
    return n > 0 && (size_t)n < bytes;
}

int llane_config_is_preloaded(const char *name)
{
    const char *list = read_env("LD_PRELOAD");
    return list && strstr(list, name);
}

void llane_config_write_doc(FILE *file)
{
    fprintf(file, "# Variables\n\n"
                  "Generated from plugin/config_table.h; `make docs/config.md` writes it anew.\n\n"
                  "| variable | accepts | default | meaning |\n| --- | --- | --- | --- |\n");
    for (int i = 0; i < N_ROWS; i++) {
        char accepts[128], def[32];
        format_range(&rows[i], accepts, sizeof accepts);
        if (rows[i].kind == LLANE_KIND_TEXT) {
            snprintf(def, sizeof def, "unset");
        } else {
            format_value(&rows[i], rows[i].def, def, sizeof def);
        }
        fprintf(file, "| `%s` | %s | %s | %s |\n", rows[i].variable, accepts, def, rows[i].doc);
    }
}
