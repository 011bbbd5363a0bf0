#!/bin/bash
# Proves that objects do not depend on where they are built: those of a copy of the tree in another
# folder, under another name, are the same bytes. (That packages made twice are the same is shown where
# they are made.) Only part of the kernels, since all would take minutes. TAP.
set -u
# shellcheck source=tests/packages/common.bash
. "$(dirname "$0")/common.bash"

copy=$out/another/place
mkdir -p "$copy" && tar -c --exclude=./build\* --exclude=./.git . | tar -x -C "$copy" || exit 1
objects=(plugin/interpose.o plugin/config.o plugin/route.o tools/doctor.o emu/kernels/type_i8.o)
[ -z "${PACKAGE_HAS_CUDA:-}" ] || objects+=(plugin/gpu_cuda.o "cuda-${PACKAGE_ARCHS// /-}/type_i8.o")

# Without what a compiler cache remembers of the first build.
CCACHE_DISABLE=1 make -C "$copy" ARCHS="${PACKAGE_ARCHS:-}" V="$LLANE_V" BUILD=elsewhere \
    "${objects[@]/#/elsewhere/$LLANE_V/}" >"$out/said" 2>&1
report $? tree__copied_to_another_folder__builds
llane_make emu "${objects[@]/#/$build/}" || exit 1
for object in "${objects[@]}"; do
    cmp "$build/$object" "$copy/elsewhere/$LLANE_V/$object" >"$out/said" 2>&1
    report $? "object__${object}__the_same_bytes"
done
echo "1..$n"
