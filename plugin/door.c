/*
 * door: the constructor and the destructor of the object. Loading it is enough for every door; NCCL
 * need find no symbol in it.
 */
#include "config.h"
#include "startup.h"

__attribute__((constructor)) static void enter(void)
{
    if (llane_config()->enable) {
        llane_startup_load();
    }
}

/* What the process says at its end, where the object has something to say. */
extern void llane_runtime_exit(void) __attribute__((weak));

__attribute__((destructor)) static void leave(void)
{
    if (llane_config()->enable && llane_runtime_exit) {
        llane_runtime_exit();
    }
}
