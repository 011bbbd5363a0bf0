"""Proves that DistributedDataParallel trains a small model as one process would on the whole batch:
gradient buckets on both sides of the threshold, overlapped with the backward pass. See torch_client."""
import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_client as client

ROWS, WIDTH, CLASSES, STEPS, RATE = 16, 64, 10, 30, 0.05


def make_model():
    # 1 MiB of weights in the middle: a bucket of its own, which is NCCL's; the others are the lane's.
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 96), torch.nn.ReLU(), torch.nn.Linear(96, 512), torch.nn.ReLU(),
        torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, CLASSES))


def train_alone(model, world):
    """The losses of the whole batch, in float64 on the host."""
    model = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        parts = [client.batch(r, step, ROWS, WIDTH, CLASSES) for r in range(world)]
        inputs = torch.cat([p[0] for p in parts]).double()
        loss = torch.nn.functional.cross_entropy(model(inputs), torch.cat([p[1] for p in parts]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def are_equal_on_all_ranks(model):
    """Every bit of every parameter."""
    good = True
    for parameter in model.parameters():
        bits = parameter.detach().reshape(-1).view(torch.int32)
        least, most = bits.clone(), bits.clone()
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        good &= bool((least == most).all())
    if not good:
        print("WRONG: parameters differ between ranks", flush=True)
    return good


def main():
    rank, world, device = client.start()
    good = client.warm_up(device)
    model = make_model()
    expected = train_alone(model, world)
    ddp = DistributedDataParallel(
        model.to(device), device_ids=None if device.type == "cpu" else [device],
        bucket_cap_mb=0.1, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
    for step in range(STEPS):
        inputs, labels = client.batch(rank, step, ROWS, WIDTH, CLASSES)
        loss = torch.nn.functional.cross_entropy(ddp(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        mean /= world
        client.report(rank, step, mean)
        good &= client.is_close(f"loss of step {step}", mean, expected[step], 1e-3)
    good &= are_equal_on_all_ranks(ddp)
    client.finish(good)


if __name__ == "__main__":
    main()
