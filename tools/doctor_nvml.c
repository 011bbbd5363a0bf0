/* What NVML answered, read from the lines of doctor_nvml_live.c or of a recording. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "doctor_machine.h"

static int refuse_line(struct doctor_machine *m, const char *line)
{
    return doctor_refuse(m, "NVML's answers: this line makes no sense: '%.80s'", line);
}

static struct doctor_gpu *gpu_of_index(struct doctor_machine *m, int index)
{
    for (int i = 0; i < m->n_gpus; i++) {
        if (m->gpus[i].index == index) {
            return &m->gpus[i];
        }
    }
    if (m->n_gpus == DOCTOR_MAX_GPUS) {
        return NULL;
    }
    struct doctor_gpu *g = &m->gpus[m->n_gpus++];
    *g = (struct doctor_gpu){.device = -1,
                             .index = index,
                             .minor = -1,
                             .persistence = -1,
                             .mig = -1,
                             .bar1_bytes = -1,
                             .replays = -1,
                             .throttle = -1,
                             .temperature = -1,
                             .power_mw = -1,
                             .power_limit_mw = -1,
                             .utilization = -1,
                             .pstate = -1};
    return g;
}

static int set_number(struct doctor_gpu *g, const char *key, const char *value)
{
    static const int speeds[] = {0, 25, 50, 80, 160, 320, 640, 1280};
    uint64_t n;
    if (doctor_number(value, 0, INT64_MAX, &n)) {
        return -1;
    }
    const struct {
        const char *key;
        int64_t *to;
    } large[] = {{"bar1", &g->bar1_bytes},        {"replays", &g->replays},
                 {"throttle", &g->throttle},      {"temperature", &g->temperature},
                 {"power_mw", &g->power_mw},      {"power_limit_mw", &g->power_limit_mw},
                 {"utilization", &g->utilization}};
    const struct {
        const char *key;
        int *to;
        int most;
    } small[] = {{"minor", &g->minor, 4095},   {"persistence", &g->persistence, 1},
                 {"mig", &g->mig, 1},          {"pstate", &g->pstate, 32},
                 {"width", &g->now.width, 63}, {"width_most", &g->most.width, 63}};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        if (!strcmp(key, large[i].key)) {
            *large[i].to = (int64_t)n;
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        if (!strcmp(key, small[i].key)) {
            *small[i].to = (int)n;
            return n > (uint64_t)small[i].most ? -1 : 0;
        }
    }
    if (!strcmp(key, "generation") || !strcmp(key, "generation_most")) {
        int speed = n < sizeof speeds / sizeof *speeds ? speeds[n] : 0;
        (key[10] ? &g->most : &g->now)->speed = speed;
    }
    return 0; /* a key of a later version says nothing to this one */
}

static int gpu_line(struct doctor_machine *m, char *rest)
{
    uint64_t index;
    char *word = doctor_word(&rest), *key = doctor_word(&rest);
    if (!word || !key || doctor_number(word, 10, DOCTOR_MAX_GPUS - 1, &index)) {
        return -1;
    }
    struct doctor_gpu *g = gpu_of_index(m, (int)index);
    if (!g) {
        return -1;
    }
    if (!strcmp(key, "pci")) {
        return doctor_address(rest, g->pci);
    }
    if (!strcmp(key, "name")) {
        doctor_copy(g->name, sizeof g->name, rest);
    } else if (!strcmp(key, "uuid")) {
        doctor_copy(g->uuid, sizeof g->uuid, rest);
    } else if (!strcmp(key, "lost") || !strcmp(key, "error")) {
        g->is_lost = key[0] == 'l';
        doctor_copy(g->error, sizeof g->error, rest);
    } else {
        return set_number(g, key, rest);
    }
    return 0;
}

static int two_gpus(char **rest, uint64_t *a, uint64_t *b)
{
    char *first = doctor_word(rest), *second = doctor_word(rest);
    return !first || !second || doctor_number(first, 10, DOCTOR_MAX_GPUS - 1, a) ||
           doctor_number(second, 10, DOCTOR_MAX_GPUS - 1, b);
}

static int pair_line(struct doctor_machine *m, const char *kind, char *rest)
{
    uint64_t a, b, level;
    if (two_gpus(&rest, &a, &b)) {
        return -1;
    }
    struct doctor_pair *pair = &m->pairs[a][b];
    char *first = doctor_word(&rest), *second = doctor_word(&rest);
    if (!first) {
        return -1;
    }
    if (!strcmp(kind, "level")) {
        if (doctor_number(first, 10, 1000, &level)) {
            return -1;
        }
        pair->has_nvml_level = 1;
        pair->nvml_level = level / 10 > DOCTOR_SYS ? DOCTOR_SYS : (enum doctor_level)(level / 10);
        return 0;
    }
    if (!second) {
        return -1;
    }
    doctor_copy(pair->p2p_read, sizeof pair->p2p_read, first);
    doctor_copy(pair->p2p_write, sizeof pair->p2p_write, second);
    return 0;
}

static int process_line(struct doctor_machine *m, char *rest)
{
    uint64_t gpu, pid;
    char *first = doctor_word(&rest), *second = doctor_word(&rest);
    if (!first || !second || doctor_number(first, 10, DOCTOR_MAX_GPUS - 1, &gpu) ||
        doctor_number(second, 10, INT32_MAX, &pid)) {
        return -1;
    }
    if (m->n_processes < DOCTOR_MAX_RANKS) {
        m->processes[m->n_processes].gpu = (int)gpu;
        m->processes[m->n_processes++].pid = (int)pid;
    }
    return 0;
}

struct links {
    int to_switch[DOCTOR_MAX_GPUS];
    struct {
        int from;
        char to[24];
    } direct[DOCTOR_MAX_GPUS * 32];
    int n;
};

static int link_line(struct links *links, char *rest)
{
    uint64_t gpu, link;
    if (two_gpus(&rest, &gpu, &link) || links->n == DOCTOR_MAX_GPUS * 32) {
        return -1;
    }
    links->direct[links->n].from = (int)gpu;
    return doctor_address(rest, links->direct[links->n++].to);
}

/* A link that ends at no GPU ends at a switch, which leads to every GPU that has such links. */
static void count_links(struct doctor_machine *m, struct links *links)
{
    for (int i = 0; i < links->n; i++) {
        int from = links->direct[i].from, to = -1;
        for (int g = 0; g < m->n_gpus; g++) {
            if (!strcmp(m->gpus[g].pci, links->direct[i].to)) {
                to = m->gpus[g].index;
            }
        }
        if (to >= 0) {
            m->pairs[from][to].nvlinks++;
        } else {
            links->to_switch[from]++;
        }
    }
    for (int a = 0; a < DOCTOR_MAX_GPUS; a++) {
        for (int b = 0; b < DOCTOR_MAX_GPUS; b++) {
            if (a != b && links->to_switch[a] && links->to_switch[b]) {
                m->pairs[a][b].nvlinks += links->to_switch[a];
            }
        }
    }
}

int doctor_parse_nvml(struct doctor_machine *m, const char *text)
{
    struct links *links = calloc(1, sizeof *links);
    char line[256], copy[256];
    uint64_t value;
    int bad = 0;
    if (!links) {
        return doctor_refuse(m, "out of memory");
    }
    m->has_nvml = 1;
    while (!bad && doctor_line(&text, line, sizeof line)) {
        memcpy(copy, line, sizeof copy);
        doctor_trim(line);
        char *rest = line, *kind = doctor_word(&rest);
        if (!kind) {
            continue;
        }
        if (!strcmp(kind, "gpu")) {
            bad = gpu_line(m, rest);
        } else if (!strcmp(kind, "level") || !strcmp(kind, "p2p")) {
            bad = pair_line(m, kind, rest);
        } else if (!strcmp(kind, "nvlink")) {
            bad = link_line(links, rest);
        } else if (!strcmp(kind, "driver")) {
            doctor_copy(m->system.driver, sizeof m->system.driver, rest);
        } else if (!strcmp(kind, "cuda")) {
            bad = doctor_number(rest, 10, 1000000, &value);
            m->system.cuda = bad ? 0 : (int)value;
        } else if (!strcmp(kind, "error")) {
            m->has_nvml = 0;
            doctor_note(m, "NVML", rest,
                        "install the NVIDIA driver, load it (modprobe nvidia), try nvidia-smi");
        } else if (!strcmp(kind, "process")) {
            bad = process_line(m, rest);
        } else {
            bad = -1;
        }
    }
    count_links(m, links);
    free(links);
    return bad ? refuse_line(m, copy) : 0;
}

int doctor_read_nvml(struct doctor_machine *m)
{
    struct doctor_text text = {0};
    int result = 0;
    int err = doctor_source_answer(m->source, "nvml", doctor_collect_nvml, NULL, &text);
    if (err == -EFBIG || err == -EINVAL) {
        result = doctor_refuse(m, "NVML's answers cannot be read: %s", strerror(-err));
    } else if (err) {
        doctor_note(m, "NVML", "not in the recording", "record again where NVML works");
    } else {
        result = doctor_parse_nvml(m, doctor_text_get(&text));
    }
    doctor_text_free(&text);
    return result;
}
