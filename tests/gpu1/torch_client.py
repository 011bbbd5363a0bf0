"""What the PyTorch clients of this folder share. One rank; RANK, WORLD_SIZE and INIT_FILE come from the
environment. All ranks use GPU RANK % number of GPUs. CLIENT_DEVICE=cpu runs them on gloo without a GPU
and without llane, which checks the programs themselves. Rank 0 prints a line `loss STEP VALUE` a step,
for run.sh to compare with those of a run without llane."""
import os
import sys
import time

import torch
import torch.distributed as dist


def start():
    """Joins the other ranks: rank, number of ranks, device."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if os.environ.get("CLIENT_DEVICE") == "cpu":
        device = torch.device("cpu")
    else:
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl", rank=rank, world_size=world,
                            init_method="file://" + os.environ["INIT_FILE"])
    torch.manual_seed(1)  # the same weights on all ranks
    return rank, world, device


def warm_up(device, group=None, n_calls=100):
    """Sums while the group's lane, where there is one, goes live. 1 if all are right."""
    size = dist.get_world_size(group)
    good = True
    for call in range(n_calls):
        numbers = torch.full((7,), float(call), device=device)
        dist.all_reduce(numbers, group=group)
        good &= bool((numbers == call * size).all())
        time.sleep(0.01)
    if not good:
        print("WRONG sums while the lane went live", flush=True)
    return good


def batch(rank, step, rows, width, classes):
    """Rank `rank`'s part of a step's data."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(rows, width, generator=generator)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    return inputs, labels


def report(rank, step, value):
    if rank == 0:
        print(f"loss {step} {float(value)!r}", flush=True)


def is_close(what, got, want, tolerance):
    """Both are numbers or tensors; says where they differ."""
    got, want = torch.as_tensor(got).double().cpu(), torch.as_tensor(want).double().cpu()
    off = float((got - want).abs().max())
    limit = tolerance * max(1.0, float(want.abs().max()))
    if not off <= limit:  # NaN is off too
        print(f"WRONG {what}: off by {off}, allowed {limit}", flush=True)
    return off <= limit


def finish(good):
    dist.barrier()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    dist.destroy_process_group()
    print("ok" if good else "not ok", flush=True)
    sys.exit(0 if good else 1)
