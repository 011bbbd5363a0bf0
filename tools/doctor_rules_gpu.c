/* GPUs themselves: lost, without a driver, hot, short of power, asleep, a small memory window. */
#include <string.h>

#include "doctor_rules.h"

static void judge_presence(const struct doctor_machine *m, struct doctor_findings *out, int g)
{
    const struct doctor_gpu *gpu = &m->gpus[g];
    const struct doctor_device *d = doctor_gpu_device(m, g);
    struct doctor_finding *f;
    if (gpu->is_lost || gpu->error[0]) {
        f = doctor_find(out, gpu->is_lost ? "gpu-lost" : "gpu-error", DOCTOR_BROKEN, 1000, gpu->pci,
                        "GPU %d%s%s does not answer%s%s", g, gpu->pci[0] ? " at " : "", gpu->pci,
                        gpu->error[0]     ? ": "
                        : d && d->is_gone ? ": its registers read all ones"
                                          : "",
                        gpu->error);
        doctor_check(f, "cooling, then power: temperature and power plugs");
        doctor_check(f, "a cold start (power off, not a reboot)");
        doctor_check(f, "seat the card anew; without the riser; another slot");
        doctor_check(f, "the kernel's log before the first Xid: what came first?");
        doctor_command(f, "sudo dmesg | grep -E 'NVRM|AER|pcieport'; nvidia-smi -L");
        return;
    }
    if (d && d->driver[0] && strcmp(d->driver, "nvidia") != 0) {
        f = doctor_find(out, "gpu-driver", DOCTOR_WARNING, 650, gpu->pci,
                        "GPU %d at %s is held by the driver %s: CUDA cannot use it", g, gpu->pci,
                        d->driver);
        doctor_check(f, strcmp(d->driver, "vfio-pci") == 0
                            ? "it is set aside for a virtual machine: intended?"
                            : "install NVIDIA's driver and blacklist the other one");
        doctor_command(f, "lspci -ks %s", gpu->pci);
    } else if (d && !d->driver[0] && !m->has_nvml && !m->system.is_container) {
        f = doctor_find(out, "gpu-driver", DOCTOR_BROKEN, 650, gpu->pci,
                        "GPU %d at %s has no driver", g, gpu->pci);
        doctor_check(f, "install NVIDIA's driver for this kernel; secure boot: sign its module");
        doctor_command(f, "sudo modprobe nvidia; sudo dmesg | tail");
    } else if (m->has_nvml && gpu->index < 0) {
        doctor_find(out, "gpu-hidden", DOCTOR_INFO, 30, gpu->pci,
                    "the GPU at %s is in the machine, but this process is not shown it (container, "
                    "cgroup or drained)",
                    gpu->pci);
    }
}

static void judge_throttle(const struct doctor_machine *m, struct doctor_findings *out, int g)
{
    static const struct {
        int64_t bit;
        const char *text;
    } reasons[] = {{0x80, "an external power brake"},
                   {0x40, "hardware thermal slowdown"},
                   {0x20, "software thermal slowdown"},
                   {0x8, "hardware slowdown"}};
    const struct doctor_gpu *gpu = &m->gpus[g];
    const char *why = gpu->temperature >= 90 ? "a temperature near its limit" : NULL;
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons && gpu->throttle > 0; i++) {
        if (gpu->throttle & reasons[i].bit) {
            why = reasons[i].text;
            break;
        }
    }
    if (!why) {
        return;
    }
    struct doctor_finding *f =
        doctor_find(out, "gpu-throttle", DOCTOR_WARNING, 300, gpu->pci,
                    "GPU %d is slowed down by %s (%lld C)", g, why, (long long)gpu->temperature);
    doctor_check(f, "fans, dust, air flow, the room's temperature");
    doctor_check(f, "power: supply, plugs, and the chassis's power brake signal");
    doctor_command(f, "nvidia-smi -q -i %d -d PERFORMANCE,TEMPERATURE,POWER", g);
}

static void judge_window(const struct doctor_machine *m, struct doctor_findings *out, int g)
{
    const struct doctor_gpu *gpu = &m->gpus[g];
    const struct doctor_device *d = doctor_gpu_device(m, g);
    struct doctor_finding *f;
    if (gpu->bar1_bytes == 0) {
        f = doctor_find(out, "bar1-none", DOCTOR_BROKEN, 850, gpu->pci,
                        "GPU %d has no memory window (BAR1 is 0): no peer and no driver reaches it",
                        g);
    } else if (gpu->bar1_bytes > 0 && gpu->bar1_bytes <= 256 << 20 && d &&
               d->bar1_most_bytes > (uint64_t)gpu->bar1_bytes) {
        f = doctor_find(out, "bar1-small", DOCTOR_WARNING, 220, gpu->pci,
                        "GPU %d's memory window (BAR1) is %lld MiB and could be %llu: peers cannot "
                        "reach all of its memory",
                        g, (long long)(gpu->bar1_bytes >> 20),
                        (unsigned long long)(d->bar1_most_bytes >> 20));
    } else {
        return;
    }
    doctor_check(f, "BIOS: Above 4G Decoding on, Re-Size BAR on, CSM off");
    doctor_check(f, "in a VM: a larger MMIO window for the guest");
    doctor_command(f, "nvidia-smi -q -i %d -d MEMORY | grep -A3 BAR1", g);
}

static int is_near_error(const struct doctor_machine *m, int g)
{
    for (int at = m->gpus[g].device; at >= 0; at = m->devices[at].parent) {
        const struct doctor_device *d = &m->devices[at];
        if (d->aer[1].total || d->aer[2].total || (d->uncorrectable & ~(1u << 20))) {
            return 1;
        }
        for (int i = 0; i < m->n_events; i++) {
            const struct doctor_event *e = &m->events[i];
            if ((e->kind == DOCTOR_EVENT_AER ||
                 (e->kind == DOCTOR_EVENT_XID && (e->number == 62 || e->number == 79))) &&
                !strcmp(e->device, d->name)) {
                return 1;
            }
        }
    }
    return 0;
}

static void judge_power_saving(const struct doctor_machine *m, struct doctor_findings *out)
{
    const char *policy = m->system.aspm_policy;
    int forced = strstr(m->system.cmdline, "pcie_aspm=force") != NULL, failing = -1;
    for (int g = 0; g < m->n_gpus; g++) {
        int is_on = 0;
        for (int at = m->gpus[g].device; at >= 0; at = m->devices[at].parent) {
            is_on |= m->devices[at].has_express && (m->devices[at].link_control & 3);
        }
        if (is_on && is_near_error(m, g)) {
            failing = g;
        }
    }
    if (!m->n_gpus || (!forced && strncmp(policy, "power", 5) != 0 && failing < 0)) {
        return;
    }
    struct doctor_finding *f =
        doctor_find(out, "aspm", DOCTOR_WARNING, failing >= 0 ? 260 : 90,
                    failing >= 0 ? m->gpus[failing].pci : "",
                    failing >= 0 ? "links save power (ASPM) on a path that has errors%s%s"
                                 : "links save power%s%s: slow wake-ups, and errors on some boards",
                    forced      ? ", pcie_aspm=force"
                    : policy[0] ? ", policy "
                                : "",
                    forced ? "" : policy);
    doctor_check(f, "off for a trial: pcie_aspm=off on the kernel's command line, or BIOS");
    doctor_check(f, "the driver's dynamic power management off: NVreg_DynamicPowerManagement=0");
    doctor_command(f, "echo performance | sudo tee /sys/module/pcie_aspm/parameters/policy");
}

void doctor_rules_gpu(const struct doctor_machine *m, struct doctor_findings *out)
{
    int sleepy = 0;
    for (int g = 0; g < m->n_gpus; g++) {
        judge_presence(m, out, g);
        if (!m->gpus[g].is_lost) {
            judge_throttle(m, out, g);
            judge_window(m, out, g);
            sleepy += m->gpus[g].persistence == 0;
        }
    }
    judge_power_saving(m, out);
    if (sleepy) {
        struct doctor_finding *f =
            doctor_find(out, "persistence", DOCTOR_INFO, 25, "",
                        "persistence mode is off on %d GPU%s: the driver unloads between programs, "
                        "starting one takes seconds and containers may time out",
                        sleepy, sleepy > 1 ? "s" : "");
        doctor_command(f, "sudo systemctl enable --now nvidia-persistenced");
    }
}
