/*
 * tests/emu/prog_conformance.c on a GPU with a real NCCL. RANK, WORLD_SIZE and RANKS_DIR (an empty
 * folder) come from the caller, as does whether llane is there: both runs must print the same.
 */
#include "emu/ranks.c"
#include "emu/values.c"

#include "emu/prog_conformance.c"
