"""Proves that torch.distributed.tensor.parallel trains a two-layer block, split by columns and by rows,
as the undivided one: an all-reduce in the middle of each forward and backward pass. See
torch_client."""
import copy

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)

import torch_client as client

ROWS, WIDTH, CLASSES, STEPS, RATE = 32, 64, 64, 30, 0.1


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 240)  # divides by 2, 3, 4, 5, 6 and 8 ranks
        self.down = torch.nn.Linear(240, CLASSES)

    def forward(self, inputs):
        return self.down(torch.nn.functional.gelu(self.up(inputs)))


def train(model, device, dtype):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        inputs, labels = client.batch(0, step, ROWS, WIDTH, CLASSES)
        outputs = model(inputs.to(device, dtype))
        loss = torch.nn.functional.cross_entropy(outputs, labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step, float(loss)


def main():
    rank, world, device = client.start()
    mesh = init_device_mesh(device.type, (world,))
    good = client.warm_up(device, mesh.get_group())
    block = Block()
    whole = train(copy.deepcopy(block).double(), torch.device("cpu"), torch.float64)
    split = parallelize_module(block.to(device), mesh,
                               {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for (step, loss), (_, expected) in zip(train(split, device, torch.float32), whole):
        client.report(rank, step, loss)
        good &= client.is_close(f"loss of step {step}", loss, expected, 1e-3)
    # activations above the threshold go through NCCL
    with torch.no_grad():
        inputs = torch.randn(4096, WIDTH, generator=torch.Generator().manual_seed(3))
        outputs = split(inputs.to(device))
    good &= bool(torch.isfinite(outputs).all())
    client.report(rank, STEPS, outputs.square().mean())
    client.finish(good)


if __name__ == "__main__":
    main()
