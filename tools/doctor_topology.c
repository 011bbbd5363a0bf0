/* GPUs and their devices brought together, and how two GPUs reach each other through the tree. */
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "doctor_machine.h"

int doctor_refuse(struct doctor_machine *m, const char *format, ...)
{
    va_list args;
    if (m->refusal[0]) {
        return -1;
    }
    va_start(args, format);
    vsnprintf(m->refusal, sizeof m->refusal, format, args);
    va_end(args);
    return -1;
}

void doctor_note(struct doctor_machine *m, const char *what, const char *why, const char *how)
{
    for (int i = 0; i < m->n_notes; i++) {
        if (!strncmp(m->notes[i].what, what, sizeof m->notes[i].what - 1)) {
            return;
        }
    }
    if (m->n_notes == DOCTOR_MAX_NOTES) {
        return;
    }
    struct doctor_note *note = &m->notes[m->n_notes++];
    doctor_copy(note->what, sizeof note->what, what);
    doctor_copy(note->why, sizeof note->why, why);
    doctor_copy(note->how, sizeof note->how, how);
}

int doctor_address(const char *text, char out[24])
{
    unsigned domain = 0, bus, slot, function = 0;
    int n = 0;
    if (!strncmp(text, "PCI:", 4)) {
        text += 4;
    }
    if (!isxdigit((unsigned char)*text) || strlen(text) > 20) {
        return -1;
    }
    if ((sscanf(text, "%8x:%2x:%2x.%1x%n", &domain, &bus, &slot, &function, &n) != 4 || text[n]) &&
        (sscanf(text, "%8x:%2x:%2x%n", &domain, &bus, &slot, &n) != 3 || text[n])) {
        domain = 0;
        if ((sscanf(text, "%2x:%2x.%1x%n", &bus, &slot, &function, &n) != 3 || text[n]) &&
            (sscanf(text, "%2x:%2x%n", &bus, &slot, &n) != 2 || text[n])) {
            return -1;
        }
    }
    snprintf(out, 24, "%04x:%02x:%02x.%x", domain & 0xffffff, bus & 255, slot & 31, function & 7);
    return 0;
}

int doctor_find_device(const struct doctor_machine *m, const char *address)
{
    for (int i = 0; i < m->n_devices; i++) {
        if (!strcmp(m->devices[i].name, address)) {
            return i;
        }
    }
    return -1;
}

int doctor_find_gpu(const struct doctor_machine *m, const char *address)
{
    for (int i = 0; i < m->n_gpus; i++) {
        if (!strcmp(m->gpus[i].pci, address)) {
            return i;
        }
    }
    return -1;
}

const struct doctor_device *doctor_gpu_device(const struct doctor_machine *m, int gpu)
{
    return m->gpus[gpu].device >= 0 ? &m->devices[m->gpus[gpu].device] : NULL;
}

void doctor_device_text(const struct doctor_machine *m, int device, char *text, size_t cap)
{
    const struct doctor_device *d = &m->devices[device];
    int gpu = doctor_find_gpu(m, d->name);
    const char *kind = d->port == DOCTOR_PORT_ROOT                                ? "root port"
                       : d->port == DOCTOR_PORT_UP || d->port == DOCTOR_PORT_DOWN ? "switch port"
                       : d->is_bridge                                             ? "bridge"
                       : d->class_code >> 16 == 0x02                              ? "NIC"
                                                                                  : "device";
    if (gpu >= 0) {
        snprintf(text, cap, "GPU %d (%.20s)", gpu, d->name);
    } else {
        snprintf(text, cap, "%s %.20s", kind, d->name);
    }
}

double doctor_link_gbs(struct doctor_link link)
{
    /* 8b/10b up to 5 GT/s, 128b/130b up to 32, flits (242 of 256 bytes) from 64 on. */
    double encoding = link.speed < 80 ? 0.8 : link.speed < 640 ? 128.0 / 130 : 242.0 / 256;
    return link.speed / 10.0 * link.width * encoding / 8;
}

int doctor_link_generation(int speed)
{
    static const int speeds[] = {25, 50, 80, 160, 320, 640, 1280};
    for (int i = 0; i < (int)(sizeof speeds / sizeof *speeds); i++) {
        if (speeds[i] == speed) {
            return i + 1;
        }
    }
    return 0;
}

void doctor_link_text(struct doctor_link link, char *text, size_t cap)
{
    if (!link.speed && !link.width) {
        snprintf(text, cap, "?");
    } else if (!link.speed) {
        snprintf(text, cap, "? x%d", link.width);
    } else {
        snprintf(text, cap, "%g GT/s x%d", link.speed / 10.0, link.width);
    }
}

const char *doctor_level_name(enum doctor_level level)
{
    static const char *const names[] = {"X", "PIX", "PXB", "PHB", "NODE", "SYS"};
    return names[level];
}

/* GPUs that NVML does not show still have a place, behind those that it does. */
static void add_hidden_gpus(struct doctor_machine *m)
{
    for (int d = 0; d < m->n_devices; d++) {
        if (!doctor_is_gpu(&m->devices[d]) || doctor_find_gpu(m, m->devices[d].name) >= 0) {
            continue;
        }
        /* NVML lists a lost GPU without its address: the one device that is left is it. */
        struct doctor_gpu *g = NULL;
        for (int i = 0; i < m->n_gpus && !g; i++) {
            g = !m->gpus[i].pci[0] && m->devices[d].is_gone ? &m->gpus[i] : NULL;
        }
        if (!g && m->n_gpus < DOCTOR_MAX_GPUS) {
            g = &m->gpus[m->n_gpus++];
            *g = (struct doctor_gpu){.index = -1,
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
        }
        if (g) {
            memcpy(g->pci, m->devices[d].name, sizeof g->pci - 1);
        }
    }
}

static int chain(const struct doctor_machine *m, int device, int *out)
{
    int n = 0;
    for (int at = device; at >= 0 && n < DOCTOR_MAX_DEPTH; at = m->devices[at].parent) {
        out[n++] = at;
    }
    return n;
}

static void place_pair(struct doctor_machine *m, int a, int b)
{
    int up_a[DOCTOR_MAX_DEPTH], up_b[DOCTOR_MAX_DEPTH];
    struct doctor_pair *pair = &m->pairs[a][b];
    const struct doctor_device *da = doctor_gpu_device(m, a), *db = doctor_gpu_device(m, b);
    pair->common = -1;
    pair->level = pair->has_nvml_level ? pair->nvml_level : DOCTOR_SYS;
    if (!da || !db) {
        return;
    }
    int n_a = chain(m, m->gpus[a].device, up_a), n_b = chain(m, m->gpus[b].device, up_b);
    for (int i = 1; i < n_a; i++) {
        for (int k = 1; k < n_b; k++) {
            if (up_a[i] == up_b[k]) {
                /* Below the upstream port of one switch lies one downstream port each. */
                pair->common = up_a[i];
                pair->level = i <= 2 && k <= 2 ? DOCTOR_PIX : DOCTOR_PXB;
                return;
            }
        }
    }
    if (!strcmp(da->host, db->host)) {
        pair->level = DOCTOR_PHB;
    } else if ((da->node >= 0 && da->node == db->node) || m->system.n_nodes <= 1) {
        pair->level = DOCTOR_NODE;
    } else {
        pair->level = DOCTOR_SYS;
    }
}

int doctor_topology(struct doctor_machine *m)
{
    /* NVML's index is the order; recordings may have its lines in any. */
    for (int i = 0; i < m->n_gpus; i++) {
        if (m->gpus[i].index != i) {
            return doctor_refuse(m,
                                 "NVML's GPUs are not numbered 0, 1, 2, ..: %d comes at place %d",
                                 m->gpus[i].index, i);
        }
    }
    add_hidden_gpus(m);
    for (int i = 0; i < m->n_gpus; i++) {
        struct doctor_gpu *g = &m->gpus[i];
        g->device = g->pci[0] ? doctor_find_device(m, g->pci) : -1;
        const struct doctor_device *d = doctor_gpu_device(m, i);
        if (!d) {
            continue;
        }
        if (d->is_gone) {
            g->is_lost = 1;
        }
        if (d->now.speed || d->now.width) {
            g->now =
                d->now; /* NVML's is older than a loaded reading; sysfs shows both ends alike */
        }
        if (d->most.speed && d->most.width) {
            g->most = d->most;
        }
        g->loaded = d->loaded;
        if (g->bar1_bytes < 0) {
            g->bar1_bytes = d->bar1_bytes;
        }
    }
    for (int a = 0; a < m->n_gpus; a++) {
        for (int b = 0; b < m->n_gpus; b++) {
            if (a != b) {
                place_pair(m, a, b);
            }
        }
    }
    return 0;
}
