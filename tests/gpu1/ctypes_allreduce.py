"""Proves the drop-in door: a program that opens NCCL by path with ctypes (argument: the path) gets
right sums and the lane. Memory comes from PyTorch. RANK, WORLD_SIZE and INIT_FILE come from the
environment."""
import ctypes
import os
import sys
import time

import torch

FLOAT32, SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def check(result, what):
    if result:
        sys.exit(f"{what}: NCCL error {result}")


def unique_id(lib, rank, path):
    value = UniqueId()
    if rank == 0:
        check(lib.ncclGetUniqueId(ctypes.byref(value)), "ncclGetUniqueId")
        with open(path + ".tmp", "wb") as file:
            file.write(bytes(value))
        os.rename(path + ".tmp", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        return UniqueId.from_buffer_copy(file.read())


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    lib = ctypes.CDLL(sys.argv[1])
    comm = ctypes.c_void_p()
    check(lib.ncclCommInitRank(ctypes.byref(comm), world,
                               unique_id(lib, rank, os.environ["INIT_FILE"]), rank),
          "ncclCommInitRank")
    stream = torch.cuda.Stream()
    good = True
    for seed in range(20):
        for count in (1, 3, 31, 1024, 4097, 65536, 1048576):
            index = torch.arange(count, device="cuda")
            source = ((index * 7 + rank * 13 + seed) % 17 - 8).float()
            target = torch.full((count,), float("nan"), device="cuda")
            torch.cuda.synchronize()
            check(lib.ncclAllReduce(ctypes.c_void_p(source.data_ptr()),
                                    ctypes.c_void_p(target.data_ptr()), ctypes.c_size_t(count),
                                    FLOAT32, SUM, comm, ctypes.c_void_p(stream.cuda_stream)),
                  "ncclAllReduce")
            stream.synchronize()
            want = sum((index * 7 + r * 13 + seed) % 17 - 8 for r in range(world)).float()
            wrong = int((target != want).sum())
            if wrong:
                print(f"WRONG count {count}: {wrong} elements", flush=True)
                good = False
    check(lib.ncclCommDestroy(comm), "ncclCommDestroy")
    print("ok" if good else "not ok", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
