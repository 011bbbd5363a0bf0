/* See doctor_rules.h: the list itself, the links of a path, and what llane would choose. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "doctor_rules.h"

struct doctor_finding *doctor_find(struct doctor_findings *out, const char *id,
                                   enum doctor_weight weight, int cost, const char *where,
                                   const char *format, ...)
{
    static struct doctor_finding scratch;
    struct doctor_finding *f = out->n < DOCTOR_MAX_FINDINGS ? &out->list[out->n++] : &scratch;
    va_list args;
    *f = (struct doctor_finding){.id = id, .weight = weight, .cost = cost};
    snprintf(f->where, sizeof f->where, "%s", where);
    va_start(args, format);
    vsnprintf(f->what, sizeof f->what, format, args);
    va_end(args);
    return f;
}

void doctor_check(struct doctor_finding *f, const char *text)
{
    if (f->n_checks < DOCTOR_MAX_CHECKS) {
        f->checks[f->n_checks++] = text;
    }
}

void doctor_command(struct doctor_finding *f, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(f->command, sizeof f->command, format, args);
    va_end(args);
}

/* ---- paths ---- */

static int is_upper_end(const struct doctor_device *d)
{
    return d->port == DOCTOR_PORT_ROOT || d->port == DOCTOR_PORT_DOWN ||
           (d->port == DOCTOR_PORT_UNKNOWN && d->is_bridge);
}

int doctor_hops(const struct doctor_machine *m, int device,
                struct doctor_hop hops[DOCTOR_MAX_DEPTH])
{
    int n = 0;
    for (int at = device, depth = 0; at >= 0 && depth < DOCTOR_MAX_DEPTH; depth++) {
        const struct doctor_device *d = &m->devices[at];
        int up = d->parent;
        /* A root port has nothing above it; a downstream port and its switch share silicon. */
        if (d->port != DOCTOR_PORT_ROOT && d->port != DOCTOR_PORT_DOWN &&
            (up < 0 ? depth == 0 : is_upper_end(&m->devices[up]))) {
            hops[n++] = (struct doctor_hop){at, up};
        }
        at = up;
    }
    return n;
}

static int least(int a, int b)
{
    return !a ? b : !b ? a : a < b ? a : b;
}

struct doctor_link doctor_hop_most(const struct doctor_machine *m, struct doctor_hop hop)
{
    struct doctor_link most = m->devices[hop.lower].most;
    if (hop.upper >= 0) {
        most.speed = least(most.speed, m->devices[hop.upper].most.speed);
        most.width = least(most.width, m->devices[hop.upper].most.width);
    }
    return most;
}

static int is_busy(const struct doctor_machine *m, int device)
{
    int g = doctor_find_gpu(m, m->devices[device].name);
    return g >= 0 && (m->gpus[g].utilization > 20 || m->gpus[g].pstate == 0) &&
           m->gpus[g].pstate <= 2;
}

struct doctor_link doctor_hop_now(const struct doctor_machine *m, struct doctor_hop hop,
                                  int *is_loaded_out)
{
    const struct doctor_device *d = &m->devices[hop.lower];
    struct doctor_link now = d->now;
    *is_loaded_out = is_busy(m, hop.lower);
    if (d->loaded.speed || d->loaded.width) {
        now = d->loaded;
        *is_loaded_out = 1;
    }
    if (hop.upper >= 0 && !now.speed && !now.width) {
        now = m->devices[hop.upper].now;
    }
    return now;
}

int doctor_gpus_below(const struct doctor_machine *m, int device, char *text, size_t cap)
{
    int n = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int g = 0; g < m->n_gpus; g++) {
        for (int at = m->gpus[g].device; at >= 0; at = m->devices[at].parent) {
            if (at == device) {
                used += (size_t)snprintf(text + used, used < cap ? cap - used : 0, "%sGPU %d",
                                         n++ ? ", " : "", g);
                used = used < cap ? used : cap - 1;
                break;
            }
        }
    }
    return n;
}

int doctor_has_pci_pairs(const struct doctor_machine *m)
{
    for (int a = 0; a < m->n_gpus; a++) {
        for (int b = 0; b < m->n_gpus; b++) {
            if (a != b && !m->pairs[a][b].nvlinks && !m->gpus[a].is_lost && !m->gpus[b].is_lost) {
                return 1;
            }
        }
    }
    return 0;
}

/* ---- the order ---- */

static int by_cost(const void *a, const void *b)
{
    const struct doctor_finding *left = a, *right = b;
    if (left->weight != right->weight) {
        return right->weight - left->weight;
    }
    if (left->cost != right->cost) {
        return right->cost - left->cost;
    }
    return strcmp(left->what, right->what);
}

enum doctor_weight doctor_worst(const struct doctor_findings *findings)
{
    enum doctor_weight worst = DOCTOR_INFO;
    for (int i = 0; i < findings->n; i++) {
        if (findings->list[i].weight > worst) {
            worst = findings->list[i].weight;
        }
    }
    return worst;
}

void doctor_judge(const struct doctor_machine *m, struct doctor_findings *out)
{
    out->n = 0;
    doctor_rules_gpu(m, out);
    doctor_rules_link(m, out);
    doctor_rules_error(m, out);
    doctor_rules_peer(m, out);
    doctor_rules_process(m, out);
    qsort(out->list, (size_t)out->n, sizeof *out->list, by_cost);
    doctor_verdict(m, out);
}

/* ---- what llane would choose ---- */

static int usable(const struct doctor_machine *m, int gpu)
{
    const struct doctor_device *d = doctor_gpu_device(m, gpu);
    return !m->gpus[gpu].is_lost && !m->gpus[gpu].error[0] &&
           (m->gpus[gpu].index >= 0 || !m->has_nvml) && !(d && d->is_gone);
}

/* Device memory where the probe, or failing that the driver, says that writes arrive. */
static int is_direct(const struct doctor_pair *p)
{
    if (p->probe[0] && strcmp(p->probe, "unchecked") != 0) {
        return !strcmp(p->probe, "good") && strcmp(p->ipc, "no") != 0;
    }
    if (p->p2p_write[0]) {
        return !strcmp(p->p2p_write, "OK");
    }
    return !strcmp(p->claim, "yes");
}

void doctor_verdict(const struct doctor_machine *m, struct doctor_findings *out)
{
    int n = 0, direct = 0, indirect = 0, probed = 0, far = 0, roots = 0;
    char pairs[160] = "";
    size_t used = 0;
    for (int a = 0; a < m->n_gpus; a++) {
        n += usable(m, a);
        for (int b = 0; b < m->n_gpus; b++) {
            const struct doctor_pair *p = &m->pairs[a][b];
            if (a == b || !usable(m, a) || !usable(m, b)) {
                continue;
            }
            probed += !strcmp(p->probe, "good") || !strcmp(p->probe, "missing") ||
                      !strcmp(p->probe, "wrong");
            far |= p->level == DOCTOR_SYS && !p->nvlinks;
            roots |= p->level >= DOCTOR_PHB && !p->nvlinks;
            direct += is_direct(p);
            if (!is_direct(p)) {
                indirect++;
                if (used < sizeof pairs - 16) {
                    used += (size_t)snprintf(pairs + used, sizeof pairs - used, "%s%d>%d",
                                             used ? " " : "", a, b);
                }
            }
        }
    }
    if (n < 2) {
        snprintf(out->verdict, sizeof out->verdict,
                 "no lane: %s. llane carries all-reduces between two GPUs or more of one host.",
                 n ? "one GPU" : "no GPU that works");
        return;
    }
    char memory[400];
    if (!indirect) {
        snprintf(memory, sizeof memory, "staging in GPU memory for all %d GPUs (%s)", n,
                 probed ? "the probe's bytes arrived" : "by what the driver says; not probed");
    } else if (!direct) {
        snprintf(memory, sizeof memory,
                 "staging in pinned host memory: no pair reaches the other's memory (%s)",
                 probed ? "probed" : "by what the driver says; not probed");
    } else {
        snprintf(memory, sizeof memory,
                 "staging in GPU memory, in pinned host memory for %s%s (%s)", pairs,
                 used >= sizeof pairs - 16 ? " .." : "",
                 probed ? "probed" : "by what the driver says; not probed");
    }
    snprintf(out->verdict, sizeof out->verdict,
             "a lane of %d ranks: %s; %s; larger ones by NCCL.%s", n, memory,
             n > 8   ? "small all-reduces by islands (more than 8 GPUs)"
             : far   ? "small all-reduces one-shot, then islands (GPUs on two sockets)"
             : roots ? "small all-reduces one-shot, then two-shot, through the root complex"
                     : "small all-reduces one-shot, then two-shot",
             doctor_worst(out) == DOCTOR_BROKEN ? " Mend what is broken first." : "");
}
