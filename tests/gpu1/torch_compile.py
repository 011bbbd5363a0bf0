"""Proves that torch.compile(mode="reduce-overhead"), whose CUDA graphs hold the all-reduces, gives what
the same layers give eagerly, call after call, with eager all-reduces of the same communicator between
replays. See torch_client."""
import gc

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

import torch_client as client

WIDTH, LAYERS, CALLS = 128, 4, 20


class Layers(torch.nn.Module):
    """Each rank holds a part of every layer's inner width; sums make it whole."""

    def __init__(self, world):
        super().__init__()
        self.up = torch.nn.ModuleList(
            [torch.nn.Linear(WIDTH, WIDTH // 4, bias=False) for _ in range(LAYERS)])
        self.down = torch.nn.ModuleList(
            [torch.nn.Linear(WIDTH // 4, WIDTH, bias=False) for _ in range(LAYERS)])
        self.world = world

    def forward(self, inputs):
        for up, down in zip(self.up, self.down):
            part = down(torch.nn.functional.silu(up(inputs)))
            whole = collectives.all_reduce(part, "sum", dist.group.WORLD)
            inputs = inputs + whole / self.world
        return inputs


def main():
    rank, world, device = client.start()
    good = client.warm_up(device)
    torch.manual_seed(100 + rank)  # parts differ
    layers = Layers(world).to(device).eval()
    compiled = torch.compile(layers, mode="reduce-overhead")
    with torch.inference_mode():
        for call in range(CALLS):
            generator = torch.Generator().manual_seed(call)
            # small ones are the lane's; a large one every fifth call is NCCL's, in a graph of its own
            rows = 1024 if call % 5 == 4 else 8
            inputs = torch.randn(rows, WIDTH, generator=generator).to(device)
            want = layers(inputs)
            got = compiled(inputs).clone()
            good &= client.is_close(f"call {call}", got, want, 1e-4)
            client.report(rank, call, got.square().mean())
            numbers = torch.full((5,), float(call), device=device)
            dist.all_reduce(numbers)
            good &= client.is_close(f"eager sum behind call {call}", numbers,
                                    torch.full((5,), float(call * world)), 0)
    # Its graphs hold the communicator's operations, and ncclCommDestroy waits until they are gone.
    del compiled
    torch.compiler.reset()
    gc.collect()
    client.finish(good)


if __name__ == "__main__":
    main()
