"""A stand-in for Horovod's way of working: a background thread alone talks to MPI and NCCL. Tensors come
to it in any order; what is ready on all ranks is agreed on through MPI, packed into a fusion buffer and
summed. Proves that a small model trains as one process would on the whole batch. Rank 0 prints
`loss STEP VALUE`. Argument: NCCL's path (libnccl.so.2). See gpu_ctypes; Horovod itself is not run."""
import queue
import sys
import threading
import traceback

import numpy
from mpi4py import MPI

import gpu_ctypes

ROWS, WIDTH, INNER, CLASSES, STEPS, RATE = 8, 32, 48, 6, 60, 0.2
FUSION_BYTES = 64 << 10
UNUSED = 300000  # a tensor above the threshold, whose sums are checked and not used
STOP = "stop"


class Background(threading.Thread):
    """Averages tensors over all ranks."""

    def __init__(self, path):
        super().__init__(name="background")
        self.path = path
        self.incoming = queue.Queue()
        self.waiting = {}  # name: (tensor, event)
        self.n_fused = 0

    def average(self, name, tensor):
        """In place, later: returns an event."""
        done = threading.Event()
        self.incoming.put((name, tensor, done))
        return done

    def run(self):
        try:
            self.serve()
        except BaseException:  # who waits for a tensor would wait for ever
            traceback.print_exc()
            MPI.COMM_WORLD.Abort(1)

    def serve(self):
        self.mpi = MPI.COMM_WORLD
        rank = self.mpi.Get_rank()
        self.size = self.mpi.Get_size()
        self.gpu = gpu_ctypes.Gpu(rank)
        self.nccl = gpu_ctypes.Nccl(self.path, rank, self.size, self.mpi.bcast)
        self.buffer = self.gpu.malloc(max(FUSION_BYTES, 4 * UNUSED))
        while self.cycle():
            pass
        self.nccl.destroy()

    def cycle(self):
        try:
            while True:
                name, tensor, done = self.incoming.get(timeout=0.001)
                self.waiting[name] = (tensor, done)
        except queue.Empty:
            pass
        ready = self.agree()
        fused = []
        for name in ready:
            if name == STOP:
                continue
            size = sum(t.nbytes for t, _ in fused)
            if fused and size + self.waiting[name][0].nbytes > FUSION_BYTES:
                self.sum(fused)
                fused = []
            fused.append(self.waiting.pop(name))
        if fused:
            self.sum(fused)
        if STOP in ready:
            self.waiting.pop(STOP)[1].set()
        return STOP not in ready

    def agree(self):
        """Names that all ranks wait for, in one order."""
        names = self.mpi.gather(sorted(self.waiting))
        ready = None
        if names is not None:
            ready = [n for n in names[0] if all(n in others for others in names[1:])]
        return self.mpi.bcast(ready)

    def sum(self, fused):
        packed = numpy.concatenate([t.ravel() for t, _ in fused])
        self.gpu.copy(self.buffer, packed.ctypes.data, packed.nbytes)
        self.nccl.all_reduce(self.buffer, self.buffer, packed.size, self.gpu.stream)
        self.gpu.copy(packed.ctypes.data, self.buffer, packed.nbytes)
        self.n_fused += len(fused) > 1
        at = 0
        for tensor, done in fused:
            tensor.ravel()[:] = packed[at:at + tensor.size] / numpy.float32(self.size)
            at += tensor.size
            done.set()


def batch(rank, step):
    random = numpy.random.default_rng(1000 * step + rank)
    return random.standard_normal((ROWS, WIDTH)), random.integers(0, CLASSES, ROWS)


def make_weights(dtype):
    random = numpy.random.default_rng(1)
    shapes = {"up": (WIDTH, INNER), "bias": (INNER,), "down": (INNER, CLASSES)}
    return {name: (0.3 * random.standard_normal(shape)).astype(dtype)
            for name, shape in shapes.items()}


def gradients(weights, inputs, labels):
    """Loss and gradients of a layer of tanh and a softmax."""
    dtype = weights["up"].dtype
    inputs = inputs.astype(dtype)
    inner = numpy.tanh(inputs @ weights["up"] + weights["bias"])
    scores = inner @ weights["down"]
    scores = numpy.exp(scores - scores.max(axis=1, keepdims=True))
    chances = scores / scores.sum(axis=1, keepdims=True)
    rows = numpy.arange(len(labels))
    loss = -numpy.log(chances[rows, labels]).mean()
    chances[rows, labels] -= 1
    chances /= len(labels)
    before = (chances @ weights["down"].T) * (1 - inner * inner)
    return loss, {"down": inner.T @ chances, "up": inputs.T @ before, "bias": before.sum(axis=0)}


def descend(weights, slopes):
    for name, slope in slopes.items():
        weights[name] -= RATE * slope


def train_alone(size):
    weights = make_weights(numpy.float64)
    for step in range(STEPS):
        parts = [batch(r, step) for r in range(size)]
        loss, slopes = gradients(weights, numpy.concatenate([p[0] for p in parts]),
                                 numpy.concatenate([p[1] for p in parts]))
        descend(weights, slopes)
        yield loss


def train(background, rank, size):
    good = True
    weights = make_weights(numpy.float32)
    order = numpy.random.default_rng(rank)
    unused = numpy.empty(UNUSED, numpy.float32)
    for step, expected in enumerate(train_alone(size)):
        loss, slopes = gradients(weights, *batch(rank, step))
        tensors = {name: numpy.ascontiguousarray(s, numpy.float32) for name, s in slopes.items()}
        tensors["loss"] = numpy.array([loss], numpy.float32)
        if step % 10 == 0:
            unused[:] = rank
            tensors["unused"] = unused
        names = list(tensors)
        order.shuffle(names)  # each rank in its own order
        events = [background.average(f"{step}.{name}", tensors[name]) for name in names]
        for event in events:
            event.wait()
        mean = float(tensors.pop("loss")[0])
        if "unused" in tensors:
            good &= bool((tensors.pop("unused") == (size - 1) / 2).all())
        descend(weights, tensors)
        if rank == 0:
            print(f"loss {step} {mean!r}", flush=True)
        if not abs(mean - expected) <= 1e-4 * max(1.0, expected):
            print(f"WRONG loss of step {step}: {mean}, not {expected}", flush=True)
            good = False
    return good


def main():
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        sys.exit("this MPI allows no calls from another thread")
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    background = Background(sys.argv[1] if len(sys.argv) > 1 else "libnccl.so.2")
    background.start()
    good = train(background, rank, size)
    background.average(STOP, None).wait()
    background.join()
    if not background.n_fused:
        print("WRONG: no tensors were fused", flush=True)
        good = False
    good = bool(MPI.COMM_WORLD.allreduce(int(good), op=MPI.MIN))
    print("ok" if good else "not ok", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
