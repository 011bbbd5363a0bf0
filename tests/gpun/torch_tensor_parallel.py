"""Measures what tensor-parallel decoding asks of an all-reduce: a layer's matrix product with one token a
sequence, then a bfloat16 sum of 8 to 256 KiB over all ranks, many layers in one CUDA graph. Checks the
sums. One rank of tests/gpun/ranks (RANK, WORLD_SIZE, RANKS_DIR); argument: the file that rank 0 writes.
Run it with and without llane; the difference of `with_us` is what a layer gains.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

HIDDEN, LAYERS, REPLAYS = 4096, 64, 30
BYTES = (8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10)


def capture(layer, states, is_reduced):
    torch.mm(states[0][0], layer, out=states[0][1])  # cuBLAS cannot be set up in a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for state in states:
            torch.mm(state[0], layer, out=state[1])
            if is_reduced:
                dist.all_reduce(state[1])
    return graph


def replay_us(graph):
    """Median microseconds a layer, the slowest rank's."""
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        torch.cuda.synchronize()
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / LAYERS)
    slowest = torch.tensor([statistics.median(times)], device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def measure(n_bytes, world):
    tokens = n_bytes // (2 * HIDDEN)
    # One row in 64 is not zero: sums are whole numbers that bfloat16 holds.
    layer = torch.zeros(HIDDEN // world, HIDDEN, dtype=torch.bfloat16, device="cuda")
    layer[::64] = 1
    states = [(torch.ones(tokens, HIDDEN // world, dtype=torch.bfloat16, device="cuda"),
               torch.empty(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda"))
              for _ in range(LAYERS)]
    reduced = capture(layer, states, True)
    with_us = replay_us(reduced)
    want = world * len(range(0, HIDDEN // world, 64))
    wrong = sum(int((state[1] != want).sum()) for state in states)
    without_us = replay_us(capture(layer, states, False))
    return {"bytes": n_bytes, "with_us": with_us, "without_us": without_us, "wrong": wrong}


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl", rank=rank, world_size=world,
                            init_method="file://" + os.environ["RANKS_DIR"] + "/init")
    for _ in range(20):  # the lane is live before anything is captured
        dist.all_reduce(torch.ones(1024, device="cuda"))
        torch.cuda.synchronize()
        time.sleep(0.05)
    results = [measure(n_bytes, world) for n_bytes in BYTES]
    torch.cuda.synchronize()
    dist.destroy_process_group()
    if rank == 0:
        for r in results:
            print(f"{r['bytes']:8} B: {r['with_us']:8.2f} us a layer, {r['without_us']:8.2f} without "
                  f"the all-reduce, {r['wrong']} wrong", flush=True)
        with open(sys.argv[1], "w", encoding="ascii") as file:
            json.dump({"ranks": world, "layers": LAYERS, "hidden": HIDDEN, "sizes": results}, file)
    return 1 if any(r["wrong"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
