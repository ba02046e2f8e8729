#!/usr/bin/env bash
# Installs the parts that README.md beside this file describes into .cache/interop/, each from its lock file.
#
# A part is installed again only if its lock file has changed. A part that cannot be installed is reported in one line
# that says what to do, and does not keep the others from being installed. The script runs on the bash 3.2 of macOS.
set -euo pipefail
cd "$(dirname "$0")/../../.."

PARTS=tests/interop/parts
# The real path, because programs of a virtual environment contain it: .cache may be a link out of a clone.
mkdir -p .cache
CACHE=$(cd .cache && pwd -P)/interop
NODE_AT_LEAST=22.19
# The parts of the tests that run by day, in the order in which they are needed. `system` installs all missing Debian
# packages at once.
BY_DAY="system schemas store nginx faketime node git deploy mcp1 mcp2 npm inspector inspector1 chromium kubernetes conformance oidc valgrind dist"

usage() {
    cat <<USAGE
usage: install.sh [PART...]
       install.sh apt PACKAGE...    install Debian packages as root

parts by day, the default: $BY_DAY
other parts: agents, servers (for the night), zig (for ./dev dist), contextforge (for ./dev bench)
USAGE
}

main() {
    case ${1:-} in
        -h | --help | help) usage; return ;;
        apt) shift; apt_install "$@"; return ;;
    esac
    local name failed=
    for name in ${@:-$BY_DAY}; do
        case " $BY_DAY agents servers zig contextforge " in
            *" $name "*) ;;
            *) usage >&2; fail "there is no part '$name'" ;;
        esac
    done
    mkdir -p "$CACHE/bin"
    for name in ${@:-$BY_DAY}; do
        # In a process of its own, so that a failure ends this part only.
        (part_"$name") || failed="$failed $name"
    done
    [ -z "$failed" ] || fail "not installed:$failed"
}

# Prints an error with a remedy in one line, and exits.
fail() { printf 'dev: %s\n' "$*" >&2; exit 1; }
say() { printf 'dev: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# === Parts ===

# The schemas for the checks of messages in tests/it: .cache/interop/schemas/REVISION.json. Their crate needs a newer
# Rust version, so it is unpacked and not compiled.
part_schemas() {
    local from=$PARTS/schemas into=$CACHE/schemas crates=$CACHE/schemas/crates revision
    cmp -s "$from/Cargo.lock" "$into/made-from" && return
    have cargo || PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    say "part schemas: cargo vendor"
    rm -rf "$into"
    mkdir -p "$into"
    cargo vendor --quiet --locked --manifest-path "$from/Cargo.toml" "$crates" </dev/null >/dev/null ||
        fail "part schemas: cargo vendor of $from/Cargo.lock failed (see above): check that cargo can reach its registry, then run ./dev again"
    for revision in 2024-11-05 2025-03-26 2025-06-18 2025-11-25 2026-07-28; do
        cp "$crates/protocol-droid-schema/spec/$revision/schema.json" "$into/$revision.json" ||
            fail "part schemas: the crate of $from/Cargo.toml has no schema of $revision: pin a version that has one"
    done
    rm -rf "$crates"
    cp "$from/Cargo.lock" "$into/made-from"
}

# A link to a recent Node.js, .cache/interop/bin/node: the one of the machine, otherwise one from npm.
part_node() {
    recent_node "$CACHE/bin/node" && return
    local node
    node=$(command -v node || true)
    if [ -z "$node" ] || ! recent_node "$node"; then
        need_npm
        npm_ci node "$PARTS/node" .
        node=
        local candidate
        for candidate in "$CACHE"/node/node_modules/node-*/bin/node; do
            # Node.js 26 needs libatomic, which a minimal Debian does not have.
            [ ! -x "$candidate" ] || "$candidate" --version >/dev/null 2>&1 || apt_install libatomic1 || true
            if recent_node "$candidate"; then node=$candidate; fi
        done
        [ -n "$node" ] || fail "part node: npm has no Node.js that runs on this machine ($(uname -sm)): install libatomic or Node.js $NODE_AT_LEAST or later, then run ./dev again"
    else
        # The shim of a version manager selects a version by folder, so link the binary itself.
        node=$("$node" -p process.execPath)
    fi
    ln -sf "$node" "$CACHE/bin/node"
}

part_npm() { npm_part npm "$PARTS" @modelcontextprotocol/server-everything; }
part_inspector() { npm_part inspector "$PARTS/inspector" @modelcontextprotocol/inspector; }
part_inspector1() { npm_part inspector1 "$PARTS/inspector1" @modelcontextprotocol/inspector-client; }
part_kubernetes() { npm_part kubernetes "$PARTS/kubernetes" mcp-server-kubernetes; }
part_conformance() { npm_part conformance "$PARTS/conformance" @modelcontextprotocol/conformance; }
part_oidc() { npm_part oidc "$PARTS/oidc" oidc-provider; }
part_agents() { npm_part agents "$PARTS/agents" @openai/codex; }

# Real servers: .cache/interop/servers and servers_python. What is optional for a package is not needed to list and call.
part_servers() {
    NPM_CONFIG_OMIT=optional npm_part servers "$PARTS/servers" nx-mcp
    venv servers_python
}

part_mcp1() { venv mcp1; }
part_mcp2() { venv mcp2; }
part_contextforge() { venv contextforge; }

# The programs that read the files of deploy/, and the servers beside Weir, for tests/deploy on Linux.
part_deploy() {
    if [ "$(uname -s)" != Linux ]; then
        say "not Linux: the tests of deploy/ run without nginx, Caddy, systemd and Compose"
        return
    fi
    venv deploy
    link_program systemd-analyze systemd
    link_program docker-compose docker-compose
    link_program openssl openssl
    have curl || apt_install curl || fail "part deploy: curl is missing: install it, then run ./dev again"
    link_unpacked tinyproxy tinyproxy-bin
}

# What `./dev dist` runs, and what installs its packages, for tests/dist on Linux.
part_dist() {
    [ "$(uname -s)" = Linux ] || return 0
    need_npm
    venv dist
    local program
    for program in buildah minisign mmdebstrap; do
        have "$program" || apt_install "$program" ||
            fail "part dist: $program is missing, which ./dev dist starts: install it, then run ./dev again"
    done
    local root=$CACHE/debian/root.tar
    [ ! -e "$root" ] || return 0
    say "part dist: a root of Debian"
    mkdir -p "$CACHE/debian"
    # From the sources that this machine installs from.
    mmdebstrap --quiet --variant=required --format=tar '' "$root.new" \
        $(find /etc/apt/sources.list /etc/apt/sources.list.d -name '*.list' -size +0 -o -name '*.sources' 2>/dev/null) >&2 ||
        fail "part dist: mmdebstrap could not make a root of Debian (see above): check that apt-get update works, then run ./dev again"
    mv "$root.new" "$root"
}

# zig's C compiler, which builds static programs for both architectures.
part_zig() { venv zig; }

part_nginx() { [ "$(uname -s)" != Linux ] || link_unpacked nginx nginx; }

# The store that tests/fleet start: .cache/interop/bin/redis-server. Debian's redis-server is a link to redis-check-rdb
# of redis-tools, which installs no service.
part_store() {
    find_store || { apt_install redis-tools && find_store; } ||
        fail "part store: no Valkey or Redis, which the tests of several replicas start: install redis-server, then run ./dev again"
    ln -sf "$found" "$CACHE/bin/redis-server"
}

# The browser whose pages call Weir: .cache/interop/bin/chromium.
part_chromium() {
    [ "$(uname -s)" = Linux ] || return 0
    find_chromium || { apt_install chromium && find_chromium; } ||
        fail "part chromium: no Chromium, whose pages call Weir in tests: install chromium, then run ./dev again"
    ln -sf "$found" "$CACHE/bin/chromium"
}

# The library that changes the clock of a program in tests/faults: .cache/interop/faketime/libfaketimeMT.so.1.
part_faketime() {
    [ "$(uname -s)" = Linux ] || return 0
    local into=$CACHE/faketime library=libfaketimeMT.so.1
    [ ! -e "$into/$library" ] || return 0
    find_library() { find /usr/lib /usr/lib64 /usr/local/lib "$CACHE/libfaketime" -name "$library" 2>/dev/null | head -n 1; }
    [ -n "$(find_library)" ] || unpack faketime libfaketime "which changes the clock of a program"
    [ -n "$(find_library)" ] || fail "part faketime: Debian's libfaketime does not contain $library: install a version that does, then run ./dev again"
    mkdir -p "$into"
    ln -sf "$(find_library)" "$into/$library"
}

# valgrind for ./dev counts: a script that starts the machine's or an unpacked one. Debian's is a script that looks for
# the program beside itself, so that a link to it would find nothing.
part_valgrind() {
    [ "$(uname -sm)" = "Linux x86_64" ] || return 0
    local unpacked=$CACHE/valgrind/usr program
    if ! program=$(command -v valgrind); then
        program=$unpacked/bin/valgrind.bin
        [ -x "$program" ] || unpack valgrind valgrind "which counts instructions"
        program="env VALGRIND_LIB=$unpacked/libexec/valgrind $program"
    fi
    rm -f "$CACHE/bin/valgrind"
    printf '#!/bin/sh\nexec %s "$@"\n' "$program" >"$CACHE/bin/valgrind"
    chmod +x "$CACHE/bin/valgrind"
}

part_git() {
    have git || apt_install git || fail "part git: git is missing, which mcp-server-git needs: install git, then run ./dev again"
}

# Installs the Debian packages that other parts lack, with one update and one installation.
part_system() {
    have apt-get && [ "$(id -u)" = 0 ] || return 0
    local missing= program
    add() { missing="$missing $*"; }
    find_store || add redis-tools
    have git || add git
    recent_node "$CACHE/bin/node" || have npm || add nodejs npm
    find_python || add python3 python3-venv
    if [ "$(uname -s)" = Linux ]; then
        find_program systemd-analyze >/dev/null || add systemd
        find_program docker-compose >/dev/null || add docker-compose
        find_program openssl >/dev/null || add openssl
        find_chromium || add chromium
        have curl || add curl
        for program in buildah minisign mmdebstrap; do have "$program" || add "$program"; done
    fi
    # Each part reports what it still lacks.
    [ -z "$missing" ] || apt_install $missing || say "not all of$missing could be installed (see above)"
}

# === Ways to install ===

# Installs Debian packages as root; returns false if that is impossible. Another process may have the package manager's
# locks, as on a machine in its first minutes.
apt_install() {
    have apt-get && [ "$(id -u)" = 0 ] || return 1
    say "installing $*"
    apt_update
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -qq -y --no-install-recommends "$@" \
        </dev/null >&2
}

# Updates the package lists once an hour. Its lock has no time-out of apt's own. Without an update the present lists may
# do, so that a failure is only printed.
apt_update() {
    [ "$(id -u)" = 0 ] || return 0
    local stamp=$CACHE/updated output attempt
    mkdir -p "$CACHE"
    [ -z "$(find "$stamp" -mmin -60 2>/dev/null)" ] || return 0
    for attempt in $(seq 300); do
        if output=$(LC_ALL=C apt-get update -qq 2>&1 </dev/null); then
            touch "$stamp"
            return
        fi
        case $output in
            *'Could not get lock'* | *'Unable to lock'*) [ "$attempt" != 1 ] || say "waiting for the package manager's lock" ;;
            *) break ;;
        esac
        sleep 2
    done
    printf '%s\n' "$output" >&2
}

# Unpacks Debian's package $2 into .cache/interop/$2 for part $1, without installing it; $3 describes its purpose.
unpack() {
    local into=$CACHE/$2
    have apt-get || fail "part $1: $2 is missing, $3: install it, then run ./dev again"
    say "part $1: unpacking $2"
    rm -rf "$into"
    mkdir -p "$into"
    apt_update
    (cd "$into" && apt-get download -qq "$2" 2>/dev/null && dpkg-deb -x ./*.deb . && rm -f ./*.deb) </dev/null >&2 ||
        fail "part $1: apt-get download $2 failed: run apt-get update as root or install $2, then run ./dev again"
}

# Prints the path of a program, also from the sbin folders, which are often not in PATH.
find_program() { PATH=$PATH:/usr/sbin:/sbin command -v "$1"; }

# Sets `found` to the path of a Valkey or Redis server.
find_store() {
    local program
    for program in valkey-server redis-server redis-check-rdb; do
        if found=$(find_program "$program"); then return; fi
    done
    return 1
}

# Sets `found` to the path of a browser.
find_chromium() {
    local program
    for program in chromium chromium-browser google-chrome; do
        if found=$(find_program "$program"); then return; fi
    done
    return 1
}

# Links program $1 in .cache/interop/bin, and installs Debian's package $2 if it is missing.
link_program() {
    find_program "$1" >/dev/null || apt_install "$2" ||
        fail "part deploy: $1 is missing, which reads files of deploy/: install it, then run ./dev again"
    ln -sf "$(find_program "$1")" "$CACHE/bin/$1"
}

# Links server $1 of Debian's package $2 in .cache/interop/bin. The package is only unpacked, because its installation
# would start the server.
link_unpacked() {
    local program=$1 package=$2 found
    if found=$(find_program "$program"); then
        ln -sf "$found" "$CACHE/bin/$program"
        return
    fi
    find_unpacked() { find "$CACHE/$package" -type f -path "*bin/$program" 2>/dev/null || true; }
    [ -n "$(find_unpacked)" ] || unpack "$program" "$package" "which the tests start"
    ln -sf "$(find_unpacked)" "$CACHE/bin/$program"
}

# Returns whether folder $1 was made from the lock file $2 and contains program $3.
made_from() { cmp -s "$2" "$1/made-from" && [ -x "$3" ]; }

recent_node() {
    [ -n "${1:-}" ] && "$1" -e '
        const [is, least] = [process.versions.node, process.argv[1]].map(v => v.split(".").map(Number));
        process.exit(is[0] > least[0] || (is[0] === least[0] && is[1] >= least[1]) ? 0 : 1);
    ' "$NODE_AT_LEAST" >/dev/null 2>&1
}

need_npm() {
    have npm || apt_install nodejs npm ||
        fail "part npm: npm is missing, which installs the Node.js servers and clients: install Node.js $NODE_AT_LEAST or later, then run ./dev again"
}

# Installs part $1 from the lock file of folder $2, and checks that it contains package $3.
npm_part() {
    local part=$1 from=$2 proof=node_modules/$3/package.json
    made_from "$CACHE/$part" "$from/package-lock.json" "$CACHE/bin/node" && [ -f "$CACHE/$part/$proof" ] && return
    need_npm
    npm_ci "$part" "$from" "$proof"
}

# Installs the lock file of folder $2 as part $1, and checks that file $3 exists.
npm_ci() {
    local part=$1 from=$2 proof=$3 into=$CACHE/$1
    say "part $part: npm ci"
    rm -rf "$into"
    mkdir -p "$into"
    cp "$from/package.json" "$from/package-lock.json" "$PARTS/.npmrc" "$into/"
    (cd "$into" && npm ci --loglevel=error </dev/null >&2) && [ -e "$into/$proof" ] ||
        fail "part $part: npm ci of $from/package-lock.json failed (see above): check that npm can reach its registry, then run ./dev again"
    cp "$from/package-lock.json" "$into/made-from"
}

# Sets `python` to a Python that can create virtual environments.
find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
            python=$candidate
            return
        fi
    done
    return 1
}

# Creates a virtual environment from its lock file with hashes; it uses wheels only, so that nothing is compiled.
venv() {
    # Without --no-deps, pip resolves a dependency with an extra anew, and fails once a newer version of it is released
    # than the one that the lock file names.
    local part=$1 lock=$PARTS/$1.lock into=$CACHE/$1
    # One that was moved has programs that name another place.
    made_from "$into" "$lock" "$into/bin/python" && [ "$(cat "$into/made-in" 2>/dev/null)" = "$into" ] && return
    find_python || { apt_install python3 python3-venv && find_python; } ||
        fail "part $part: no Python of 3.10 or later with venv: install python3 and python3-venv, then run ./dev again"
    say "part $part: pip install"
    { "$python" -m venv --clear "$into" &&
        "$into/bin/python" -m pip install --quiet --no-input --disable-pip-version-check \
            --no-deps --require-hashes --only-binary=:all: -r "$lock"; } </dev/null >&2 ||
        fail "part $part: pip install of $lock failed (see above): check that pip can reach its index, then run ./dev again"
    printf '%s\n' "$into" >"$into/made-in"
    cp "$lock" "$into/made-from"
}

main "$@"
