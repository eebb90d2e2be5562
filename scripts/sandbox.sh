#!/bin/bash
# Runs a command where it can start servers and change nothing: in a copy of the source tree, with a private
# copy of PostgreSQL, in a temporary directory, as an ordinary user. What is left running or lying there
# afterwards is ended and removed; the system's services and directories are never touched.
#
#   sandbox.sh [--install] [--results DIRECTORY] COMMAND [ARGUMENT...]
#
# --install builds the extension first and installs it into the private PostgreSQL.
# --results copies what the command has left in $OUTBOX_SANDBOX/results into this directory at the end.
#
# The command starts in the copied tree and finds in its environment:
#   PATH, PG_CONFIG   the private PostgreSQL's programs
#   PERL5LIB          PostgreSQL's test modules and ours
#   PG_REGRESS        PostgreSQL's pg_regress
#   TMPDIR, HOME      directories inside the sandbox, with names short enough for sockets
#   OUTBOX_SANDBOX    the sandbox itself
# OUTBOX_KEEP=1 keeps the sandbox's files for a look at them.
set -euo pipefail

install=no
results=
while [[ "${1:-}" == --* ]]; do
    case $1 in
    --install) install=yes ;;
    --results)
        results=$(cd "$2" && pwd)
        shift
        ;;
    esac
    shift
done
[ $# -gt 0 ] || {
    echo "usage: $0 [--install] [--results DIRECTORY] COMMAND [ARGUMENT...]" >&2
    exit 2
}

tree=$(cd "$(dirname "$0")/.." && pwd)
# A socket's path may have 107 bytes, so a deep TMPDIR is no place for servers.
base=${TMPDIR:-/tmp}
[ ${#base} -le 30 ] || base=/tmp
box=$(mktemp -d "$base/outbox.XXXXXX")

# The processes that the sandbox's command has left behind: those that inherited its mark in the environment,
# and those that run the private PostgreSQL (a server writes its title over its environment).
sandbox_processes() {
    local process
    for process in /proc/[0-9]*; do
        if [[ "$(readlink "$process/exe" 2>/dev/null)" == "$box"/* ]] ||
            grep -qzxF "OUTBOX_SANDBOX=$box" "$process/environ" 2>/dev/null; then
            echo "${process#/proc/}"
        fi
    done
}

end_processes() {
    local signal pids round
    for signal in TERM KILL; do
        for round in 1 2 3 4 5 6 7 8 9 10; do
            pids=$(sandbox_processes)
            [ -n "$pids" ] || return 0
            # A stopped process sees SIGTERM only when it goes on. Some may have ended meanwhile.
            # shellcheck disable=SC2086
            [ "$round" != 1 ] || kill -s "$signal" $pids 2>/dev/null || true
            # shellcheck disable=SC2086
            [ "$round" != 1 ] || kill -s CONT $pids 2>/dev/null || true
            sleep 0.3
        done
    done
}

cleanup() {
    local status=$?
    trap '' INT TERM HUP
    cd /
    end_processes
    if [ -n "$results" ] && [ -d "$box/results" ]; then
        cp -R "$box/results/." "$results/"
    fi
    if [ "${OUTBOX_KEEP:-}" = 1 ]; then
        echo "kept: $box" >&2
    else
        rm -rf "$box"
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# PostgreSQL refuses to run as root.
as_user=()
if [ "$(id -u)" = 0 ]; then
    user=nobody
    ! id postgres >/dev/null 2>&1 || user=postgres
    as_user=(setpriv "--reuid=$(id -u "$user")" "--regid=$(id -g "$user")" --clear-groups --)
fi

mkdir "$box/tree" "$box/tmp" "$box/home"
(cd "$tree" && tar -c --exclude=./.git --exclude=./build --exclude=./outbox_drainer.so .) | tar -x -C "$box/tree"
staged=$("$tree/scripts/stage-postgres.sh" "$box/pg")
if [ ${#as_user[@]} -gt 0 ]; then
    chown -R -h "$user" "$box"
fi

# Variables of the caller that would lead the command elsewhere: to another server, into make's own channels.
unset "${!PG@}" MAKEFLAGS MAKELEVEL MFLAGS
PG_CONFIG=$staged
test_modules=$(dirname "$(dirname "$("$staged" --pgxs)")")/test
PG_REGRESS=$test_modules/regress/pg_regress
PERL5LIB=$test_modules/perl:$box/tree/test/perl${PERL5LIB:+:$PERL5LIB}
PATH=$(dirname "$staged"):$PATH:/usr/sbin:/sbin
export PG_CONFIG PG_REGRESS PERL5LIB PATH
export TMPDIR=$box/tmp HOME=$box/home OUTBOX_SANDBOX=$box LC_ALL=C.UTF-8

cd "$box/tree"
if [ "$install" = yes ]; then
    if ! "${as_user[@]}" make -j"$(nproc)" install >"$box/build.log" 2>&1; then
        cat "$box/build.log" >&2
        exit 1
    fi
fi
# In the background, because a shell that waits for a command in the foreground does not hear signals.
"${as_user[@]}" "$@" <&0 &
wait $!
