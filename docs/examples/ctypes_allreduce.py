"""NCCL by ctypes, as serving engines open it: the library is named by its path, so llane's drop-in
takes its place. Starts RANKS processes, sums, checks; llane says at exit what it carried.

    python ctypes_allreduce.py "$(python -m llane drop-in)" [RANKS]
"""
import ctypes
import multiprocessing
import os
import sys

FLOAT32, SUM, TO_DEVICE, TO_HOST = 7, 0, 1, 2
COUNTS, TIMES = (1, 100, 1024, 4096, 65536, 1 << 18), 50


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def check(result, what):
    if result:
        sys.exit(f"{what}: error {result}")


def all_reduce(path, rank, ranks, pipes):
    os.environ.setdefault("LLANE_STATS", "1")
    cuda, nccl = ctypes.CDLL("libcudart.so"), ctypes.CDLL(path)
    gpus, unique = ctypes.c_int(), UniqueId()
    check(cuda.cudaGetDeviceCount(ctypes.byref(gpus)), "cudaGetDeviceCount")
    check(cuda.cudaSetDevice(rank % gpus.value), "cudaSetDevice")
    if rank == 0:
        check(nccl.ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
        for pipe in pipes:
            pipe.send_bytes(bytes(unique))
    else:
        unique = UniqueId.from_buffer_copy(pipes[0].recv_bytes())
    comm, stream = ctypes.c_void_p(), ctypes.c_void_p()
    source, target = ctypes.c_void_p(), ctypes.c_void_p()
    check(nccl.ncclCommInitRank(ctypes.byref(comm), ranks, unique, rank), "ncclCommInitRank")
    check(cuda.cudaStreamCreate(ctypes.byref(stream)), "cudaStreamCreate")
    wrong = 0
    for count in COUNTS:
        n_bytes = ctypes.c_size_t(4 * count)
        host = (ctypes.c_float * count)(*(rank + i % 7 for i in range(count)))
        check(cuda.cudaMalloc(ctypes.byref(source), n_bytes), "cudaMalloc")
        check(cuda.cudaMalloc(ctypes.byref(target), n_bytes), "cudaMalloc")
        check(cuda.cudaMemcpy(source, host, n_bytes, TO_DEVICE), "cudaMemcpy")
        for _ in range(TIMES):
            check(nccl.ncclAllReduce(source, target, ctypes.c_size_t(count), FLOAT32, SUM, comm, stream),
                  "ncclAllReduce")
            check(cuda.cudaStreamSynchronize(stream), "cudaStreamSynchronize")
        check(cuda.cudaMemcpy(host, target, n_bytes, TO_HOST), "cudaMemcpy")
        wrong += sum(host[i] != sum(range(ranks)) + ranks * (i % 7) for i in range(count))
        cuda.cudaFree(source)
        cuda.cudaFree(target)
    check(nccl.ncclCommDestroy(comm), "ncclCommDestroy")
    print(f"rank {rank} of {ranks}: {'WRONG' if wrong else 'all sums right'}", flush=True)
    sys.exit(1 if wrong else 0)


def main():
    path, ranks = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    spawn = multiprocessing.get_context("spawn")
    pairs = [spawn.Pipe() for _ in range(ranks - 1)]
    mine = [[near for near, _ in pairs]] + [[far] for _, far in pairs]
    children = [spawn.Process(target=all_reduce, args=(path, rank, ranks, mine[rank]))
                for rank in range(ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return 1 if any(child.exitcode for child in children) else 0


if __name__ == "__main__":
    sys.exit(main())
