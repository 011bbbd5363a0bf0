/* See doctor_screen.h: the text. */
#include <string.h>

#include "doctor_screen.h"

enum { COLUMNS = 98 };

/* Words wrapped at COLUMNS, further lines indented; column is where the first line begins. */
static void wrap(FILE *to, int indent, int column, const char *text)
{
    int is_first = 1;
    while (*(text += strspn(text, " "))) {
        int n = (int)strcspn(text, " ");
        if (!is_first && column + 1 + n > COLUMNS) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        } else if (!is_first) {
            fputc(' ', to);
            column++;
        }
        fprintf(to, "%.*s", n, text);
        column += n;
        text += n;
        is_first = 0;
    }
    fputc('\n', to);
}

/* Of the kernel's command line and the driver's parameters, what bears on links and peers. */
static void print_settings(const struct doctor_system *s, FILE *to)
{
    static const char *const names[] = {"iommu", "intel_iommu",  "amd_iommu",         "pcie_aspm",
                                        "pci",   "pcie_port_pm", "pcie_acs_override", "pcie_ports"};
    char line[sizeof s->cmdline], text[600] = "", *rest = line;
    size_t n = 0;
    memcpy(line, s->cmdline, sizeof line);
    for (char *word; (word = doctor_word(&rest)) && n < sizeof text;) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            size_t length = strlen(names[i]);
            if (!strncmp(word, names[i], length) && (word[length] == '=' || !word[length])) {
                n += (size_t)snprintf(text + n, sizeof text - n, " %.80s", word);
                break;
            }
        }
    }
    if (n || s->driver_params[0]) {
        fprintf(to, "settings: ");
        wrap(to, 2, 10, text);
        if (s->driver_params[0]) {
            fprintf(to, "  driver: %s\n", s->driver_params);
        }
    }
}

static void print_head(const struct doctor_machine *m, FILE *to)
{
    const struct doctor_system *s = &m->system;
    char text[900], limits[160] = "", cuda[32] = "unknown";
    snprintf(text, sizeof text, "llane doctor %s: %s%s%s, %s%s%s%s%s", LLANE_VERSION,
             s->is_virtual ? "virtual machine (" : "bare metal", s->is_virtual ? s->hypervisor : "",
             s->is_virtual ? ")" : "", s->product[0] ? s->product : "", s->product[0] ? ", " : "",
             s->cpu[0] ? s->cpu : "CPU unknown", s->kernel[0] ? ", kernel " : "", s->kernel);
    wrap(to, 2, 0, text);
    if (s->cuda) {
        snprintf(cuda, sizeof cuda, "%d.%d", s->cuda / 1000, s->cuda / 10 % 100);
    }
    snprintf(text, sizeof text,
             "driver %s%s%s%s, CUDA %s, NCCL %s; IOMMU %s, ASPM %s; %d NUMA node%s; MPS %s",
             s->driver[0] ? s->driver : "none", s->driver_flavour[0] ? " (" : "", s->driver_flavour,
             s->driver_flavour[0] ? ")" : "", cuda, s->nccl[0] ? s->nccl : "unknown", s->iommu,
             s->aspm_policy[0] ? s->aspm_policy : "?", s->n_nodes, s->n_nodes == 1 ? "" : "s",
             s->is_mps ? "on" : "off");
    wrap(to, 2, 0, text);
    if (s->is_memlock_unlimited) {
        snprintf(limits, sizeof limits, "unlimited");
    } else {
        snprintf(limits, sizeof limits, "%lld KiB", (long long)(s->memlock_bytes >> 10));
    }
    snprintf(
        text, sizeof text,
        "process: %s%s, IPC namespace %s, PID namespace %s; /dev/shm %lld MiB, %lld free; memlock "
        "%s; CPUs %s%s%s",
        s->is_container ? "container " : "no container", s->container,
        s->own_ipc_namespace < 0 ? "?"
        : s->own_ipc_namespace   ? "own"
                                 : "the host's",
        s->own_pid_namespace < 0 ? "?"
        : s->own_pid_namespace   ? "own"
                                 : "the host's",
        (long long)(s->shm_bytes >> 20), (long long)(s->shm_free_bytes >> 20), limits,
        s->affinity[0] ? s->affinity : "?", s->visible[0] ? "; CUDA_VISIBLE_DEVICES " : "",
        s->visible);
    wrap(to, 2, 0, text);
    print_settings(s, to);
    if (s->program_nccl[0]) {
        wrap(to, 2, 0, s->program_nccl);
    }
}

static void print_gpu(const struct doctor_machine *m, int g, FILE *to)
{
    const struct doctor_gpu *gpu = &m->gpus[g];
    const struct doctor_device *d = doctor_gpu_device(m, g);
    struct doctor_hop hops[DOCTOR_MAX_DEPTH];
    char now[32], most[32], name[26], narrow[32] = "its own", text[360];
    int n = d ? doctor_hops(m, gpu->device, hops) : 0, is_loaded = 0, narrowest = 0;
    double best = 0;
    doctor_link_text(gpu->loaded.speed ? gpu->loaded : gpu->now, now, sizeof now);
    doctor_link_text(gpu->most, most, sizeof most);
    for (int i = 0; i < n; i++) {
        double gbs = doctor_link_gbs(doctor_hop_now(m, hops[i], &is_loaded));
        if (gbs > 0 && (best == 0 || gbs < best)) {
            best = gbs;
            narrowest = i;
        }
    }
    if (!best) {
        best = doctor_link_gbs(gpu->loaded.speed ? gpu->loaded : gpu->now);
    }
    if (narrowest) {
        snprintf(narrow, sizeof narrow, "above: %.20s", m->devices[hops[narrowest].lower].name);
    }
    snprintf(name, sizeof name, "%.20s", gpu->name[0] ? gpu->name : gpu->is_lost ? "lost" : "?");
    fprintf(to, "%3d  %-12s  %-20.20s %4d  %-13s %-13s %5.1f  %s\n", g,
            gpu->pci[0] ? gpu->pci : "?", name, d ? d->node : -1, now, most, best, narrow);
    char bar1[24] = "?", persistence[8] = "?", replays[24] = "?";
    if (gpu->bar1_bytes >= 0) {
        snprintf(bar1, sizeof bar1, "%lld MiB", (long long)(gpu->bar1_bytes >> 20));
    }
    if (gpu->persistence >= 0) {
        snprintf(persistence, sizeof persistence, "%s", gpu->persistence ? "on" : "off");
    }
    if (gpu->replays >= 0) {
        snprintf(replays, sizeof replays, "%lld", (long long)gpu->replays);
    }
    snprintf(text, sizeof text, "%s%sCPUs %s; BAR1 %s%s; persistence %s; replays %s; ASPM %s",
             gpu->uuid, gpu->uuid[0] ? "; " : "", d && d->cpus[0] ? d->cpus : "?", bar1,
             d && d->bar1_most_bytes && (int64_t)d->bar1_most_bytes == gpu->bar1_bytes
                 ? " (resizable, full)"
             : d && d->bar1_most_bytes ? " (resizable)"
                                       : "",
             persistence, replays,
             !d || !d->has_express        ? "?"
             : (d->link_control & 3) == 0 ? "off"
             : (d->link_control & 3) == 1 ? "L0s"
             : (d->link_control & 3) == 2 ? "L1"
                                          : "L0s L1");
    fprintf(to, "     ");
    wrap(to, 5, 5, text);
}

/* Every corrected or worse error on the way of a GPU, in one line a device. */
static void print_errors(const struct doctor_machine *m, FILE *to)
{
    char text[160];
    for (int i = 0; i < m->n_devices; i++) {
        const struct doctor_device *d = &m->devices[i];
        if (!doctor_gpus_below(m, i, text, sizeof text) ||
            !(d->aer[0].total || d->aer[1].total || d->aer[2].total)) {
            continue;
        }
        doctor_device_text(m, i, text, sizeof text);
        fprintf(to, "  AER %s: corrected %llu (%s), non-fatal %llu, fatal %llu\n", text,
                (unsigned long long)d->aer[0].total, d->aer[0].kinds,
                (unsigned long long)d->aer[1].total, (unsigned long long)d->aer[2].total);
    }
}

static const char *cell(const struct doctor_machine *m, int a, int b, char *text, size_t cap)
{
    const struct doctor_pair *p = &m->pairs[a][b];
    if (a == b) {
        return "X";
    }
    if (p->nvlinks) {
        snprintf(text, cap, "NV%d", p->nvlinks);
        return text;
    }
    return doctor_level_name(p->has_nvml_level ? p->nvml_level : p->level);
}

static void print_matrix(const struct doctor_machine *m, FILE *to)
{
    char text[16];
    fprintf(
        to,
        "\nPIX one switch, PXB switches, PHB one root complex, NODE one socket, SYS sockets, NV# "
        "NVLinks\n%-6s",
        "");
    for (int b = 0; b < m->n_gpus; b++) {
        fprintf(to, "GPU%-3d", b);
    }
    fprintf(to, "   root port\n");
    for (int a = 0; a < m->n_gpus; a++) {
        fprintf(to, "GPU%-3d", a);
        for (int b = 0; b < m->n_gpus; b++) {
            fprintf(to, "%-6s", cell(m, a, b, text, sizeof text));
        }
        const struct doctor_device *d = doctor_gpu_device(m, a);
        if (d) {
            int root = m->gpus[a].device;
            while (m->devices[root].parent >= 0) {
                root = m->devices[root].parent;
            }
            fprintf(to, "   %s", m->devices[root].name);
            for (int at = d->parent; at >= 0; at = m->devices[at].parent) {
                char below[8];
                if (m->devices[at].port == DOCTOR_PORT_UP &&
                    doctor_gpus_below(m, at, below, sizeof below) > 1) {
                    fprintf(to, ", shared switch %s", m->devices[at].name);
                    break;
                }
            }
        }
        fputc('\n', to);
    }
}

static char letter(const char *answer)
{
    return !strcmp(answer, "yes") || !strcmp(answer, "good") ? 'y'
           : answer[0] && answer[0] != 'u'                   ? 'n'
                                                             : '?';
}

/* A row a GPU: its host memory, then what it does to each peer. */
static void print_measured(const struct doctor_machine *m, FILE *to)
{
    enum { MOST_WIDE = 4 };
    int is_wide = m->n_gpus <= MOST_WIDE;
    fprintf(to, "\nmeasured by %s%s\n", m->measured_by,
            m->is_emulated ? "; EMULATED, no GPU's times" : "");
    if (m->n_gpus > 1) {
        fprintf(to,
                "  from a GPU to its peers: CUDA claims, IPC opens, bytes arrive (y n ?), GB/s "
                "written%s\n",
                is_wide ? "/read, us" : "");
    }
    for (int a = 0; a < m->n_gpus; a++) {
        const struct doctor_host_path *h = &m->host[a];
        fprintf(to, "GPU%-3d", a);
        for (int b = 0; b < m->n_gpus && m->n_gpus > 1; b++) {
            const struct doctor_pair *p = &m->pairs[a][b];
            char text[48];
            snprintf(text, sizeof text, "%c%c%c %.0f", letter(p->claim), letter(p->ipc),
                     letter(p->probe), p->write_gbs);
            if (is_wide) {
                size_t n = strlen(text);
                snprintf(text + n, sizeof text - n, "/%.0f %.1f", p->read_gbs, p->latency_us);
            }
            fprintf(to, is_wide ? "%-15s" : "%-8s", a == b ? "X" : text);
        }
        fprintf(to, m->n_gpus > 8 ? "\n      host: " : " host: ");
        if (h->to_gbs > 0 || h->latency_us > 0) {
            fprintf(to, "%.1f us, to %.0f, from %.0f\n", h->latency_us, h->to_gbs, h->from_gbs);
        } else {
            fprintf(to, "?\n");
        }
    }
}

static void print_ranks(const struct doctor_machine *m, FILE *to)
{
    fprintf(to, "\nrank   pid      GPU  GPU's node  CPUs' node  CPUs\n");
    for (int i = 0; i < m->n_ranks; i++) {
        const struct doctor_rank *r = &m->ranks[i];
        const struct doctor_device *d = r->gpu >= 0 ? doctor_gpu_device(m, r->gpu) : NULL;
        char cpus_node[12] = "several";
        if (r->node_of_cpus >= 0) {
            snprintf(cpus_node, sizeof cpus_node, "%d", r->node_of_cpus);
        }
        fprintf(to, "%4d   %-7d  %3d  %10d  %10s  %s\n", r->rank, r->pid, r->gpu, d ? d->node : -1,
                cpus_node, r->cpus);
    }
}

static void print_findings(const struct doctor_findings *findings, int is_verbose, FILE *to)
{
    static const char *const words[] = {"note", "WARNING", "BROKEN"};
    int n = 0;
    for (int i = 0; i < findings->n; i++) {
        const struct doctor_finding *f = &findings->list[i];
        char text[480];
        fprintf(to, "%s", i == 0 ? "\n" : "");
        n += f->weight > DOCTOR_INFO;
        snprintf(text, sizeof text, "%s [%s] %s", words[f->weight], f->id, f->what);
        wrap(to, 4, 0, text);
        if (f->weight == DOCTOR_INFO && !is_verbose) {
            continue;
        }
        for (int k = 0; k < f->n_checks; k++) {
            fprintf(to, "    %d. ", k + 1);
            wrap(to, 7, 7, f->checks[k]);
        }
        if (f->command[0]) {
            fprintf(to, "    $ %s\n", f->command);
        }
    }
    if (!n) {
        fprintf(to, "%sno findings%s\n", findings->n ? "" : "\n",
                findings->n ? " beside these notes" : "");
    }
}

void doctor_print_screen(const struct doctor_machine *m, const struct doctor_findings *findings,
                         int is_verbose, FILE *to)
{
    char text[1000];
    print_head(m, to);
    if (m->n_gpus) {
        fprintf(to,
                "\nGPU  address       name                 node  link %-8s at most       GB/s  "
                "narrowest link\n",
                m->has_loaded ? "(busy)" : "(now)");
        for (int g = 0; g < m->n_gpus; g++) {
            print_gpu(m, g, to);
        }
    } else {
        int n_bridges = 0;
        for (int i = 0; i < m->n_devices; i++) {
            n_bridges += m->devices[i].is_bridge;
        }
        fprintf(to, "\nno NVIDIA GPU; PCI: %d devices, %d bridges\n", m->n_devices, n_bridges);
        for (int i = 0; i < m->n_devices && i < (is_verbose ? DOCTOR_MAX_DEVICES : 12); i++) {
            char now[32];
            const struct doctor_device *d = &m->devices[i];
            doctor_link_text(d->now, now, sizeof now);
            fprintf(to, "  %s  %04x:%04x  class %06x  link %s  driver %s\n", d->name, d->vendor,
                    d->device, d->class_code, now, d->driver[0] ? d->driver : "-");
        }
    }
    print_errors(m, to);
    if (m->n_gpus > 1) {
        print_matrix(m, to);
    }
    if (m->has_measured) {
        print_measured(m, to);
    }
    if (m->n_ranks) {
        print_ranks(m, to);
    }
    print_findings(findings, is_verbose, to);
    for (int i = 0; i < m->n_notes; i++) {
        snprintf(text, sizeof text, "not readable: %s: %s; to read it: %s", m->notes[i].what,
                 m->notes[i].why, m->notes[i].how);
        wrap(to, 4, 0, text);
    }
    fprintf(to, "\nverdict: ");
    wrap(to, 4, 9, findings->verdict);
}
