#include "startup.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

#include "config.h"
#include "interpose.h"
#include "real_nccl.h"
#include "version.h"

/* The plugin table that NCCL asked last. Relaxed throughout: it only chooses what the line says. */
static const char *_Atomic plugin = "net";
static atomic_flag is_announced = ATOMIC_FLAG_INIT;

static const char *file_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int is_drop_in(struct dl_phdr_info *info, size_t bytes, void *unused)
{
    (void)bytes;
    (void)unused;
    return info->dlpi_name && !strcmp(file_of(info->dlpi_name), "libnccl-llane.so");
}

static const char *door(void)
{
    Dl_info self;
    if (dl_iterate_phdr(is_drop_in, NULL)) {
        return "drop-in";
    }
    if (dladdr(&plugin, &self) && llane_config_is_preloaded(file_of(self.dli_fname))) {
        return "preload";
    }
    return atomic_load_explicit(&plugin, memory_order_relaxed);
}

void llane_startup_load(void)
{
    llane_interpose_scan();
}

void llane_startup_plugin(const char *kind, llane_nccl_logger logger)
{
    atomic_store_explicit(&plugin, kind, memory_order_relaxed);
    llane_log_set_nccl(logger);
    llane_interpose_scan();
    if (logger) {
        llane_interpose_check_logger((uintptr_t)logger);
    }
    llane_startup_announce();
}

void llane_startup_announce(void)
{
    if (!llane_config()->enable ||
        atomic_flag_test_and_set_explicit(&is_announced, memory_order_relaxed)) {
        return;
    }
    struct llane_interpose_summary summary;
    llane_interpose_summarize(&summary);
    if (!summary.n_copies) {
        LLANE_INFO("llane %s: door %s, no shared libnccl found", LLANE_VERSION, door());
    }
    for (uint32_t i = 0; i < summary.n_copies; i++) {
        const struct llane_nccl *nccl = &llane_nccl_copies[i];
        LLANE_INFO("llane %s: door %s, NCCL %d.%d.%d at %s, %u call sites redirected",
                   LLANE_VERSION, door(), nccl->version / 10000, nccl->version / 100 % 100,
                   nccl->version % 100, nccl->path, summary.n_sites[i]);
    }
}
