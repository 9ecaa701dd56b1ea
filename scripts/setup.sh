#!/usr/bin/env bash
# Makes sure that everything the build needs is there. Installs Debian packages when it may (root, or sudo without a password),
# and otherwise says what to type. Safe to run again: it does nothing when nothing is missing.
#
# usage: scripts/setup.sh [checks | kubernetes]
#
# checks: also what tests and lints need. Among those are servers (etcd, Redis, Prometheus, a registry), which Debian starts where systemd runs.
# kubernetes: also what the Kubernetes cluster for tests needs.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "== $*"; }
die() { echo "setup: $*" >&2; exit 1; }

[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || die "Leno builds and runs on Linux on x86-64; this is $(uname -s) on $(uname -m)"
command -v cargo >/dev/null || die "no cargo on the PATH; install Rust 1.95 or newer (https://rustup.rs), then run make again"
version=$(rustc --version | cut -d' ' -f2)
[ "$(printf '%s\n' 1.95.0 "${version%%-*}" | sort -V | head -n1)" = 1.95.0 ] || die "Rust $version is too old; Leno needs 1.95 or newer (rustup update stable)"

# command -> Debian package
missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need cc build-essential
need make build-essential
need curl curl
need git git
# For the page of the dashboard.
need node nodejs
need npm npm
# For the kernel's part (eBPF): clang compiles it, and libbpf loads it.
need clang clang
need pkg-config pkg-config
[ -e /usr/include/libelf.h ] || missing+=(libelf-dev)
[ -e /usr/include/zlib.h ] || missing+=(zlib1g-dev)
# The etcd client is generated from etcd's own messages.
need protoc protobuf-compiler
if [ "${1:-}" = checks ]; then
  # What control planes share, in tests.
  need etcd etcd-server
  need etcdctl etcd-client
  # A database that tests talk to through the mesh.
  need redis-server redis-server
  # What loads the rules and dashboards, in tests.
  need prometheus prometheus
  need promtool prometheus
  # Example extensions, which tests build and run.
  need clang++ clang
  need wasm-ld lld
  [ -e /usr/include/wasm32-wasi/stdlib.h ] || missing+=(wasi-libc)
  compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/wasi/libclang_rt.builtins-wasm32.a' >/dev/null || missing+=(libclang-rt-dev-wasm32)
  # Tests of containers in jails.
  need busybox busybox-static
  # What the tests of images compare with.
  need docker-registry docker-registry
  need skopeo skopeo
  need umoci umoci
  # Tests of the page of the dashboard.
  need chromium chromium
  # `make lint` checks scripts with it.
  need shellcheck shellcheck
fi
if [ "${1:-}" = kubernetes ]; then
  need ip iproute2
  need iptables iptables
  need nft nftables
  need runc runc
  # For the tests.
  need faketime faketime
fi
if [ ${#missing[@]} -gt 0 ]; then
  mapfile -t packages < <(printf '%s\n' "${missing[@]}" | sort -u)
  if [ "$(id -u)" = 0 ]; then root=(); elif sudo -n true 2>/dev/null; then root=(sudo); else die "missing packages; type: sudo apt-get install ${packages[*]}"; fi
  say "installing ${packages[*]}"
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${packages[@]}" >/dev/null
fi

[ ! -x scripts/wasm-toolchain.sh ] || scripts/wasm-toolchain.sh
if [ "${1:-}" = checks ]; then
  command -v go >/dev/null || say "no go here: the SDK's binding for Go is not tested"
  python3 -c 'import ensurepip, venv' 2>/dev/null || say "no python3 with venv here: the Python component will not be built and its test is skipped"
fi
[ -e /dev/kvm ] || say "no /dev/kvm here: sidecars will run in the wasm engine (tests of the microvm engine need /dev/kvm and will fail)"
