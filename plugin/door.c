/*
 * door: the constructor and the destructor of the object. Loading it is enough for every door; NCCL
 * need find no symbol in it.
 */
#include "config.h"
#include "runtime.h"
#include "startup.h"

__attribute__((constructor)) static void enter(void)
{
    if (llane_config()->enable) {
        llane_startup_load();
    }
}

__attribute__((destructor)) static void leave(void)
{
    if (llane_config()->enable) {
        llane_runtime_exit();
    }
}
