"""Recordings that make no sense: each must end in exit status 2 and these words on stderr."""
import os

from machines import pix, roots

ALL = {}


def hostile(words):
    """Builds a machine, or a pair of it and what is to be done to its folder once that is written."""
    def enter(build):
        ALL[build.__name__] = (build, words)
        return build
    return enter


def patched(change):
    """A machine whose first GPU's configuration space went through change(bytearray)."""
    m = pix()
    real = m.gpus[0].config
    def config():
        c = bytearray(real())
        return bytes(change(c) or c)
    m.gpus[0].config = config
    return m


def put(c, at, *values):
    c[at:at + len(values)] = bytes(values)


@hostile("cut off at byte 100")
def config_truncated():
    return patched(lambda c: c[:100])


@hostile("ends behind byte 64")
def capability_cut_by_the_end():
    def change(c):
        put(c, 0x34, 0x38)
        put(c, 0x38, 0x10, 0)
        return c[:64]
    return patched(change)


@hostile("form a loop")
def capability_loop():
    return patched(lambda c: put(c, 0x41, 0x40))


@hostile("form a loop")
def extended_capability_loop():
    return patched(lambda c: put(c, 0x102, 0x01, 0x10))


@hostile("ends behind byte 4096")
def extended_capability_at_the_end():
    def change(c):
        put(c, 0x102, 0xC1, 0xFF)
        put(c, 0xFFC, 0x01, 0x00, 0x01, 0x00)
    return patched(change)


@hostile("a loop")
def bridge_to_its_own_bus():
    m = pix()
    m.devices[0].buses = (0, 0x10, 0x0F)
    return m


@hostile("form a loop")
def bridges_in_a_circle():
    def after(folder):
        for name, above in (("0000:10:00.0", "0000:11:00.0"), ("0000:11:00.0", "0000:10:00.0")):
            path = f"{folder}/sys/bus/pci/devices/{name}.link"
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"../../../devices/pci0000:00/{above}/{name}")
    return pix(), after


@hostile("numa_node of 0000:12:00.0 makes no sense")
def huge_numa_node():
    m = pix()
    m.gpus[0].files["numa_node"] = "99999999999999999999\n"
    return m


@hostile("AER counter of 0000:12:00.0 makes no sense")
def huge_aer_counter():
    m = pix()
    m.gpus[0].files["aer_dev_correctable"] = "RxErr 18446744073709551616\n"
    return m


@hostile("current_link_width of 0000:12:00.0 makes no sense")
def huge_link_width():
    m = pix()
    m.gpus[0].files["current_link_width"] = "4294967312\n"
    return m


@hostile("resource of 0000:12:00.0 makes no sense")
def window_that_ends_before_it_starts():
    m = pix()
    m.gpus[0].files["resource"] = "0x0 0x0 0x0\n0xffffffff00000000 0x1 0x0\n"
    return m


@hostile("longer than")
def endless_attribute():
    m = pix()
    m.gpus[0].files["local_cpulist"] = "0," * 100000
    return m


@hostile("no PCI address")
def device_of_no_address():
    m = pix()
    m.files["/sys/bus/pci/devices/nonsense/vendor"] = "0x10de\n"
    return m


@hostile("NVML's answers: this line makes no sense")
def nvml_speaks_nonsense():
    m = pix()
    m.nvml_extra = "gpu 99999999999 pci 0000:01:00.0\n"
    return m


@hostile("not numbered 0, 1, 2")
def nvml_skips_numbers():
    m = roots(2)
    m.nvml_extra = "gpu 9 name a GPU\n"
    return m


@hostile("NVML's answers: this line makes no sense")
def nvml_width_of_a_billion():
    m = pix()
    m.nvml_extra = "gpu 0 width 1000000000\n"
    return m


@hostile("the measurements: this line makes no sense")
def measured_nan():
    m = pix()
    m.measured_extra = "pair 0 1 nan inf -3\n"
    return m


@hostile("the list of ranks: a line makes no sense")
def ranks_of_nonsense():
    m = pix()
    m.files["/llane/ranks"] = "rank 999999999999 pid 0 cpus 0 visible all\n"
    return m


@hostile("the answers about the process")
def process_of_nonsense():
    m = pix()
    m.process["shm_bytes"] = -1
    return m


@hostile("is no configuration space")
def config_is_no_hexadecimal():
    m = pix()
    def after(folder):
        with open(f"{folder}/sys/bus/pci/devices/0000:12:00.0/config", "wb") as file:
            file.write(bytes(range(256)) * 16)
    return m, after


@hostile("is no configuration space")
def config_is_a_fifo():
    m = pix()
    def after(folder):
        path = f"{folder}/sys/bus/pci/devices/0000:12:00.0/config"
        os.unlink(path)
        os.mkfifo(path)
    return m, after


@hostile("is no configuration space")
def config_is_a_link_out():
    m = pix()
    def after(folder):
        path = f"{folder}/sys/bus/pci/devices/0000:12:00.0/config"
        os.rename(path, folder + "/elsewhere")
        os.symlink("../../../../../elsewhere", path)
    return m, after


@hostile("NVML's answers cannot be read")
def answers_are_a_folder_elsewhere():
    m = pix()
    def after(folder):
        os.unlink(folder + "/llane/nvml")
        os.mkdir(folder + "/llane/nvml")
    return m, after
