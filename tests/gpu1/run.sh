#!/bin/bash
# Proves on a real GPU, with real NCCL and the real object: several ranks on one GPU (or one each,
# where there are enough), lane and fallback right through the demo, C, PyTorch, CuPy and ctypes.
# TAP. LLANE_REQUIRE_GPUS=n: a skip is a failure. GPU_RANKS="2 4" chooses the numbers of ranks.
set -u
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
build=${LLANE_BUILD:?run it through make test-gpu}
python=${PYTHON:-python3}
logs=$(mktemp -d)
passed=0 failed=0 skipped=0

# shellcheck source=scripts/gpu_env
. "$top/scripts/gpu_env"
trap 'gpu_env_stop; rm -rf "$logs"' EXIT

ok() { passed=$((passed + 1)); echo "ok $((passed + failed + skipped)) - $1"; }
not_ok() {
    failed=$((failed + 1))
    echo "not ok $((passed + failed + skipped)) - $1"
    tail -n 25 "$logs"/* | sed 's/^/# /'
}
skip() {
    if [ "${LLANE_REQUIRE_GPUS:-0}" -gt 0 ]; then
        not_ok "$1 ($2; LLANE_REQUIRE_GPUS is set)"
    else
        skipped=$((skipped + 1))
        echo "ok $((passed + failed + skipped)) - $1 # SKIP $2"
    fi
}

# ranks N COMMAND...: N processes with what each needs; 0 if all exit 0. Logs are $logs/RANK.
ranks() {
    local n=$1 r status=0 pids=()
    shift
    rm -f "$logs"/*
    for ((r = 0; r < n; r++)); do
        RANK=$r WORLD_SIZE=$n NCCL_HOSTID=llane-$r INIT_FILE=$logs/init LLANE_STATS=1 \
            NCCL_TUNER_PLUGIN=llane timeout -k 5 150 "$@" >"$logs/$r" 2>&1 &
        pids+=($!)
    done
    for r in "${pids[@]}"; do wait "$r" || status=1; done
    rm -f "$logs/init"
    return $status
}

# Every rank's statistics say that the lane carried calls, and NCCL some too.
lane_and_nccl_carried() {
    local n=$1 r
    for ((r = 0; r < n; r++)); do
        grep -Eq 'llane stats: .*: lane [1-9][0-9]* calls .* NCCL [1-9]' "$logs/$r" || return 1
    done
}

client() { # client NAME N COMMAND...
    local name=$1 n=$2
    shift 2
    if ! ranks "$n" "$@"; then
        not_ok "$name, $n ranks: results"
    elif ! lane_and_nccl_carried "$n"; then
        not_ok "$name, $n ranks: lane and NCCL each carried calls"
    else
        ok "$name, $n ranks: right, lane and NCCL each carried calls"
        grep -h 'llane stats' "$logs"/* | sed 's/^/# /'
    fi
}

# The same program without and with llane: return codes and results as NCCL's, and the same output.
conformance() {
    local n=$1 r log=$logs/conformance
    [ -x "$build/tests/gpu1/conformance" ] || { skip "conformance, $n ranks" "not built" && return; }
    for with in "" llane; do
        local dir status=0 pids=()
        dir=$(mktemp -d)
        for ((r = 0; r < n; r++)); do
            RANK=$r WORLD_SIZE=$n RANKS_DIR=$dir NCCL_HOSTID=llane-$r LLANE_STATS=1 LLANE_WAIT=1 \
                NCCL_TUNER_PLUGIN=$with timeout -k 5 150 "$build/tests/gpu1/conformance" \
                >"$log-$with-$r" 2>&1 &
            pids+=($!)
        done
        for r in "${pids[@]}"; do wait "$r" || status=1; done
        rm -rf "$dir"
        if [ $status != 0 ]; then
            grep -hE 'WRONG|expected|conformance' "$log-$with"-* | head -n 30 | sed 's/^/# /'
            not_ok "conformance ${with:-without llane}, $n ranks: codes and results"
            return
        fi
    done
    if ! grep -q 'llane stats: .*: lane [1-9]' "$log-llane-0"; then
        not_ok "conformance, $n ranks: the lane carried calls"
    elif ! diff <(grep -E '^[a-z0-9_-]+: ' "$log--0") <(grep -E '^[a-z0-9_-]+: ' "$log-llane-0"); then
        not_ok "conformance, $n ranks: the same with and without llane"
    else
        ok "conformance, $n ranks: as NCCL, with and without llane"
    fi
}

has() { "$python" -c "import $1" 2>/dev/null; }

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L | grep -q GPU; then
    skip "everything" "no NVIDIA GPU"
    echo "$passed passed, $failed failed, $skipped skipped"
    exit $((failed > 0))
fi
if [ -z "${NCCL_HOME:-}" ] && has nvidia.nccl; then
    NCCL_HOME=$("$python" -c 'import nvidia.nccl as n; print(list(n.__path__)[0])')
fi
export LD_LIBRARY_PATH="$build:${NCCL_HOME:+$NCCL_HOME/lib:}${LD_LIBRARY_PATH:-}"

if "$build/tests/gpu1/reduce_on_device" >"$logs/reduce" 2>&1; then
    ok "the GPU's arithmetic"
else
    not_ok "the GPU's arithmetic"
fi
for n in ${GPU_RANKS:-2 4}; do
    gpu_env_start "$n"
    if GPU_ENV_READY=1 "$top/tools/llane" demo "$n" >"$logs/demo" 2>&1 &&
        grep -q ' lane$' "$logs/demo"; then
        ok "demo, $n ranks"
        sed 's/^/# /' "$logs/demo"
    else
        not_ok "demo, $n ranks"
    fi
    conformance "$n"
    if has torch; then
        client PyTorch "$n" "$python" "$here/torch_allreduce.py"
        [ "$n" != 2 ] || client "PyTorch with expandable segments" 2 env \
            PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
            "$python" "$here/torch_allreduce.py" # cases.md 10
        client "ctypes through the drop-in" "$n" env -u NCCL_TUNER_PLUGIN \
            "$python" "$here/ctypes_allreduce.py" "$build/libnccl-llane.so"
    else
        skip "PyTorch and ctypes, $n ranks" "no PyTorch"
    fi
    if has cupy; then
        client CuPy "$n" "$python" "$here/cupy_allreduce.py"
    else
        skip "CuPy, $n ranks" "no CuPy"
    fi
    gpu_env_stop
done
echo "$passed passed, $failed failed, $skipped skipped"
exit $((failed > 0))
