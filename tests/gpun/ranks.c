// CFLAGS: -Itests/fake_nccl
/* tests/emu/prog_ranks.c, which starts the ranks of the programs here. */
#include "emu/prog_ranks.c"
