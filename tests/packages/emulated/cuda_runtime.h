/* The few calls of the CUDA runtime that docs/examples make, on the emulated GPU (cudart.c). */
#ifndef LLANE_EMULATED_CUDA_RUNTIME_H
#define LLANE_EMULATED_CUDA_RUNTIME_H

#include "gpu.h"
#include "nccl_abi.h"

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

int cudaGetDeviceCount(int *count);
int cudaSetDevice(int device);
int cudaMalloc(void **memory, size_t bytes);
int cudaFree(void *memory);
int cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
int cudaStreamCreate(cudaStream_t *stream);
int cudaStreamSynchronize(cudaStream_t stream);

#endif
