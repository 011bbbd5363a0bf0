/*
 * PCI: every device of sysfs, its place in the tree, its link, its error counters, and what its
 * configuration space adds. Bridges matter as much as GPUs: a link has two ends.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "doctor_machine.h"

int doctor_is_gpu(const struct doctor_device *d)
{
    return d->vendor == 0x10de && d->class_code >> 16 == 0x03;
}

/* ---- small files ---- */

static int attribute(struct doctor_machine *m, const struct doctor_device *d, const char *name,
                     char *buffer, size_t cap)
{
    char path[160];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.60s/%.40s", d->name, name);
    int n = doctor_source_read(m->source, path, buffer, cap);
    if (n == -EFBIG) {
        return doctor_refuse(m, "%s is longer than a machine writes it", path);
    }
    if (n < 0) {
        buffer[0] = '\0';
        return 0;
    }
    doctor_trim(buffer);
    return 0;
}

/* A number or -1 (a file that is not there, or the kernel's own "-1"). */
static int number(struct doctor_machine *m, const struct doctor_device *d, const char *name,
                  int base, uint64_t most, int64_t *out)
{
    char text[64];
    uint64_t value;
    *out = -1;
    if (attribute(m, d, name, text, sizeof text)) {
        return -1;
    }
    if (!text[0] || !strcmp(text, "-1")) {
        return 0;
    }
    if (doctor_number(text, base, most, &value)) {
        return doctor_refuse(m, "%s of %s makes no sense: '%.40s'", name, d->name, text);
    }
    *out = (int64_t)value;
    return 0;
}

int doctor_parse_speed(const char *text)
{
    static const struct {
        const char *text;
        int speed;
    } speeds[] = {{"2.5", 25},   {"5", 50},     {"5.0", 50},    {"8", 80},     {"8.0", 80},
                  {"16", 160},   {"16.0", 160}, {"32", 320},    {"32.0", 320}, {"64", 640},
                  {"64.0", 640}, {"128", 1280}, {"128.0", 1280}};
    char word[16];
    size_t n = strcspn(text, " ");
    if (n == 0 || n >= sizeof word || strncmp(text + n, " GT/s", 5) != 0) {
        return 0;
    }
    memcpy(word, text, n);
    word[n] = '\0';
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++) {
        if (!strcmp(word, speeds[i].text)) {
            return speeds[i].speed;
        }
    }
    return 0;
}

/* Width 63 and 255 are what a device that does not answer seems to have. */
static int read_link(struct doctor_machine *m, struct doctor_device *d, const char *which,
                     struct doctor_link *out)
{
    char name[40], text[64];
    int64_t width;
    snprintf(name, sizeof name, "%s_link_speed", which);
    if (attribute(m, d, name, text, sizeof text)) {
        return -1;
    }
    if (doctor_parse_speed(text)) {
        out->speed = doctor_parse_speed(text);
    } else if (text[0]) {
        out->speed = 0; /* "Unknown" */
    }
    snprintf(name, sizeof name, "%s_link_width", which);
    if (number(m, d, name, 10, 255, &width)) {
        return -1;
    }
    if (width >= 0) {
        out->width = width <= 32 ? (int)width : 0;
    }
    return 0;
}

/* Names may hold blanks in old kernels ("Bad TLP 0"): the number follows the last one. */
int doctor_parse_aer(struct doctor_machine *m, const char *device, const char *text,
                     struct doctor_aer *out)
{
    char line[160];
    uint64_t value, sum = 0, total = 0;
    *out = (struct doctor_aer){.is_known = 1};
    while (doctor_line(&text, line, sizeof line)) {
        doctor_trim(line);
        char *blank = strrchr(line, ' ');
        if (!line[0]) {
            continue;
        }
        if (!blank || doctor_number(blank + 1, 10, UINT64_MAX, &value)) {
            return doctor_refuse(m, "an AER counter of %s makes no sense: '%.60s'", device, line);
        }
        *blank = '\0';
        doctor_trim(line);
        if (!strncmp(line, "TOTAL_ERR", 9)) {
            total = value;
        } else if (value) {
            size_t used = strlen(out->kinds);
            snprintf(out->kinds + used, sizeof out->kinds - used, "%s%.24s %llu", used ? ", " : "",
                     line, (unsigned long long)value);
            if (__builtin_add_overflow(sum, value, &sum)) {
                sum = UINT64_MAX;
            }
        }
    }
    out->total = total > sum ? total : sum; /* the kernel's total need not be the sum */
    return 0;
}

static int read_aer(struct doctor_machine *m, struct doctor_device *d)
{
    static const char *const names[] = {"correctable", "nonfatal", "fatal"};
    char path[160], text[2048];
    for (int k = 0; k < DOCTOR_N_AER; k++) {
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%.60s/aer_dev_%s", d->name, names[k]);
        int n = doctor_source_read(m->source, path, text, sizeof text);
        if (n == -EFBIG) {
            return doctor_refuse(m, "%s is longer than a kernel writes it", path);
        }
        if (n > 0 && doctor_parse_aer(m, d->name, text, &d->aer[k])) {
            return -1;
        }
    }
    return 0;
}

/* Line 1 of `resource` is BAR 1: "0x.. start 0x.. end 0x.. flags". */
static int read_bar1(struct doctor_machine *m, struct doctor_device *d)
{
    char text[4096], line[128];
    const char *at = text;
    uint64_t start, end;
    d->bar1_bytes = -1;
    if (attribute(m, d, "resource", text, sizeof text)) {
        return -1;
    }
    if (!doctor_line(&at, line, sizeof line) || !doctor_line(&at, line, sizeof line)) {
        return 0;
    }
    char *rest = line, *first = doctor_word(&rest), *second = doctor_word(&rest);
    if (!first || !second || doctor_number(first, 0, UINT64_MAX, &start) ||
        doctor_number(second, 0, UINT64_MAX, &end) || end < start || end - start >= INT64_MAX) {
        return doctor_refuse(m, "resource of %s makes no sense", d->name);
    }
    d->bar1_bytes = end ? (int64_t)(end - start + 1) : 0;
    return 0;
}

static void last_name(struct doctor_machine *m, const struct doctor_device *d, const char *link,
                      char *out, size_t cap)
{
    char path[160], target[512];
    out[0] = '\0';
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.60s/%s", d->name, link);
    if (doctor_source_link(m->source, path, target, sizeof target) == 0) {
        const char *slash = strrchr(target, '/');
        doctor_copy(out, cap, slash ? slash + 1 : target);
    }
}

static int read_iommu(struct doctor_machine *m, struct doctor_device *d)
{
    char name[32], path[96], type[40];
    uint64_t group;
    d->iommu_group = -1;
    last_name(m, d, "iommu_group", name, sizeof name);
    if (!name[0]) {
        return 0;
    }
    if (doctor_number(name, 10, 1 << 20, &group)) {
        return doctor_refuse(m, "iommu_group of %s makes no sense: '%.20s'", d->name, name);
    }
    d->iommu_group = (int)group;
    snprintf(path, sizeof path, "/sys/kernel/iommu_groups/%d/type", d->iommu_group);
    if (doctor_source_read(m->source, path, type, sizeof type) > 0) {
        doctor_trim(type);
        doctor_copy(d->iommu_type, sizeof d->iommu_type, type);
    }
    return 0;
}

static int read_device(struct doctor_machine *m, struct doctor_device *d)
{
    char path[160];
    uint8_t config[DOCTOR_CONFIG_BYTES];
    int64_t vendor, device, class_code, node;
    if (number(m, d, "vendor", 0, 0xffff, &vendor) || number(m, d, "device", 0, 0xffff, &device) ||
        number(m, d, "class", 0, 0xffffff, &class_code) ||
        number(m, d, "numa_node", 10, DOCTOR_MAX_NODES - 1, &node)) {
        return -1;
    }
    d->vendor = (uint32_t)(vendor < 0 ? 0 : vendor);
    d->device = (uint32_t)(device < 0 ? 0 : device);
    d->class_code = (uint32_t)(class_code < 0 ? 0 : class_code);
    d->node = (int)node;
    d->parent = -1;
    d->iommu_group = -1;
    d->bar1_bytes = -1;
    d->port = DOCTOR_PORT_UNKNOWN;
    d->is_bridge = d->class_code >> 8 == 0x0604;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.60s", d->name);
    if (doctor_source_link(m->source, path, d->path, sizeof d->path)) {
        d->path[0] = '\0';
    }
    /* GPUs, bridges and NICs are what the screen speaks of; of the rest, that they are there. */
    if (!d->is_bridge && !doctor_is_gpu(d) && d->class_code >> 16 != 0x02) {
        return 0;
    }
    int err = doctor_source_config(m->source, d->name, config, &d->config_bytes);
    if (err == -EBADMSG || err == -EFBIG || err == -EINVAL) {
        return doctor_refuse(m, "configuration space of %s is no configuration space", d->name);
    }
    d->config_err = err;
    if (!err && doctor_parse_config(m, d, config, d->config_bytes)) {
        return -1;
    }
    last_name(m, d, "driver", d->driver, sizeof d->driver);
    if (read_link(m, d, "current", &d->now) || read_link(m, d, "max", &d->most) || read_aer(m, d) ||
        read_iommu(m, d) || attribute(m, d, "local_cpulist", d->cpus, sizeof d->cpus) ||
        attribute(m, d, "power/control", d->power_control, sizeof d->power_control)) {
        return -1;
    }
    return doctor_is_gpu(d) ? read_bar1(m, d) : 0;
}

/* ---- the tree ---- */

/* From the sysfs path: the folder above is the bridge. */
static void parent_by_path(struct doctor_machine *m, struct doctor_device *d)
{
    char up[DOCTOR_NAME_BYTES];
    const char *end = strrchr(d->path, '/');
    const char *host = strstr(d->path, "/pci");
    if (host) {
        size_t n = strcspn(host + 1, "/");
        snprintf(d->host, sizeof d->host, "%.*s", (int)(n < 23 ? n : 23), host + 1);
    }
    if (!end || end == d->path) {
        return;
    }
    const char *start = end - 1;
    while (start > d->path && *start != '/') {
        start--;
    }
    snprintf(up, sizeof up, "%.*s", (int)(end - start - 1 < 63 ? end - start - 1 : 63), start + 1);
    d->parent = doctor_find_device(m, up);
}

static int bus_key(const char *name)
{
    unsigned domain, bus, slot, function;
    return sscanf(name, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4 && domain < 0x100000 &&
                   bus < 256
               ? (int)(domain << 8 | bus)
               : -1;
}

/* From the bridges' bus numbers, where there is no path: the bridge right above is its secondary. */
static void parent_by_bus(struct doctor_machine *m, struct doctor_device *d)
{
    int key = bus_key(d->name);
    for (int i = 0; i < m->n_devices && key >= 0; i++) {
        const struct doctor_device *b = &m->devices[i];
        if (b != d && b->is_bridge && b->secondary && (bus_key(b->name) & ~255) == (key & ~255) &&
            b->secondary == (key & 255)) {
            d->parent = i;
            return;
        }
    }
}

static int check_tree(struct doctor_machine *m)
{
    for (int i = 0; i < m->n_devices; i++) {
        int depth = 0;
        for (int at = m->devices[i].parent; at >= 0; at = m->devices[at].parent) {
            if (++depth > DOCTOR_MAX_DEPTH) {
                return doctor_refuse(m, "the bridges above %s form a loop or are more than %d deep",
                                     m->devices[i].name, DOCTOR_MAX_DEPTH);
            }
            if (m->devices[at].host[0] && !m->devices[i].host[0]) {
                memcpy(m->devices[i].host, m->devices[at].host, sizeof m->devices[i].host);
            }
        }
        if (!m->devices[i].host[0]) {
            int key = bus_key(m->devices[i].name);
            snprintf(m->devices[i].host, sizeof m->devices[i].host, "pci%04x:?",
                     key < 0 ? 0 : (unsigned)key >> 8);
        }
    }
    return 0;
}

int doctor_read_pci(struct doctor_machine *m)
{
    struct doctor_names names;
    int err = doctor_source_list(m->source, "/sys/bus/pci/devices", DOCTOR_MAX_DEVICES, &names);
    int result = 0;
    if (err == -E2BIG) {
        return doctor_refuse(m, "more than %d PCI devices", DOCTOR_MAX_DEVICES);
    }
    if (err) {
        doctor_note(m, "PCI devices", strerror(-err), "mount sysfs at /sys");
        return 0;
    }
    m->devices = calloc((size_t)names.n + 1, sizeof *m->devices);
    if (!m->devices) {
        doctor_names_free(&names);
        return doctor_refuse(m, "out of memory");
    }
    for (int i = 0; i < names.n && !result; i++) {
        struct doctor_device *d = &m->devices[m->n_devices++];
        doctor_copy(d->name, sizeof d->name, names.name[i]);
        if (bus_key(d->name) < 0) {
            result = doctor_refuse(m, "no PCI address: '%.40s'", d->name);
        } else {
            result = read_device(m, d);
        }
    }
    doctor_names_free(&names);
    for (int i = 0; i < m->n_devices && !result; i++) {
        parent_by_path(m, &m->devices[i]);
        if (m->devices[i].parent < 0 && !m->devices[i].path[0]) {
            parent_by_bus(m, &m->devices[i]);
        }
    }
    return result ? result : check_tree(m);
}
