#include "rank_env.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu.h"
#include "nccl_abi.h"

ncclResult_t ncclGetVersion(int *version);

enum {
    MULTI_RANK_VERSION = 23003
}; /* the first NCCL that takes several ranks on a GPU when told to */

/* ---- MPS, without which kernels of several processes take turns on a GPU ---- */

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

static int start_mps(const char *tool)
{
    char pipe_dir[96], log_dir[96];
    if (!has_command("nvidia-cuda-mps-control")) {
        fprintf(stderr, "%s: --mps: nvidia-cuda-mps-control is not on the PATH\n", tool);
        return -1;
    }
    snprintf(mps_dir, sizeof mps_dir, "/tmp/llane-mps-XXXXXX");
    if (!mkdtemp(mps_dir)) {
        perror("--mps");
        mps_dir[0] = '\0';
        return -1;
    }
    snprintf(pipe_dir, sizeof pipe_dir, "%s/pipe", mps_dir);
    snprintf(log_dir, sizeof log_dir, "%s/log", mps_dir);
    if (mkdir(pipe_dir, 0700) || mkdir(log_dir, 0700)) {
        perror("--mps");
        return -1;
    }
    setenv("CUDA_MPS_PIPE_DIRECTORY", pipe_dir, 1);
    setenv("CUDA_MPS_LOG_DIRECTORY", log_dir, 1);
    if (system("nvidia-cuda-mps-control -d") != 0) {
        fprintf(stderr, "%s: --mps: the daemon did not start\n", tool);
        return -1;
    }
    return 0;
}

void rank_env_restore(void)
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
        fprintf(stderr, "llane: the MPS daemon may still run\n");
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

static void look_at_gpus(const struct rank_env_options *options, struct rank_env *out)
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

int rank_env_prepare(const struct rank_env_options *options, struct rank_env *out)
{
    *out = (struct rank_env){.is_emulated = !strcmp(llane_gpu_runtime(), "emulation")};
    ncclGetVersion(&out->nccl_version);
    look_at_gpus(options, out);
    if (!out->n_gpus) {
        fprintf(stderr, "%s: no GPU (%s); --emulate runs without one\n", options->tool,
                llane_gpu_error());
        return -1;
    }
    if (options->n_gpus > out->n_gpus) {
        fprintf(stderr, "%s: --gpus %d: there are %d\n", options->tool, options->n_gpus,
                out->n_gpus);
        return -1;
    }
    out->is_shared = options->n_ranks > out->n_gpus;
    if (out->is_shared && !out->is_emulated) {
        if (options->starts_mps && start_mps(options->tool)) {
            return -1;
        }
        out->has_mps = options->starts_mps || is_mps_running();
        if (!out->has_mps) {
            fprintf(stderr,
                    "%s: %d ranks on %d GPU%s and no MPS: their kernels take turns, "
                    "so times mean little; --mps starts a private daemon\n",
                    options->tool, options->n_ranks, out->n_gpus, out->n_gpus == 1 ? "" : "s");
        }
    }
    choose_plugin();
    setenv("LLANE_WAIT", "1", 0);
    return 0;
}

void rank_env_of_rank(const struct rank_env *env, int rank)
{
    char text[32];
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    if (env->is_shared) {
        setenv("NCCL_NVLS_ENABLE", "0", 0);
        if (env->nccl_version >= MULTI_RANK_VERSION) {
            setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
            setenv("NCCL_MAX_CTAS", "8", 0);
        } else { /* such a NCCL must believe that each rank has a host of its own */
            snprintf(text, sizeof text, "llane-rank-%d", rank);
            setenv("NCCL_HOSTID", text, 0);
            setenv("NCCL_MNNVL_ENABLE", "0", 0);
            setenv("NCCL_NET", "Socket", 0);
            setenv("NCCL_SOCKET_IFNAME", "lo", 0);
        }
    }
}

/* ---- signals ---- */

static volatile sig_atomic_t signal_seen;

static void on_signal(int number)
{
    signal_seen = number;
}

void rank_env_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

int rank_env_signal(void)
{
    return signal_seen;
}

void rank_env_raise(void)
{
    if (signal_seen) {
        signal(signal_seen, SIG_DFL);
        raise(signal_seen);
    }
}
