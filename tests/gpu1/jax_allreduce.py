"""Proves that JAX gets right all-reduces with llane loaded: types, sizes and operations, one a call, in the
NCCL groups that XLA makes of several, and from XLA's command buffers. One process of WORLD_SIZE with a GPU
each (RANK and INIT_FILE come from the environment too), or, with GPUS as argument, one with so many.
JAX_PLATFORMS=cpu tries the program itself where there is no GPU."""
import ctypes
import os
import socket
import sys
import time

FLAGS = (
    # XLA has kernels of its own for small all-reduces of GPUs that it sees as one host's.
    "--xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false",
    # NCCL's calls are not captured by default; here from so many operations on: in chain alone.
    "--xla_gpu_enable_command_buffer=+COLLECTIVES", "--xla_gpu_graph_min_graph_size=24")
os.environ["XLA_FLAGS"] = " ".join((*FLAGS, os.environ.get("XLA_FLAGS", "")))
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

TYPES = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32)
BYTES = (8, 100, 1024, 16 << 10, 256 << 10, 4 << 20)  # NCCL carries the last
LAYERS, SEEDS, REPLAYS = 16, 12, 20


def number_of_gpus():
    try:
        cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(1)
    except OSError:
        return 1
    cuda.cuInit(0)
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return max(1, count.value)


def meet(rank, world, path):
    if rank == 0:
        with socket.socket() as probe, open(path + ".tmp", "w", encoding="ascii") as file:
            probe.bind(("127.0.0.1", 0))
            file.write(f"127.0.0.1:{probe.getsockname()[1]}")
        os.rename(path + ".tmp", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, encoding="ascii") as file:
        address = file.read()
    jax.distributed.initialize(address, world, rank, [rank % number_of_gpus()],
                               coordinator_bind_address=address)


class Client:
    """The devices in a row, what each contributes, and what has been right so far."""

    def __init__(self, devices):
        self.n, self.good = len(devices), True
        self.mesh = Mesh(devices, ("ranks",))
        self.whole = NamedSharding(self.mesh, P())

    def draw(self, seed):
        # Small integers: exact in every type and order.
        return np.random.default_rng(seed).integers(-8, 9, (self.n, BYTES[-1] // 2), dtype=np.int8)

    def place(self, rows):
        """A row for each device."""
        return jax.make_array_from_callback(rows.shape, NamedSharding(self.mesh, P("ranks")),
                                            lambda index: rows[index])

    def map(self, function):
        """function of each device's own rows, jitted."""
        return jax.jit(jax.shard_map(lambda *rows: function(*(row[0] for row in rows)), mesh=self.mesh,
                                     in_specs=P("ranks"), out_specs=P()))

    def check(self, what, got, want):
        for shard in got.addressable_shards:
            wrong = int((np.asarray(shard.data).astype(np.int64) != want).sum())
            if wrong:
                print(f"WRONG {what} on {shard.device}: {wrong} of {want.size} elements", flush=True)
                self.good = False


def calls(client):
    operations = {"sum": (jax.lax.psum, np.sum), "max": (jax.lax.pmax, np.max),
                  "min": (jax.lax.pmin, np.min)}
    alone = client.map(lambda x: jax.lax.psum(x, "ranks"))
    # XLA makes one group of all sizes' sums, one of their maxima, ...
    grouped = client.map(lambda *xs: {name: [reduce(x, "ranks") for x in xs]
                                      for name, (reduce, _) in operations.items()})
    # Without a mapped function XLA finds by itself what to reduce.
    sharded = jax.jit(lambda x: (x.sum(0), x.max(0)), out_shardings=client.whole)
    for seed in range(SEEDS):
        drawn = client.draw(seed)
        wide = drawn.astype(np.int64)
        for dtype in TYPES:
            name = dtype.__name__
            rows = [drawn[:, :n // dtype.dtype.itemsize] for n in BYTES]
            placed = [client.place(row.astype(dtype)) for row in rows]
            wants = [wide[:, :row.shape[1]] for row in rows]
            for operation, got in grouped(*placed).items():
                for x, want in zip(got, wants):
                    client.check(f"grouped {operation} {name} {x.nbytes} B", x, operations[operation][1](want, 0))
            if dtype in (jnp.float32, jnp.bfloat16):
                for x, want in zip(placed, wants):
                    client.check(f"sum {name} {x.nbytes // client.n} B", alone(x), want.sum(0))
        for x, want in ((placed[2], wants[2]), (placed[3], wants[3])):
            total, most = sharded(x)
            client.check(f"sharded sum {want.shape}", total, want.sum(0))
            client.check(f"sharded max {want.shape}", most, want.max(0))
        time.sleep(0.05)


def chain(client):
    def layers(weight, x):
        y = jnp.zeros_like(x)
        for _ in range(LAYERS):
            y = jax.lax.psum(weight * y + x, "ranks")
        return y

    # They sum up to 1: each layer adds the sum of x. Ranks differ, or XLA would need no all-reduce.
    weights = np.full((client.n, 1), -1, np.float32)
    weights[0] = client.n
    weights, run = client.place(weights), client.map(layers)
    for seed in range(REPLAYS):
        drawn = client.draw(1000 + seed)
        for count in (256, 8192):
            rows = drawn[:, :count]
            got = run(weights, client.place(rows.astype(np.float32)))
            client.check(f"chain of {4 * count} B", got, LAYERS * rows.sum(0, dtype=np.int64))


def main():
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        meet(rank, world, os.environ["INIT_FILE"])
    devices = jax.devices()[:int(sys.argv[1])] if len(sys.argv) > 1 else jax.devices()
    client = Client(devices)
    print(f"JAX {jax.__version__}, {client.n} of {devices[0].device_kind}", flush=True)
    calls(client)
    chain(client)
    print("ok" if client.good else "not ok", flush=True)
    return 0 if client.good else 1


if __name__ == "__main__":
    sys.exit(main())
