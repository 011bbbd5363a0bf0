/* See doctor_process.h. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "doctor_machine.h"
#include "doctor_process.h"

/* The kernel's own numbers for the namespaces of the first process. */
static const unsigned long INIT_IPC = 0xefffffff, INIT_PID = 0xeffffffc;

void doctor_cpu_list(const cpu_set_t *set, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = '\0';
    for (int first = 0; first < CPU_SETSIZE; first++) {
        if (!CPU_ISSET(first, set)) {
            continue;
        }
        int last = first;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set)) {
            last++;
        }
        int more = last > first ? snprintf(out + n, cap - n, "%s%d-%d", n ? "," : "", first, last)
                                : snprintf(out + n, cap - n, "%s%d", n ? "," : "", first);
        n += (size_t)more;
        if (n >= cap) {
            return;
        }
        first = last;
    }
}

int doctor_cpu_parse(const char *list, cpu_set_t *out)
{
    CPU_ZERO(out);
    while (*list) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (end == list) {
            return -1;
        }
        if (*end == '-') {
            list = end + 1;
            last = strtoul(list, &end, 10);
            if (end == list) {
                return -1;
            }
        }
        if (last < first || last >= 65536 || (*end && *end != ',')) {
            return -1;
        }
        for (unsigned long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) {
            CPU_SET(cpu, out);
        }
        list = *end ? end + 1 : end;
    }
    return 0;
}

static unsigned long namespace_of(const char *path)
{
    struct stat status;
    return stat(path, &status) ? 0 : (unsigned long)status.st_ino;
}

static void ask_limits(struct doctor_text *out)
{
    struct statvfs shm;
    struct rlimit limit;
    cpu_set_t cpus;
    char list[128];
    if (statvfs("/dev/shm", &shm) == 0) {
        doctor_text_add(out, "shm_bytes %llu\nshm_free_bytes %llu\n",
                        (unsigned long long)shm.f_blocks * shm.f_frsize,
                        (unsigned long long)shm.f_bavail * shm.f_frsize);
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        if (limit.rlim_cur == RLIM_INFINITY) {
            doctor_text_add(out, "memlock unlimited\n");
        } else {
            doctor_text_add(out, "memlock %llu\n", (unsigned long long)limit.rlim_cur);
        }
    }
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
        doctor_cpu_list(&cpus, list, sizeof list);
        doctor_text_add(out, "affinity %s\n", list);
    }
}

static const char *container_kind(void)
{
    char text[4096] = "";
    int fd = open("/proc/1/cgroup", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, text, sizeof text - 1);
        text[n > 0 ? n : 0] = '\0';
        close(fd);
    }
    if (access("/.dockerenv", F_OK) == 0 || strstr(text, "docker")) {
        return "docker";
    }
    if (access("/run/.containerenv", F_OK) == 0 || strstr(text, "libpod")) {
        return "podman";
    }
    if (strstr(text, "kubepods")) {
        return "kubernetes";
    }
    if (strstr(text, "lxc")) {
        return "lxc";
    }
    return access("/.singularity.d", F_OK) == 0 ? "apptainer" : NULL;
}

static void ask_nccl(struct doctor_text *out)
{
    int version;
    int (*get_version)(int *);
    Dl_info where;
    void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        doctor_text_add(out, "nccl none on the library path\n");
        return;
    }
    *(void **)&get_version = dlsym(library, "ncclGetVersion");
    if (get_version && get_version(&version) == 0 && dladdr(*(void **)&get_version, &where)) {
        /* 2.8 and older: 2804; since then: 22809 */
        int major = version < 10000 ? version / 1000 : version / 10000;
        int rest = version < 10000 ? version % 1000 : version % 10000;
        doctor_text_add(out, "nccl %d.%d.%d, %s\n", major, rest / 100, rest % 100, where.dli_fname);
    }
}

/* Neither runs nor loads the program: its words say where its NCCL comes from. */
static void ask_program(struct doctor_text *out, const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) || !S_ISREG(status.st_mode) || status.st_size < 64) {
        doctor_text_add(out, "program %s: %s\n", path, fd < 0 ? strerror(errno) : "no program");
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    const char *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (bytes == MAP_FAILED) {
        doctor_text_add(out, "program %s: %s\n", path, strerror(errno));
        return;
    }
    size_t n = (size_t)status.st_size;
    const char *said = memmem(bytes, n, "NCCL version ", 13);
    if (memcmp(bytes, "\177ELF", 4) != 0) {
        doctor_text_add(
            out, "program %s: a script or no ELF file: its NCCL is its libraries' affair\n", path);
    } else if (memmem(bytes, n, "libnccl.so.2", 12)) {
        doctor_text_add(out, "program %s: shared NCCL (libnccl.so.2): llane can take its calls\n",
                        path);
    } else if (said || memmem(bytes, n, "ncclAllReduce", 13)) {
        char version[24] = "";
        if (said && said + 13 + 20 < bytes + n) {
            snprintf(version, sizeof version, "%.20s", said + 13);
            version[strspn(version, "0123456789.+cuda")] = '\0';
        }
        doctor_text_add(out, "program %s: static NCCL %s: llane cannot take its calls\n", path,
                        version);
    } else {
        doctor_text_add(out, "program %s: names no NCCL itself\n", path);
    }
    munmap((void *)bytes, n);
}

static int is_mps_running(void)
{
    const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[512];
    snprintf(path, sizeof path, "%.480s/control", dir ? dir : "/tmp/nvidia-mps");
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

int doctor_collect_process(void *program, struct doctor_text *out)
{
    static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
                                        "NCCL_P2P_DISABLE", "NCCL_TUNER_PLUGIN", "LLANE_ENABLE"};
    struct utsname kernel;
    const char *container = container_kind();
    if (uname(&kernel) == 0) {
        doctor_text_add(out, "kernel %s %s\n", kernel.release, kernel.machine);
    }
    doctor_text_add(out, "uid %u\n", geteuid());
    ask_limits(out);
    unsigned long ipc = namespace_of("/proc/self/ns/ipc"), pid = namespace_of("/proc/self/ns/pid");
    if (ipc && pid) {
        doctor_text_add(out, "own_ipc_namespace %d\nown_pid_namespace %d\n", ipc != INIT_IPC,
                        pid != INIT_PID);
    }
    if (container) {
        doctor_text_add(out, "container %s\n", container);
    }
    doctor_text_add(out, "mps %d\n", is_mps_running());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (getenv(names[i])) {
            doctor_text_add(out, "env %s %.120s\n", names[i], getenv(names[i]));
        }
    }
    ask_nccl(out);
    if (program) {
        ask_program(out, program);
    }
    return out->is_broken ? -ENOMEM : 0;
}

static int process_number(struct doctor_system *s, const char *key, const char *value)
{
    uint64_t n;
    const struct {
        const char *key;
        int64_t *to;
    } large[] = {{"shm_bytes", &s->shm_bytes},
                 {"shm_free_bytes", &s->shm_free_bytes},
                 {"memlock", &s->memlock_bytes}};
    const struct {
        const char *key;
        int *to;
    } small[] = {{"uid", &s->uid},
                 {"own_ipc_namespace", &s->own_ipc_namespace},
                 {"own_pid_namespace", &s->own_pid_namespace},
                 {"mps", &s->is_mps}};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        if (!strcmp(key, large[i].key)) {
            if (doctor_number(value, 10, INT64_MAX, &n)) {
                return -1;
            }
            *large[i].to = (int64_t)n;
        }
    }
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        if (!strcmp(key, small[i].key)) {
            if (doctor_number(value, 10, UINT32_MAX, &n)) {
                return -1;
            }
            *small[i].to = (int)n;
        }
    }
    return 0;
}

int doctor_parse_process(struct doctor_machine *m, const char *text)
{
    struct doctor_system *s = &m->system;
    char line[512];
    while (doctor_line(&text, line, sizeof line)) {
        doctor_trim(line);
        char *rest = line, *key = doctor_word(&rest);
        if (!key) {
            continue;
        }
        if (!strcmp(key, "kernel")) {
            doctor_copy(s->kernel, sizeof s->kernel, rest);
        } else if (!strcmp(key, "container")) {
            s->is_container = 1;
            doctor_copy(s->container, sizeof s->container, rest);
        } else if (!strcmp(key, "nccl")) {
            doctor_copy(s->nccl, sizeof s->nccl, rest);
        } else if (!strcmp(key, "program")) {
            doctor_copy(s->program_nccl, sizeof s->program_nccl, rest);
        } else if (!strcmp(key, "affinity")) {
            doctor_copy(s->affinity, sizeof s->affinity, rest);
        } else if (!strcmp(key, "memlock") && !strcmp(rest, "unlimited")) {
            s->is_memlock_unlimited = 1;
        } else if (!strcmp(key, "env")) {
            char *name = doctor_word(&rest);
            if (name && !strcmp(name, "CUDA_VISIBLE_DEVICES")) {
                doctor_copy(s->visible, sizeof s->visible, rest);
            }
        } else if (process_number(s, key, rest)) {
            return doctor_refuse(m, "the answers about the process: '%.40s %.60s' makes no sense",
                                 key, rest);
        }
    }
    return 0;
}
