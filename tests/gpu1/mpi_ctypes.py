"""Proves that a program of mpi4py and ctypes, with one rank a process under mpirun, gets right sums.
Argument: NCCL's path (libnccl.so.2). See gpu_ctypes."""
import sys
import time

import numpy
from mpi4py import MPI

import gpu_ctypes

COUNTS = (1, 3, 31, 1024, 4097, 65536, 1048576)


def contribution(rank, count, seed):
    return ((numpy.arange(count) * 7 + rank * 13 + seed) % 17 - 8).astype(numpy.float32)


def main():
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    gpu = gpu_ctypes.Gpu(rank)
    path = sys.argv[1] if len(sys.argv) > 1 else "libnccl.so.2"
    nccl = gpu_ctypes.Nccl(path, rank, size, world.bcast)
    source, target = gpu.malloc(4 * COUNTS[-1]), gpu.malloc(4 * COUNTS[-1])
    good = True
    for seed in range(40):
        for count in COUNTS[:-1] if seed % 10 else COUNTS:
            numbers = contribution(rank, count, seed)
            got = numpy.full(count, numpy.nan, numpy.float32)
            gpu.copy(source, numbers.ctypes.data, 4 * count)
            nccl.all_reduce(source, target, count, gpu.stream)
            gpu.copy(got.ctypes.data, target, 4 * count)
            want = sum(contribution(r, count, seed) for r in range(size))
            if not numpy.array_equal(got, want):
                print(f"WRONG count {count}: {int((got != want).sum())} elements", flush=True)
                good = False
        time.sleep(0.01)
    nccl.destroy()
    # One rank's failure is everyone's.
    good = bool(world.allreduce(int(good), op=MPI.MIN))
    print("ok" if good else "not ok", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
