/* The system around the GPUs: kernel and its settings, IOMMU, virtual or not, NUMA, versions. */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "doctor_machine.h"
#include "doctor_process.h"

static int small_file(struct doctor_machine *m, const char *path, char *out, size_t cap)
{
    char text[4096];
    int n = doctor_source_read(m->source, path, text, sizeof text);
    out[0] = '\0';
    if (n == -EFBIG) {
        return doctor_refuse(m, "%s is longer than a kernel writes it", path);
    }
    if (n > 0) {
        doctor_trim(text);
        doctor_copy(out, cap, text);
    }
    return 0;
}

/* The first line of cpuinfo that starts with this word, behind its colon. */
static void cpu_line(const char *text, const char *word, char *out, size_t cap)
{
    char line[4096];
    out[0] = '\0';
    while (doctor_line(&text, line, sizeof line)) {
        const char *colon = strchr(line, ':');
        if (!strncmp(line, word, strlen(word)) && colon) {
            doctor_copy(out, cap, colon + 1 + (colon[1] == ' '));
            return;
        }
    }
}

static int read_virtual(struct doctor_machine *m)
{
    struct doctor_text cpuinfo = {0};
    char flags[4096], vendor[64];
    struct doctor_system *s = &m->system;
    if (doctor_source_read_text(m->source, "/proc/cpuinfo", &cpuinfo) == 0) {
        cpu_line(doctor_text_get(&cpuinfo), "model name", s->cpu, sizeof s->cpu);
        cpu_line(doctor_text_get(&cpuinfo), "flags", flags, sizeof flags);
        s->is_virtual = strstr(flags, " hypervisor") != NULL;
    }
    doctor_text_free(&cpuinfo);
    if (small_file(m, "/sys/class/dmi/id/sys_vendor", vendor, sizeof vendor) ||
        small_file(m, "/sys/class/dmi/id/product_name", s->product, sizeof s->product) ||
        small_file(m, "/sys/hypervisor/type", s->hypervisor, sizeof s->hypervisor)) {
        return -1;
    }
    if (strstr(vendor, "QEMU") || strstr(vendor, "VMware") ||
        strstr(s->product, "Virtual Machine") || strstr(s->product, "KVM")) {
        s->is_virtual = 1;
    }
    if (s->is_virtual && !s->hypervisor[0]) {
        doctor_copy(s->hypervisor, sizeof s->hypervisor, vendor[0] ? vendor : "unknown");
    }
    return 0;
}

/* "default performance [powersave] powersupersave" */
static void chosen(const char *text, char *out, size_t cap)
{
    const char *open = strchr(text, '['), *close = open ? strchr(open, ']') : NULL;
    snprintf(out, cap, "%.*s", close ? (int)(close - open - 1) : 0, close ? open + 1 : "");
}

static int read_nodes(struct doctor_machine *m)
{
    struct doctor_names names;
    char path[160];
    uint64_t node;
    int err = doctor_source_list(m->source, "/sys/devices/system/node", 4096, &names), result = 0;
    if (err) {
        return err == -E2BIG ? doctor_refuse(m, "more than 4096 NUMA entries") : 0;
    }
    for (int i = 0; i < names.n && !result; i++) {
        if (strncmp(names.name[i], "node", 4) != 0 ||
            doctor_number(names.name[i] + 4, 10, DOCTOR_MAX_NODES - 1, &node)) {
            continue;
        }
        snprintf(path, sizeof path, "/sys/devices/system/node/%s/cpulist", names.name[i]);
        result = small_file(m, path, m->node_cpus[node], sizeof m->node_cpus[node]);
        m->system.n_nodes++;
    }
    doctor_names_free(&names);
    return result;
}

static void read_driver(struct doctor_machine *m)
{
    struct doctor_text text = {0};
    char line[256];
    struct doctor_system *s = &m->system;
    if (doctor_source_read_text(m->source, "/proc/driver/nvidia/version", &text) == 0) {
        const char *at = doctor_text_get(&text);
        doctor_copy(s->driver_flavour, sizeof s->driver_flavour,
                    strstr(at, "Open Kernel Module") ? "open module" : "closed module");
        const char *version = strstr(at, "Module");
        if (!s->driver[0] && version) {
            char word[64];
            /* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1  Thu .." or ".. for x86_64  580" */
            for (version += 6; *version; version += strcspn(version, " \n")) {
                version += strspn(version, " \n");
                if (sscanf(version, "%63[0-9.]", word) == 1 && strchr(word, '.')) {
                    doctor_copy(s->driver, sizeof s->driver, word);
                    break;
                }
            }
        }
    }
    doctor_text_free(&text);
    if (doctor_source_read_text(m->source, "/proc/driver/nvidia/params", &text) == 0) {
        const char *at = doctor_text_get(&text);
        while (doctor_line(&at, line, sizeof line)) {
            static const char *const names[] = {"DynamicPowerManagement:", "RegistryDwords:",
                                                "EnableResizableBar:", "EnablePCIeGen3:"};
            for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
                size_t used = strlen(s->driver_params);
                const char *value = line + strlen(names[i]);
                if (!strncmp(line, names[i], strlen(names[i])) && strcmp(value, " \"\"") != 0) {
                    snprintf(s->driver_params + used, sizeof s->driver_params - used, "%s%.60s",
                             used ? ", " : "", line);
                }
            }
        }
    }
    doctor_text_free(&text);
}

static void read_iommu(struct doctor_machine *m)
{
    const char *type = "";
    int has_group = 0, has_config = 0;
    for (int i = 0; i < m->n_devices; i++) {
        const struct doctor_device *d = &m->devices[i];
        has_group |= d->iommu_group >= 0;
        has_config |= d->config_bytes > 64;
        if (doctor_is_gpu(d) && d->iommu_type[0]) {
            type = d->iommu_type;
        }
    }
    snprintf(m->system.iommu, sizeof m->system.iommu, "%s",
             !has_group                  ? "none"
             : !strncmp(type, "DMA", 3)  ? "translating"
             : !strcmp(type, "identity") ? "passthrough"
                                         : "on, mode unknown");
    if (m->n_devices && !has_config) {
        doctor_note(m, "configuration space", "only the first 64 bytes, or none, may be read",
                    "run as root on the host (CAP_SYS_ADMIN); ACS, AER and link control are there");
    }
}

int doctor_read_system(struct doctor_machine *m, const char *program)
{
    struct doctor_system *s = &m->system;
    struct doctor_names names;
    struct doctor_text text = {0};
    char policy[96];
    s->memlock_bytes = s->shm_bytes = s->shm_free_bytes = -1;
    s->own_ipc_namespace = s->own_pid_namespace = -1;
    if (small_file(m, "/proc/cmdline", s->cmdline, sizeof s->cmdline) || read_virtual(m) ||
        small_file(m, "/sys/module/pcie_aspm/parameters/policy", policy, sizeof policy) ||
        read_nodes(m)) {
        return -1;
    }
    chosen(policy, s->aspm_policy, sizeof s->aspm_policy);
    read_driver(m);
    read_iommu(m);
    if (doctor_source_list(m->source, "/sys/class/infiniband", 256, &names) == 0) {
        s->has_rdma = names.n > 0;
        doctor_names_free(&names);
    }
    int err =
        doctor_source_answer(m->source, "process", doctor_collect_process, (void *)program, &text);
    int result = 0;
    if (err == -EFBIG || err == -EINVAL) {
        result =
            doctor_refuse(m, "the answers about the process cannot be read: %s", strerror(-err));
    } else if (err) {
        doctor_note(m, "process limits", "not in the recording", "record again");
    } else {
        result = doctor_parse_process(m, doctor_text_get(&text));
    }
    doctor_text_free(&text);
    return result;
}
