#!/bin/bash
# Checks the sources without running them: formatting, the rules of the layers, clang-tidy.
#
#   lint.sh [format|layers|tidy]...       default: all three
set -euo pipefail
cd "$(dirname "$0")/.."

build=${BUILD:-build}
# Other versions of clang-format break lines in other places.
format_version=14

sources() { find src test \( -name '*.cpp' -o -name '*.hpp' \) -print0; }

lint_format() {
    local program=clang-format-$format_version
    command -v "$program" >/dev/null || program=clang-format
    if ! "$program" --version | grep -q "version $format_version\."; then
        echo "lint: formatting is not checked: that takes clang-format $format_version"
        return 0
    fi
    sources | xargs -0 "$program" --dry-run -Werror
    echo "lint: formatting is right"
}

lint_layers() { scripts/check-layers.pl; }

lint_tidy() {
    cmake -S . -B "$build/lint" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER=clang++ >/dev/null
    find src -name '*.cpp' -print0 |
        xargs -0 -n 1 -P "$(nproc)" clang-tidy -p "$build/lint" --quiet --warnings-as-errors='*'
    echo "lint: clang-tidy is content"
}

[ $# -gt 0 ] || set -- format layers tidy
for check in "$@"; do
    case $check in
    format | layers | tidy) "lint_$check" ;;
    *)
        echo "usage: $0 [format|layers|tidy]..." >&2
        exit 2
        ;;
    esac
done
