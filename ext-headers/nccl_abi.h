/*
 * The subset of nccl.h that llane uses, in our own words, so that llane builds without NCCL or CUDA
 * headers and uses nothing newer than NCCL 2.19 without a run-time check.
 * Source: NCCL's public API, versions 2.19 - 2.32; tests/unit/test_nccl_abi compares it with every
 * nccl.h that can be had.
 */
#ifndef LLANE_NCCL_ABI_H
#define LLANE_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

/* cudaStream_t as cuda_runtime.h spells it; the repeated typedef is the same type. */
typedef struct CUstream_st *cudaStream_t;

typedef struct ncclComm *ncclComm_t;

enum { NCCL_UNIQUE_ID_BYTES = 128 };
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;

typedef enum {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10, /* 2.24 */
    ncclFloat8e5m2 = 11, /* 2.24 */
} ncclDataType_t;

typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
} ncclRedOp_t;

/* Passed through, never looked into: its layout grows with NCCL. */
typedef struct llane_opaque_config ncclConfig_t;
typedef struct llane_opaque_sim_info ncclSimInfo_t;
typedef struct llane_opaque_coll_config ncclCollConfig_t;     /* 2.32 */
typedef struct llane_opaque_window *ncclWindow_t;             /* 2.27 */
typedef struct llane_opaque_wait_signal ncclWaitSignalDesc_t; /* 2.29 */

/* What NCCL hands to its plugins; level and flags are NCCL's ncclDebugLogLevel and subsystem bits. */
typedef void (*llane_nccl_logger)(int level, unsigned long flags, const char *file, int line,
                                  const char *format, ...);

/* CommSplit: this rank joins no new communicator. */
enum { NCCL_SPLIT_NOCOLOR = -1 };

/* CommShrink's flag (2.27): operations under way are aborted first. */
enum { NCCL_SHRINK_ABORT = 1 };

#endif
