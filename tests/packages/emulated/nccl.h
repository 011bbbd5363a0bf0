/* NCCL's API for docs/examples, as the tests' own NCCL has it. */
#include "nccl_client.h"
