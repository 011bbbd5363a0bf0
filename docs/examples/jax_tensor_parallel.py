"""Tensor-parallel layers over all GPUs of this process: XLA finds out that each ends in an all-reduce. llane
says at exit what it carried.

    NCCL_TUNER_PLUGIN="$(python -m llane path)" python jax_tensor_parallel.py
"""
import os
import time

os.environ.setdefault("LLANE_STATS", "1")
# Else XLA carries small ones with kernels of its own.
os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") +
                           " --xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false")

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

HIDDEN, LAYERS, BATCH, TOKENS = 4096, 32, 8, 64


@jax.jit
def token(state, layers):
    for up, down in layers:
        state = state + jax.nn.relu(state @ up) @ down
        state = state / jnp.sqrt(jnp.mean(jnp.square(state), axis=-1, keepdims=True))
    return state


def main():
    mesh = Mesh(jax.devices(), ("gpu",))

    def weights(rows, columns, spec):
        made = jax.random.normal(jax.random.key(0), (rows, columns), jnp.bfloat16) / rows**0.5
        return jax.device_put(made, NamedSharding(mesh, spec))

    # Columns of the first matrix and rows of the second on each GPU.
    layers = [(weights(HIDDEN, 4 * HIDDEN, P(None, "gpu")), weights(4 * HIDDEN, HIDDEN, P("gpu", None)))
              for _ in range(LAYERS)]
    state = jax.device_put(jnp.ones((BATCH, HIDDEN), jnp.bfloat16), NamedSharding(mesh, P()))
    for _ in range(20):  # compiles; then llane sets its lane up beside the first all-reduces
        state = token(state, layers).block_until_ready()
        time.sleep(0.05)
    start = time.perf_counter()
    for _ in range(TOKENS):
        state = token(state, layers)
    state.block_until_ready()
    print(f"{(time.perf_counter() - start) * 1e6 / TOKENS:.0f} us a token, {LAYERS} all-reduces of "
          f"{BATCH} x {HIDDEN} each", flush=True)


if __name__ == "__main__":
    main()
