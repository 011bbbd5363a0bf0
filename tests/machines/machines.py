"""Machines with what a perfect doctor says of them. Each is constructed; `source` names the report
whose facts it has (an address of a public thread), or says that it is constructed without one."""
from parts import ACS_BAD, ACS_REDIRECT, Machine

ALL = {}


def machine(source, exit_status, findings, says=()):
    """findings: every id, notes included, any order; says: words that the report must have."""
    def enter(build):
        ALL[build.__name__] = (build, source, exit_status, sorted(findings), list(says))
        return build
    return enter


# ---- healthy ----

def pix(**more):
    m = Machine()
    up, ports = m.switch(m.root("0000:00:01.0", 0x10, **more.pop("root", {})), 0x10, 2,
                         **more.pop("switch", {}))
    for i, port in enumerate(ports):
        m.gpu(port, 0x12 + i, **more)
    return m


def roots(n=2, nodes=1, **more):
    """GPUs on root ports: all of one host bridge, or one host bridge a node."""
    m = Machine(nodes)
    for i in range(n):
        node = i * nodes // n
        bus = 0x80 * node if nodes > 1 else 0
        port = m.root(f"0000:{bus:02x}:{i + 1:02x}.0", bus + 0x10 * (i + 1), node=node,
                      host=f"pci0000:{bus:02x}", most=more.get("port_most", (320, 16)),
                      acs=more.get("acs", 0))
        m.gpu(port, bus + 0x10 * (i + 1), **more.get("gpu", {}))
    return m


@machine("constructed", 0, [], ["PIX", "no findings", "staging in GPU memory for all 2 GPUs"])
def healthy_2_pix():
    return pix()


@machine("constructed", 0, ["sockets"], ["SYS", "islands", "GPUs 0-2, 0-3, 1-2, 1-3"])
def healthy_4_on_2_sockets():
    return roots(4, 2)


@machine("constructed", 0, [], ["PXB", "shared"])
def healthy_8_behind_2_switches():
    m = Machine()
    _, tops = m.switch(m.root("0000:00:01.0", 0x10), 0x10, 2)
    for s, top in enumerate(tops):
        _, ports = m.switch(top, 0x30 + 0x20 * s, 4)
        for i, port in enumerate(ports):
            m.gpu(port, 0x32 + 0x20 * s + i)
    return m


@machine("constructed", 0, [], ["NV18"])
def healthy_nvlink_under_an_iommu():
    m = roots(4, 1, acs=ACS_REDIRECT)
    m.nvlinks, m.group_type = 18, "DMA-FQ"
    for i, d in enumerate(m.devices):
        d.group = i
    return m


@machine("NVIDIA/nccl#606: source validation alone is no fault", 0, [])
def healthy_acs_source_validation_only():
    return pix(switch={"acs": 0x11})


@machine("amdgpu_top#33: a Gen3 board", 0, ["slot-speed"] * 2, ["the board's generation, no fault"])
def healthy_gen4_card_in_gen3_board():
    m = roots(2, port_most=(80, 16), gpu={"most": (160, 16), "now": (80, 16)})
    m.log = ["6,10,5140900,-;pci 0000:10:00.0: 126.016 Gb/s available PCIe bandwidth, limited by "
             "8.0 GT/s PCIe x16 link at 0000:00:01.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe "
             "x16 link)"]
    return m


@machine("janhq/jan#183: never read under load", 0, ["link-idle"] * 2, ["inconclusive"])
def idle_at_gen1():
    m = pix(now=(25, 16))
    m.has_loaded = False
    return m


@machine("open-gpu-kernel-modules#1010: idle low, full under load", 0, [])
def healthy_gen1_at_idle_gen5_under_load():
    m = pix(now=(25, 16))
    for d in m.devices:
        d.loaded = d.most
    return m


@machine("constructed: an ordinary user", 0, [], ["not readable: configuration space"])
def healthy_not_root():
    m = pix()
    for d in m.devices:
        d.config_bytes = 64
    m.process["uid"] = 1000
    return m


@machine("constructed", 0, [], ["no NVIDIA GPU", "no lane"])
def no_gpu():
    m = Machine()
    m.root("0000:00:01.0", 1)
    m.has_nvml = False
    return m


@machine("GT 730, an old kernel's formats", 0, ["aer-corrected"] * 2, ["Bad TLP 3"])
def healthy_old_kernel():
    m = roots(2, port_most=(80, 16), gpu={"most": (80, 16), "bar1": 256 << 20, "bar1_most": None})
    for d in m.devices:
        d.old_kernel = True
        d.aer = (("correctable", "Bad TLP", 3),)
        if d in m.gpus:
            d.aer = ()
    return m


# ---- links ----

def narrow(width):
    m = pix()
    m.gpus[1].now = m.gpus[1].loaded = (320, width)
    m.gpus[1].parent.now = m.gpus[1].parent.loaded = (320, width)
    return m


@machine("ASUS forum: an M.2 drive took half of the lanes", 1, ["link-width"],
         ["GPU 1 (0000:13:00.0) trained to x8 of x16: 31.5 instead of 63.0 GB/s"])
def x16_trained_to_x8():
    return narrow(8)


@machine("noonghunna/club-3090#585", 1, ["link-width"], ["x4 of x16", "15.8"])
def x16_trained_to_x4():
    return narrow(4)


@machine("constructed", 1, ["link-width"], ["x1 of x16", "riser"])
def x16_trained_to_x1():
    return narrow(1)


@machine("constructed: only the configuration space knows", 1, ["link-width"], ["x8 of x16"])
def x8_without_sysfs_links():
    m = narrow(8)
    m.has_loaded = False
    for d in m.devices:
        for name in ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"):
            d.files[name] = ""
    return m


@machine("open-gpu-kernel-modules#1010: never retrains", 1, ["link-speed"],
         ["2.5 of 16 GT/s under load", "driver update"])
def gen4_stays_at_gen1():
    m = roots(2, port_most=(160, 16), gpu={"most": (160, 16)})
    m.gpus[0].now = m.gpus[0].loaded = (25, 16)
    return m


@machine("rtx6kpro#88: autonomous speed changes disabled", 1, ["link-stuck"],
         ["5 of 32 GT/s", "LnkCtl2 bit 5"])
def gen2_stuck_with_changes_disabled():
    m = pix(link_control2=0x20)
    m.gpus[0].now = m.gpus[0].loaded = (50, 16)
    return m


@machine("constructed", 1, ["bridge-width"],
         ["switch port 0000:10:00.0 trained to x8 of x16", "for GPU 0, GPU 1"])
def bridge_at_x8_above_healthy_gpus():
    return pix(switch={"now": (320, 8)})


@machine("constructed", 1, ["bridge-speed"], ["2.5 of 32 GT/s"])
def bridge_at_gen1_above_healthy_gpus():
    return pix(switch={"now": (25, 16)})


@machine("noonghunna/club-3090#895: behind the chipset", 1, ["path-narrow"],
         ["GPU 0's own link is x8", "x4 at 16 GT/s, 7.9 GB/s"])
def behind_the_chipset():
    m = Machine()
    chipset = m.root("0000:00:01.0", 0x10, most=(160, 4))
    _, ports = m.switch(chipset, 0x10, 1, most=(160, 8))
    m.devices[-2].most = m.devices[-2].now = m.devices[-2].loaded = (160, 4)
    m.gpu(ports[0], 0x12, most=(160, 8))
    m.gpu(m.root("0000:00:02.0", 0x30, most=(160, 8)), 0x30, most=(160, 8))
    return m


@machine("constructed", 1, ["slot-width"], ["offers x8"])
def slot_of_8_lanes():
    m = Machine()
    m.gpu(m.root("0000:00:01.0", 0x10, most=(320, 8)), 0x10, now=(320, 8))
    m.gpu(m.root("0000:00:02.0", 0x20), 0x20)
    return m


@machine("constructed: width 63 and an unknown speed are no readings", 0, [])
def link_not_readable():
    m = pix()
    m.has_loaded = False
    for d in m.gpus:
        d.files.update(current_link_speed="Unknown\n", current_link_width="63\n")
    return m


@machine("constructed: a rate newer than this program", 0, [])
def link_of_a_rate_to_come():
    m = pix()
    for d in m.gpus:
        d.files.update(current_link_speed="256.0 GT/s PCIe\n", max_link_speed="256.0 GT/s PCIe\n")
    m.has_loaded = False
    return m


# ---- errors ----

@machine("pop-os/pop#3363: port, GPU and audio on one link", 1, ["aer-storm"],
         ["BadTLP 2000", "both ends of one link", "pcie_aspm=off"])
def aer_storm():
    m = pix()
    m.gpus[0].aer = (("correctable", "BadTLP", 2000), ("correctable", "Timeout", 31))
    m.gpus[0].parent.aer = (("correctable", "RxErr", 700),)
    m.log = ["3,900,7000000,-;pcieport 0000:11:00.0: AER: Multiple Correctable error message received "
             "from 0000:12:00.0",
             "4,901,7000100,-;nvidia 0000:12:00.0: PCIe Bus Error: severity=Correctable, "
             "type=Data Link Layer, (Transmitter ID)",
             "4,902,7000200,-;nvidia 0000:12:00.0:   device [10de:2331] error status/mask="
             "00001000/00006000"] * 3
    return m


@machine("wilicc/gpu-burn#1: kernel 4.x, then off the bus", 2,
         ["aer-corrected", "aer-fatal", "gpu-fell-off"], ["cooling first", "Xid 79"])
def old_log_then_off_the_bus():
    m = roots(2)
    m.log = [
        "[ 4000.1] pcieport 0000:00:02.0: AER: Corrected error received: id=0010",
        "[ 4000.2] pcieport 0000:00:02.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, "
        "id=0010(Transmitter ID)",
        "[ 4000.3] pcieport 0000:00:02.0:   device [8086:6f04] error status/mask=00001000/00002000",
        "[ 4000.4] pcieport 0000:00:02.0:    [12] Replay Timer Timeout  ",
        "[ 4104.1] pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), "
        "type=Transaction Layer, id=0010(Receiver ID)",
        "[ 4104.2] pcieport 0000:00:02.0:    [ 5] Surprise Down Error    (First)",
        "[ 4104.3] NVRM: Xid (PCI:0000:20:00): 79, GPU has fallen off the bus."]
    return m


@machine("constructed: non-fatal errors, and a log without them", 1, ["aer-nonfatal", "aer-off"],
         ["MalfTLP 2", "settings: pci=noaer"])
def nonfatal_errors():
    m = roots(2)
    m.gpus[0].aer = (("nonfatal", "MalfTLP", 2),)
    m.cmdline += " pci=noaer"
    return m


@machine("MS-02-Ultra#32: no log, but latched", 1, ["aer-latched"] * 2,
         ["CompletionTimeout", "MalformedTLP", "nothing was counted"])
def latched_bits_only():
    m = roots(2)
    m.gpus[0].latched = (0x4000, 0x3000)
    m.gpus[0].parent.latched = (0x40000, 0x41)
    m.gpus[1].latched = (0x100000, 0x2000)  # what a bus scan leaves
    return m


@machine("open-gpu-kernel-modules#1247: OCuLink", 2, ["aer-corrected", "gpu-fell-off", "xid"],
         ["Xid 154"])
def cable_loses_the_gpu():
    m = roots(2)
    m.log = ["4,1,1000000,-;nvidia 0000:10:00.0: PCIe Bus Error: severity=Correctable, "
             "type=Physical Layer, (Receiver ID)",
             "4,2,1000001,-;nvidia 0000:10:00.0:    [ 0] RxErr                  (First)",
             "3,3,2000000,-;NVRM: Xid (PCI:0000:10:00): 79, pid='<unknown>', name=<unknown>, GPU has "
             "fallen off the bus.",
             "3,4,2000001,-;NVRM: Xid: 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node "
             "Reboot Required)"]
    return m


@machine("open-gpu-kernel-modules#1150: one root, the rest secondary", 2, ["xid"] * 2,
         ["NVLink 5 error", "look for the first one"])
def secondary_xids():
    m = roots(2)
    m.log = ["3,3,2000000,-;NVRM: Xid (PCI:0000:10:00): 149, something"] + [
        "3,4,2000001,-;NVRM: Xid (PCI:0000:20:00): 45, pid=1, name=x, Ch 00000001 caused by previous "
        "Xid 149"] * 4
    return m


@machine("application faults are no fault of the machine", 0, ["xid"] * 2, ["the application's"])
def application_xids():
    m = roots(2)
    m.log = ["[  9.0] NVRM: Xid (0000:10:00): 31, Ch 00000008, engmask 00000101, intr 10000000",
             "[ 10.0] NVRM: Xid (PCI:0000:20:00): 13, pid=7, Graphics SM Warp Exception"]
    return m


@machine("constructed: `rev ff`, all ones", 2, ["gpu-fell-off", "gpu-lost"],
         ["does not answer", "one GPU"])
def gpu_lost():
    m = roots(2)
    m.gpus[1].gone = True
    m.gpus[1].files = {"current_link_speed": "Unknown\n", "current_link_width": "63\n"}
    m.has_loaded = False
    m.log = ["3,3,2000000,-;NVRM: Xid (PCI:0000:20:00): 79, pid=5, GPU has fallen off the bus."]
    return m


@machine("constructed: downstream port containment", 2, ["dpc"] * 2, ["containment"])
def port_contained():
    m = pix()
    m.gpus[0].parent.dpc = 1
    m.log = ["3,3,2000000,-;pcieport 0000:11:01.0: DPC: containment event, status:0x1f01 source:0x0000"]
    return m


@machine("constructed: counters of NVML alone", 1, ["replays"], ["45000"])
def replays():
    m = pix()
    m.gpus[0].nvml["replays"] = 45000
    return m


@machine("open-gpu-kernel-modules#1045: ASPM forced", 2, ["aspm", "xid"],
         ["settings: pcie_aspm=force", "micro-controller"])
def aspm_forced():
    m = pix(link_control=2)
    m.cmdline += " pcie_aspm=force"
    m.log = ["3,3,2000000,-;NVRM: Xid (PCI:0000:12:00): 62, pid=5, 0000(0000) 00000000 00000000"]
    return m


@machine("leptonai/gpud#348; nccl-tests#206", 1, ["memlock", "slot-power"], ["27W", "8192 KiB"])
def short_of_slot_power_and_memlock():
    m = pix()
    m.log = ["4,3,2000000,-;mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 77): Detected "
             "insufficient power on the PCIe slot (27W)."]
    m.process["memlock"] = 8192 << 10
    m.files["/sys/class/infiniband/mlx5_0.link"] = "../../devices/pci0000:00/x"
    return m


@machine("constructed: power brake, heat", 1, ["gpu-throttle"] * 2, ["external power brake", "95 C"])
def throttled():
    m = pix()
    m.gpus[0].nvml["throttle"] = "0x80"
    m.gpus[1].nvml.update(temperature=95, throttle="0x40")
    return m


# ---- peers ----

@machine("NVIDIA/nccl#304", 1, ["acs"], ["sudo setpci -s 0000:11:00.0 ECAP_ACS+6.w=0000", "detour"])
def acs_on_switch_ports():
    return pix(switch={"acs": ACS_BAD})


@machine("NVIDIA/nccl#2079, FIDESlib#28", 2, ["acs", "iommu", "peer-lost"],
         ["iommu=pt", "does not arrive", "pinned host memory"])
def iommu_translating():
    m = roots(2, acs=ACS_BAD)
    m.group_type, m.probe = "DMA-FQ", "missing"
    for i, d in enumerate(m.devices):
        d.group = 7 + i
    return m


@machine("constructed: translating, not measured", 1, ["acs", "iommu"], ["may hang"])
def iommu_translating_not_measured():
    m = iommu_translating()
    m.has_measured = False
    return m


@machine("NVIDIA/cuda-samples#48", 2, ["iommu-fault"] * 2, ["2 accesses of 0000:20:00.0, a GPU"])
def iommu_page_faults():
    m = roots(2)
    m.log = ["4,3,2000000,-;nvidia 0000:20:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 "
             "address=0x80000040 flags=0x0020]"] * 2 + [
        "3,4,2000000,-;DMAR: [DMA Write] Request device [00:12.0] fault addr 0 [fault reason 05] PTE "
        "Write access is not set"]
    return m


@machine("constructed: a DMAR fault that names a GPU", 2, ["iommu-fault"], ["0000:10:00.0, a GPU"])
def dmar_fault_of_a_gpu():
    m = roots(2)
    m.log = ["3,4,2000000,-;DMAR: [DMA Read NO_PASID] Request device [0x10:0x00.0] fault addr "
             "0xfe000000 [fault reason 0x06] PTE Read access is not set",
             "3,5,2000001,-;DMAR: DRHD: handling fault status reg 2"]
    return m


@machine("NVIDIA/nccl#2335: the writer reads its own mirror", 2, ["peer-lost", "vm"],
         ["virtual machine (QEMU)", "whatever CUDA claims"])
def vm_that_loses_writes():
    m = roots(2)
    m.is_virtual, m.probe = True, "missing"
    return m


@machine("noonghunna/club-3090#1229: GeForce", 0, ["p2p-none"],
         ["these GPUs or this driver", "pinned host memory"])
def geforce_without_p2p():
    m = roots(2, gpu={"name": "NVIDIA GeForce RTX 5090", "bar1": 32 << 30, "bar1_most": 32 << 30})
    m.p2p, m.claim, m.ipc = "GNS", "no", "no peer access is not supported between these two devices"
    return m


@machine("NVIDIA/nccl#1309: a PIX pair slower than a SYS pair", 0, ["p2p-none", "uplink-twice"],
         ["crosses that uplink twice"])
def geforce_behind_a_switch():
    m = pix(name="NVIDIA GeForce RTX 4090", bar1=32 << 30, bar1_most=32 << 30)
    m.p2p, m.claim, m.ipc = "GNS", "no", "no peer access is not supported between these two devices"
    return m


@machine("aikitoria#7: Re-Size BAR off", 1, ["bar1-small"] * 2, ["256 MiB and could be 32768"])
def small_bar():
    return roots(2, gpu={"bar1": 256 << 20, "bar1_most": 32 << 30})


@machine("NVIDIA/gpu-operator#492", 2, ["bar1-none"] * 2, ["Above 4G"])
def no_bar():
    m = roots(2)
    m.gpus[0].bar1 = 0
    m.log = ["3,5,2000001,-;NVRM: BAR1 is 0M @ 0x0 (PCI:0000:10:00.0)"]
    return m


@machine("rtx6kpro: posted writes collapse", 1, ["write-collapse"] * 2, ["13.5", "53.0"])
def writes_collapse():
    m = pix()
    m.speeds = {(0, 1): (13.5, 53.0), (1, 0): (13.5, 53.0)}
    return m


@machine("constructed: one way of six is slow", 1, ["pair-slow"], ["GPU 0 writes to GPU 2 at 9.0"])
def one_pair_slow():
    m = roots(3)
    m.speeds = {(0, 2): (9.0, 9.0)}
    return m


@machine("constructed: different root complexes, one socket", 0, ["roots"], ["NODE"])
def different_root_complexes():
    m = Machine()
    m.gpu(m.root("0000:00:01.0", 0x10), 0x10)
    m.gpu(m.root("0000:40:01.0", 0x50, host="pci0000:40"), 0x50)
    return m


@machine("constructed: a kernel that never ends", 2, ["measuring-failed"], ["no end within"])
def measuring_hangs():
    m = pix()
    m.measured_extra = "trouble no end within 90 s: a kernel or the driver hangs\n"
    return m


# ---- processes ----

@machine("NVIDIA/nccl#290, #342, #525", 1, ["ipc-namespace", "shm-small"],
         ["--shm-size=1g", "64 MiB", "container docker"])
def container_with_64_mb():
    m = pix()
    m.container = "docker"
    m.process.update(shm_bytes=64 << 20, shm_free_bytes=64 << 20, own_ipc_namespace=1,
                     own_pid_namespace=1)
    return m


@machine("ray_lightning#24", 1, ["ipc-namespace", "ipc-refused"], ["not supported between"])
def containers_apart():
    m = pix()
    m.container = "kubernetes"
    m.process.update(own_ipc_namespace=1, own_pid_namespace=1)
    m.ipc = "no peer access is not supported between these two devices"
    return m


@machine("constructed: /dev/shm full of what killed jobs left", 1, ["shm-full"], ["ls -lat /dev/shm"])
def shm_full():
    m = pix()
    m.process["shm_free_bytes"] = 1 << 20
    return m


@machine("NVIDIA/nccl-tests#57: bound to the other socket", 1, ["rank-binding", "sockets"],
         ["rank 1: CPUs of node 0, GPU 1 of node 1", "numactl --cpunodebind=1 --membind=1"])
def wrong_rank_binding():
    m = roots(2, 2)
    m.ranks = [(0, "0-7", "all"), (1, "8-15", "all")]
    return m


@machine("constructed: right binding, ranks in the order of sockets", 0, ["sockets"], ["rank pid"])
def healthy_rank_binding():
    m = roots(4, 2)
    m.ranks = [(r, m.nodes[r // 2], "0,1,2,3") for r in range(4)]
    return m


@machine("constructed: neighbours on alternating sockets", 1, ["rank-order", "sockets"],
         ["4 crossings"])
def ranks_alternate_between_sockets():
    m = roots(4, 2)
    m.ranks = [(r, m.nodes[g // 2], str(g)) for r, g in enumerate((0, 2, 1, 3))]
    return m


@machine("horovod#3929: duplicate GPU", 1, ["rank-same-gpu"], ["ranks 0 and 1 both take GPU 0"])
def two_ranks_on_one_gpu():
    m = pix()
    m.ranks = [(0, "0-7", "0"), (1, "8-15", "0")]
    return m


@machine("constructed: may run anywhere", 0, ["rank-loose", "sockets"], ["ranks 0, 1 may run"])
def ranks_not_bound():
    m = roots(2, 2)
    m.ranks = [(0, "0-31", "all"), (1, "0-31", "all")]
    return m


@machine("nvidia-docker#723", 0, ["persistence"], ["persistence mode is off on 2 GPUs"])
def persistence_off():
    m = pix()
    for g in m.gpus:
        g.nvml["persistence"] = 0
    return m


@machine("constructed: held by another driver", 1, ["gpu-driver"], ["vfio-pci"])
def gpu_set_aside():
    m = pix()
    m.gpus[1].driver = "vfio-pci"
    m.gpus.pop()
    return m


@machine("constructed: a container that is shown one GPU of two", 0, ["gpu-hidden"],
         ["is not shown it", "one GPU"])
def gpu_hidden_from_the_container():
    m = pix()
    m.container = "docker"
    m.gpus.pop()
    return m


@machine("constructed: NVML cannot speak with one GPU", 2, ["gpu-error"], ["Unknown Error"])
def gpu_error():
    m = pix()
    m.nvml_extra = "gpu 1 error Unknown Error\n"
    return m


@machine("constructed: no driver at all", 2, ["gpu-driver"] * 2, ["modprobe nvidia"])
def no_driver():
    m = pix()
    for g in m.gpus:
        g.driver = ""
    m.has_nvml = m.has_measured = m.has_loaded = False
    return m
