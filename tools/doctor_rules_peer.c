/* How GPUs reach each other: IOMMU, ACS redirection, what was claimed and what arrived, distance. */
#include <stdlib.h>
#include <string.h>

#include "doctor_rules.h"

enum { REDIRECTS = 0x000c /* ACS: peer requests, peer completions */ };

struct pair_list {
    char text[120];
    size_t used;
    int n;
};

static void list_pair(struct pair_list *list, int a, int b, const char *between)
{
    if (list->used < sizeof list->text - 20) {
        list->used += (size_t)snprintf(list->text + list->used, sizeof list->text - list->used,
                                       "%s%d%s%d", list->n ? ", " : "", a, between, b);
    } else if (list->used < sizeof list->text - 4 && !strstr(list->text, " ..")) {
        list->used +=
            (size_t)snprintf(list->text + list->used, sizeof list->text - list->used, " ..");
    }
    list->n++;
}

static int is_alive(const struct doctor_machine *m, int a, int b)
{
    return a != b && !m->gpus[a].is_lost && !m->gpus[b].is_lost;
}

/* Every pair that was probed got its bytes. */
static int is_all_good(const struct doctor_machine *m)
{
    int n = 0;
    for (int a = 0; a < m->n_gpus; a++) {
        for (int b = 0; b < m->n_gpus; b++) {
            if (is_alive(m, a, b)) {
                if (strcmp(m->pairs[a][b].probe, "good") != 0) {
                    return 0;
                }
                n++;
            }
        }
    }
    return n > 0;
}

static void judge_iommu(const struct doctor_machine *m, struct doctor_findings *out)
{
    if (strcmp(m->system.iommu, "translating") != 0 || !doctor_has_pci_pairs(m)) {
        return;
    }
    int is_harmless = is_all_good(m) || m->system.is_virtual;
    struct doctor_finding *f = doctor_find(
        out, "iommu", is_harmless ? DOCTOR_INFO : DOCTOR_WARNING, is_harmless ? 60 : 420, "",
        "the IOMMU translates what GPUs send each other%s",
        m->system.is_virtual ? " inside this VM"
        : is_harmless        ? "; the probe's bytes arrived nevertheless: it costs bandwidth only"
                             : ": all-reduces may hang or write into nothing, the rest is slow");
    doctor_check(f, "VMs on this host? If not, BIOS: VT-d or AMD-Vi (IOMMU) off");
    doctor_check(f, "or on the kernel's command line: iommu=pt; still hanging: intel_iommu=off or "
                    "amd_iommu=off");
    doctor_check(f, "until then: NCCL_P2P_DISABLE=1 (slow, but right)");
    doctor_command(f, "cat /proc/cmdline; cat /sys/kernel/iommu_groups/*/type | sort | uniq -c");
}

/* Ports that lie between two GPUs without NVLink and send their traffic up to the root. */
static void judge_acs(const struct doctor_machine *m, struct doctor_findings *out)
{
    static uint8_t is_between[DOCTOR_MAX_DEVICES];
    char ports[120] = "", command[200] = "";
    size_t n_text = 0, n_command = 0;
    int n_ports = 0, n_switch = 0;
    memset(is_between, 0, sizeof is_between);
    for (int a = 0; a < m->n_gpus; a++) {
        for (int b = 0; b < m->n_gpus; b++) {
            if (!is_alive(m, a, b) || m->pairs[a][b].nvlinks) {
                continue;
            }
            for (int at = m->gpus[a].device; at >= 0 && at != m->pairs[a][b].common;
                 at = m->devices[at].parent) {
                is_between[at] = 1;
            }
        }
    }
    for (int i = 0; i < m->n_devices; i++) {
        const struct doctor_device *d = &m->devices[i];
        if (!is_between[i] || !d->is_bridge || !d->has_acs || !(d->acs_control & REDIRECTS)) {
            continue;
        }
        n_switch += d->port == DOCTOR_PORT_DOWN;
        if (n_text < sizeof ports - 20) {
            n_text += (size_t)snprintf(ports + n_text, sizeof ports - n_text, "%s%.16s",
                                       n_ports ? " " : "", d->name);
            n_command += (size_t)snprintf(command + n_command, sizeof command - n_command,
                                          "%ssudo setpci -s %.16s ECAP_ACS+6.w=0000",
                                          n_ports ? "; " : "", d->name);
            n_command = n_command < sizeof command ? n_command : sizeof command - 1;
        }
        n_ports++;
    }
    if (!n_ports) {
        return;
    }
    int is_harmless = m->system.is_virtual || (!n_switch && is_all_good(m));
    struct doctor_finding *f = doctor_find(
        out, "acs", is_harmless ? DOCTOR_INFO : DOCTOR_WARNING, is_harmless ? 55 : 410, "",
        "ACS redirects peer traffic up to the root at %d port%s between GPUs (%s%s)%s", n_ports,
        n_ports > 1 ? "s" : "", ports, n_text >= sizeof ports - 20 ? " .." : "",
        n_switch ? ": a switch then serves as a detour" : "");
    doctor_check(f, "VMs on this host need ACS: leave it then, and give them whole switches");
    doctor_check(f, "BIOS: ACS off (and IOMMU off, which makes the kernel leave ACS alone)");
    doctor_check(f, "for a trial until the next boot: the command; IOMMU groups stay as they were");
    doctor_command(f, "%s", command);
}

static void judge_lost_writes(const struct doctor_machine *m, struct doctor_findings *out)
{
    struct pair_list lost = {.used = 0}, refused = {.used = 0};
    const char *why = "";
    for (int a = 0; a < m->n_gpus; a++) {
        for (int b = 0; b < m->n_gpus; b++) {
            const struct doctor_pair *p = &m->pairs[a][b];
            if (!is_alive(m, a, b)) {
                continue;
            }
            if (!strcmp(p->probe, "missing") || !strcmp(p->probe, "wrong")) {
                list_pair(&lost, a, b, ">");
            } else if (!strcmp(p->ipc, "no") && !strcmp(p->claim, "yes")) {
                list_pair(&refused, a, b, ">");
                why = p->ipc_why;
            }
        }
    }
    if (lost.n) {
        struct doctor_finding *f = doctor_find(
            out, "peer-lost", DOCTOR_BROKEN, 960, "",
            "what a GPU writes into its peer's memory does not arrive (%s), whatever CUDA claims: "
            "collectives hang or compute garbage",
            lost.text);
        doctor_check(f, "IOMMU off or iommu=pt; ACS off on the ports between them");
        doctor_check(f, "in a VM: the host must map peers (its IOMMU and ACS), or no P2P at all");
        doctor_check(f, "BIOS and driver update");
        doctor_check(f, "until then: NCCL_P2P_DISABLE=1; llane uses host memory by itself");
        doctor_command(f, "NCCL_P2P_DISABLE=1 NCCL_DEBUG=INFO your-program");
    }
    if (refused.n) {
        struct doctor_finding *f =
            doctor_find(out, "ipc-refused", DOCTOR_WARNING, 430, "",
                        "another process cannot open a GPU's memory (%s)%s%s", refused.text,
                        why[0] ? ": " : "", why);
        doctor_check(f, "containers: all ranks in one, or --ipc=host --pid=host on each");
        doctor_check(f, "CUDA_VISIBLE_DEVICES: each rank must see its peers' GPUs");
        doctor_check(f, "MIG off; the same driver and user for all ranks");
        doctor_command(f,
                       "ls -l /proc/self/ns/ipc; docker inspect -f '{{.HostConfig.IpcMode}}' NAME");
    }
}

static void judge_claims(const struct doctor_machine *m, struct doctor_findings *out)
{
    struct pair_list none = {.used = 0};
    const char *word = "";
    for (int a = 0; a < m->n_gpus; a++) {
        for (int b = a + 1; b < m->n_gpus; b++) {
            const struct doctor_pair *p = &m->pairs[a][b];
            int is_none = (p->p2p_write[0] && strcmp(p->p2p_write, "OK") != 0) ||
                          (!p->p2p_write[0] && !strcmp(p->claim, "no"));
            if (is_alive(m, a, b) && is_none) {
                list_pair(&none, a, b, "-");
                word = p->p2p_write;
            }
        }
    }
    if (!none.n) {
        return;
    }
    const char *why = !strcmp(word, "CNS")   ? "the chipset does not support it"
                      : !strcmp(word, "GNS") ? "these GPUs or this driver do not support it"
                      : !strcmp(word, "TNS") ? "the topology does not support it"
                      : !strcmp(word, "DR")  ? "a registry key of the driver disables it"
                                             : "the driver does not say why";
    struct doctor_finding *f =
        doctor_find(out, "p2p-none", DOCTOR_INFO, 50, "",
                    "no peer access between GPUs %s: %s. They exchange through host memory, which "
                    "llane does as well",
                    none.text, why);
    doctor_check(f, "GeForce cards: none is to be had from NVIDIA's driver; no setting changes it");
    doctor_command(f, "nvidia-smi topo -p2p rw");
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* The median write bandwidth of pairs at the same distance; 0 with fewer than three. */
static double usual(const struct doctor_machine *m, const struct doctor_pair *like)
{
    static double values[DOCTOR_MAX_GPUS * DOCTOR_MAX_GPUS];
    int n = 0;
    for (int a = 0; a < m->n_gpus; a++) {
        for (int b = 0; b < m->n_gpus; b++) {
            const struct doctor_pair *p = &m->pairs[a][b];
            if (a != b && p->level == like->level && !p->nvlinks == !like->nvlinks &&
                p->write_gbs > 0) {
                values[n++] = p->write_gbs;
            }
        }
    }
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n < 3 ? 0 : values[n / 2];
}

static void judge_speeds(const struct doctor_machine *m, struct doctor_findings *out)
{
    for (int a = 0; a < m->n_gpus; a++) {
        for (int b = 0; b < m->n_gpus; b++) {
            const struct doctor_pair *p = &m->pairs[a][b];
            double median = a == b ? 0 : usual(m, p);
            struct doctor_finding *f;
            if (a == b || m->is_emulated) {
                continue;
            }
            if (median > 0 && p->write_gbs > 0 && p->write_gbs < median * 0.6) {
                f = doctor_find(out, "pair-slow", DOCTOR_WARNING, 240, m->gpus[a].pci,
                                "GPU %d writes to GPU %d at %.1f GB/s, pairs like it reach %.1f", a,
                                b, p->write_gbs, median);
            } else if (p->write_gbs > 0 && p->read_gbs > 2.5 * p->write_gbs) {
                f = doctor_find(out, "write-collapse", DOCTOR_WARNING, 230, m->gpus[a].pci,
                                "GPU %d writes to GPU %d at %.1f GB/s but reads from it at %.1f: "
                                "posted writes collapse on this way",
                                a, b, p->write_gbs, p->read_gbs);
            } else {
                continue;
            }
            doctor_check(f, "links of both GPUs and of every bridge between them, under load");
            doctor_check(f, "what else uses this uplink: NICs, disks, other jobs");
            doctor_check(f, "BIOS: relaxed ordering, preferred I/O, NUMA settings");
            doctor_command(f, "nvidia-smi topo -m; lspci -tv");
        }
    }
}

static void judge_distance(const struct doctor_machine *m, struct doctor_findings *out)
{
    struct pair_list sockets = {.used = 0}, roots = {.used = 0};
    for (int a = 0; a < m->n_gpus; a++) {
        for (int b = a + 1; b < m->n_gpus; b++) {
            const struct doctor_pair *p = &m->pairs[a][b];
            if (!is_alive(m, a, b) || p->nvlinks || m->gpus[a].device < 0 ||
                m->gpus[b].device < 0) {
                continue;
            }
            if (p->level == DOCTOR_SYS) {
                list_pair(&sockets, a, b, "-");
            } else if (p->level == DOCTOR_NODE) {
                list_pair(&roots, a, b, "-");
            }
        }
    }
    if (sockets.n) {
        struct doctor_finding *f =
            doctor_find(out, "sockets", DOCTOR_INFO, 45, "",
                        "GPUs %s are on different sockets: what they exchange crosses between CPUs",
                        sockets.text);
        doctor_check(f,
                     "jobs of few GPUs: keep them on one socket (CUDA_VISIBLE_DEVICES, --bind-to)");
        doctor_command(f, "nvidia-smi topo -m");
    }
    if (roots.n) {
        struct doctor_finding *f = doctor_find(
            out, "roots", DOCTOR_INFO, 42, "",
            "GPUs %s are on different root complexes of one socket: slower than behind one",
            roots.text);
        doctor_check(f, "the board's manual: slots of one root complex, or of one switch");
        doctor_command(f, "lspci -tv; nvidia-smi topo -m");
    }
}

void doctor_rules_peer(const struct doctor_machine *m, struct doctor_findings *out)
{
    judge_iommu(m, out);
    judge_acs(m, out);
    judge_lost_writes(m, out);
    judge_claims(m, out);
    judge_speeds(m, out);
    judge_distance(m, out);
    if (m->measured_trouble[0]) {
        struct doctor_finding *f =
            doctor_find(out, "measuring-failed", DOCTOR_BROKEN, 820, "",
                        "measuring the GPUs ended early: %s", m->measured_trouble);
        doctor_check(f, "the kernel's log for a fresh Xid; nvidia-smi for a GPU that is gone");
        doctor_command(f, "sudo dmesg | tail; nvidia-smi");
    }
}
