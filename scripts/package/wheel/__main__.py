"""python -m llane COMMAND: the llane command, with NCCL taken from the NCCL wheel where there is one."""
import importlib.util
import os
import sys

import llane

PATHS = {"path": llane.plugin_path, "drop-in": llane.drop_in_path}


def nccl_home():
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    return list(found.submodule_search_locations)[0] if found else None


def main():
    words = sys.argv[1:]
    if words and words[0] in PATHS:
        print(PATHS[words[0]]())
        return 0
    if words and words[0] == "version":
        print(llane.__version__)
        return 0
    if not os.environ.get("NCCL_HOME") and nccl_home():
        os.environ["NCCL_HOME"] = nccl_home()
    sys.stdout.flush()
    tool = os.path.join(os.path.dirname(llane.__file__), "bin", "llane")
    if not words or words[0] in ("help", "--help", "-h"):
        print("python -m llane path      where the plugin is (NCCL_TUNER_PLUGIN)\n"
              "python -m llane drop-in   where the library to open in place of NCCL's is\n"
              "python -m llane version\n", flush=True)
    os.execv("/bin/bash", ["bash", tool, *words])


if __name__ == "__main__":
    sys.exit(main())
