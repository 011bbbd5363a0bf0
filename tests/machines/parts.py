"""What recorded machines are made of: PCI devices with their configuration space, GPUs, answers.

A Machine is filled by machines.py and written as the folder that `llane doctor --root` reads.
"""
import os
import struct

SPEED_CODE = {25: 1, 50: 2, 80: 3, 160: 4, 320: 5, 640: 6}
ENDPOINT, ROOT, UP, DOWN = 0, 4, 5, 6
# ACS control bits: SV 1, RR 4, CR 8, UF 16.
ACS_REDIRECT, ACS_BAD = 0x0C, 0x1D


class Device:
    def __init__(self, name, parent, port, most, now=None, *, vendor=0x8086, device=0x347A,
                 pci_class=0x060400, host="pci0000:00", node=0, cpus="0-15", buses=None, acs=None,
                 aer=(), latched=(0, 0), link_control=0, link_control2=0, group=None, driver="",
                 bar1=None, bar1_most=None, dpc=0, config_bytes=4096):
        self.__dict__.update(locals())
        self.now = now or most
        self.host = parent.host if parent else host
        self.loaded = self.now
        self.gone = False
        self.old_kernel = False
        self.files = {}

    def path(self):
        above = self.parent.path() if self.parent else f"/devices/{self.host}"
        return f"{above}/{self.name}"

    def config(self):
        if self.gone:
            return b"\xff" * self.config_bytes
        c = bytearray(4096)
        struct.pack_into("<HHHH", c, 0, self.vendor, self.device, 0x0006, 0x0010)
        c[0x09:0x0C] = self.pci_class.to_bytes(3, "little")
        c[0x0E] = 1 if self.buses else 0
        if self.buses:
            c[0x18:0x1B] = bytes(self.buses)
        c[0x34] = 0x40
        code, width = SPEED_CODE[self.most[0]], self.most[1]
        struct.pack_into("<BBH", c, 0x40, 0x10, 0, 2 | self.port << 4)
        struct.pack_into("<I", c, 0x4C, code | width << 4 | 3 << 10)
        struct.pack_into("<HH", c, 0x50, self.link_control, SPEED_CODE[self.now[0]] | self.now[1] << 4)
        struct.pack_into("<H", c, 0x70, self.link_control2 | code)
        heads = [(0x100, 0x0001)]
        struct.pack_into("<I", c, 0x104, self.latched[0])
        struct.pack_into("<I", c, 0x110, self.latched[1])
        if self.acs is not None:
            heads.append((0x150, 0x000D))
            struct.pack_into("<HH", c, 0x154, 0x5F, self.acs)
        if self.bar1_most:
            heads.append((0x160, 0x0015))
            sizes = (1 << (self.bar1_most >> 20).bit_length()) - 1
            struct.pack_into("<II", c, 0x164, sizes << 4, 1 | 1 << 5)
        if self.dpc:
            heads.append((0x180, 0x001D))
            struct.pack_into("<H", c, 0x188, self.dpc)
        for i, (at, number) in enumerate(heads):
            after = heads[i + 1][0] if i + 1 < len(heads) else 0
            struct.pack_into("<I", c, at, number | 1 << 16 | after << 20)
        return bytes(c[:self.config_bytes])

    def aer_text(self, kind):
        names = {"correctable": ["RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout"],
                 "nonfatal": ["CmpltTO", "MalfTLP", "UnsupReq"],
                 "fatal": ["DLP", "SDES", "MalfTLP"]}[kind]
        if self.old_kernel:
            names = {"BadTLP": "Bad TLP", "BadDLLP": "Bad DLLP",
                     "Timeout": "Replay Timer Timeout"}, names
            names = [names[0].get(n, n) for n in names[1]]
        given = {n: v for k, n, v in self.aer if k == kind}
        lines = [f"{n} {given.get(n, 0)}" for n in names]
        lines += [f"{n} {v}" for n, v in given.items() if n not in names]
        total = {"correctable": "COR", "nonfatal": "NONFATAL", "fatal": "FATAL"}[kind]
        return "\n".join(lines + [f"TOTAL_ERR_{total} {sum(given.values())}"]) + "\n"

    def attributes(self):
        def speed(s):
            s = f"{s // 10}.{s % 10}"
            return s.removesuffix(".0") + " GT/s\n" if self.old_kernel else s + " GT/s PCIe\n"

        f = {"vendor": f"0x{self.vendor:04x}\n", "device": f"0x{self.device:04x}\n",
             "class": f"0x{self.pci_class:06x}\n", "numa_node": f"{self.node}\n",
             "local_cpulist": f"{self.cpus}\n", "power/control": "on\n",
             "current_link_speed": speed(self.now[0]), "current_link_width": f"{self.now[1]}\n",
             "max_link_speed": speed(self.most[0]), "max_link_width": f"{self.most[1]}\n"}
        for kind in ("correctable", "nonfatal", "fatal"):
            f[f"aer_dev_{kind}"] = self.aer_text(kind)
        if self.bar1 is not None:
            end = 0x38000000000 + self.bar1 - 1 if self.bar1 else 0
            start = 0x38000000000 if self.bar1 else 0
            f["resource"] = ("0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n"
                             f"0x{start:016x} 0x{end:016x} 0x000000000014220c\n")
        f.update(self.files)
        return f


class Machine:
    def __init__(self, nodes=1):
        self.devices, self.gpus, self.files = [], [], {}
        self.nodes = [f"{16 * n}-{16 * n + 15}" for n in range(nodes)]
        self.cmdline = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet"
        self.is_virtual, self.container, self.group_type = False, "", "identity"
        self.log, self.ranks, self.env = [], [], {}
        self.process = {"kernel": "6.1.0-18-amd64 x86_64", "uid": 0, "shm_bytes": 64 << 30,
                        "shm_free_bytes": 63 << 30, "memlock": "unlimited", "own_ipc_namespace": 0,
                        "own_pid_namespace": 0, "mps": 0, "affinity": self.nodes[0],
                        "nccl": "2.28.9, /usr/lib/x86_64-linux-gnu/libnccl.so.2"}
        self.has_nvml = self.has_measured = self.has_loaded = True
        self.p2p, self.claim, self.ipc, self.probe = "OK", "yes", "yes", "good"
        self.nvlinks = 0
        self.measured_extra, self.nvml_extra = "", ""
        self.aspm = "[default] performance powersave powersupersave"
        self.speeds = {}

    def add(self, device):
        self.devices.append(device)
        return device

    def root(self, name, bus, *, node=0, host="pci0000:00", most=(320, 16), **more):
        return self.add(Device(name, None, ROOT, most, more.pop("now", None), host=host, node=node,
                               cpus=self.nodes[node], buses=(int(name[5:7], 16), bus, bus + 15),
                               acs=more.pop("acs", 0), **more))

    def switch(self, parent, bus, ports, *, most=(320, 16), now=None, acs=0, vendor=0x10B5, **more):
        """An upstream port on `bus` and its downstream ports on the bus behind it."""
        up = self.add(Device(f"0000:{bus:02x}:00.0", parent, UP, most, now, vendor=vendor,
                             device=0xC030, node=parent.node, cpus=parent.cpus,
                             buses=(bus, bus + 1, bus + 14), **more))
        return up, [self.add(Device(f"0000:{bus + 1:02x}:{i:02x}.0", up, DOWN, most, vendor=vendor,
                                    device=0xC030, node=parent.node, cpus=parent.cpus, acs=acs,
                                    buses=(bus + 1, bus + 2 + i, bus + 2 + i)))
                    for i in range(ports)]

    def gpu(self, parent, bus, *, name="NVIDIA H100 PCIe", most=(320, 16), now=None, bar1=128 << 30,
            bar1_most=128 << 30, **more):
        d = Device(f"0000:{bus:02x}:00.0", parent, ENDPOINT, most, now, vendor=0x10DE, device=0x2331,
                   pci_class=0x030200, node=parent.node, cpus=parent.cpus, driver="nvidia",
                   bar1=bar1, bar1_most=bar1_most, **more)
        d.model, d.nvml = name, {"persistence": 1, "replays": 0, "throttle": "0x0",
                                 "temperature": 41, "utilization": 0, "pstate": 8,
                                 "power_mw": 71000, "power_limit_mw": 350000, "mig": 0}
        if parent.port in (ROOT, DOWN):
            # Both ends of one link agree on how it runs.
            parent.now = parent.loaded = d.now
        self.gpus.append(d)
        return self.add(d)

    def nvml_text(self):
        generation = {25: 1, 50: 2, 80: 3, 160: 4, 320: 5, 640: 6}
        out = ["driver 580.95.05", "cuda 13000"]
        for i, g in enumerate(self.gpus):
            if g.gone:
                out.append(f"gpu {i} lost GPU is lost")
                continue
            out.append(f"gpu {i} pci 00000000:{g.name[5:].upper()}")
            out.append(f"gpu {i} name {g.model}")
            out.append(f"gpu {i} uuid GPU-{i:08x}-1111-2222-3333-444444444444")
            out.append(f"gpu {i} generation {generation[g.now[0]]}")
            out.append(f"gpu {i} width {g.now[1]}")
            out.append(f"gpu {i} bar1 {g.bar1}")
            out += [f"gpu {i} {k} {v}" for k, v in g.nvml.items()]
        for a in range(len(self.gpus)):
            for b in range(len(self.gpus)):
                if a != b and not self.gpus[a].gone and not self.gpus[b].gone:
                    out.append(f"p2p {a} {b} {self.p2p} {self.p2p}")
            for link in range(self.nvlinks):
                out.append(f"nvlink {a} {link} 00000000:C0:00.0")
        return "\n".join(out) + "\n" + self.nvml_extra

    def measured_text(self):
        out = ["measured-by cuda 13.0, driver 13.0"]
        alive = [g for g in self.gpus if not g.gone]
        for i, g in enumerate(alive):
            out.append(f"gpu {i} {g.name}")
            out.append(f"host {i} 1.20 54.0 55.0")
            for j in range(len(alive)):
                if i == j:
                    continue
                out += [f"claim {i} {j} {self.claim}", f"ipc {i} {j} {self.ipc}"]
                if self.ipc.split()[0] == "yes":
                    out.append(f"probe {i} {j} {self.probe}")
                    write, read = self.speeds.get((i, j), (48.0, 45.0))
                    out.append(f"pair {i} {j} 1.30 {write} {read}")
        return "\n".join(out) + "\n" + self.measured_extra + "end\n"

    def write(self, root):
        def put(path, text):
            full = root + path
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)

        os.makedirs(root + "/sys/bus/pci/devices", exist_ok=True)
        for d in self.devices:
            at = f"/sys/bus/pci/devices/{d.name}"
            put(at + ".link", "../../../devices" + d.path().removeprefix("/devices"))
            for name, text in d.attributes().items():
                put(f"{at}/{name}", text)
            hexed = d.config()
            put(at + "/config", "".join(
                f"{i:02x}: {hexed[i:i + 16].hex(' ')}\n" for i in range(0, len(hexed), 16)))
            if d.driver:
                put(at + "/driver.link", f"../../../../bus/pci/drivers/{d.driver}")
            if d.group is not None:
                put(at + "/iommu_group.link", f"../../../kernel/iommu_groups/{d.group}")
                put(f"/sys/kernel/iommu_groups/{d.group}/type", self.group_type + "\n")
        for n, cpus in enumerate(self.nodes):
            put(f"/sys/devices/system/node/node{n}/cpulist", cpus + "\n")
        put("/proc/cmdline", self.cmdline + "\n")
        flags = "fpu vme hypervisor sse" if self.is_virtual else "fpu vme sse"
        put("/proc/cpuinfo", f"processor\t: 0\nmodel name\t: A CPU\nflags\t\t: {flags} avx\n")
        if self.is_virtual:
            put("/sys/class/dmi/id/sys_vendor", "QEMU\n")
        put("/sys/module/pcie_aspm/parameters/policy", self.aspm + "\n")
        if self.has_nvml:
            put("/llane/nvml", self.nvml_text())
            put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for "
                "x86_64  580.95.05  Release Build\n")
        if self.has_measured and self.gpus:
            put("/llane/measured", self.measured_text())
        if self.has_loaded and self.gpus:
            put("/llane/loaded", "".join(
                f"link {d.name} {d.loaded[0]} {d.loaded[1]}\n" for d in self.devices))
        put("/llane/kernel-log", "".join(line + "\n" for line in self.log))
        process = "".join(f"{k} {v}\n" for k, v in self.process.items())
        put("/llane/process", process + (f"container {self.container}\n" if self.container else ""))
        if self.ranks:
            put("/llane/ranks", "".join(
                f"rank {r} pid {1000 + r} cpus {cpus} visible {visible}\n"
                for r, cpus, visible in self.ranks))
        for path, text in self.files.items():
            put(path, text)
