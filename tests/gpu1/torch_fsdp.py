"""Proves that FSDP trains as one process would: all-gathers and reduce-scatters, which are NCCL's,
between all-reduces, which are the lane's (replicas of the shards, gradient norms, losses). See
torch_client."""
import copy

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch_client as client

ROWS, WIDTH, CLASSES, STEPS, RATE, NORM = 16, 64, 10, 30, 0.05, 1.0


def make_model():
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(),
        torch.nn.Linear(128, CLASSES))


def train_alone(model, world):
    model = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        parts = [client.batch(r, step, ROWS, WIDTH, CLASSES) for r in range(world)]
        inputs = torch.cat([p[0] for p in parts]).double()
        loss = torch.nn.functional.cross_entropy(model(inputs), torch.cat([p[1] for p in parts]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
        losses.append(float(loss))
    return losses


def main():
    rank, world, device = client.start()
    replicas = 2 if world % 2 == 0 else world
    mesh = init_device_mesh(device.type, (replicas, world // replicas),
                            mesh_dim_names=("replicate", "shard"))
    good = client.warm_up(device)
    good &= client.warm_up(device, mesh.get_group("replicate"))
    model = make_model()
    expected = train_alone(model, world)
    model = model.to(device)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        inputs, labels = client.batch(rank, step, ROWS, WIDTH, CLASSES)
        loss = torch.nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean /= world
        client.report(rank, step, mean)
        good &= client.is_close(f"loss of step {step}", mean, expected[step], 1e-3)
    client.finish(good)


if __name__ == "__main__":
    main()
