/* The chosen NCCL version, the logger, error strings, and memory calls. */
#include "fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static int g_version;
static int g_log_level;
static FILE *g_log;

static void read_environment(void)
{
    int major = 2, minor = 28, patch = 9;
    const char *text = getenv("FAKE_NCCL_VERSION");
    if (text && sscanf(text, "%d.%d.%d", &major, &minor, &patch) != 3) {
        fprintf(stderr, "fake nccl: FAKE_NCCL_VERSION=%s is no version\n", text);
        abort();
    }
    g_version = major * 10000 + minor * 100 + patch;

    static const char *const names[] = {"NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"};
    const char *level = getenv("NCCL_DEBUG");
    for (int i = 0; level && i < 6; i++) {
        if (strcasecmp(level, names[i]) == 0)
            g_log_level = i;
    }
    const char *file = getenv("NCCL_DEBUG_FILE");
    g_log = file && g_log_level > FAKE_LOG_VERSION ? fopen(file, "a") : NULL;
    if (!g_log)
        g_log = stdout;
    setvbuf(g_log, NULL, _IOLBF, 0);
}

int fake_version(void)
{
    pthread_once(&g_once, read_environment);
    return g_version;
}

void fake_log(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    (void)flags;
    pthread_once(&g_once, read_environment);
    if (level > g_log_level)
        return;
    char host[64] = "?";
    gethostname(host, sizeof(host) - 1);
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    int device = -1;
    llane_gpu_device_get(&device);
    if (level == FAKE_LOG_WARN)
        fprintf(g_log, "%s:%d:%d [%d] %s:%d NCCL WARN %s\n", host, (int)getpid(),
                (int)syscall(SYS_gettid), device, file, line, text);
    else
        fprintf(g_log, "%s:%d:%d [%d] NCCL INFO %s\n", host, (int)getpid(),
                (int)syscall(SYS_gettid), device, text);
    fflush(g_log);
}

FAKE_API(ncclResult_t, GetVersion, (int *version))
{
    if (!version)
        return ncclInvalidArgument;
    *version = fake_version();
    return ncclSuccess;
}

FAKE_API(const char *, GetErrorString, (ncclResult_t result))
{
    static const char *const words[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited",
        "NCCL operation in progress",
    };
    return (unsigned)result < sizeof(words) / sizeof(*words) ? words[result]
                                                             : "unknown result code";
}

FAKE_API(const char *, GetLastError, (ncclComm_t comm))
{
    (void)comm;
    return llane_gpu_error();
}

FAKE_API(ncclResult_t, MemAlloc, (void **memory, size_t bytes))
{
    if (!memory || bytes == 0)
        return ncclInvalidArgument;
    return llane_gpu_malloc(bytes, memory) == 0 ? ncclSuccess : ncclUnhandledCudaError;
}

FAKE_API(ncclResult_t, MemFree, (void *memory))
{
    if (!memory)
        return ncclSuccess;
    return llane_gpu_free(memory) == 0 ? ncclSuccess : ncclUnhandledCudaError;
}
