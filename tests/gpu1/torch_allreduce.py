"""Proves that an unmodified PyTorch program gets right sums with llane loaded, eagerly and from a
CUDA graph, for sizes on both sides of the threshold. One rank; RANK, WORLD_SIZE and INIT_FILE come
from the environment. All ranks use GPU RANK % number of GPUs."""
import os
import sys

import torch
import torch.distributed as dist

COUNTS = (1, 3, 4, 31, 1024, 4097, 65536, 1048576)
TYPES = (torch.float32, torch.float16, torch.bfloat16)


def contribution(rank, count, dtype, seed):
    generator = torch.Generator().manual_seed(1000003 * seed + 97 * rank + count)
    return torch.randint(-8, 9, (count,), generator=generator).to(dtype)


def expected(world, count, dtype, seed):
    # Small integers: exact in every type and order.
    total = sum(contribution(r, count, dtype, seed).double() for r in range(world))
    return total.to(dtype)


def check(what, got, want):
    wrong = int((got.cpu() != want).sum())
    if wrong:
        print(f"WRONG {what}: {wrong} of {want.numel()} elements", flush=True)
    return wrong == 0


def eager(rank, world):
    good = True
    for seed in range(3):
        for dtype in TYPES:
            for count in COUNTS:
                tensor = contribution(rank, count, dtype, seed).cuda()
                dist.all_reduce(tensor)
                good &= check(f"eager {dtype} {count}", tensor, expected(world, count, dtype, seed))
                offset = torch.zeros(count + 1, dtype=dtype, device="cuda")[1:]
                offset.copy_(contribution(rank, count, dtype, seed + 50))
                dist.all_reduce(offset, op=dist.ReduceOp.SUM)
                good &= check(f"offset {dtype} {count}", offset,
                              expected(world, count, dtype, seed + 50))
    return good


def graph(rank, world):
    good = True
    static = {count: torch.zeros(count, device="cuda") for count in COUNTS}
    captured = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(captured):
        for count in COUNTS:
            dist.all_reduce(static[count])
    for seed in range(100, 110):
        for count in COUNTS:
            static[count].copy_(contribution(rank, count, torch.float32, seed))
        captured.replay()
        for count in COUNTS:
            good &= check(f"graph {count}", static[count],
                          expected(world, count, torch.float32, seed))
        # An eager call between replays, on the same communicator.
        tensor = contribution(rank, 1000, torch.float32, seed).cuda()
        dist.all_reduce(tensor)
        good &= check("eager between replays", tensor, expected(world, 1000, torch.float32, seed))
    return good


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl", init_method="file://" + os.environ["INIT_FILE"], rank=rank,
                            world_size=world)
    good = eager(rank, world)
    good &= graph(rank, world)
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    print("ok" if good else "not ok", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
