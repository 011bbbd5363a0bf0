/* A libcudart.so for docs/examples on the emulated GPU. */
#include "cuda_runtime.h"

int cudaGetDeviceCount(int *count)
{
    return llane_gpu_device_count(count);
}
int cudaSetDevice(int device)
{
    return llane_gpu_device_set(device);
}
int cudaMalloc(void **memory, size_t bytes)
{
    return llane_gpu_malloc(bytes, memory);
}
int cudaFree(void *memory)
{
    return llane_gpu_free(memory);
}
int cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    int result = llane_gpu_memcpy_async(to, from, bytes, NULL);
    return result ? result : llane_gpu_stream_synchronize(NULL);
}
int cudaStreamCreate(cudaStream_t *stream)
{
    return llane_gpu_stream_create((struct CUstream_st **)stream);
}
int cudaStreamSynchronize(cudaStream_t stream)
{
    return llane_gpu_stream_synchronize((struct CUstream_st *)stream);
}
