"""NCCL and a GPU through ctypes alone, for the MPI clients of this folder. CLIENT_EMULATION=path of
libllane-emu.so puts the emulated GPU in CUDA's place (and a fake libnccl.so.2 in NCCL's, by
LD_LIBRARY_PATH), which checks the programs where there is no GPU."""
import ctypes
import ctypes.util
import glob
import os
import sys

FLOAT32, SUM = 7, 0


def check(result, what):
    if result:
        sys.exit(f"{what}: error {result}")


def open_first(names):
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    sys.exit(f"none of these opens: {', '.join(names)}")


def cuda_runtimes():
    """Where the CUDA runtime may be: the loader's places, a toolkit's, a wheel's."""
    names = ["libcudart.so.13", "libcudart.so.12", "libcudart.so"]
    folders = [os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/lib64"]
    for path in sys.path:
        folders += glob.glob(path + "/nvidia/cu*/lib")
        folders += glob.glob(path + "/nvidia/cuda_runtime/lib")
    return names + [f for folder in folders for f in sorted(glob.glob(folder + "/libcudart.so*"))]


class Gpu:
    """This rank's device, with one stream."""

    def __init__(self, rank):
        path = os.environ.get("CLIENT_EMULATION")
        self.is_emulated = bool(path)
        self.lib = ctypes.CDLL(path) if path else open_first(cuda_runtimes())
        count = ctypes.c_int()
        self.call("device_count" if path else "GetDeviceCount", ctypes.byref(count))
        self.call("device_set" if path else "SetDevice", rank % max(1, count.value))
        self.stream = ctypes.c_void_p()
        if path:
            self.call("stream_create", ctypes.byref(self.stream))
        else:
            self.call("StreamCreateWithFlags", ctypes.byref(self.stream), 1)

    def call(self, name, *arguments):
        prefix = "llane_gpu_" if self.is_emulated else "cuda"
        check(getattr(self.lib, prefix + name)(*arguments), name)

    def malloc(self, n_bytes):
        pointer = ctypes.c_void_p()
        if self.is_emulated:
            self.call("malloc", ctypes.c_size_t(n_bytes), ctypes.byref(pointer))
        else:
            self.call("Malloc", ctypes.byref(pointer), ctypes.c_size_t(n_bytes))
        return pointer.value

    def copy(self, to, source, n_bytes):
        """Either way; waits."""
        arguments = [ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(n_bytes)]
        if self.is_emulated:
            self.call("memcpy_async", *arguments, self.stream)
        else:
            self.call("MemcpyAsync", *arguments, 4, self.stream)
        self.synchronize()

    def synchronize(self):
        self.call("stream_synchronize" if self.is_emulated else "StreamSynchronize", self.stream)


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Nccl:
    """A communicator of all ranks; `share` hands rank 0's bytes to all."""

    def __init__(self, path, rank, world, share):
        # Before 2.30 NCCL refuses a GPU to two ranks of one host.
        os.environ["NCCL_HOSTID"] = f"llane-{rank}"
        self.lib = ctypes.CDLL(path)
        identity = UniqueId()
        if rank == 0:
            check(self.lib.ncclGetUniqueId(ctypes.byref(identity)), "ncclGetUniqueId")
        identity = UniqueId.from_buffer_copy(share(bytes(identity)))
        self.comm = ctypes.c_void_p()
        check(self.lib.ncclCommInitRank(ctypes.byref(self.comm), world, identity, rank),
              "ncclCommInitRank")

    def all_reduce(self, source, target, count, stream):
        check(self.lib.ncclAllReduce(ctypes.c_void_p(source), ctypes.c_void_p(target),
                                     ctypes.c_size_t(count), FLOAT32, SUM, self.comm, stream),
              "ncclAllReduce")

    def destroy(self):
        check(self.lib.ncclCommDestroy(self.comm), "ncclCommDestroy")
