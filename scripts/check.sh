#!/bin/bash
# Runs the tests and ends with the line "N passed, N failed"; exit code 0 only if nothing failed. Made to run
# inside the sandbox:
#
#   scripts/sandbox.sh scripts/check.sh                        everything
#   scripts/sandbox.sh scripts/check.sh unit regress           some steps
#   scripts/sandbox.sh scripts/check.sh test/t/010_name.pl     one TAP file (sql/x.sql and *.spec work too)
#
# Steps: build clang layers format sanitize regress isolation tap, and with OUTBOX_TEST_LONG unit and fuzz. The unit
# tests are the same with the sanitizers and without.
#
# What counts as one: each compilation and text check, each GoogleTest case, each pg_regress file, each
# isolation spec, each assertion of a TAP file, each fuzz target. A step that ends badly without naming a failed
# test counts as one failed.
#
# OUTBOX_TEST_LONG=1     tests run their long variants
# OUTBOX_TAP_JOBS=n      n TAP files at once (default: as many as there are cores)
# OUTBOX_FUZZ_SECONDS=n  how long each target is fuzzed (default: 60)
set -uo pipefail

: "${OUTBOX_SANDBOX:?run this by scripts/sandbox.sh (or make check)}"
logs=$OUTBOX_SANDBOX/logs
mkdir -p "$logs"
jobs=$(nproc)
file_timeout=900
[ -z "${OUTBOX_TEST_LONG:-}" ] || file_timeout=7200

passed=0
failed=0
started=0

begin() {
    printf '%-34s' "$1"
    started=$SECONDS
}

# finish PASSED FAILED [LOG]: reports and counts a step; shows the end of the log if something failed.
finish() {
    passed=$((passed + $1))
    failed=$((failed + $2))
    printf '%6d passed %4d failed  %4d s\n' "$1" "$2" $((SECONDS - started))
    [ "$2" = 0 ] || [ -z "${3:-}" ] || show_end "$3"
}

show_end() {
    echo "---- end of $(basename "$1")"
    tail -n "${2:-60}" "$1"
    echo "----"
}

count() { grep -cE "$1" "$2" || true; }

# A step that is one test: its exit code.
simple_step() {
    local name=$1
    shift
    begin "$name"
    if "$@" >"$logs/$name.log" 2>&1; then
        finish 1 0
    else
        finish 0 1 "$logs/$name.log"
        return 1
    fi
}

install_library() { make -j"$jobs" WERROR=1 "$@" install install-test-module; }
names_inject_fault() { grep -qaF outbox_drainer.inject_fault outbox_drainer.so; }

# What users get, and what the TAP tests need: a library whose drainers can be made to fail. The first must have
# nothing of that, which is seen in the same way as that the second has it.
build_release() { install_library && ! names_inject_fault; }
build_inject() { install_library INJECT=1 && names_inject_fault; }
step_clang() { simple_step clang make -j"$jobs" WERROR=1 BUILD=build/clang CXX=clang++ objects; }
step_layers() { simple_step layers scripts/check-layers.pl; }
step_format() { simple_step format scripts/lint.sh format; }

# unit_step NAME CMAKE-OPTION...
unit_step() {
    local name=$1 log=$logs/$1.log rc=0 total bad
    shift
    begin "$name"
    {
        cmake -S . -B "build/$name" -DCMAKE_BUILD_TYPE=Debug -DOUTBOX_WERROR=ON "$@" &&
            cmake --build "build/$name" -j "$jobs"
    } >"$log" 2>&1 || {
        finish 0 1 "$log"
        return 1
    }
    ctest --test-dir "build/$name" --output-on-failure --no-tests=error -j "$jobs" >"$log" 2>&1 || rc=1
    bad=$(sed -n 's/.* \([0-9]*\) tests failed out of [0-9]*$/\1/p' "$log")
    total=$(sed -n 's/.* tests failed out of \([0-9]*\)$/\1/p' "$log")
    [ $rc = 0 ] || [ "${bad:-0}" != 0 ] || bad=1
    total=${total:-${bad:-0}}
    finish $((total - ${bad:-0})) "${bad:-0}" "$log"
    [ $rc = 0 ]
}

step_unit() { unit_step unit; }
step_sanitize() { unit_step sanitize -DOUTBOX_SANITIZE=ON; }

# Fuzzes one target, beginning with its corpus. What it adds stays in the sandbox (OUTBOX_KEEP=1 keeps that).
fuzz_target() {
    local subject=$1 found=$OUTBOX_SANDBOX/fuzz/$1 log=$logs/fuzz-$1.log
    begin "fuzz $subject"
    mkdir -p "$found/corpus"
    if "build/fuzz/${subject}_fuzz" -max_total_time="${OUTBOX_FUZZ_SECONDS:-60}" -timeout=20 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="$found/" "$found/corpus" "test/fuzz/corpus/$subject" >"$log" 2>&1; then
        finish 1 0
        grep -E '^Done [0-9]+ runs' "$log"
    else
        finish 0 1 "$log"
        return 1
    fi
}

step_fuzz() {
    local log=$logs/fuzz.log rc=0 source
    begin "fuzz (build)"
    if ! {
        cmake -S . -B build/fuzz -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ -DOUTBOX_FUZZ=ON &&
            cmake --build build/fuzz -j "$jobs"
    } >"$log" 2>&1; then
        finish 0 1 "$log"
        return 1
    fi
    finish 1 0
    for source in test/fuzz/*_fuzz.cpp; do
        fuzz_target "$(basename "$source" _fuzz.cpp)" || rc=1
    done
    return $rc
}

# The throwaway server of pg_regress: preloaded, no broker, so that drainers stand idle.
regress_config() {
    {
        echo "shared_preload_libraries = 'outbox_drainer'"
        echo "max_prepared_transactions = 10"
        echo "fsync = off"
    } >"$OUTBOX_SANDBOX/regress.conf"
    echo "$OUTBOX_SANDBOX/regress.conf"
}

# regress_step NAME PROGRAM INPUT-DIRECTORY DATABASE TEST...
regress_step() {
    local name=$1 program=$2 input=$3 database=$4 out=$OUTBOX_SANDBOX/$1 log=$logs/$1.log rc=0 good bad
    shift 4
    begin "$name"
    if [ $# = 0 ]; then
        echo "no tests found" >"$log"
        finish 0 1 "$log"
        return 1
    fi
    rm -rf "$out"
    mkdir -p "$out"
    "$program" --bindir="$(dirname "$PG_CONFIG")" --inputdir="$input" --outputdir="$out" \
        --temp-instance="$out/instance" --temp-config="$(regress_config)" --no-locale --encoding=UTF8 \
        --dbname="$database" "$@" >"$log" 2>&1 || rc=1
    # PostgreSQL 15 writes "test x ... ok 3 ms", later versions write TAP.
    good=$(count '\.\.\. ok |^ok [0-9]' "$log")
    bad=$(count '\.\.\. FAILED|^not ok [0-9]' "$log")
    [ $rc = 0 ] || [ "$bad" != 0 ] || bad=1
    finish "$good" "$bad" "$log"
    if [ $rc != 0 ]; then
        find "$out" -maxdepth 2 -name '*.diffs' | while read -r diffs; do show_end "$diffs" 150; done
        # A server that crashed says so here and nowhere else.
        grep -E 'PANIC|FATAL|terminated by signal' "$out/log/postmaster.log" 2>/dev/null | tail -n 20
    fi
    [ $rc = 0 ]
}

step_regress() {
    local tests=("$@")
    [ $# -gt 0 ] || mapfile -t tests < <(find sql -name '*.sql' -printf '%f\n' | sort)
    regress_step regress "$PG_REGRESS" . contrib_regression "${tests[@]%.sql}"
}

step_isolation() {
    local tests=("$@")
    [ $# -gt 0 ] || mapfile -t tests < <(find test/isolation/specs -name '*.spec' -printf '%f\n' | sort)
    regress_step isolation "$(dirname "$PG_REGRESS")/../isolation/pg_isolation_regress" test/isolation \
        isolation_regression "${tests[@]%.spec}"
}

# Runs one TAP file; writes its log and "passed failed seconds" for tap_report.
tap_file() {
    local file=$1 name begun=$SECONDS rc=0 good bad
    name=$(basename "$1" .pl)
    mkdir -p "$OUTBOX_SANDBOX/tap/$name"
    # PostgreSQL 15 reads TESTDIR, later versions the other two.
    TESTDIR=$OUTBOX_SANDBOX/tap/$name TESTDATADIR=$OUTBOX_SANDBOX/tap/$name/tmp_check \
        TESTLOGDIR=$OUTBOX_SANDBOX/tap/$name/tmp_check/log \
        timeout --foreground -k 20 "$file_timeout" perl "$file" >"$logs/tap-$name.log" 2>&1 || rc=$?
    [ $rc != 124 ] || echo "# ended after $file_timeout s: timeout" >>"$logs/tap-$name.log"
    good=$(count '^ok [0-9]|^not ok [0-9].*# TODO' "$logs/tap-$name.log")
    bad=$(grep -E '^not ok [0-9]' "$logs/tap-$name.log" | grep -vc '# TODO')
    [ $rc = 0 ] || [ "$bad" != 0 ] || bad=1
    echo "$good $bad $((SECONDS - begun))" >"$logs/tap-$name.result"
}

tap_report() {
    local name good bad seconds log
    name=$(basename "$1" .pl)
    log=$logs/tap-$name.log
    read -r good bad seconds <"$logs/tap-$name.result"
    begin "$1"
    started=$((SECONDS - seconds))
    finish "$good" "$bad" "$log"
    grep -E '^(ok [0-9]+ |1\.\.0 ).*# (skip|SKIP)' "$log"
    [ "$bad" != 0 ] || return 0
    find "$OUTBOX_SANDBOX/tap/$name" -name '*.log' -size +0 ! -name '*_upgrade.log' | while read -r server_log; do
        show_end "$server_log" 40
    done
    return 1
}

step_tap() {
    local files=("$@") ok=0 file running=0
    [ $# -gt 0 ] || mapfile -t files < <(find test/t -name '*.pl' | sort)
    if [ ${#files[@]} = 0 ]; then
        begin tap
        finish 0 1
        return 1
    fi
    if [ "${OUTBOX_TAP_JOBS:-$jobs}" = 1 ]; then
        for file in "${files[@]}"; do
            tap_file "$file"
            tap_report "$file" || ok=1
        done
        return $ok
    fi
    for file in "${files[@]}"; do
        [ "$running" -lt "${OUTBOX_TAP_JOBS:-$jobs}" ] || wait -n
        tap_file "$file" &
        running=$((running + 1))
    done
    wait
    for file in "${files[@]}"; do
        tap_report "$file" || ok=1
    done
    return $ok
}

# Builds and installs the extension in a variant, release or inject, unless it is there.
installed=
ensure_built() {
    [ "$installed" != "$1" ] || return 0
    [ "$installed" != "no $1" ] || return 1
    installed=$1
    simple_step "build $1" "build_$1" || installed="no $1"
    [ "$installed" = "$1" ]
}

# A step that needs the extension in a variant; it fails without being run if that could not be built.
server_step() {
    local variant=$1 name=$2
    shift 2
    if ! ensure_built "$variant"; then
        begin "$name"
        finish 0 1
        echo "not run: the extension could not be built"
        return 1
    fi
    "step_$name" "$@"
}

run_step() {
    case $1 in
    build) ensure_built release ;;
    clang | layers | format | unit | sanitize | fuzz) "step_$1" ;;
    regress | isolation) server_step release "$1" ;;
    tap) server_step inject tap ;;
    sql/*.sql) server_step release regress "$(basename "$1")" ;;
    *.spec) server_step release isolation "$(basename "$1")" ;;
    *.pl) server_step inject tap "$1" ;;
    *)
        echo "unknown step: $1" >&2
        exit 2
        ;;
    esac
}

steps=("$@")
[ $# -gt 0 ] || steps=(build clang layers format sanitize regress isolation tap)
[ $# -gt 0 ] || [ -z "${OUTBOX_TEST_LONG:-}" ] || steps+=(unit fuzz)
for step in "${steps[@]}"; do
    run_step "$step"
done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
