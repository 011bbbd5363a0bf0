"""llane's plugin for NCCL, as files: `python -m llane path` prints where they are.

The package has no code of its own that runs on GPUs: NCCL loads the plugin, see `python -m llane env`.
"""
import os

__version__ = "@VERSION@"


def _folder():
    return os.path.dirname(os.path.abspath(__file__))


def plugin_path():
    """The file for NCCL_TUNER_PLUGIN, and for LD_PRELOAD."""
    return os.path.join(_folder(), "lib", "libnccl-tuner-llane.so")


def drop_in_path():
    """The file to open in place of libnccl.so.2 (VLLM_NCCL_SO_PATH, ctypes)."""
    return os.path.join(_folder(), "lib", "libnccl-llane.so")
