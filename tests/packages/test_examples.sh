#!/bin/bash
# Proves that the programs of docs/examples work as their first lines say, on the emulated GPU and the
# tests' NCCL (those that need PyTorch are compiled, no more): sums right, the lane and NCCL each carried
# calls, and the lane says how many. TAP.
set -u
# shellcheck source=tests/packages/common.bash
. "$(dirname "$0")/common.bash"
emu=$build/emu shims=tests/packages/emulated
includes=(-std=gnu11 -D_GNU_SOURCE "-I$shims" -Iext-headers -Iplugin -Itests/fake_nccl)

"${CC:-gcc}" "${includes[@]}" -Wall -Wextra -fPIC -shared $shims/cudart.c -o "$out/libcudart.so" -L"$emu" -lllane-emu \
    >"$out/said" 2>&1 || { report 1 "a CUDA runtime over the emulated GPU"; exit 1; }
# Live from the first call on, however busy the machine: the larger sizes are NCCL's.
export LD_LIBRARY_PATH=$out:$emu LLANE_WAIT=1

# right RANKS: all said so, and all ranks' statistics show both routes.
right() {
    [ "$(grep -c 'all sums right' "$out/said")" -eq "$1" ] &&
        [ "$(grep -Ec 'llane stats: .*: lane [1-9][0-9]* calls .* NCCL [1-9]' "$out/said")" -eq "$1" ]
}

# Open MPI: for root too, and for more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
if command -v mpicc >/dev/null; then
    ln -sf "$emu/libnccl.so.2" "$out/libnccl.so"
    # Statistics into files: what ranks print at their very end, mpiexec may lose on a busy machine.
    mpicc "${includes[@]}" -Wall -Wextra docs/examples/mpi_allreduce.c -o "$out/mpi_allreduce" -L"$out" -L"$emu" \
        -lnccl -lcudart -lllane-emu >"$out/said" 2>&1 &&
        LLANE_STATS=$out/stats-%p NCCL_DEBUG=INFO NCCL_TUNER_PLUGIN=$emu/libnccl-tuner-llane.so timeout 100 \
            mpiexec -n 3 "$out/mpi_allreduce" >"$out/said" 2>&1 && cat "$out"/stats-* >>"$out/said" && right 3
    report $? mpi_allreduce__three_ranks__right_and_carried
else
    report 77 mpi_allreduce "no mpicc"
fi

# Preloaded: the emulation keeps its thread-local data where only early libraries may.
LD_PRELOAD=$emu/libllane-emu.so timeout 100 python3 docs/examples/ctypes_allreduce.py "$emu/libnccl-llane.so" 2 >"$out/said" 2>&1 && right 2
report $? ctypes_allreduce__through_the_drop_in__right_and_carried

for example in docs/examples/*.py tests/gpun/*.py; do
    python3 -c 'import ast, sys; ast.parse(open(sys.argv[1], encoding="utf-8").read())' "$example" >"$out/said" 2>&1
    report $? "${example}__is_Python"
done
echo "1..$n"
