#!/bin/bash
# Proves that the doctor asks a driver's library (a double of it), starts the measuring program (on the
# emulated GPU, with and without faults), and that what it recorded is judged alike. Reports TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${LLANE_BUILD:?set by make test}
doctor=$build/llane-doctor measure=$build/emu/llane-measure
out=$build/tests/doctor_live
rm -rf "$out" && mkdir -p "$out/lib" || exit 1
ln -s "$(readlink -f "$build/tests/fixtures/lib_nvml.so")" "$out/lib/libnvidia-ml.so.1" || exit 1

number=0 failed=0
report() { # NAME STATUS
    number=$((number + 1))
    [ "$2" -eq 0 ] && echo "ok $number - $1" && return
    sed 's/^/# /' "$out/stdout" "$out/stderr"
    echo "not ok $number - $1"
    failed=1
}
# live OPTION...: with the double of NVML and two emulated GPUs.
live() {
    LD_LIBRARY_PATH=$out/lib EMU_DEVICES=2 LLANE_MEASURE=$measure timeout 100 "$doctor" "$@" \
        >"$out/stdout" 2>"$out/stderr"
}
check() { # PYTHON: about `d`, the JSON
    python3 - "$out/stdout" "$1" 2>>"$out/stderr" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
ids = [f["id"] for f in d["findings"]]
pairs = {(p["from"], p["to"]): p for p in d["pairs"]}
assert eval(sys.argv[2]), (sys.argv[2], ids, pairs)
PY
}

live --json --record "$out/recorded"
check 'd["has_nvml"] and d["system"]["driver"] == "580.1" and d["system"]["cuda"] == 13000'
report "the driver's library is asked" $?
check '[g["name"] for g in d["gpus"]][:2] == ["Fake GPU 0", "Fake GPU 1"] and d["gpus"][0]["pci"] == "0000:01:00.0"'
report "names and addresses" $?
check 'pairs[0,1]["p2p_read"] == "OK" and pairs[0,1]["p2p_write"] == "GNS" and pairs[1,0]["nvml_level"] == "PXB"'
report "what the library says of pairs" $?
check '"gpu-throttle" in ids and d["gpus"][1]["throttle_reasons"] == 0x40'
report "throttling" $?
check 'd["has_measured"] and d["is_emulated"] and all(p["cuda_claims"] == "yes" and p["ipc_opens"] == "yes" and p["probe"] == "good" for p in pairs.values())'
report "measured: claims, IPC from another process, bytes that arrive" $?
check 'all(p["latency_us"] > 0 and p["write_gb_s"] > 0 and p["read_gb_s"] > 0 for p in pairs.values()) and all(g["host_latency_us"] > 0 and g["host_to_gpu_gb_s"] > 0 for g in d["gpus"])'
report "measured: latency and bandwidth of each pair and of host memory" $?
cp "$out/stdout" "$out/live.json"
timeout 20 "$doctor" --root "$out/recorded" --json >"$out/stdout" 2>"$out/stderr"
diff "$out/live.json" "$out/stdout" >>"$out/stderr"
report "the recording gives the same report to the byte" $?

EMU_FAULTS="drop:0>1" live --json
check 'pairs[0,1]["probe"] == "missing" and pairs[1,0]["probe"] == "good" and "peer-lost" in ids and d["exit"] == 2'
report "bytes that do not arrive are found, one way" $?
EMU_FAULTS="mirror:1>0" live --json
check 'pairs[1,0]["probe"] == "missing" and "peer-lost" in ids'
report "a writer that reads its own mirror proves nothing" $?
EMU_FAIL=ipc_open live --json
check 'pairs[0,1]["ipc_opens"] == "no" and pairs[0,1]["probe"] == "unchecked" and "ipc-refused" in ids'
report "a handle that another process cannot open" $?
EMU_FAIL=malloc live --json
check '"measuring-failed" in ids'
report "measuring that fails says so" $?
FAKE_NVML=lost live --json --no-measure
check '"gpu-lost" in ids and d["exit"] == 2'
report "a lost GPU" $?
FAKE_NVML=init live --no-measure
grep -q 'not readable: NVML: NVML does not start: Driver Not Loaded' "$out/stdout"
report "a driver that is not loaded is said to be, with what to do" $?
LLANE_MEASURE=/bin/false LD_LIBRARY_PATH=$out/lib timeout 30 "$doctor" --json >"$out/stdout" 2>"$out/stderr"
check '"measuring-failed" in ids'
report "a measuring program that dies at once" $?

LD_LIBRARY_PATH=$out/lib timeout 10 "$build/llane-watch" --every 50ms --for 300ms >"$out/stdout" 2>"$out/stderr"
[ $? -eq 2 ] && grep -q 'no NVIDIA GPU to watch' "$out/stderr"
report "watch: GPUs that sysfs does not have cannot be watched, and it says so" $?

# ---- a live machine of our own: constructed devices in the place of sysfs's, in a mount namespace ----
tree=$out/devices
python3 - "$tree" <<'PY'
import os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, "tests/machines")
from machines import pix
for d in pix(switch={"acs": 0x1D}).devices:
    folder = f"{sys.argv[1]}/{d.name}"
    os.makedirs(folder + "/power")
    for name, text in d.attributes().items():
        with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    with open(folder + "/config", "wb") as file:
        file.write(d.config())
PY
# ours COMMAND...: with these devices.
ours() {
    # shellcheck disable=SC2016 # the inner shell expands
    timeout 60 unshare -m bash -c 'mount --bind "$0" /sys/bus/pci/devices && exec "$@"' "$tree" "$@" \
        >"$out/stdout" 2>"$out/stderr"
}
if ! ours true; then
    report "live devices # SKIP no mount namespace may be made here (needs root)" 0
else
    ours "$doctor" --no-measure --json
    check '"acs" in ids and len(d["gpus"]) == 2 and pairs[0,1]["level"] == "PIX"'
    report "live: sysfs and configuration space, bridges found by their bus numbers" $?
    check '[p["acs_control"] for p in d["path_devices"] if p["pci"] == "0000:11:00.0"] == [0x1D] and d["gpus"][0]["bar1_bytes"] == 128 << 30'
    report "live: ACS control and BAR 1" $?

    # As sysfs shows it: the old value or the new one, never an empty file.
    say() { echo "$2" >"$tree/said" && mv "$tree/said" "$1"; }
    low=$tree/0000:13:00.0/current_link_speed
    ours "$build/llane-watch" --every 50ms --for 3s --log "$out/live.csv" &
    watch_pid=$!
    sleep 0.7
    say "$low" '2.5 GT/s PCIe'
    sleep 0.5
    say "$low" '32.0 GT/s PCIe'
    say "$tree/0000:12:00.0/aer_dev_correctable" 'BadTLP 4'
    sleep 0.3
    mv "$tree/0000:12:00.0" "$tree/../gone" && sleep 0.3 && mv "$tree/../gone" "$tree/0000:12:00.0"
    wait $watch_pid
    [ $? -eq 2 ] && grep -q 'link 32 GT/s x16 -> 2.5 GT/s x16' "$out/stdout" &&
        grep -qE 'drop at .* for 0\.[3-9] s, down to 2.5 GT/s x16 \(load unknown\)' "$out/stdout" &&
        grep -q 'corrected errors +4, 4 in all' "$out/stdout" &&
        grep -qE 'GPU 0 .*: is back after 0\.[0-9] s' "$out/stdout" && grep -q ',back$' "$out/live.csv"
    report "watch, live: a drop, errors, a GPU that vanishes and comes back" $?
    grep -qE 'cost 0\.[0-9]+ s of CPU .* and [0-9]+ bytes of CSV' "$out/stdout"
    report "watch says what it costs" $?
    ours "$build/llane-watch" --every 50ms &
    watch_pid=$!
    sleep 0.5
    kill -INT "$(pgrep -P $watch_pid)" # timeout, which hands it on
    wait $watch_pid
    grep -q 'samples in' "$out/stdout"
    report "watch: Ctrl-C ends it with its summary" $?
fi

echo "1..$number"
exit $failed
