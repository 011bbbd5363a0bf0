"""Proves that CuPy's NCCL module gets right sums with llane loaded. One rank; RANK, WORLD_SIZE and
INIT_FILE come from the environment."""
import ast
import os
import sys
import time

import cupy
from cupy.cuda import nccl


def unique_id(rank, path):
    if rank == 0:
        with open(path + ".tmp", "w", encoding="ascii") as file:
            file.write(repr(nccl.get_unique_id()))
        os.rename(path + ".tmp", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, encoding="ascii") as file:
        return ast.literal_eval(file.read())


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
    comm = nccl.NcclCommunicator(world, unique_id(rank, os.environ["INIT_FILE"]), rank)
    stream = cupy.cuda.Stream(non_blocking=True)
    good = True
    for seed in range(20):
        for count in (1, 3, 31, 1024, 4097, 65536, 1048576):
            index = cupy.arange(count)
            source = ((index * 7 + rank * 13 + seed) % 17 - 8).astype(cupy.float32)
            target = cupy.full(count, cupy.nan, dtype=cupy.float32)
            cupy.cuda.Device().synchronize()
            comm.allReduce(source.data.ptr, target.data.ptr, count, nccl.NCCL_FLOAT32,
                           nccl.NCCL_SUM, stream.ptr)
            stream.synchronize()
            want = sum((index * 7 + r * 13 + seed) % 17 - 8 for r in range(world))
            wrong = int((target != want.astype(cupy.float32)).sum())
            if wrong:
                print(f"WRONG count {count}: {wrong} elements", flush=True)
                good = False
    comm.destroy()
    print("ok" if good else "not ok", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
