#!/bin/bash
# Installs what is missing for building, for the demo or for the tests, by apt-get; does nothing when all is
# there. Asks for root only when something must be installed.
#
#   install-packages.sh build|demo|bench|check|check-long
#
# Packages are looked for by what they bring (a program, a header, a module), so a compiler or a PostgreSQL
# that came in another way counts. PG_CONFIG names the PostgreSQL to use, if it is not the system's.
#
# Debian's postgresql and rabbitmq-server packages start a database cluster and a broker when they are
# installed. Nobody asked for those, so where this script is the one that installs these packages,
#  - nothing is started meanwhile: a policy-rc.d that forbids it, unless the machine has one of its own;
#  - no "main" cluster is made: create_main_cluster is off for as long as the installation takes;
#  - the services of the broker and of its port mapper are disabled, so they do not start at the next boot either.
# Services that are already there are not touched.
set -euo pipefail

purpose=${1:-build}
pg_config=${PG_CONFIG:-pg_config}
default_version=15

policy=/usr/sbin/policy-rc.d
cluster_conf=/etc/postgresql-common/createcluster.conf

say() { echo "install-packages: $*" >&2; }

have() { command -v "$1" >/dev/null 2>&1; }
have_file() { [ -e "$1" ]; }
have_header() { have g++ && echo "#include <$1>" | g++ -std=c++20 -x c++ -E - >/dev/null 2>&1; }
have_perl_module() { have perl && perl -M"$1" -e1 2>/dev/null; }
have_python_module() { [ -x /usr/bin/python3 ] && /usr/bin/python3 -c "import $1" 2>/dev/null; }
have_fuzzer() {
    have clang++ && echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }' |
        clang++ -fsanitize=fuzzer,address -x c++ -o /dev/null - 2>/dev/null
}
have_server_headers() { have "$pg_config" && have_file "$("$pg_config" --pgxs)"; }
have_server() { have "$pg_config" && have_file "$("$pg_config" --bindir)/postgres"; }

# The major version of PostgreSQL whose packages fit: that of the headers in use, else the system's own.
server_version() {
    if have_server_headers; then
        "$pg_config" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/'
    else
        local version
        version=$(apt-cache depends postgresql 2>/dev/null | sed -n 's/.*Depends: postgresql-\([0-9]\+\)$/\1/p')
        echo "${version:-$default_version}"
    fi
}

# The major version of clang, of the one that is there or else of the system's own.
clang_version() {
    if have clang++; then
        clang++ -dumpversion | sed 's/\..*//'
    else
        apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]\+\)$/\1/p'
    fi
}

# Prints the missing packages, one a line.
missing() {
    have make || echo make
    have g++ || echo g++
    have_header amqp.h || echo librabbitmq-dev
    # Names are resolved by c-ares, which never makes its caller wait; TLS is OpenSSL's.
    have_header ares.h || echo libc-ares-dev
    have_header openssl/ssl.h || echo libssl-dev
    have_server_headers || echo "postgresql-server-dev-$(server_version)"
    [ "$purpose" != build ] || return 0

    have_server || echo "postgresql-$(server_version)"
    PATH=$PATH:/usr/sbin:/usr/lib/rabbitmq/bin have rabbitmq-server || echo rabbitmq-server
    have_python_module pika || echo python3-pika
    # PostgreSQL's Perl test modules, which the demo uses too, need both.
    have prove || echo perl
    have_perl_module IPC::Run || echo libipc-run-perl
    [ "$purpose" != demo ] || return 0
    if [ "$purpose" = bench ]; then
        have_header postgresql/libpq-fe.h || echo libpq-dev
        have gnuplot || echo gnuplot-nox
        have_perl_module Path::Tiny || echo libpath-tiny-perl
        return 0
    fi

    # The tests of TLS make their certificates by it.
    have openssl || echo openssl
    have cmake || echo cmake
    have_header gtest/gtest.h || echo libgtest-dev
    have_header gmock/gmock.h || echo libgmock-dev
    have clang++ || echo clang
    have clang-format || echo clang-format
    [ "$purpose" = check-long ] || return 0

    have_fuzzer || echo "libclang-rt-$(clang_version)-dev"
}

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

as_root=()
need_root() {
    [ "$(id -u)" != 0 ] || return 0
    if have sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        say "root is needed for that; asking sudo"
        as_root=(sudo)
    else
        say "root is needed for that. As root, run: apt-get install ${packages[*]}"
        exit 1
    fi
}
root() { "${as_root[@]}" "$@"; }

apt_log=
made_policy=no
saved_conf=
restore() {
    [ -z "$apt_log" ] || rm -f "$apt_log"
    [ "$made_policy" = no ] || root rm -f "$policy"
    made_policy=no
    [ -z "$saved_conf" ] || root mv -f "$saved_conf" "$cluster_conf"
    saved_conf=
}

# Shows what apt-get says only if it fails.
apt_get() {
    root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" </dev/null >"$apt_log" 2>&1 || {
        cat "$apt_log" >&2
        say "apt-get $* failed"
        exit 1
    }
}
apt_install() { apt_get install -y --no-install-recommends "$@"; }

forbid_services() {
    [ ! -e "$policy" ] || return 0
    made_policy=yes
    printf '#!/bin/sh\nexit 101\n' | root tee "$policy" >/dev/null
    root chmod 755 "$policy"
}

forbid_main_cluster() {
    # The setting belongs to postgresql-common, so that comes first.
    is_installed postgresql-common || apt_install postgresql-common
    saved_conf=$cluster_conf.outbox-saved
    root cp -p "$cluster_conf" "$saved_conf"
    echo 'create_main_cluster = false' | root tee -a "$cluster_conf" >/dev/null
}

# Where there is no systemctl, there is no systemd to start them.
disable_services() {
    ! have systemctl || root systemctl --quiet disable "$@" 2>/dev/null ||
        say "could not disable $*; it will start at the next boot"
}

mapfile -t packages < <(missing)
[ ${#packages[@]} -gt 0 ] || exit 0

say "missing: ${packages[*]}"
if ! have apt-get; then
    say "there is no apt-get here; please install what these Debian packages bring"
    exit 1
fi
need_root
apt_log=$(mktemp)
trap restore EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say "fetching the package lists"
apt_get update
# With fresh lists the system's PostgreSQL version is known, which it may not have been before.
mapfile -t packages < <(missing)

new_broker=no
is_installed rabbitmq-server || [[ " ${packages[*]} " != *" rabbitmq-server "* ]] || new_broker=yes
# Erlang's port mapper comes with the broker.
new_epmd=no
is_installed erlang-base || new_epmd=$new_broker

forbid_services
if [[ " ${packages[*]} " == *" postgresql-"[0-9]* ]]; then
    forbid_main_cluster
fi
say "installing: ${packages[*]}"
apt_install "${packages[@]}"

[ "$new_epmd" = no ] || disable_services epmd.service epmd.socket
if [ "$new_broker" = yes ]; then
    disable_services rabbitmq-server.service
    say "the service rabbitmq-server is disabled; to have it: systemctl enable --now rabbitmq-server"
fi

mapfile -t packages < <(missing)
if [ ${#packages[@]} -gt 0 ]; then
    say "still missing after the installation: ${packages[*]}"
    exit 1
fi
