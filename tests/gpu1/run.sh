#!/bin/bash
# Proves on a real GPU, with real NCCL and the real object: several ranks on one GPU (or one each,
# where there are enough), lane and fallback right through the demo, C, PyTorch, CuPy, JAX, ctypes and MPI;
# what trains does so without and with llane, to the same losses.
# TAP. LLANE_REQUIRE_GPUS=n: a skip is a failure. GPU_RANKS="2 4" chooses the numbers of ranks,
# GPU_TESTS=REGEX the tests by their names, limit=SECONDS how long the ranks of one may take.
set -u
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
build=${LLANE_BUILD:?run it through make test-gpu}
python=${PYTHON:-python3}
logs=$(mktemp -d)
passed=0 failed=0 skipped=0
late=''     # what a test that fails says of its time
ulimit -c 0 # one that took too long is ended by ABRT

# shellcheck source=scripts/gpu_env
. "$top/scripts/gpu_env"
trap 'gpu_env_stop; rm -rf "$logs"' EXIT

ok() { passed=$((passed + 1)); echo "ok $((passed + failed + skipped)) - $1"; }
not_ok() {
    failed=$((failed + 1))
    echo "not ok $((passed + failed + skipped)) - $1$late"
    late=
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

# host_of N R: rank R of N's NCCL_HOSTID. An older NCCL believes ranks that share a GPU on several hosts.
host_of() {
    if [ -n "${GPU_ONE_HOST:-}" ] || [ "$gpus" -ge "$1" ]; then echo llane; else echo "llane-$2"; fi
}

# wait_for PID...: 0 if all exit 0; notes in $late if one took too long.
wait_for() {
    local pid code status=0
    late=
    for pid; do
        wait "$pid"
        code=$?
        [ $code = 0 ] || status=1
        [[ $code != 124 && $code != 137 ]] || late=", out of time after ${limit:-150} s; the logs end:"
    done
    return $status
}

# ranks N COMMAND...: N processes with what each needs; 0 if all exit 0. Logs are $logs/RANK.
# plugin= runs them without llane, limit=SECONDS gives them another time. Python says where it was then.
ranks() {
    local n=$1 r pids=()
    shift
    rm -f "$logs"/*
    for ((r = 0; r < n; r++)); do
        RANK=$r WORLD_SIZE=$n NCCL_HOSTID=$(host_of "$n" "$r") INIT_FILE=$logs/init LLANE_STATS=1 \
            PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 NCCL_TUNER_PLUGIN=${plugin-llane} \
            timeout -s ABRT -k 5 "${limit:-150}" "$@" >"$logs/$r" 2>&1 &
        pids+=($!)
    done
    wait_for "${pids[@]}"
    r=$?
    rm -f "$logs/init"
    return $r
}

# The same under mpirun. Its variables: as many ranks as asked for, also for root.
mpi_ranks() {
    local n=$1
    shift
    rm -f "$logs"/*
    # shellcheck disable=SC2016 # each rank's shell expands it
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
        PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe LLANE_STATS=1 PYTHONUNBUFFERED=1 \
        NCCL_TUNER_PLUGIN=${plugin-llane} timeout -k 5 "${limit:-150}" mpirun -n "$n" bash -c \
        'exec "$@" >"$0/${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" 2>&1' "$logs" "$@" >"$logs/mpirun" 2>&1 &
    wait_for $!
}

is_wanted() { [[ $1 =~ ${GPU_TESTS:-.} ]]; }

run_all() { if [ "${with_mpi:-0}" = 1 ]; then mpi_ranks "$@"; else ranks "$@"; fi; }

# Every rank's statistics say that the lane carried calls, and NCCL some too: lane_and_nccl_carried N PROCESSES.
lane_and_nccl_carried() {
    local n=$1 r
    for ((r = 0; r < $2; r++)); do
        [ "$(grep -Ec 'llane stats: .*: lane [1-9][0-9]* calls .* NCCL [1-9]' "$logs/$r")" -ge $((n / $2)) ] ||
            return 1
    done
}

client() { # client NAME N COMMAND...; with_mpi=1: under mpirun; processes=1: one process has all ranks
    local name=$1 n=$2
    shift 2
    is_wanted "$name" || return
    if ! run_all "${processes:-$n}" "$@"; then
        not_ok "$name, $n ranks: results"
    elif ! lane_and_nccl_carried "$n" "${processes:-$n}"; then
        not_ok "$name, $n ranks: lane and NCCL each carried calls"
    else
        ok "$name, $n ranks: right, lane and NCCL each carried calls"
        grep -h 'llane stats' "$logs"/* | sed 's/^/# /'
    fi
}

# As client, and before it the same without llane: the losses that rank 0 prints are alike.
trained() { # trained NAME N COMMAND...
    local name=$1 n=$2 losses
    shift 2
    is_wanted "$name" || return
    if ! plugin='' run_all "$n" "$@"; then
        not_ok "$name, $n ranks, without llane"
        return
    fi
    losses=$(mktemp)
    cp "$logs/0" "$losses"
    client "$name" "$n" "$@"
    if "$python" "$here/compare_losses.py" "$losses" "$logs/0" >"$logs/compared"; then
        ok "$name, $n ranks: losses as without llane"
        sed 's/^/# /' "$logs/compared"
    else
        not_ok "$name, $n ranks: losses as without llane"
    fi
    rm -f "$losses"
}

# same PROGRAM N: without and with llane, codes and results as NCCL's, and the same output.
same() {
    local program=$1 n=$2 r log=$logs/$1
    is_wanted "$program" || return
    [ -x "$build/tests/gpu1/$program" ] || { skip "$program, $n ranks" "not built" && return; }
    rm -f "$logs"/*
    for with in "" llane; do
        local dir status=0 pids=()
        dir=$(mktemp -d)
        for ((r = 0; r < n; r++)); do
            RANK=$r WORLD_SIZE=$n RANKS_DIR=$dir NCCL_HOSTID=$(host_of "$n" "$r") LLANE_STATS=1 LLANE_WAIT=1 \
                NCCL_TUNER_PLUGIN=$with timeout -k 5 "${limit:-150}" "$build/tests/gpu1/$program" \
                >"$log-$with-$r" 2>&1 &
            pids+=($!)
        done
        wait_for "${pids[@]}" || status=1
        rm -rf "$dir"
        if [ $status != 0 ]; then
            grep -hE "WRONG|expected|$program" "$log-$with"-* | head -n 30 | sed 's/^/# /'
            not_ok "$program ${with:-without llane}, $n ranks: codes and results"
            return
        fi
    done
    if ! grep -q 'llane stats: .*: lane [1-9]' "$log-llane-0"; then
        not_ok "$program, $n ranks: the lane carried calls"
    elif ! diff <(grep -E '^[a-z0-9_-]+: ' "$log--0") <(grep -E '^[a-z0-9_-]+: ' "$log-llane-0"); then
        not_ok "$program, $n ranks: the same with and without llane"
    else
        ok "$program, $n ranks: as NCCL, with and without llane"
        grep -E ': not (here|in this)|refused: 1' "$log-llane-0" | sort -u | sed 's/^/# /'
    fi
}

has() { "$python" -c "import $1" 2>/dev/null; }
has_jax() { "$python" -c "import jax, jax_plugins" 2>/dev/null; } # the plugins are what brings GPUs
has_fully_shard() { "$python" -c "from torch.distributed.fsdp import fully_shard" 2>/dev/null; }

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L | grep -q GPU; then
    skip "everything" "no NVIDIA GPU"
    echo "$passed passed, $failed failed, $skipped skipped"
    exit $((failed > 0))
fi
gpus=$(nvidia-smi -L | grep -c '^GPU')
if [ -z "${NCCL_HOME:-}" ] && has nvidia.nccl; then
    NCCL_HOME=$("$python" -c 'import nvidia.nccl as n; print(list(n.__path__)[0])')
fi
export LD_LIBRARY_PATH="$build:${NCCL_HOME:+$NCCL_HOME/lib:}${LD_LIBRARY_PATH:-}"

if is_wanted arithmetic; then
    if "$build/tests/gpu1/reduce_on_device" >"$logs/reduce" 2>&1; then
        ok "the GPU's arithmetic"
    else
        not_ok "the GPU's arithmetic"
    fi
fi
for n in ${GPU_RANKS:-2 4}; do
    gpu_env_start "$n"
    if is_wanted demo; then
        if GPU_ENV_READY=1 "$top/tools/llane" demo "$n" >"$logs/demo" 2>&1 &&
            grep -q ' lane: ' "$logs/demo"; then
            ok "demo, $n ranks"
            sed 's/^/# /' "$logs/demo"
        else
            not_ok "demo, $n ranks"
        fi
    fi
    for program in conformance memory_kinds graph_kinds; do same "$program" "$n"; done
    if has torch; then
        client PyTorch "$n" "$python" "$here/torch_allreduce.py"
        [ "$n" != 2 ] || client "PyTorch with expandable segments" 2 env \
            PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
            "$python" "$here/torch_allreduce.py" # cases.md 10
        [ "$n" != 2 ] || client "PyTorch with a stream-ordered pool" 2 env \
            PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync "$python" "$here/torch_allreduce.py"
        trained "PyTorch DDP" "$n" "$python" "$here/torch_ddp.py"
        trained "PyTorch tensor parallel" "$n" "$python" "$here/torch_tensor_parallel.py"
        if has_fully_shard; then
            trained "PyTorch FSDP" "$n" "$python" "$here/torch_fsdp.py"
        else
            skip "PyTorch FSDP, $n ranks" "this PyTorch has no fully_shard"
        fi
        if has triton; then
            limit=${limit:-400} trained "torch.compile, reduce-overhead" "$n" \
                "$python" "$here/torch_compile.py"
        else
            skip "torch.compile, $n ranks" "no Triton"
        fi
        client "ctypes through the drop-in" "$n" env -u NCCL_TUNER_PLUGIN \
            "$python" "$here/ctypes_allreduce.py" "$build/libnccl-llane.so"
    else
        skip "PyTorch (all-reduces, DDP, tensor parallel, FSDP, compile) and ctypes, $n ranks" "no PyTorch"
    fi
    if has cupy; then
        client CuPy "$n" "$python" "$here/cupy_allreduce.py"
    else
        skip "CuPy, $n ranks" "no CuPy"
    fi
    if has_jax; then
        limit=${limit:-300} client JAX "$n" "$python" "$here/jax_allreduce.py"
        [ "$gpus" -lt "$n" ] || limit=${limit:-300} processes=1 \
            client "JAX in one process" "$n" "$python" "$here/jax_allreduce.py" "$n"
    else
        skip "JAX, $n ranks" "no JAX for GPUs"
    fi
    if ! command -v mpirun >/dev/null; then
        skip "MPI, $n ranks" "no mpirun"
    elif ! has mpi4py.MPI || ! has numpy; then
        skip "MPI, $n ranks" "no mpi4py or numpy"
    else
        with_mpi=1 client "mpi4py and ctypes" "$n" "$python" "$here/mpi_ctypes.py"
        with_mpi=1 trained "MPI, a background thread, fused buffers" "$n" \
            "$python" "$here/mpi_background.py"
    fi
    gpu_env_stop
done
echo "$passed passed, $failed failed, $skipped skipped"
exit $((failed > 0))
