// CFLAGS: -Itests/emu
/* tests/emu/prog_allreduce.c on GPUs with a real NCCL, one rank of tests/gpun/ranks. */
#include "emu/ranks.c"
#include "emu/values.c"

#include "emu/client/client.c"

#include "emu/prog_allreduce.c"
