/* Configuration space: the capabilities that say how a link runs and where peer traffic is sent. */
#include <string.h>

#include "doctor_machine.h"

enum {
    CAP_EXPRESS = 0x10,
    EXT_AER = 0x0001,
    EXT_ACS = 0x000d,
    EXT_RESIZABLE_BAR = 0x0015,
    EXT_DPC = 0x001d,
    MOST_CAPS = 48,
    MOST_EXT_CAPS = 256,
};

struct space {
    const uint8_t *bytes;
    size_t n;
};

/* What lies beyond the end reads as zero; whether it is there is asked before. */
static uint16_t get16(const struct space *s, size_t at)
{
    return at + 2 <= s->n ? (uint16_t)(s->bytes[at] | s->bytes[at + 1] << 8) : 0;
}

static uint32_t get32(const struct space *s, size_t at)
{
    return get16(s, at) | (uint32_t)get16(s, at + 2) << 16;
}

static int speed_of_code(unsigned code)
{
    static const int speeds[] = {0, 25, 50, 80, 160, 320, 640, 1280};
    return code < sizeof speeds / sizeof *speeds ? speeds[code] : 0;
}

static int width_of(unsigned bits)
{
    return bits && bits <= 32 ? (int)bits : 0;
}

static int parse_express(struct doctor_machine *m, struct doctor_device *d, const struct space *s,
                         size_t at)
{
    if (at + 0x14 > s->n) {
        return doctor_refuse(m, "the PCI Express capability of %s at 0x%zx ends behind byte %zu",
                             d->name, at, s->n);
    }
    uint32_t most = get32(s, at + 0x0c);
    uint16_t now = get16(s, at + 0x12);
    d->has_express = 1;
    d->port = (enum doctor_port)(get16(s, at + 2) >> 4 & 15);
    d->link_control = get16(s, at + 0x10);
    d->link_control2 = get16(s, at + 0x30);
    /* sysfs has the same where the kernel is new enough; it is asked after this and goes first. */
    d->most = (struct doctor_link){speed_of_code(most & 15), width_of(most >> 4 & 63)};
    d->now = (struct doctor_link){speed_of_code(now & 15), width_of(now >> 4 & 63)};
    return 0;
}

static int parse_caps(struct doctor_machine *m, struct doctor_device *d, const struct space *s)
{
    uint8_t seen[256] = {0};
    size_t at = s->bytes[0x34] & 0xfc;
    if (!(get16(s, 0x06) & 0x10)) {
        return 0;
    }
    for (int i = 0; at && at < 0x100; i++) {
        if (seen[at] || i == MOST_CAPS) {
            return doctor_refuse(m, "the capabilities of %s form a loop at 0x%zx", d->name, at);
        }
        seen[at] = 1;
        if (at + 2 > s->n) {
            return 0; /* the list leaves the 64 bytes that every user may read */
        }
        if (s->bytes[at] == CAP_EXPRESS && parse_express(m, d, s, at)) {
            return -1;
        }
        at = s->bytes[at + 1] & 0xfc;
    }
    return 0;
}

/* Sizes on offer: bit 4 + n of the capability register is 1 MiB << n; entry 1 is the GPU's BAR 1. */
static void parse_resizable(struct doctor_device *d, const struct space *s, size_t at)
{
    unsigned n_bars = get32(s, at + 8) >> 5 & 7;
    for (unsigned i = 0; i < n_bars && i < 6; i++) {
        uint32_t sizes = get32(s, at + 4 + 8 * i) >> 4;
        if ((get32(s, at + 8 + 8 * i) & 7) == 1 && sizes) {
            d->bar1_most_bytes = (1ull << 20) << (31 - __builtin_clz(sizes));
        }
    }
}

static int parse_ext_caps(struct doctor_machine *m, struct doctor_device *d, const struct space *s)
{
    uint8_t seen[DOCTOR_CONFIG_BYTES / 4] = {0};
    size_t at = 0x100;
    for (int i = 0; at >= 0x100 && at + 4 <= s->n; i++) {
        uint32_t head = get32(s, at);
        if (head == 0 || head == 0xffffffff) {
            return 0;
        }
        if (seen[at / 4] || i == MOST_EXT_CAPS) {
            return doctor_refuse(m, "the extended capabilities of %s form a loop at 0x%zx", d->name,
                                 at);
        }
        seen[at / 4] = 1;
        size_t need = (head & 0xffff) == EXT_AER ? 0x14 : 8;
        if (at + need > s->n) {
            return doctor_refuse(m, "an extended capability of %s at 0x%zx ends behind byte %zu",
                                 d->name, at, s->n);
        }
        switch (head & 0xffff) {
        case EXT_AER:
            d->has_aer = 1;
            d->uncorrectable = get32(s, at + 0x04);
            d->correctable = get32(s, at + 0x10);
            break;
        case EXT_ACS:
            d->has_acs = 1;
            d->acs_control = get16(s, at + 0x06);
            break;
        case EXT_DPC:
            d->has_dpc = 1;
            d->dpc_status = get16(s, at + 0x08);
            break;
        case EXT_RESIZABLE_BAR:
            parse_resizable(d, s, at);
            break;
        default:
            break;
        }
        at = head >> 20 & 0xffc;
    }
    return 0;
}

int doctor_parse_config(struct doctor_machine *m, struct doctor_device *d, const uint8_t *bytes,
                        size_t n)
{
    const struct space s = {bytes, n};
    if (n != 64 && n != 256 && n != DOCTOR_CONFIG_BYTES) {
        return doctor_refuse(m, "configuration space of %s is cut off at byte %zu: 64, 256 or 4096",
                             d->name, n);
    }
    if (get32(&s, 0) == 0xffffffff) {
        d->is_gone = 1;
        return 0;
    }
    /* The header's type decides; sysfs's class was read before it. */
    if ((bytes[0x0e] & 0x7f) == 1) {
        d->is_bridge = 1;
        d->bus = bytes[0x18];
        d->secondary = bytes[0x19];
        d->subordinate = bytes[0x1a];
        if (d->secondary && (d->secondary == d->bus || d->subordinate < d->secondary)) {
            return doctor_refuse(m, "bridge %s leads from bus %d to buses %d to %d: a loop",
                                 d->name, d->bus, d->secondary, d->subordinate);
        }
    }
    if (parse_caps(m, d, &s)) {
        return -1;
    }
    return n == DOCTOR_CONFIG_BYTES ? parse_ext_caps(m, d, &s) : 0;
}
