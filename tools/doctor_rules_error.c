/* Errors: AER counters, latched status, the kernel's log, Xid, replays, what the IOMMU refused. */
#include <string.h>

#include "doctor_rules.h"

/* A few corrected errors over months are no finding; the bar is where they begin to cost time. */
enum { MANY_CORRECTED = 10, STORM = 1000, MANY_REPLAYS = 1000 };

static void link_checks(struct doctor_finding *f)
{
    doctor_check(f, "cooling and power: temperature, power plugs, power supply");
    doctor_check(f, "power off; seat the card anew; without the riser or cable");
    doctor_check(f, "BIOS: one PCIe generation lower for this slot; BIOS update");
    doctor_check(f, "power saving off on this path: pcie_aspm=off on the kernel's command line");
    doctor_check(f, "another slot, then another card");
}

static void error_command(struct doctor_finding *f, const char *address)
{
    doctor_command(f,
                   "grep -H . /sys/bus/pci/devices/%s/aer_dev_*; sudo dmesg | grep -E 'AER|Xid|%s'",
                   address, strncmp(address, "0000:", 5) == 0 ? address + 5 : address);
}

static uint64_t logged(const struct doctor_machine *m, const char *device, int severity)
{
    uint64_t n = 0;
    for (int i = 0; i < m->n_events; i++) {
        const struct doctor_event *e = &m->events[i];
        if (e->kind == DOCTOR_EVENT_AER && e->severity == severity && !strcmp(e->device, device)) {
            n += e->count;
        }
    }
    return n;
}

struct tally {
    uint64_t total, lines;
    char kinds[200];
    char who[140];
    int n_ends;
};

static void add_end(const struct doctor_machine *m, int device, int severity, struct tally *t)
{
    const struct doctor_device *d = &m->devices[device];
    uint64_t lines = logged(m, d->name, severity);
    char name[64];
    size_t n;
    if (!d->aer[severity].total && !lines) {
        return;
    }
    doctor_device_text(m, device, name, sizeof name);
    n = strlen(t->who);
    snprintf(t->who + n, sizeof t->who - n, "%s%s", n ? " and " : "", name);
    n = strlen(t->kinds);
    if (d->aer[severity].kinds[0]) {
        snprintf(t->kinds + n, sizeof t->kinds - n, "%s%s", n ? "; " : "", d->aer[severity].kinds);
    }
    if (__builtin_add_overflow(t->total, d->aer[severity].total, &t->total)) {
        t->total = UINT64_MAX;
    }
    t->lines += lines;
    t->n_ends++;
}

static void judge_errors(const struct doctor_machine *m, struct doctor_findings *out,
                         struct doctor_hop hop)
{
    static const char *const names[] = {"corrected", "uncorrected non-fatal", "fatal"};
    static const char *const ids[] = {"aer-corrected", "aer-nonfatal", "aer-fatal"};
    static const int costs[] = {200, 500, 900};
    for (int k = 0; k < DOCTOR_N_AER; k++) {
        struct tally t = {0};
        add_end(m, hop.lower, k, &t);
        if (hop.upper >= 0) {
            add_end(m, hop.upper, k, &t);
        }
        uint64_t n = t.total > t.lines ? t.total : t.lines;
        if (!n) {
            continue;
        }
        /* With counters at hand a line or two of the log are in them. */
        enum doctor_weight weight = k == DOCTOR_FATAL ? DOCTOR_BROKEN
                                    : k == DOCTOR_COR && n < MANY_CORRECTED && t.total
                                        ? DOCTOR_INFO
                                        : DOCTOR_WARNING;
        struct doctor_finding *f =
            doctor_find(out, k == DOCTOR_COR && n >= STORM ? "aer-storm" : ids[k], weight,
                        costs[k] + (n >= STORM ? 150 : 0), m->devices[hop.lower].name,
                        "%s: %llu %s errors%s%s%s%s", t.who, (unsigned long long)n, names[k],
                        t.kinds[0] ? " (" : "", t.kinds, t.kinds[0] ? ")" : "",
                        t.n_ends > 1 ? ", at both ends of one link: the link, not one card" : "");
        link_checks(f);
        error_command(f, m->devices[hop.lower].name);
    }
}

static void name_bits(uint32_t bits, const char *const *names, char *text, size_t cap)
{
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < 32 && n < cap; i++) {
        if (bits >> i & 1) {
            n += (size_t)snprintf(text + n, cap - n, "%s%s", n ? " " : "",
                                  names[i] ? names[i] : "reserved");
        }
    }
}

/* Latched bits stay after the log has lost its lines. Those that any bus scan leaves are left out. */
static void judge_latched(const struct doctor_machine *m, struct doctor_findings *out, int device)
{
    static const char *const uncorrectable[32] = {
        [4] = "DataLinkProtocol",      [5] = "SurpriseDown",
        [12] = "PoisonedTLP",          [13] = "FlowControl",
        [14] = "CompletionTimeout",    [15] = "CompleterAbort",
        [16] = "UnexpectedCompletion", [17] = "ReceiverOverflow",
        [18] = "MalformedTLP",         [19] = "ECRC",
        [21] = "ACSViolation",         [22] = "Internal",
        [24] = "AtomicBlocked"};
    static const char *const correctable[32] = {
        [0] = "ReceiverError",  [6] = "BadTLP",         [7] = "BadDLLP",
        [8] = "ReplayRollover", [12] = "ReplayTimeout", [14] = "CorrectedInternal"};
    const struct doctor_device *d = &m->devices[device];
    uint32_t bad = d->uncorrectable & ~(1u << 20), soft = d->correctable & ~(1u << 13);
    char first[160], second[120], who[64];
    int is_counted = d->aer[0].total || d->aer[1].total || d->aer[2].total;
    if (!d->has_aer || is_counted || (!bad && !soft)) {
        return;
    }
    name_bits(bad, uncorrectable, first, sizeof first);
    name_bits(soft, correctable, second, sizeof second);
    doctor_device_text(m, device, who, sizeof who);
    struct doctor_finding *f =
        doctor_find(out, "aer-latched", DOCTOR_WARNING, bad ? 350 : 150, d->name,
                    "%s has latched %s%s%s although nothing was counted or logged: it happened",
                    who, first, bad && soft ? " " : "", second);
    link_checks(f);
    doctor_command(f, "sudo lspci -vvs %s | grep -E 'UESta|CESta'", d->name);
}

static void judge_containment(const struct doctor_machine *m, struct doctor_findings *out,
                              int device)
{
    const struct doctor_device *d = &m->devices[device];
    char who[64], below[96];
    if (!d->has_dpc || !(d->dpc_status & 1)) {
        return;
    }
    doctor_device_text(m, device, who, sizeof who);
    doctor_gpus_below(m, device, below, sizeof below);
    struct doctor_finding *f = doctor_find(out, "dpc", DOCTOR_BROKEN, 950, d->name,
                                           "%s has cut off what is below it after a fatal error "
                                           "(downstream port containment): %s",
                                           who, below);
    link_checks(f);
    doctor_command(f, "sudo dmesg | grep -E 'DPC|AER'");
}

static void judge_xid(const struct doctor_machine *m, struct doctor_findings *out,
                      const struct doctor_event *e)
{
    char times[64] = "";
    int gpu = doctor_find_gpu(m, e->device);
    int is_lost = e->number == 79;
    if (e->count > 1) {
        snprintf(times, sizeof times, ", %llu times", (unsigned long long)e->count);
    }
    struct doctor_finding *f = doctor_find(
        out, is_lost ? "gpu-fell-off" : "xid", (enum doctor_weight)doctor_xid_weight(e->number),
        is_lost                             ? 980
        : doctor_xid_weight(e->number) == 2 ? 700
                                            : 120,
        e->device, "Xid %d%s%s%s%s: %s", e->number, gpu >= 0 || e->device[0] ? " of " : "",
        e->device, gpu >= 0 ? " (a GPU that is here)" : "", times, doctor_xid_text(e->number));
    if (is_lost) {
        doctor_check(f, "cooling first: temperature in the minutes before; fans, dust, air flow");
        doctor_check(f, "power: plugs, cables without splitters, the supply's reserve at peaks");
        link_checks(f);
    }
    doctor_command(f, "sudo dmesg | grep -E 'NVRM: Xid'; nvidia-bug-report.sh");
}

static void judge_event(const struct doctor_machine *m, struct doctor_findings *out,
                        const struct doctor_event *e)
{
    struct doctor_finding *f;
    int gpu = doctor_find_gpu(m, e->device);
    switch (e->kind) {
    case DOCTOR_EVENT_XID:
        judge_xid(m, out, e);
        break;
    case DOCTOR_EVENT_IOMMU_FAULT:
        f = doctor_find(
            out, "iommu-fault", gpu >= 0 ? DOCTOR_BROKEN : DOCTOR_INFO, gpu >= 0 ? 800 : 30,
            e->device,
            "the IOMMU refused %llu accesses of %s%s: peer writes are lost, collectives "
            "hang",
            (unsigned long long)e->count, e->device[0] ? e->device : "a device",
            gpu >= 0 ? ", a GPU" : "");
        doctor_check(f, "BIOS: VT-d or AMD-Vi (IOMMU) off, unless VMs need it");
        doctor_check(
            f, "or the kernel's command line: iommu=pt, then intel_iommu=off / amd_iommu=off");
        doctor_command(f, "sudo dmesg | grep -E 'DMAR|AMD-Vi|IO_PAGE_FAULT'");
        break;
    case DOCTOR_EVENT_BAR:
        f = doctor_find(out, "bar1-none", DOCTOR_BROKEN, 850, e->device,
                        "the driver could not map a GPU's memory window (BAR1): %.160s", e->text);
        doctor_check(f, "BIOS: Above 4G Decoding on, Re-Size BAR on, CSM off");
        doctor_check(f, "kernel's command line: pci=realloc");
        doctor_command(f, "sudo lspci -vvs %s | grep -E 'Region|BAR'",
                       e->device[0] ? e->device : "0:0.0");
        break;
    case DOCTOR_EVENT_SLOT_POWER:
        f = doctor_find(out, "slot-power", DOCTOR_WARNING, 250, e->device,
                        "a slot gives too little power: %.200s", e->text);
        doctor_check(f, "the slot's and riser's power plugs; the card's own plug");
        doctor_check(f, "BIOS: slot power limit");
        doctor_command(f, "sudo lspci -vvs %s | grep -i power", e->device);
        break;
    case DOCTOR_EVENT_DPC:
        f = doctor_find(out, "dpc", DOCTOR_BROKEN, 940, e->device,
                        "a port cut off what is below it after a fatal error: %.160s", e->text);
        link_checks(f);
        doctor_command(f, "sudo dmesg | grep -E 'DPC|AER'");
        break;
    case DOCTOR_EVENT_AER: /* judged with the link's counters */
    case DOCTOR_EVENT_LOST:
    case DOCTOR_EVENT_LINK_LIMIT: /* the rules of links say it with more words */
    default:
        break;
    }
}

/* Lines of devices that no GPU's path has, and lines without an address ("id=0010"). */
static void judge_stray(const struct doctor_machine *m, struct doctor_findings *out,
                        const uint8_t *is_judged)
{
    for (int i = 0; i < m->n_events; i++) {
        const struct doctor_event *e = &m->events[i];
        int device = doctor_find_device(m, e->device);
        if (e->kind == DOCTOR_EVENT_LOST && !m->n_gpus) {
            doctor_find(out, "gpu-fell-off", DOCTOR_BROKEN, 980, e->device, "%.200s", e->text);
        }
        if (e->kind != DOCTOR_EVENT_AER || (device >= 0 && is_judged[device])) {
            continue;
        }
        struct doctor_finding *f =
            doctor_find(out,
                        e->severity == DOCTOR_FATAL      ? "aer-fatal"
                        : e->severity == DOCTOR_NONFATAL ? "aer-nonfatal"
                                                         : "aer-corrected",
                        device >= 0                   ? DOCTOR_INFO
                        : e->severity == DOCTOR_FATAL ? DOCTOR_BROKEN
                                                      : DOCTOR_WARNING,
                        e->severity == DOCTOR_FATAL ? 880 : 140, e->device,
                        "the kernel's log, %llu times: %.160s%s", (unsigned long long)e->count,
                        e->text, device >= 0 ? " (no GPU's path)" : "");
        link_checks(f);
        doctor_command(f, "sudo dmesg | grep AER");
    }
}

void doctor_rules_error(const struct doctor_machine *m, struct doctor_findings *out)
{
    struct doctor_hop hops[DOCTOR_MAX_DEPTH];
    static uint8_t is_judged[DOCTOR_MAX_DEVICES];
    memset(is_judged, 0, sizeof is_judged);
    for (int g = 0; g < m->n_gpus; g++) {
        int n = m->gpus[g].device >= 0 ? doctor_hops(m, m->gpus[g].device, hops) : 0;
        for (int i = 0; i < n; i++) {
            if (!is_judged[hops[i].lower]) {
                is_judged[hops[i].lower] = 1;
                judge_errors(m, out, hops[i]);
            }
        }
        for (int at = m->gpus[g].device; at >= 0; at = m->devices[at].parent) {
            if (is_judged[at] < 2) {
                is_judged[at] = 2;
                judge_latched(m, out, at);
                judge_containment(m, out, at);
            }
        }
        /* A GPU's other functions (its audio) sit on the same link. */
        for (int d = 0; d < m->n_devices && m->gpus[g].device >= 0; d++) {
            if (!strncmp(m->devices[d].name, m->gpus[g].pci, 11)) {
                is_judged[d] = 2;
            }
        }
        if (m->gpus[g].replays > 0) {
            struct doctor_finding *f = doctor_find(
                out, "replays", m->gpus[g].replays >= MANY_REPLAYS ? DOCTOR_WARNING : DOCTOR_INFO,
                m->gpus[g].replays >= MANY_REPLAYS ? 180 : 15, m->gpus[g].pci,
                "GPU %d had to send %lld PCIe packets again: a link that damages them", g,
                (long long)m->gpus[g].replays);
            link_checks(f);
            doctor_command(f, "nvidia-smi -q -i %d | grep -i replay", g);
        }
    }
    for (int i = 0; i < m->n_events; i++) {
        judge_event(m, out, &m->events[i]);
    }
    judge_stray(m, out, is_judged);
}
