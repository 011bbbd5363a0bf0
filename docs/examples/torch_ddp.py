"""Data-parallel training with small gradient buckets; llane says at exit what it carried.

    NCCL_TUNER_PLUGIN=llane torchrun --nproc-per-node 4 torch_ddp.py
"""
import os

os.environ.setdefault("LLANE_STATS", "1")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH, LAYERS = 50, 256, 24


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(LAYERS)]
    # A layer's gradients are 257 KiB. DDP's default of 25 MiB a bucket would leave nothing small.
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device), device_ids=[device.index],
                                    bucket_cap_mb=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        inputs = torch.randn(32, WIDTH, device=device)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.5f}", flush=True)
    # All ranks must have stayed alike.
    weight = next(model.parameters()).detach().flatten()[:1024].clone()
    most = weight.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.all_reduce(weight, op=dist.ReduceOp.MIN)
    if dist.get_rank() == 0:
        print("ranks alike" if torch.equal(most, weight) else "RANKS DIFFER", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
