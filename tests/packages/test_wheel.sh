#!/bin/bash
# Proves that `make wheel` makes a wheel that pip installs into a venv, that `python -m llane` works from
# there, that pip removes all of it, and that the same bytes come out twice. TAP.
set -u
# shellcheck source=tests/packages/common.bash
. "$(dirname "$0")/common.bash"

llane_make emu wheel PACKAGE_DIR="$out/emu"
report $? wheel__emulation__is_made
wheel=$(echo "$out"/emu/*.whl)
(
    umask 077
    export TZ=Asia/Tokyo LC_ALL=C.UTF-8
    llane_make emu wheel PACKAGE_DIR="$out/again"
) && cmp "$wheel" "$out"/again/*.whl >"$out/said" 2>&1
report $? wheel__made_again__the_same_bytes

if ! python3 -m venv "$out/venv" >"$out/said" 2>&1; then
    report 77 "wheel installed into a venv" "no python3 -m venv here"
    echo "1..$n"
    exit
fi
python=$out/venv/bin/python
names "$out/venv" | grep -v __pycache__ >"$out/before"
"$python" -m pip install --quiet --disable-pip-version-check --no-index "$wheel" >"$out/said" 2>&1
report $? pip__venv__installs_it

cd "$out" || exit 1
site=$(readlink -f "$out"/venv/lib/python3*/site-packages)
[ "$("$python" -m llane path)" = "$site/llane/lib/libnccl-tuner-llane.so" ] && [ -f "$site/llane/lib/libnccl-tuner-llane.so" ] &&
    [ "$("$python" -m llane drop-in)" = "$site/llane/lib/libnccl-llane.so" ] && [ -f "$site/llane/lib/libnccl-llane.so" ]
report $? path__names_files_that_are_there
[ "$("$python" -m llane version)" = "${PACKAGE_VERSION:?}" ] &&
    "$python" -m pip show llane 2>/dev/null | grep -qx "Version: $PACKAGE_VERSION"
report $? version__is_the_tree_s
[ "$("$python" -m llane env)" = "export NCCL_TUNER_PLUGIN=$site/llane/lib/libnccl-tuner-llane.so" ]
report $? env__names_the_wheel_s_plugin
[ "$("$out/venv/bin/llane" env)" = "$("$python" -m llane env)" ]
report $? command__llane__is_the_same
"$python" -m llane doctor --no-measure >"$out/said" 2>&1
[ $? -le 1 ] && grep -q '^verdict' "$out/said"
report $? doctor__from_the_wheel__reports
"$python" -m llane demo --emulate 2 >"$out/said" 2>&1 && has_routes
report $? demo__from_the_wheel__lane_and_nccl_carry

# A client that knows nothing of llane, through `run` and through the drop-in.
programs=$build/tests/emu
export LLANE_STATS=1 LLANE_WAIT=1 LD_LIBRARY_PATH=$site/llane/libexec/llane/emu
"$programs/prog_ranks" 2 "$python" -m llane run -- "$programs/prog_allreduce" --counts 64 >"$out/said" 2>&1 &&
    [ "$(grep -Ec 'llane stats: .*: lane [1-9]' "$out/said")" -eq 2 ]
report $? run__from_the_wheel__loads_the_lane
"$programs/prog_ranks" 2 "$programs/prog_dlopen" "$("$python" -m llane drop-in)" >"$out/said" 2>&1 &&
    [ "$(grep -Ec 'llane stats: .*: lane [1-9]' "$out/said")" -eq 2 ]
report $? drop_in__from_the_wheel__loads_the_lane
unset LLANE_STATS LLANE_WAIT LD_LIBRARY_PATH

"$python" -m pip uninstall --quiet --yes llane >"$out/said" 2>&1 &&
    diff "$out/before" <(names "$out/venv" | grep -v __pycache__) >"$out/said"
report $? pip__uninstall__leaves_nothing

cd "$OLDPWD" || exit 1
if [ -n "${PACKAGE_HAS_CUDA:-}" ]; then
    llane_make cuda wheel PACKAGE_DIR="$out/cuda"
    report $? wheel__for_GPUs__is_made
    python3 -m zipfile -l "$(echo "$out"/cuda/*.whl)" | cut -d' ' -f1 >"$out/said"
    grep -qx llane/libexec/llane/llane-bench-gpu "$out/said" && ! grep -Eq 'emu|libnccl\.so' "$out/said"
    report $? wheel__for_GPUs__has_its_programs_and_no_NCCL
    # The tag promises an old C library; every ELF file keeps it.
    mkdir "$out/unpacked" && python3 -m zipfile -e "$(echo "$out"/cuda/*.whl)" "$out/unpacked"
    find "$out/unpacked" -type f -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -1 >"$out/said"
    case $(basename "$out"/cuda/*.whl) in
    *-manylinux_2_34_*) [ "$(printf '%s\n' "$(sed 's/GLIBC_//' "$out/said")" 2.34 | sort -V | tail -1)" = 2.34 ] ;;
    *) false ;;
    esac
    report $? wheel__tag__is_what_its_files_need
fi
echo "1..$n"
