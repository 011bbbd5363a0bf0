/*
 * doctor_machine: what is known of a machine, whoever looked: PCI devices and their links, GPUs, the
 * kernel's log, the process's surroundings, measurements. Filled by the readers (doctor_pci.c,
 * doctor_nvml.c, doctor_log.c, doctor_system.c, doctor_ranks.c, doctor_measured.c), judged by
 * doctor_rules_*.c, printed by doctor_screen.c and doctor_json.c.
 *
 * Owns: its arrays. Threads: one. Blocking: the readers, as the files and drivers they ask.
 * Errors: readers return 0, or -1 after doctor_refuse() for input that makes no sense (exit 2). What
 * cannot be read is no error: it is noted with the reason and the way to get it.
 */
#ifndef DOCTOR_MACHINE_H
#define DOCTOR_MACHINE_H

#include <stdint.h>
#include <stdio.h>

#include "doctor_source.h"
#include "doctor_text.h"

enum {
    DOCTOR_MAX_DEVICES = 4096,
    DOCTOR_MAX_GPUS = 32,
    DOCTOR_MAX_DEPTH = 24,
    DOCTOR_MAX_EVENTS = 512,
    DOCTOR_MAX_RANKS = 128,
    DOCTOR_MAX_NOTES = 48,
    DOCTOR_MAX_NODES = 1024,
};

struct doctor_link {
    int speed; /* tenths of GT/s: 25, 50, 80, 160, 320, 640; 0: not known */
    int width; /* lanes; 0: not known */
};
/* One way, after encoding, in GB/s; 0 where unknown. */
double doctor_link_gbs(struct doctor_link link);
int doctor_link_generation(int speed);
int doctor_parse_speed(const char *text); /* sysfs; 0 for "Unknown" */
void doctor_link_text(struct doctor_link link, char *text, size_t cap);

enum { DOCTOR_COR, DOCTOR_NONFATAL, DOCTOR_FATAL, DOCTOR_N_AER };

struct doctor_aer {
    int is_known;
    uint64_t total;
    char kinds[96]; /* "BadTLP 12, Timeout 3" */
};

enum doctor_port { /* of the PCI Express capability */
                   DOCTOR_PORT_ENDPOINT = 0,
                   DOCTOR_PORT_ROOT = 4,
                   DOCTOR_PORT_UP = 5,
                   DOCTOR_PORT_DOWN = 6,
                   DOCTOR_PORT_UNKNOWN = -1
};

struct doctor_device {
    char name[DOCTOR_NAME_BYTES]; /* 0000:01:00.0 */
    char host[24];                /* pci0000:00: the host bridge that it hangs off */
    char path[512];               /* /devices/pci0000:00/.. */
    char driver[32];
    uint32_t vendor, device, class_code;
    int parent; /* index; -1 at a host bridge */
    int node, iommu_group;
    char iommu_type[24]; /* DMA, DMA-FQ, identity; "" unknown */
    char cpus[128];
    char power_control[16];
    int64_t bar1_bytes; /* from `resource`; -1 unknown */
    struct doctor_link now, most, loaded;
    struct doctor_aer aer[DOCTOR_N_AER];
    /* From configuration space. */
    size_t config_bytes;
    int config_err; /* a negative errno where nothing was read */
    int is_gone;    /* all ones: the device does not answer */
    int is_bridge, bus, secondary, subordinate;
    enum doctor_port port;
    int has_express, has_aer, has_acs, has_dpc;
    uint16_t acs_control, link_control, link_control2, dpc_status;
    uint32_t uncorrectable, correctable; /* latched AER status */
    uint64_t bar1_most_bytes; /* largest that resizable BAR offers; 0: no such capability */
};

struct doctor_gpu {
    int device; /* index, -1 where sysfs has none */
    int index;  /* NVML's, -1 where NVML does not show it */
    int is_lost;
    char pci[24], name[64], uuid[80], error[96];
    int minor;
    int persistence, mig; /* -1 unknown */
    struct doctor_link now, most, loaded;
    int64_t bar1_bytes, replays, throttle, temperature, power_mw, power_limit_mw, utilization;
    int pstate;
};

enum doctor_level { DOCTOR_SAME, DOCTOR_PIX, DOCTOR_PXB, DOCTOR_PHB, DOCTOR_NODE, DOCTOR_SYS };
const char *doctor_level_name(enum doctor_level level);

struct doctor_pair {
    enum doctor_level level; /* by the PCI tree */
    int common;              /* the device that both hang off; -1: none below the host bridges */
    int has_nvml_level;
    enum doctor_level nvml_level;
    int nvlinks;
    char p2p_read[8], p2p_write[8]; /* OK CNS GNS TNS NS DR U; "" unknown */
    /* Measured; "" where it was not. */
    char claim[8], ipc[8], probe[12];
    char ipc_why[96];
    double latency_us, write_gbs, read_gbs;
};

struct doctor_host_path {
    double latency_us, to_gbs, from_gbs; /* 0: not measured */
};

enum doctor_event_kind {
    DOCTOR_EVENT_AER,
    DOCTOR_EVENT_XID,
    DOCTOR_EVENT_LOST,
    DOCTOR_EVENT_IOMMU_FAULT,
    DOCTOR_EVENT_BAR,
    DOCTOR_EVENT_SLOT_POWER,
    DOCTOR_EVENT_LINK_LIMIT,
    DOCTOR_EVENT_DPC,
    DOCTOR_N_EVENTS
};
struct doctor_event {
    enum doctor_event_kind kind;
    double seconds;  /* since boot; -1 where the line has no time */
    char device[24]; /* the address named; "" where none */
    int severity;    /* AER: DOCTOR_COR.. */
    int number;      /* Xid */
    char text[200];  /* the line, for the reader */
    uint64_t count;  /* lines like this one */
};

struct doctor_rank {
    int rank, pid, node_of_cpus; /* -1: CPUs of several nodes */
    char cpus[128], visible[128];
    int gpu; /* index in gpus, -1 unknown */
};

struct doctor_system {
    char kernel[96], product[96], cmdline[1024], cpu[64], driver[64], driver_flavour[24];
    char hypervisor[48]; /* "" on bare metal */
    int is_virtual, is_container;
    char container[32];
    int cuda; /* 13000 */
    char nccl[160], program_nccl[200];
    char iommu[24]; /* "none", "translating", "passthrough" */
    char aspm_policy[24];
    int own_ipc_namespace, own_pid_namespace;         /* -1 unknown */
    int64_t shm_bytes, shm_free_bytes, memlock_bytes; /* -1 unlimited or unknown */
    int is_memlock_unlimited, has_rdma, is_mps, uid;
    char visible[128];
    char affinity[128];
    int n_nodes;
    int n_p2p_params;
    char driver_params[128]; /* of /proc/driver/nvidia/params that matter */
};

struct doctor_note { /* what could not be read */
    char what[64], why[128], how[160];
};

struct doctor_machine {
    struct doctor_source *source;
    struct doctor_device *devices;
    int n_devices;
    struct doctor_gpu gpus[DOCTOR_MAX_GPUS];
    int n_gpus;
    struct doctor_pair pairs[DOCTOR_MAX_GPUS][DOCTOR_MAX_GPUS];
    struct doctor_host_path host[DOCTOR_MAX_GPUS];
    struct doctor_event events[DOCTOR_MAX_EVENTS];
    int n_events;
    uint64_t n_events_left_out;
    struct doctor_rank ranks[DOCTOR_MAX_RANKS];
    int n_ranks;
    struct doctor_system system;
    char node_cpus[DOCTOR_MAX_NODES][128];
    struct doctor_note notes[DOCTOR_MAX_NOTES];
    int n_notes;
    struct { /* pids that NVML sees on a GPU */
        int gpu, pid;
    } processes[DOCTOR_MAX_RANKS];
    int n_processes;
    int has_nvml, has_log, has_loaded, has_measured, is_emulated;
    char measured_by[96], measured_trouble[160];
    char refusal[320]; /* input that makes no sense; "" while all is well */
};

/* Says what makes no sense, once; always -1. */
__attribute__((format(printf, 2, 3))) int doctor_refuse(struct doctor_machine *m,
                                                        const char *format, ...);
/* "not readable: why, how". The same `what` twice is noted once. */
void doctor_note(struct doctor_machine *m, const char *what, const char *why, const char *how);
/* A domain of 8 digits, "PCI:" in front, capitals or a missing function are as good; -1 if not. */
int doctor_address(const char *text, char out[24]);
int doctor_find_device(const struct doctor_machine *m, const char *address);
int doctor_find_gpu(const struct doctor_machine *m, const char *address);
const struct doctor_device *doctor_gpu_device(const struct doctor_machine *m, int gpu);
/* "GPU 2 (0000:41:00.0)", "switch port 0000:40:00.0", "root port 0000:00:01.1". */
void doctor_device_text(const struct doctor_machine *m, int device, char *text, size_t cap);

int doctor_read_pci(struct doctor_machine *m);
int doctor_parse_config(struct doctor_machine *m, struct doctor_device *d, const uint8_t *bytes,
                        size_t n);
int doctor_parse_aer(struct doctor_machine *m, const char *device, const char *text,
                     struct doctor_aer *out);
int doctor_is_gpu(const struct doctor_device *d);

int doctor_read_nvml(struct doctor_machine *m);
int doctor_parse_nvml(struct doctor_machine *m, const char *text);
/* doctor_nvml_live.c: asks the driver's library; few: only what changes (for watch). */
int doctor_collect_nvml(void *few, struct doctor_text *out);
/* Lets go of the driver, so that the next question finds GPUs that came back. */
void doctor_nvml_restart(void);

int doctor_topology(struct doctor_machine *m); /* after PCI and NVML */

int doctor_read_log(struct doctor_machine *m);
int doctor_parse_log(struct doctor_machine *m, const char *text);
const char *doctor_xid_text(int xid);
/* 0 nothing to do, 1 warning, 2 broken. */
int doctor_xid_weight(int xid);

int doctor_read_system(struct doctor_machine *m, const char *program);
int doctor_parse_process(struct doctor_machine *m, const char *text);

/* pid: only processes below it; 0: the ranks of the launcher that started this process. */
int doctor_read_ranks(struct doctor_machine *m, int pid);
int doctor_parse_ranks(struct doctor_machine *m, const char *text);

/* program: llane-measure; NULL: none to be had. */
int doctor_read_measured(struct doctor_machine *m, const char *program);
int doctor_parse_measured(struct doctor_machine *m, const char *text);
int doctor_parse_loaded(struct doctor_machine *m, const char *text);

#endif
