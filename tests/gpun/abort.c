/* tests/emu/prog_abort.c on GPUs with a real NCCL, one rank of tests/gpun/ranks. */
#include "emu/ranks.c"

#include "emu/prog_abort.c"
