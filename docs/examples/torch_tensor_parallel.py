"""A tensor-parallel block of a decoder, one token at a time, replayed as a CUDA graph; llane says at exit
what it carried.

    NCCL_TUNER_PLUGIN=llane torchrun --nproc-per-node 4 torch_tensor_parallel.py
"""
import os

os.environ.setdefault("LLANE_STATS", "1")

import torch
import torch.distributed as dist

HIDDEN, LAYERS, BATCH, TOKENS = 4096, 32, 8, 64


class Block(torch.nn.Module):
    """Columns of the first matrix and rows of the second: one all-reduce of BATCH x HIDDEN at the end."""

    def __init__(self, world, device):
        super().__init__()
        options = {"dtype": torch.bfloat16, "device": device}
        self.up = torch.nn.Parameter(torch.randn(HIDDEN, 4 * HIDDEN // world, **options) / 64)
        self.down = torch.nn.Parameter(torch.randn(4 * HIDDEN // world, HIDDEN, **options) / 128)

    def forward(self, x):
        y = torch.relu(x @ self.up) @ self.down
        dist.all_reduce(y)
        return torch.nn.functional.layer_norm(x + y, (HIDDEN,))


@torch.no_grad()
def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = torch.nn.Sequential(*(Block(dist.get_world_size(), device) for _ in range(LAYERS)))
    state = torch.ones(BATCH, HIDDEN, dtype=torch.bfloat16, device=device)
    for _ in range(20):
        model(state)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(state)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(TOKENS):
        graph.replay()
        state.copy_(out)
    end.record()
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        print(f"{start.elapsed_time(end) * 1e3 / TOKENS:.0f} us a token, {LAYERS} all-reduces of "
              f"{out.numel() * out.element_size()} B each", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
