/*
 * What surrounds the ranks: how many GPUs there are, what NCCL needs where ranks share one, and MPS,
 * without which their kernels take turns instead of running at once.
 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "gpu.h"

ncclResult_t ncclGetVersion(int *version);

enum {
    MULTI_RANK_VERSION = 23003
}; /* the first NCCL that takes several ranks on a GPU when told to */

/* ---- MPS ---- */

static char mps_dir[64]; /* of the daemon that this process started */

static int has_command(const char *name)
{
    char command[128];
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", name);
    return system(command) == 0;
}

/* The daemon leaves its pid beside its pipes, and its control pipe has a reader while it lives. */
static int is_mps_running(void)
{
    const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH_MAX];
    int pid = 0;
    dir = dir ? dir : "/tmp/nvidia-mps";
    snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", dir);
    FILE *file = fopen(path, "r");
    if (file) {
        int n = fscanf(file, "%d", &pid);
        fclose(file);
        if (n == 1 && pid > 0) {
            return kill(pid, 0) == 0;
        }
    }
    snprintf(path, sizeof path, "%s/control", dir);
    int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

static int start_mps(void)
{
    char pipe_dir[96], log_dir[96];
    if (!has_command("nvidia-cuda-mps-control")) {
        fprintf(stderr, "llane-bench: --mps: nvidia-cuda-mps-control is not on the PATH\n");
        return -1;
    }
    snprintf(mps_dir, sizeof mps_dir, "/tmp/llane-bench-mps-XXXXXX");
    if (!mkdtemp(mps_dir)) {
        perror("llane-bench: --mps");
        mps_dir[0] = '\0';
        return -1;
    }
    snprintf(pipe_dir, sizeof pipe_dir, "%s/pipe", mps_dir);
    snprintf(log_dir, sizeof log_dir, "%s/log", mps_dir);
    if (mkdir(pipe_dir, 0700) || mkdir(log_dir, 0700)) {
        perror("llane-bench: --mps");
        return -1;
    }
    setenv("CUDA_MPS_PIPE_DIRECTORY", pipe_dir, 1);
    setenv("CUDA_MPS_LOG_DIRECTORY", log_dir, 1);
    if (system("nvidia-cuda-mps-control -d") != 0) {
        fprintf(stderr, "llane-bench: --mps: the daemon did not start\n");
        return -1;
    }
    return 0;
}

void bench_env_restore(void)
{
    char command[160];
    if (!mps_dir[0]) {
        return;
    }
    /* A signal to the terminal's whole group must not end the shell that ends the daemon. */
    snprintf(command, sizeof command,
             "trap '' INT TERM HUP; echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null; "
             "rm -rf '%s'",
             mps_dir);
    mps_dir[0] = '\0';
    if (system(command) != 0) {
        fprintf(stderr, "llane-bench: the MPS daemon may still run\n");
    }
}

/* ---- NCCL ---- */

/* The plugin built beside this program, else whatever the name leads to. */
static void choose_plugin(void)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) {
        return;
    }
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    size_t room = sizeof path - (size_t)(slash + 1 - path);
    snprintf(slash + 1, room, "libnccl-tuner-llane.so");
    setenv("NCCL_TUNER_PLUGIN", access(path, R_OK) ? "llane" : path, 0);
}

static void look_at_gpus(const struct bench_options *options, struct bench_surroundings *out)
{
    struct llane_gpu_identity gpu;
    if (llane_gpu_device_count(&out->n_gpus) || out->n_gpus < 1) {
        out->n_gpus = 0;
        return;
    }
    if (options->n_gpus && options->n_gpus < out->n_gpus) {
        out->n_gpus = options->n_gpus;
    }
    if (!llane_gpu_identify(0, &gpu)) {
        snprintf(out->gpu, sizeof out->gpu, "compute capability %d.%d, %d multiprocessors",
                 (int)gpu.cc_major, (int)gpu.cc_minor, (int)gpu.n_sms);
    }
}

int bench_env_prepare(const struct bench_options *options, struct bench_surroundings *out)
{
    *out = (struct bench_surroundings){.is_emulated = !strcmp(llane_gpu_runtime(), "emulation")};
    ncclGetVersion(&out->nccl_version);
    look_at_gpus(options, out);
    if (!out->n_gpus) {
        fprintf(stderr, "llane-bench: no GPU (%s); --emulate runs without one\n",
                llane_gpu_error());
        return -1;
    }
    if (options->n_gpus > out->n_gpus) {
        fprintf(stderr, "llane-bench: --gpus %d: there are %d\n", options->n_gpus, out->n_gpus);
        return -1;
    }
    out->is_shared = options->n_ranks > out->n_gpus;
    if (out->is_shared && !out->is_emulated) {
        if (options->starts_mps && start_mps()) {
            return -1;
        }
        out->has_mps = options->starts_mps || is_mps_running();
        if (!out->has_mps) {
            fprintf(stderr,
                    "llane-bench: %d ranks on %d GPU%s and no MPS: their kernels take turns, "
                    "so times mean little; --mps starts a private daemon\n",
                    options->n_ranks, out->n_gpus, out->n_gpus == 1 ? "" : "s");
        }
    }
    choose_plugin();
    setenv("LLANE_WAIT", "1", 0);
    return 0;
}

/* In the rank's own process, before it becomes the rank. What the user set stays, but for
 * rank_log.h; --env is last. */
void bench_env_of_rank(const struct bench_options *options, const struct bench_surroundings *around,
                       int rank)
{
    char text[32];
    if (around->is_shared) {
        setenv("NCCL_NVLS_ENABLE", "0", 0);
        if (around->nccl_version >= MULTI_RANK_VERSION) {
            setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
            setenv("NCCL_MAX_CTAS", "8", 0);
        } else { /* such a NCCL must believe that each rank has a host of its own */
            snprintf(text, sizeof text, "llane-bench-%d", rank);
            setenv("NCCL_HOSTID", text, 0);
            setenv("NCCL_MNNVL_ENABLE", "0", 0);
            setenv("NCCL_NET", "Socket", 0);
            setenv("NCCL_SOCKET_IFNAME", "lo", 0);
        }
    }
    if (options->memory) {
        setenv("LLANE_MEMORY", options->memory, 1);
    }
    for (int i = 0; i < options->n_env; i++) {
        const char *equals = strchr(options->env[i], '=');
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)(equals - options->env[i]), options->env[i]);
        setenv(name, equals + 1, 1);
    }
}
