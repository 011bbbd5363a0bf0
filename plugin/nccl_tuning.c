#include "nccl_tuning.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"
#include "err.h"
#include "log.h"

enum { FIELD_BYTES = 24, N_FIELDS = 8 };

/* ---- one line ---- */

struct fields {
    char text[N_FIELDS][FIELD_BYTES];
};

static int is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* The field without the spaces around it; NULL if it does not fit. */
static const char *copy_field(const char *from, const char *end, char *out)
{
    while (from < end && is_space(*from)) {
        from++;
    }
    while (end > from && is_space(end[-1])) {
        end--;
    }
    if (end - from >= FIELD_BYTES) {
        return NULL;
    }
    memcpy(out, from, (size_t)(end - from));
    out[end - from] = '\0';
    return out;
}

static const char *split(const char *line, const char *end, struct fields *out)
{
    int n = 0;
    for (const char *from = line; from <= end; n++) {
        const char *comma = memchr(from, ',', (size_t)(end - from));
        const char *to = comma ? comma : end;
        if (n == N_FIELDS) {
            return "more than eight fields";
        }
        if (!copy_field(from, to, out->text[n])) {
            return "a field is too long";
        }
        from = to + 1;
    }
    return n == N_FIELDS ? NULL : "fewer than eight fields";
}

/* The place among n names, or -1. */
static int place_of(const char *word, const char *const *names, int n)
{
    int i = 0;
    while (i < n && strcasecmp(word, names[i]) != 0) {
        i++;
    }
    return i < n ? i : -1;
}

static int is_any(const char *text)
{
    return !strcmp(text, "*");
}

/* "*" is `any`. */
static int parse_number(const char *text, uint64_t min, uint64_t max, uint64_t any, uint64_t *out)
{
    *out = any;
    return is_any(text) ? 0 : llane_config_parse(LLANE_KIND_INT, text, min, max, "", out);
}

static int parse_size(const char *text, uint64_t any, uint64_t *out)
{
    *out = any;
    return is_any(text) ? 0 : llane_config_parse(LLANE_KIND_SIZE, text, 0, 1ull << 50, "", out);
}

/* NULL, or what is wrong. */
static const char *parse_line(const char *line, const char *end, struct llane_nccl_tuning_row *row)
{
    static const char *const funcs[] = {"broadcast", "reduce", "allgather", "reducescatter",
                                        "allreduce"};
    static const char *const algorithms[] = {
        "tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"};
    static const char *const protocols[] = {"ll", "ll128", "simple"};
    struct fields f;
    uint64_t channels;
    const char *why = split(line, end, &f);
    if (why) {
        return why;
    }
    row->func = place_of(f.text[0], funcs, 5);
    row->algorithm = place_of(f.text[5], algorithms, 7);
    row->protocol = place_of(f.text[6], protocols, 3);
    if (row->func < 0) {
        return "the collective is none of broadcast, reduce, allgather, reducescatter, allreduce";
    }
    if (parse_size(f.text[1], 0, &row->min_bytes) ||
        parse_size(f.text[2], UINT64_MAX, &row->max_bytes) || row->min_bytes > row->max_bytes) {
        return "bytes from and to are no sizes, or the wrong way round";
    }
    if (parse_number(f.text[3], 1, 1u << 30, 0, &row->n_ranks) ||
        parse_number(f.text[4], 1, 1u << 30, 0, &row->n_nodes)) {
        return "ranks and nodes are numbers from 1 on, or *";
    }
    if (row->algorithm < 0) {
        return "the algorithm is none of tree, ring, collnetdirect, collnetchain, nvls, nvlstree, "
               "pat";
    }
    if (row->protocol < 0) {
        return "the protocol is none of ll, ll128, simple";
    }
    if (parse_number(f.text[7], 1, LLANE_NCCL_TUNING_CHANNELS, 0, &channels)) {
        return "channels are a number from 1 to 64, or *";
    }
    row->n_channels = (int)channels;
    return NULL;
}

/* ---- all lines ---- */

/* Without a comment and the spaces before it; 1 if nothing is left, or it is the heading. */
static int is_passed_over(const char *line, const char **end, int is_first)
{
    static const char heading[] = "collective";
    const char *comment = memchr(line, '#', (size_t)(*end - line));
    *end = comment ? comment : *end;
    while (*end > line && is_space((*end)[-1])) {
        --*end;
    }
    return *end == line || (is_first && (size_t)(*end - line) >= sizeof heading - 1 &&
                            !strncasecmp(line, heading, sizeof heading - 1));
}

static size_t count_lines(const char *text)
{
    size_t n = 1;
    for (const char *c = text; *c; c++) {
        n += *c == '\n';
    }
    return n;
}

int llane_nccl_tuning_parse(const char *text, struct llane_nccl_tuning **out, int *line_out,
                            const char **why_out)
{
    struct llane_nccl_tuning *tuning =
        malloc(sizeof *tuning + count_lines(text) * sizeof tuning->rows[0]);
    *line_out = 1;
    *why_out = "out of memory";
    if (!tuning) {
        return LLANE_ENOMEM;
    }
    tuning->n_rows = 0;
    int is_first = 1;
    for (const char *line = text; *line; ++*line_out) {
        const char *next = strchrnul(line, '\n');
        const char *end = next;
        if (!is_passed_over(line, &end, is_first)) {
            *why_out = parse_line(line, end, &tuning->rows[tuning->n_rows]);
            if (*why_out) {
                free(tuning);
                return LLANE_EINVAL;
            }
            tuning->n_rows++;
        }
        is_first = is_first && end == line; /* what stands above the heading is empty */
        line = *next ? next + 1 : next;
    }
    *out = tuning;
    return 0;
}

const struct llane_nccl_tuning_row *llane_nccl_tuning_find(const struct llane_nccl_tuning *tuning,
                                                           const struct llane_nccl_call *call)
{
    for (size_t i = 0; i < tuning->n_rows; i++) {
        const struct llane_nccl_tuning_row *row = &tuning->rows[i];
        if (row->func == call->func && row->min_bytes <= call->bytes &&
            call->bytes <= row->max_bytes && (!row->n_ranks || row->n_ranks == call->n_ranks) &&
            (!row->n_nodes || row->n_nodes == call->n_nodes)) {
            return row;
        }
    }
    return NULL;
}

/* ---- what NCCL asks for ---- */

void llane_nccl_tuning_set_cost(const struct llane_nccl_tuning_row *row, float *costs, int n_algos,
                                int n_protos, int *n_channels)
{
    if (row->algorithm >= n_algos || row->protocol >= n_protos) {
        return;
    }
    float *cost = &costs[row->algorithm * n_protos + row->protocol];
    if (!(*cost >= 0)) {
        return; /* NCCL writes -1 where it cannot */
    }
    *cost = 0;
    if (row->n_channels && n_channels) {
        *n_channels = row->n_channels;
    }
}

void llane_nccl_tuning_set_choice(const struct llane_nccl_tuning_row *row, int has_coll_net,
                                  int has_nvls, int *algo, int *proto, int *n_channels)
{
    int is_coll_net =
        row->algorithm == LLANE_NCCL_COLLNET_DIRECT || row->algorithm == LLANE_NCCL_COLLNET_CHAIN;
    int is_nvls = row->algorithm == LLANE_NCCL_NVLS || row->algorithm == LLANE_NCCL_NVLS_TREE;
    if (row->protocol == LLANE_NCCL_LL128 || row->algorithm == LLANE_NCCL_PAT ||
        (is_coll_net && !has_coll_net) || (is_nvls && !has_nvls)) {
        return;
    }
    *algo = row->algorithm;
    *proto = row->protocol;
    if (row->n_channels) {
        *n_channels = row->n_channels;
    }
}

/* ---- the file ---- */

static const struct llane_nccl_tuning *the_tuning;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A regular file of reasonable size, zero-terminated; NULL with errno. */
static char *read_file(const char *path)
{
    struct stat info;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return NULL;
    }
    if (fstat(fd, &info) || !S_ISREG(info.st_mode) || info.st_size > LLANE_NCCL_TUNING_BYTES) {
        errno = errno ? errno : EINVAL;
    } else if ((text = calloc(1, (size_t)info.st_size + 1))) {
        ssize_t got, used = 0;
        while ((got = read(fd, text + used, (size_t)(info.st_size - used))) > 0) {
            used += got;
        }
    }
    close(fd);
    return text;
}

static void load(void)
{
    const char *path = llane_config()->nccl_tuning;
    struct llane_nccl_tuning *tuning = NULL;
    int line;
    const char *why;
    if (!path) {
        return;
    }
    errno = 0;
    char *text = read_file(path);
    if (!text) {
        LLANE_WARN("LLANE_NCCL_TUNING=%s is not used: %s", path,
                   errno == EINVAL ? "no regular file of at most 1 MiB" : strerror(errno));
    } else if (llane_nccl_tuning_parse(text, &tuning, &line, &why)) {
        LLANE_WARN("LLANE_NCCL_TUNING=%s is not used: line %d: %s", path, line, why);
    } else {
        LLANE_INFO("LLANE_NCCL_TUNING=%s: %zu lines for calls that stay with NCCL", path,
                   tuning->n_rows);
    }
    free(text);
    the_tuning = tuning;
}

const struct llane_nccl_tuning *llane_nccl_tuning(void)
{
    pthread_once(&once, load);
    return the_tuning;
}
