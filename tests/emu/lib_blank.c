/* A plugin without any symbol that NCCL wants: only its coming and going is recorded. */
#include "record.h"

__attribute__((constructor)) static void on_load(void)
{
    record("loaded\n");
}

__attribute__((destructor)) static void on_unload(void)
{
    record("unloaded\n");
}
