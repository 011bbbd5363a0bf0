/*
 * abi_env: the environment plugin tables. Being loaded is all that llane wants from this door: every
 * variable reads exactly as without a plugin, where NCCL asks the C library.
 *
 * Threads: any. init runs inside NCCL's one-time initialisation: it calls no NCCL function but the
 * logger, which NCCL itself uses at that point. Errors: none, an error from init stops NCCL.
 */
#include "env_abi.h"

#include "config.h"
#include "startup.h"

static const char name[] = "llane";

static ncclResult_t init_v2(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix,
                            llane_nccl_logger logger)
{
    (void)major, (void)minor, (void)patch, (void)suffix;
    if (llane_config()->enable) {
        llane_startup_plugin("env", logger);
    }
    return ncclSuccess;
}

static ncclResult_t init_v1(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix)
{
    return init_v2(major, minor, patch, suffix, NULL);
}

static ncclResult_t finalize(void)
{
    return ncclSuccess;
}

#define TABLE(version)                                                                             \
    extern const struct llane_env_v##version ncclEnvPlugin_v##version                              \
        __attribute__((visibility("default")));                                                    \
    const struct llane_env_v##version ncclEnvPlugin_v##version

TABLE(1) = {name, init_v1, finalize, llane_config_getenv};
TABLE(2) = {name, init_v2, finalize, llane_config_getenv};
