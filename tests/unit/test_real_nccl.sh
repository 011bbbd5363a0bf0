#!/bin/bash
# Proves that a real libnccl, on a machine with or without a GPU, loads the real object through
# NCCL_ENV_PLUGIN (or, before 2.28.3, opened as NCCL opens a plugin), or has it preloaded, and that the
# program's calls then lead to llane and NCCL's own to NCCL: with the installed NCCL, with the newest wheel, and with the wheel that
# NCCL_WHEEL="PACKAGE VERSION" names. Wheels are fetched into the build folder once. Reports TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/tap.bash
. tests/tap.bash
build=${LLANE_BUILD:?set by make test}
out=$build/fixtures/real_nccl
cache=$build/../wheels
cc=${CC:-gcc}
mkdir -p "$out" "$cache" || exit 1

case ${LLANE_V:-} in
asan | tsan)
    echo "a sanitizer's runtime would have to be the program's first library"
    exit 77
    ;;
esac

# The CUDA object of this run where there is one; the emulation's goes through the same door.
plugin=
for object in ${LLANE_TEST_OBJECTS:-}; do
    [ ! -e "$object" ] || plugin=$object
done
[ -n "$plugin" ] || { echo "no plugin object is built" && exit 77; }

flags=(-std=gnu11 -O0 -g -Wall -Wextra -Werror -D_GNU_SOURCE -Iext-headers -Iplugin -Itests/fixtures)
# keeps_own LIBNCCL OUTPUT: slots of its own were looked at, if it has any: NCCL has asked its public
# function for a communicator's state since 2.14.
keeps_own() {
    grep -q '^own slots [1-9]' <<<"$2" ||
        ! readelf -rW "$1" | grep -q ' ncclCommGetAsyncError + 0'
}
# loads NAME LIBNCCL
loads() {
    local library=$2 name binding output version
    for binding in lazy now; do
        name="$1 loads llane, program bound $binding"
        output=$("$cc" "${flags[@]}" tests/fixtures/{real_nccl,caller}.c -o "$out/program-$binding" \
            "$library" -Wl,-rpath,"$(dirname "$library")" -Wl,-z,relro,-z,$binding -ldl 2>&1) || {
            report 1 "$name" "$output"
            continue
        }
        output=$(NCCL_ENV_PLUGIN=$plugin NCCL_DEBUG=INFO timeout 60 "$out/program-$binding" \
            "$plugin" 2>&1) || {
            report 1 "$name" "$output"
            continue
        }
        version=$(sed -n 's/^version //p' <<<"$output")
        version=$((version / 10000)).$((version / 100 % 100)).$((version % 100))
        # Where NCCL opened it, llane has NCCL's logger and says so; the program has checked the rest.
        report "$(keeps_own "$library" "$output" && {
            ! grep -q -a NCCL_ENV_PLUGIN "$library" || [ "$(grep -cE \
                "door env, NCCL $version at .*libnccl\.so\.2, [1-9][0-9]* call sites redirected" \
                <<<"$output")" -eq 1 ]
        } && echo 0 || echo 1)" "$name ($version)" "$output"
    done
    # Bound at load, its own slots lead to llane's exported calls until llane's constructor runs.
    output=$(LD_PRELOAD=$plugin LD_BIND_NOW=1 timeout 60 "$out/program-now" "$plugin" 2>&1) &&
        keeps_own "$library" "$output"
    report $? "$1 bound at load, llane preloaded" "$output"
}

installed=
for folder in "${NCCL_HOME:-}"/lib{,64} "${CUDA_HOME:-/usr/local/cuda}"/lib{,64} \
    /usr/lib/"$(uname -m)"-linux-gnu /usr/local/lib /usr/lib64; do
    [ -n "$installed" ] || [ ! -e "$folder/libnccl.so.2" ] || installed=$folder/libnccl.so.2
done
if [ -z "$installed" ]; then
    report 77 "the installed NCCL" "no libnccl.so.2 in NCCL_HOME, CUDA_HOME or the system"
else
    loads "the installed NCCL" "$installed"
fi

if [ "$(uname -m)" != x86_64 ] && [ "$(uname -m)" != aarch64 ]; then
    report 77 "the newest NCCL" "no wheel for $(uname -m)"
elif found=$(tests/fixtures/nccl_wheel.sh nvidia-nccl-cu13 newest "$cache"); then
    loads "the newest NCCL" "$found/lib/libnccl.so.2"
else
    report 77 "the newest NCCL" "$found"
fi
if [ -n "${NCCL_WHEEL:-}" ]; then
    read -r package version <<<"$NCCL_WHEEL"
    if found=$(tests/fixtures/nccl_wheel.sh "$package" "$version" "$cache"); then
        loads "$NCCL_WHEEL" "$found/lib/libnccl.so.2"
    else
        report 1 "$NCCL_WHEEL" "$found"
    fi
fi
echo "1..$n"
