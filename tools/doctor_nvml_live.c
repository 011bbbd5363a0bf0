/*
 * The driver's management library, asked at run time: its calls in our own words, and what they
 * answered as the lines that doctor_nvml.c reads and recordings hold:
 *   driver 580.1      cuda 13000      error WHY
 *   gpu 0 KEY VALUE   level 0 1 30    p2p 0 1 OK OK    nvlink 0 LINK ADDRESS    process 0 PID
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "doctor_machine.h"

typedef struct nvml_device *device_t;
struct pci_info {
    char legacy_bus[16];
    unsigned domain, bus, device, ids, subsystem;
    char bus_id[32];
};
struct bar1 {
    unsigned long long total, free, used;
};
struct utilization {
    unsigned gpu, memory;
};
struct process {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute_instance;
};
enum { NVML_OK = 0, NVML_LOST = 15, MOST_LINKS = 18, MOST_PROCESSES = 64, NAME_BYTES = 96 };

static struct nvml {
    void *library;
    int is_ready;
    int (*init)(void), (*shutdown)(void);
    const char *(*error_string)(int);
    int (*driver_version)(char *, unsigned);
    int (*cuda_version)(int *);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, device_t *);
    int (*uuid)(device_t, char *, unsigned);
    int (*name)(device_t, char *, unsigned);
    int (*pci)(device_t, struct pci_info *);
    int (*minor)(device_t, unsigned *);
    int (*generation_now)(device_t, unsigned *);
    int (*width_now)(device_t, unsigned *);
    int (*generation_most)(device_t, unsigned *);
    int (*width_most)(device_t, unsigned *);
    int (*replays)(device_t, unsigned *);
    int (*persistence)(device_t, unsigned *);
    int (*bar1)(device_t, struct bar1 *);
    int (*temperature)(device_t, unsigned, unsigned *);
    int (*power)(device_t, unsigned *);
    int (*power_limit)(device_t, unsigned *);
    int (*throttle)(device_t, unsigned long long *);
    int (*utilization)(device_t, struct utilization *);
    int (*pstate)(device_t, unsigned *);
    int (*mig)(device_t, unsigned *, unsigned *);
    int (*level)(device_t, device_t, unsigned *);
    int (*p2p)(device_t, device_t, unsigned, unsigned *);
    int (*link_state)(device_t, unsigned, unsigned *);
    int (*link_remote)(device_t, unsigned, struct pci_info *);
    int (*processes)(device_t, unsigned *, struct process *);
} nvml;

static const struct {
    const char *symbol;
    void *slot;
} symbols[] = {
    {"nvmlInit_v2", &nvml.init},
    {"nvmlShutdown", &nvml.shutdown},
    {"nvmlErrorString", &nvml.error_string},
    {"nvmlSystemGetDriverVersion", &nvml.driver_version},
    {"nvmlSystemGetCudaDriverVersion", &nvml.cuda_version},
    {"nvmlDeviceGetCount_v2", &nvml.count},
    {"nvmlDeviceGetHandleByIndex_v2", &nvml.by_index},
    {"nvmlDeviceGetUUID", &nvml.uuid},
    {"nvmlDeviceGetName", &nvml.name},
    {"nvmlDeviceGetPciInfo_v3", &nvml.pci},
    {"nvmlDeviceGetMinorNumber", &nvml.minor},
    {"nvmlDeviceGetCurrPcieLinkGeneration", &nvml.generation_now},
    {"nvmlDeviceGetCurrPcieLinkWidth", &nvml.width_now},
    {"nvmlDeviceGetGpuMaxPcieLinkGeneration", &nvml.generation_most},
    {"nvmlDeviceGetMaxPcieLinkWidth", &nvml.width_most},
    {"nvmlDeviceGetPcieReplayCounter", &nvml.replays},
    {"nvmlDeviceGetPersistenceMode", &nvml.persistence},
    {"nvmlDeviceGetBAR1MemoryInfo", &nvml.bar1},
    {"nvmlDeviceGetTemperature", &nvml.temperature},
    {"nvmlDeviceGetPowerUsage", &nvml.power},
    {"nvmlDeviceGetEnforcedPowerLimit", &nvml.power_limit},
    {"nvmlDeviceGetCurrentClocksThrottleReasons", &nvml.throttle},
    {"nvmlDeviceGetUtilizationRates", &nvml.utilization},
    {"nvmlDeviceGetPerformanceState", &nvml.pstate},
    {"nvmlDeviceGetMigMode", &nvml.mig},
    {"nvmlDeviceGetTopologyCommonAncestor", &nvml.level},
    {"nvmlDeviceGetP2PStatus", &nvml.p2p},
    {"nvmlDeviceGetNvLinkState", &nvml.link_state},
    {"nvmlDeviceGetNvLinkRemotePciInfo_v2", &nvml.link_remote},
    {"nvmlDeviceGetComputeRunningProcesses_v3", &nvml.processes},
};

static const char *error_text(int result)
{
    return nvml.error_string ? nvml.error_string(result) : "unknown error";
}

/* The library stays open and initialized for the process's life: watch asks again and again. */
static int open_nvml(struct doctor_text *out)
{
    if (nvml.is_ready) {
        return 0;
    }
    if (!nvml.library) {
        nvml.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    }
    if (!nvml.library) {
        doctor_text_add(out, "error libnvidia-ml.so.1 could not be loaded\n");
        return -1;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *at = dlsym(nvml.library, symbols[i].symbol);
        memcpy(symbols[i].slot, &at, sizeof at);
    }
    if (!nvml.init || !nvml.count || !nvml.by_index || !nvml.pci) {
        doctor_text_add(out,
                        "error libnvidia-ml.so.1 is too old: it lacks the calls of driver 450\n");
        return -1;
    }
    int result = nvml.init();
    if (result != NVML_OK) {
        doctor_text_add(out, "error NVML does not start: %s\n", error_text(result));
        return -1;
    }
    nvml.is_ready = 1;
    return 0;
}

void doctor_nvml_restart(void)
{
    if (nvml.is_ready && nvml.shutdown) {
        nvml.shutdown();
        nvml.is_ready = 0;
    }
}

static void ask_number(struct doctor_text *out, unsigned gpu, device_t device, const char *key,
                       int (*call)(device_t, unsigned *))
{
    unsigned value;
    if (call && call(device, &value) == NVML_OK) {
        doctor_text_add(out, "gpu %u %s %u\n", gpu, key, value);
    }
}

static void ask_changing(struct doctor_text *out, unsigned gpu, device_t device)
{
    unsigned value;
    unsigned long long reasons;
    struct utilization busy;
    ask_number(out, gpu, device, "generation", nvml.generation_now);
    ask_number(out, gpu, device, "width", nvml.width_now);
    ask_number(out, gpu, device, "replays", nvml.replays);
    ask_number(out, gpu, device, "pstate", nvml.pstate);
    ask_number(out, gpu, device, "power_mw", nvml.power);
    if (nvml.throttle && nvml.throttle(device, &reasons) == NVML_OK) {
        doctor_text_add(out, "gpu %u throttle 0x%llx\n", gpu, reasons);
    }
    if (nvml.temperature && nvml.temperature(device, 0, &value) == NVML_OK) {
        doctor_text_add(out, "gpu %u temperature %u\n", gpu, value);
    }
    if (nvml.utilization && nvml.utilization(device, &busy) == NVML_OK) {
        doctor_text_add(out, "gpu %u utilization %u\n", gpu, busy.gpu);
    }
}

static void ask_fixed(struct doctor_text *out, unsigned gpu, device_t device)
{
    char text[NAME_BYTES];
    struct bar1 bar1;
    unsigned now, pending;
    if (nvml.name && nvml.name(device, text, sizeof text) == NVML_OK) {
        doctor_text_add(out, "gpu %u name %s\n", gpu, text);
    }
    if (nvml.uuid && nvml.uuid(device, text, sizeof text) == NVML_OK) {
        doctor_text_add(out, "gpu %u uuid %s\n", gpu, text);
    }
    ask_number(out, gpu, device, "minor", nvml.minor);
    ask_number(out, gpu, device, "generation_most", nvml.generation_most);
    ask_number(out, gpu, device, "width_most", nvml.width_most);
    ask_number(out, gpu, device, "persistence", nvml.persistence);
    ask_number(out, gpu, device, "power_limit_mw", nvml.power_limit);
    if (nvml.bar1 && nvml.bar1(device, &bar1) == NVML_OK) {
        doctor_text_add(out, "gpu %u bar1 %llu\n", gpu, bar1.total);
    }
    if (nvml.mig && nvml.mig(device, &now, &pending) == NVML_OK) {
        doctor_text_add(out, "gpu %u mig %u\n", gpu, now);
    }
}

static void ask_links(struct doctor_text *out, unsigned gpu, device_t device)
{
    for (unsigned link = 0; link < MOST_LINKS && nvml.link_state && nvml.link_remote; link++) {
        unsigned is_active = 0;
        struct pci_info remote = {0};
        if (nvml.link_state(device, link, &is_active) == NVML_OK && is_active &&
            nvml.link_remote(device, link, &remote) == NVML_OK) {
            doctor_text_add(out, "nvlink %u %u %.31s\n", gpu, link, remote.bus_id);
        }
    }
}

static void ask_processes(struct doctor_text *out, unsigned gpu, device_t device)
{
    struct process processes[MOST_PROCESSES];
    unsigned n = MOST_PROCESSES;
    if (nvml.processes && nvml.processes(device, &n, processes) == NVML_OK) {
        for (unsigned i = 0; i < n && i < MOST_PROCESSES; i++) {
            doctor_text_add(out, "process %u %u\n", gpu, processes[i].pid);
        }
    }
}

static void ask_pair(struct doctor_text *out, unsigned a, unsigned b, device_t from, device_t to)
{
    static const char *const words[] = {"OK", "CNS", "GNS", "TNS", "DR", "NS", "U"};
    unsigned level, status[2];
    if (nvml.level && nvml.level(from, to, &level) == NVML_OK) {
        doctor_text_add(out, "level %u %u %u\n", a, b, level);
    }
    for (unsigned way = 0; way < 2; way++) { /* 0 read, 1 write */
        if (!nvml.p2p || nvml.p2p(from, to, way, &status[way]) != NVML_OK || status[way] > 6) {
            return;
        }
    }
    doctor_text_add(out, "p2p %u %u %s %s\n", a, b, words[status[0]], words[status[1]]);
}

int doctor_collect_nvml(void *few, struct doctor_text *out)
{
    device_t devices[DOCTOR_MAX_GPUS];
    struct pci_info pci;
    char text[NAME_BYTES];
    unsigned n = 0;
    int cuda, result;
    if (open_nvml(out)) {
        return 0; /* the reason is the answer */
    }
    if ((result = nvml.count(&n)) != NVML_OK) {
        doctor_text_add(out, "error NVML counts no GPUs: %s\n", error_text(result));
        return 0;
    }
    if (nvml.driver_version && nvml.driver_version(text, sizeof text) == NVML_OK) {
        doctor_text_add(out, "driver %s\n", text);
    }
    if (nvml.cuda_version && nvml.cuda_version(&cuda) == NVML_OK) {
        doctor_text_add(out, "cuda %d\n", cuda);
    }
    n = n < DOCTOR_MAX_GPUS ? n : DOCTOR_MAX_GPUS;
    for (unsigned i = 0; i < n; i++) {
        devices[i] = NULL;
        memset(&pci, 0, sizeof pci);
        result = nvml.by_index(i, &devices[i]);
        if (result == NVML_OK) {
            result = nvml.pci(devices[i], &pci);
        }
        if (result != NVML_OK) {
            devices[i] = NULL;
            doctor_text_add(out, "gpu %u %s %s\n", i, result == NVML_LOST ? "lost" : "error",
                            error_text(result));
            continue;
        }
        doctor_text_add(out, "gpu %u pci %.31s\n", i, pci.bus_id);
        ask_changing(out, i, devices[i]);
        if (!few) {
            ask_fixed(out, i, devices[i]);
            ask_links(out, i, devices[i]);
            ask_processes(out, i, devices[i]);
        }
    }
    for (unsigned a = 0; a < n && !few; a++) {
        for (unsigned b = 0; b < n; b++) {
            if (a != b && devices[a] && devices[b]) {
                ask_pair(out, a, b, devices[a], devices[b]);
            }
        }
    }
    return out->is_broken ? -ENOMEM : 0;
}
