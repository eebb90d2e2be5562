#!/bin/sh
# Makes a private copy of a PostgreSQL installation, for tests that must not install into the system's.
#
#   stage-postgres.sh DIR        the copy goes below DIR; prints the path of its pg_config
#
# PG_CONFIG names the original (default: the first in PATH). PostgreSQL finds its libraries and share files
# relative to its executables, so a copy with the same layout under another root is complete: `make install
# PG_CONFIG=<the printed path>` installs into it and nowhere else. Executables are real copies, because a
# server follows a symbolic link back to the original; all else is linked.
set -eu

root=$1
pg_config=${PG_CONFIG:-pg_config}
command -v "$pg_config" >/dev/null || {
    echo "$0: $pg_config not found; set PG_CONFIG" >&2
    exit 1
}

# With server headers of several versions around, each answer must come from the same program.
bindir=$("$pg_config" --bindir)
pkglibdir=$("$pg_config" --pkglibdir)
sharedir=$("$pg_config" --sharedir)
includedir=$("$pg_config" --includedir-server)
[ -x "$bindir/postgres" ] || {
    echo "$0: no PostgreSQL server in $bindir; set PG_CONFIG to the pg_config of an installed server" >&2
    exit 1
}

mkdir -p "$root$bindir" "$root$pkglibdir" "$root$sharedir" "$root$(dirname "$includedir")"
cp -RL "$bindir/." "$root$bindir/"
cp -Rs "$pkglibdir/." "$root$pkglibdir/"
cp -Rs "$sharedir/." "$root$sharedir/"
ln -s "$includedir" "$root$includedir"
# What the original has installed of this extension must not be what is tested.
rm -f "$root$pkglibdir"/outbox_drainer* "$root$sharedir"/extension/outbox_drainer*

staged=$root$bindir/pg_config
[ "$("$staged" --sharedir)" = "$root$sharedir" ] || {
    echo "$0: $pg_config is not relocatable: its copy still names $("$staged" --sharedir)" >&2
    exit 1
}
echo "$staged"
