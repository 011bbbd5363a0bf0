/* Links: trained down, in a slot that offers less, narrow above the GPU, shared. */
#include <string.h>

#include "doctor_rules.h"

static const char *short_address(const char *address)
{
    return strncmp(address, "0000:", 5) == 0 ? address + 5 : address;
}

static void link_command(struct doctor_finding *f, const char *address)
{
    doctor_command(f, "sudo lspci -vvs %s | grep -E 'LnkCap:|LnkSta:|LnkCtl2:'",
                   short_address(address));
}

static void seat_checks(struct doctor_finding *f, int is_bridge)
{
    doctor_check(f, "power off; seat the card anew, clean its contacts; check its power plugs");
    doctor_check(f, is_bridge ? "check the cable or backplane between board and switch"
                              : "without the riser or cable; with another one");
    doctor_check(
        f, "another slot: if the fault stays with the slot it is the board's, else the card's");
    doctor_check(f, "BIOS: bifurcation and slot width, lanes shared with an M.2 slot, BIOS update");
    doctor_check(f, "driver update; then replace the card");
}

/* What part of the bandwidth is lost, as cost. */
static int loss(struct doctor_link now, struct doctor_link most)
{
    double have = doctor_link_gbs(now), could = doctor_link_gbs(most);
    return could > 0 && have < could ? (int)(600 * (1 - have / could)) : 0;
}

static void judge_width(const struct doctor_machine *m, struct doctor_findings *out,
                        struct doctor_hop hop, struct doctor_link now, struct doctor_link most,
                        int is_loaded, const char *who, const char *below)
{
    const struct doctor_device *d = &m->devices[hop.lower];
    struct doctor_link same_speed = {most.speed, now.width};
    struct doctor_finding *f = doctor_find(
        out, d->is_bridge ? "bridge-width" : "link-width", DOCTOR_WARNING,
        100 + loss(same_speed, most), d->name,
        "%s trained to x%d of x%d: %.1f instead of %.1f GB/s%s%s%s", who, now.width, most.width,
        doctor_link_gbs(same_speed), doctor_link_gbs(most), d->is_bridge ? " for " : "",
        d->is_bridge ? below : "",
        is_loaded || d->is_bridge ? "" : " (read at idle: a few GPUs lower the width then)");
    seat_checks(f, d->is_bridge);
    link_command(f, d->name);
}

static void judge_speed(const struct doctor_machine *m, struct doctor_findings *out,
                        struct doctor_hop hop, struct doctor_link now, struct doctor_link most,
                        int is_loaded, const char *who, const char *below)
{
    const struct doctor_device *d = &m->devices[hop.lower];
    struct doctor_link same_width = {now.speed, most.width};
    int fixed = (d->link_control2 & 0x20) != 0 ||
                (hop.upper >= 0 && (m->devices[hop.upper].link_control2 & 0x20) != 0);
    struct doctor_finding *f;
    if (!is_loaded && !d->is_bridge) {
        f = doctor_find(out, "link-idle", DOCTOR_INFO, 10, d->name,
                        "%s runs at %g of %g GT/s at idle, which many GPUs do to save power: "
                        "inconclusive until read under load",
                        who, now.speed / 10.0, most.speed / 10.0);
        doctor_check(f, "read it again while the GPU copies (llane-measure-gpu beside llane-doctor "
                        "does that by itself)");
        doctor_command(f, "nvidia-smi --query-gpu=pcie.link.gen.gpucurrent,pcie.link.gen.max -l 1 "
                          "--format=csv");
        return;
    }
    f = doctor_find(out,
                    d->is_bridge ? "bridge-speed"
                    : fixed      ? "link-stuck"
                                 : "link-speed",
                    DOCTOR_WARNING, 100 + loss(same_width, most), d->name,
                    "%s runs at %g of %g GT/s%s: %.1f instead of %.1f GB/s%s%s%s", who,
                    now.speed / 10.0, most.speed / 10.0, is_loaded ? " under load" : "",
                    doctor_link_gbs(same_width), doctor_link_gbs(most), d->is_bridge ? " for " : "",
                    d->is_bridge ? below : "",
                    fixed ? "; autonomous speed changes are disabled (LnkCtl2 bit 5), so it stays "
                            "there"
                          : "");
    if (fixed) {
        doctor_check(f,
                     "retrain the link: reset the GPU, or set bit 5 of LnkCtl of the port above");
        doctor_check(f, "clear LnkCtl2 bit 5, or raise the target speed in LnkCtl2 bits 0-3");
    }
    seat_checks(f, d->is_bridge);
    link_command(f, d->name);
}

static void judge_slot(const struct doctor_machine *m, struct doctor_findings *out,
                       struct doctor_hop hop, const char *who)
{
    const struct doctor_device *lower = &m->devices[hop.lower], *upper;
    struct doctor_finding *f;
    char port[64];
    if (hop.upper < 0 || lower->is_bridge) {
        return;
    }
    upper = &m->devices[hop.upper];
    doctor_device_text(m, hop.upper, port, sizeof port);
    if (upper->most.width && lower->most.width && upper->most.width < lower->most.width) {
        struct doctor_link have = {lower->most.speed, upper->most.width};
        f = doctor_find(out, "slot-width", DOCTOR_WARNING, 80 + loss(have, lower->most),
                        lower->name, "%s is x%d, its slot (%s) offers x%d", who, lower->most.width,
                        port, upper->most.width);
        doctor_check(f,
                     "the board's manual: which slot has all lanes, which share them with M.2 or "
                     "another slot");
        doctor_check(f, "BIOS: bifurcation of that slot");
        doctor_check(f, "move the card, or empty the M.2 slot that takes its lanes");
        link_command(f, upper->name);
    }
    if (upper->most.speed && lower->most.speed && upper->most.speed < lower->most.speed) {
        f = doctor_find(
            out, "slot-speed", DOCTOR_INFO, 20, lower->name,
            "%s could do %g GT/s, its slot (%s) does %g: the board's generation, no fault", who,
            lower->most.speed / 10.0, port, upper->most.speed / 10.0);
        doctor_check(f, "BIOS: is the slot's generation limited by a setting?");
        link_command(f, upper->name);
    }
}

/* A link above the GPU's own that is narrower by design: the chipset's, say. */
static void judge_path(const struct doctor_machine *m, struct doctor_findings *out, int gpu,
                       const struct doctor_hop *hops, int n)
{
    char who[64];
    struct doctor_link own = doctor_hop_most(m, hops[0]);
    double best = doctor_link_gbs(own);
    int narrowest = 0;
    for (int i = 1; i < n; i++) {
        double gbs = doctor_link_gbs(doctor_hop_most(m, hops[i]));
        if (gbs > 0 && gbs < best * 0.9) {
            best = gbs;
            narrowest = i;
        }
    }
    if (!narrowest) {
        return;
    }
    struct doctor_link link = doctor_hop_most(m, hops[narrowest]);
    doctor_device_text(m, hops[narrowest].lower, who, sizeof who);
    struct doctor_finding *f = doctor_find(
        out, "path-narrow", DOCTOR_WARNING, 80 + loss(link, own), m->devices[hops[0].lower].name,
        "GPU %d's own link is x%d at %g GT/s, but the path above it is narrower: %s, x%d at %g "
        "GT/s, "
        "%.1f GB/s",
        gpu, own.width, own.speed / 10.0, who, link.width, link.speed / 10.0, best);
    doctor_check(f, "move the card to a slot of the CPU, away from the chipset's");
    doctor_check(f, "the board's manual: its block diagram shows whose lanes a slot has");
    doctor_command(f, "lspci -tv");
}

static void judge_hop(const struct doctor_machine *m, struct doctor_findings *out,
                      struct doctor_hop hop)
{
    int is_loaded;
    char who[64], below[96];
    struct doctor_link most = doctor_hop_most(m, hop), now = doctor_hop_now(m, hop, &is_loaded);
    doctor_device_text(m, hop.lower, who, sizeof who);
    doctor_gpus_below(m, hop.lower, below, sizeof below);
    if (now.width && most.width && now.width < most.width) {
        judge_width(m, out, hop, now, most, is_loaded, who, below);
    }
    if (now.speed && most.speed && now.speed < most.speed) {
        judge_speed(m, out, hop, now, most, is_loaded, who, below);
    }
    judge_slot(m, out, hop, who);
}

static void judge_sharing(const struct doctor_machine *m, struct doctor_findings *out)
{
    char below[160];
    for (int i = 0; i < m->n_devices; i++) {
        const struct doctor_device *d = &m->devices[i];
        if (d->port != DOCTOR_PORT_UP || doctor_gpus_below(m, i, below, sizeof below) < 2) {
            continue;
        }
        int pays = 0;
        for (int a = 0; a < m->n_gpus; a++) {
            for (int b = 0; b < m->n_gpus; b++) {
                const struct doctor_pair *p = &m->pairs[a][b];
                pays |= a != b && p->common == i && !p->nvlinks &&
                        (!strcmp(p->claim, "no") ||
                         (p->p2p_write[0] && strcmp(p->p2p_write, "OK") != 0));
            }
        }
        if (pays) {
            struct doctor_finding *f = doctor_find(
                out, "uplink-twice", DOCTOR_INFO, 40, d->name,
                "%s share the uplink of switch %s and cannot reach each other directly: what they "
                "exchange crosses that uplink twice",
                below, d->name);
            doctor_check(f, "GPUs on ports of their own exchange faster than these do");
            doctor_command(f, "nvidia-smi topo -p2p rw");
        }
    }
}

void doctor_rules_link(const struct doctor_machine *m, struct doctor_findings *out)
{
    struct doctor_hop hops[DOCTOR_MAX_DEPTH];
    static uint8_t is_judged[DOCTOR_MAX_DEVICES];
    memset(is_judged, 0, sizeof is_judged);
    for (int g = 0; g < m->n_gpus; g++) {
        const struct doctor_device *d = doctor_gpu_device(m, g);
        if (!d || m->gpus[g].is_lost) {
            continue;
        }
        int n = doctor_hops(m, m->gpus[g].device, hops);
        for (int i = 0; i < n; i++) {
            if (!is_judged[hops[i].lower]) {
                is_judged[hops[i].lower] = 1;
                judge_hop(m, out, hops[i]);
            }
        }
        if (n) {
            judge_path(m, out, g, hops, n);
        }
    }
    judge_sharing(m, out);
}
