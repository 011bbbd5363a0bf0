#!/bin/bash
# Proves that ext-headers/nccl_abi.h and plugin/nccl_calls.h agree with every real nccl.h at hand: values,
# sizes and prototypes. Reports TAP. LLANE_TEST_WHEELS=1, or CI set, fetches the oldest and the newest
# supported NCCL for it; wheels that were fetched before are used anyway. So is the one that
# NCCL_WHEEL="PACKAGE VERSION" names.
set -u
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=tests/tap.bash
. tests/tap.bash
build=${LLANE_BUILD:?set by make test}
out=$build/fixtures/nccl_abi
cache=$build/../wheels
cc=${CC:-gcc}
mkdir -p "$out" "$cache" || exit 1

flags=(-std=gnu11 -Wall -Wextra -Werror -Iplugin)
"$cc" "${flags[@]}" -DLLANE_OWN -Iext-headers tests/fixtures/nccl_abi.c -o "$out/own" || exit 1
"$out/own" | sort >"$out/own.txt"

cuda=
for folder in "${CUDA_HOME:-}/include" /usr/local/cuda/include /usr/include; do
    [ -n "$cuda" ] || [ ! -e "$folder/cuda_runtime.h" ] || cuda=$folder
done

# compare NAME HEADER_FOLDER
compare() {
    local output
    if [ -z "$cuda" ]; then
        report 77 "$1" "no cuda_runtime.h, which nccl.h includes"
    elif ! output=$("$cc" "${flags[@]}" -isystem "$2" -isystem "$cuda" tests/fixtures/nccl_abi.c \
        -o "$out/real" 2>&1); then
        report 1 "$1" "$output"
    else
        "$out/real" | sort >"$out/real.txt"
        output=$(comm -13 "$out/own.txt" "$out/real.txt")
        [ -s "$out/real.txt" ] || output="the header says nothing"
        report "$([ -z "$output" ] && echo 0 || echo 1)" "$1" "nccl.h says: $output"
    fi
}

seen=
for folder in "${NCCL_HOME:-}/include" "$cuda" /usr/local/include /usr/include; do
    header=$(realpath -q "$folder/nccl.h")
    if [ -e "$header" ] && [[ " $seen " != *" $header "* ]]; then
        seen="$seen $header"
        compare "installed nccl.h, $(sed -n 's/^#define NCCL_VERSION_CODE //p' "$header")" "$folder"
    fi
done
[ -n "$seen" ] || report 77 "installed nccl.h" "none in NCCL_HOME, CUDA_HOME or the system"

for wheel in "nvidia-nccl-cu12 2.19.3" "nvidia-nccl-cu13 newest" ${NCCL_WHEEL:+"$NCCL_WHEEL"}; do
    read -r package version <<<"$wheel"
    if [ "$wheel" = "${NCCL_WHEEL:-}" ] || [ -d "$cache/$package-$version" ] || [ "${LLANE_TEST_WHEELS:-0}" = 1 ] || [ -n "${CI:-}" ]; then
        found=$(LLANE_WHEEL_SECONDS=50 tests/fixtures/nccl_wheel.sh "$package" "$version" "$cache")
        status=$?
        if [ $status -eq 0 ]; then
            compare "wheel $wheel" "$found/include"
        else
            report $status "wheel $wheel" "$found"
        fi
    else
        report 77 "wheel $wheel" "not fetched; LLANE_TEST_WHEELS=1 does"
    fi
done
echo "1..$n"
