/* See doctor_screen.h: the same as JSON. Names and units are in docs/doctor.md. */
#include <string.h>

#include "doctor_screen.h"

/* Commas are the printer's business: one before every member but a container's first. */
struct json {
    FILE *to;
    int needs_comma;
};

static void string(struct json *j, const char *text)
{
    fputc('"', j->to);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            fprintf(j->to, "\\%c", c);
        } else if (c < 0x20 || c >= 0x7f) {
            /* What is no ASCII came from logs; its bytes are shown as the code points of Latin-1. */
            fprintf(j->to, "\\u%04x", c);
        } else {
            fputc(c, j->to);
        }
    }
    fputc('"', j->to);
}

static void key(struct json *j, const char *name)
{
    fprintf(j->to, "%s\n", j->needs_comma ? "," : "");
    j->needs_comma = 1;
    if (name) {
        string(j, name);
        fputs(": ", j->to);
    }
}

static void open(struct json *j, const char *name, char bracket)
{
    key(j, name);
    fputc(bracket, j->to);
    j->needs_comma = 0;
}

static void shut(struct json *j, char bracket)
{
    fputc(bracket, j->to);
    j->needs_comma = 1;
}

static void text(struct json *j, const char *name, const char *value)
{
    key(j, name);
    string(j, value);
}

static void integer(struct json *j, const char *name, long long value)
{
    key(j, name);
    fprintf(j->to, "%lld", value);
}

static void counter(struct json *j, const char *name, uint64_t value)
{
    key(j, name);
    fprintf(j->to, "%llu", (unsigned long long)value);
}

static void real(struct json *j, const char *name, double value)
{
    key(j, name);
    fprintf(j->to, "%.3f", value);
}

static void link(struct json *j, const char *name, struct doctor_link l)
{
    open(j, name, '{');
    real(j, "gt_s", l.speed / 10.0);
    integer(j, "generation", doctor_link_generation(l.speed));
    integer(j, "width", l.width);
    real(j, "gb_s", doctor_link_gbs(l));
    shut(j, '}');
}

static void print_system(struct json *j, const struct doctor_machine *m)
{
    const struct doctor_system *s = &m->system;
    open(j, "system", '{');
    text(j, "kernel", s->kernel);
    text(j, "product", s->product);
    text(j, "cpu", s->cpu);
    text(j, "hypervisor", s->is_virtual ? s->hypervisor : "");
    integer(j, "is_virtual", s->is_virtual);
    text(j, "command_line", s->cmdline);
    text(j, "driver", s->driver);
    text(j, "driver_flavour", s->driver_flavour);
    text(j, "driver_params", s->driver_params);
    integer(j, "cuda", s->cuda);
    text(j, "nccl", s->nccl);
    text(j, "program", s->program_nccl);
    text(j, "iommu", s->iommu);
    text(j, "aspm_policy", s->aspm_policy);
    integer(j, "numa_nodes", s->n_nodes);
    text(j, "container", s->is_container ? s->container : "");
    integer(j, "own_ipc_namespace", s->own_ipc_namespace);
    integer(j, "own_pid_namespace", s->own_pid_namespace);
    integer(j, "shm_bytes", s->shm_bytes);
    integer(j, "shm_free_bytes", s->shm_free_bytes);
    integer(j, "memlock_bytes", s->is_memlock_unlimited ? -1 : s->memlock_bytes);
    integer(j, "mps", s->is_mps);
    text(j, "cuda_visible_devices", s->visible);
    text(j, "affinity", s->affinity);
    shut(j, '}');
}

static void print_gpus(struct json *j, const struct doctor_machine *m)
{
    open(j, "gpus", '[');
    for (int g = 0; g < m->n_gpus; g++) {
        const struct doctor_gpu *gpu = &m->gpus[g];
        const struct doctor_device *d = doctor_gpu_device(m, g);
        struct doctor_hop hops[DOCTOR_MAX_DEPTH];
        int n = d ? doctor_hops(m, gpu->device, hops) : 0, is_loaded = 0;
        open(j, NULL, '{');
        integer(j, "index", g);
        text(j, "name", gpu->name);
        text(j, "uuid", gpu->uuid);
        text(j, "pci", gpu->pci);
        integer(j, "is_lost", gpu->is_lost);
        integer(j, "numa_node", d ? d->node : -1);
        text(j, "cpus", d ? d->cpus : "");
        link(j, "link_now", gpu->now);
        link(j, "link_loaded", gpu->loaded);
        link(j, "link_most", gpu->most);
        open(j, "path", '[');
        for (int i = 0; i < n; i++) {
            open(j, NULL, '{');
            text(j, "lower", m->devices[hops[i].lower].name);
            text(j, "upper", hops[i].upper >= 0 ? m->devices[hops[i].upper].name : "");
            link(j, "now", doctor_hop_now(m, hops[i], &is_loaded));
            link(j, "most", doctor_hop_most(m, hops[i]));
            shut(j, '}');
        }
        shut(j, ']');
        integer(j, "bar1_bytes", gpu->bar1_bytes);
        integer(j, "bar1_most_bytes", d ? (long long)d->bar1_most_bytes : 0);
        integer(j, "replays", gpu->replays);
        integer(j, "persistence", gpu->persistence);
        integer(j, "temperature_c", gpu->temperature);
        integer(j, "throttle_reasons", gpu->throttle);
        integer(j, "iommu_group", d ? d->iommu_group : -1);
        real(j, "host_latency_us", m->host[g].latency_us);
        real(j, "host_to_gpu_gb_s", m->host[g].to_gbs);
        real(j, "gpu_to_host_gb_s", m->host[g].from_gbs);
        shut(j, '}');
    }
    shut(j, ']');
}

static void print_pairs(struct json *j, const struct doctor_machine *m)
{
    open(j, "pairs", '[');
    for (int a = 0; a < m->n_gpus; a++) {
        for (int b = 0; b < m->n_gpus; b++) {
            const struct doctor_pair *p = &m->pairs[a][b];
            if (a == b) {
                continue;
            }
            open(j, NULL, '{');
            integer(j, "from", a);
            integer(j, "to", b);
            text(j, "level", doctor_level_name(p->level));
            text(j, "nvml_level", p->has_nvml_level ? doctor_level_name(p->nvml_level) : "");
            text(j, "common", p->common >= 0 ? m->devices[p->common].name : "");
            integer(j, "nvlinks", p->nvlinks);
            text(j, "p2p_read", p->p2p_read);
            text(j, "p2p_write", p->p2p_write);
            text(j, "cuda_claims", p->claim);
            text(j, "ipc_opens", p->ipc);
            text(j, "ipc_why", p->ipc_why);
            text(j, "probe", p->probe);
            real(j, "latency_us", p->latency_us);
            real(j, "write_gb_s", p->write_gbs);
            real(j, "read_gb_s", p->read_gbs);
            shut(j, '}');
        }
    }
    shut(j, ']');
}

static void print_bridges(struct json *j, const struct doctor_machine *m)
{
    static const char *const kinds[] = {"corrected", "nonfatal", "fatal"};
    char below[8];
    open(j, "path_devices", '[');
    for (int i = 0; i < m->n_devices; i++) {
        const struct doctor_device *d = &m->devices[i];
        if (!doctor_gpus_below(m, i, below, sizeof below)) {
            continue;
        }
        open(j, NULL, '{');
        text(j, "pci", d->name);
        text(j, "parent", d->parent >= 0 ? m->devices[d->parent].name : d->host);
        integer(j, "port_type", d->port);
        link(j, "now", d->now);
        link(j, "most", d->most);
        integer(j, "config_bytes", (long long)d->config_bytes);
        integer(j, "acs_control", d->has_acs ? d->acs_control : -1);
        integer(j, "link_control", d->has_express ? d->link_control : -1);
        integer(j, "link_control2", d->has_express ? d->link_control2 : -1);
        counter(j, "latched_uncorrectable", d->uncorrectable);
        counter(j, "latched_correctable", d->correctable);
        for (int k = 0; k < DOCTOR_N_AER; k++) {
            open(j, kinds[k], '{');
            integer(j, "is_known", d->aer[k].is_known);
            counter(j, "total", d->aer[k].total);
            text(j, "kinds", d->aer[k].kinds);
            shut(j, '}');
        }
        shut(j, '}');
    }
    shut(j, ']');
}

static void print_rest(struct json *j, const struct doctor_machine *m,
                       const struct doctor_findings *findings)
{
    static const char *const weights[] = {"note", "warning", "broken"};
    open(j, "ranks", '[');
    for (int i = 0; i < m->n_ranks; i++) {
        open(j, NULL, '{');
        integer(j, "rank", m->ranks[i].rank);
        integer(j, "pid", m->ranks[i].pid);
        integer(j, "gpu", m->ranks[i].gpu);
        integer(j, "node_of_cpus", m->ranks[i].node_of_cpus);
        text(j, "cpus", m->ranks[i].cpus);
        shut(j, '}');
    }
    shut(j, ']');
    open(j, "events", '[');
    for (int i = 0; i < m->n_events; i++) {
        open(j, NULL, '{');
        real(j, "seconds", m->events[i].seconds);
        text(j, "pci", m->events[i].device);
        integer(j, "xid", m->events[i].number);
        counter(j, "count", m->events[i].count);
        text(j, "line", m->events[i].text);
        shut(j, '}');
    }
    shut(j, ']');
    open(j, "not_readable", '[');
    for (int i = 0; i < m->n_notes; i++) {
        open(j, NULL, '{');
        text(j, "what", m->notes[i].what);
        text(j, "why", m->notes[i].why);
        text(j, "how", m->notes[i].how);
        shut(j, '}');
    }
    shut(j, ']');
    open(j, "findings", '[');
    for (int i = 0; i < findings->n; i++) {
        const struct doctor_finding *f = &findings->list[i];
        open(j, NULL, '{');
        text(j, "id", f->id);
        text(j, "weight", weights[f->weight]);
        integer(j, "cost", f->cost);
        text(j, "pci", f->where);
        text(j, "what", f->what);
        open(j, "checks", '[');
        for (int k = 0; k < f->n_checks; k++) {
            text(j, NULL, f->checks[k]);
        }
        shut(j, ']');
        text(j, "command", f->command);
        shut(j, '}');
    }
    shut(j, ']');
    text(j, "verdict", findings->verdict);
    integer(j, "exit", doctor_worst(findings));
}

void doctor_print_json(const struct doctor_machine *m, const struct doctor_findings *findings,
                       FILE *to)
{
    struct json j = {.to = to};
    fputc('{', to);
    text(&j, "version", LLANE_VERSION);
    integer(&j, "has_nvml", m->has_nvml);
    integer(&j, "has_loaded_links", m->has_loaded);
    integer(&j, "has_measured", m->has_measured);
    integer(&j, "is_emulated", m->is_emulated);
    print_system(&j, m);
    print_gpus(&j, m);
    print_pairs(&j, m);
    print_bridges(&j, m);
    print_rest(&j, m, findings);
    fputs("\n}\n", to);
}
