/*
 * What nobody vouches for, read by the doctor's parsers: configuration space, NVML's answers, the
 * kernel's log, measurements, ranks, limits, counters. Whatever is accepted is then judged and
 * printed too. The first byte picks the parser. libFuzzer's entry; tests/unit/test_doctor_fuzz.c runs
 * the seeds and changed copies of them without libFuzzer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/doctor_process.h"
#include "tools/doctor_screen.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void add_device(struct doctor_machine *m, const char *name, int parent, uint32_t class_code)
{
    struct doctor_device *d = &m->devices[m->n_devices++];
    snprintf(d->name, sizeof d->name, "%s", name);
    snprintf(d->host, sizeof d->host, "pci0000:00");
    d->vendor = class_code >> 16 == 3 ? 0x10de : 0x8086;
    d->class_code = class_code;
    d->parent = parent;
    d->port = class_code >> 16 == 3 ? DOCTOR_PORT_ENDPOINT : DOCTOR_PORT_ROOT;
    d->iommu_group = d->node = -1;
    d->bar1_bytes = -1;
}

static void judge_and_print(struct doctor_machine *m, FILE *nowhere)
{
    static struct doctor_findings findings;
    if (doctor_topology(m)) {
        return;
    }
    doctor_judge(m, &findings);
    doctor_print_screen(m, &findings, 1, nowhere);
    doctor_print_json(m, &findings, nowhere);
}

static int parse_hexadecimal(struct doctor_machine *m, const char *text)
{
    uint8_t bytes[DOCTOR_CONFIG_BYTES];
    size_t n;
    return doctor_config_parse(text, bytes, &n) || doctor_parse_config(m, &m->devices[1], bytes, n);
}

/* Configuration space itself, padded to a size that exists. */
static int parse_raw(struct doctor_machine *m, const uint8_t *data, size_t n)
{
    uint8_t bytes[DOCTOR_CONFIG_BYTES] = {0};
    memcpy(bytes, data, n < sizeof bytes ? n : sizeof bytes);
    return doctor_parse_config(m, &m->devices[n & 1], bytes,
                               n <= 64    ? 64
                               : n <= 256 ? 256
                                          : sizeof bytes);
}

static int parse(struct doctor_machine *m, unsigned which, const uint8_t *data, size_t n,
                 const char *text)
{
    struct doctor_aer aer;
    cpu_set_t cpus;
    char address[24];
    switch (which % 10) {
    case 0:
        return parse_hexadecimal(m, text);
    case 1:
        return parse_raw(m, data, n);
    case 2:
        return doctor_parse_nvml(m, text);
    case 3:
        return doctor_parse_log(m, text);
    case 4:
        return doctor_parse_measured(m, text);
    case 5:
        return doctor_parse_loaded(m, text);
    case 6:
        return doctor_parse_ranks(m, text);
    case 7:
        return doctor_parse_process(m, text);
    case 8:
        return doctor_parse_aer(m, "0000:01:00.0", text, &m->devices[1].aer[0]) ||
               doctor_parse_aer(m, "0000:01:00.0", text, &aer);
    default:
        doctor_parse_speed(text);
        doctor_address(text, address);
        return doctor_cpu_parse(text, &cpus);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static FILE *nowhere;
    struct doctor_source source = {.root = "/nonexistent"};
    if (!nowhere && !(nowhere = fopen("/dev/null", "w"))) {
        abort();
    }
    if (n == 0 || n > 1 << 16) {
        return 0;
    }
    struct doctor_machine *m = calloc(1, sizeof *m);
    char *text = malloc(n);
    if (!m || !text || !(m->devices = calloc(4, sizeof *m->devices))) {
        abort();
    }
    memcpy(text, data + 1, n - 1);
    text[n - 1] = '\0';
    m->source = &source;
    add_device(m, "0000:00:01.0", -1, 0x060400);
    add_device(m, "0000:01:00.0", 0, 0x030200);
    add_device(m, "0000:02:00.0", 0, 0x030200);
    m->system.n_nodes = 2;
    strcpy(m->node_cpus[0], "0-7");
    strcpy(m->node_cpus[1], "8-15");
    /* Ranks and measurements speak of GPUs that are there. */
    unsigned which = data[0];
    int is_ready = which % 10 == 2 ||
                   !doctor_parse_nvml(m, "gpu 0 pci 0000:01:00.0\ngpu 1 pci 0000:02:00.0\n");
    if (is_ready && !parse(m, which, data + 1, n - 1, text)) {
        judge_and_print(m, nowhere);
    }
    free(text);
    free(m->devices);
    free(m);
    return 0;
}
