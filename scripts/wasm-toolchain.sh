#!/usr/bin/env bash
# Makes sure that the guest image can be built for wasm32-unknown-unknown. Does nothing where it already can; asks rustup otherwise;
# and where rustup cannot help (not installed, or its server is out of reach) unpacks Debian's web toolchain into
# target/wasm-toolchain, without installing anything. Safe to run again. `--unpack` goes straight to the last step.
set -euo pipefail
cd "$(dirname "$0")/.."

target=wasm32-unknown-unknown
place=target/wasm-toolchain
say() { echo "== $*"; }
die() { echo "wasm-toolchain: $*" >&2; exit 1; }

has_target() {
  local libraries
  libraries=$(rustc --print target-libdir --target $target 2>/dev/null) && compgen -G "$libraries/libcore-*" >/dev/null
}

unpack() {
  command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
    die "no way to get $target here; install it with your Rust (rustup target add $target), then run make again"
  local version llvm packages linker
  version=$(apt-cache policy rustc-web 2>/dev/null | sed -n 's/^  Candidate: //p')
  case "$version" in
    ''|'(none)') die "rustup cannot add $target, and this system has no package rustc-web (try: apt-get update)" ;;
  esac
  [ "$(printf '%s\n' 1.95 "$version" | sort -V | head -n1)" = 1.95 ] ||
    die "rustup cannot add $target, and rustc-web here is $version; 1.95 or newer is needed (Debian has it in its security updates)"
  # The linker of the same LLVM, so that its libraries are needed only once.
  llvm=$(apt-cache depends --recurse --no-recommends --no-suggests rustc-web | sed -n 's/^libllvm\([0-9]*\)$/\1/p' | head -n1)
  [ -n "$llvm" ] || die "cannot tell which LLVM rustc-web $version uses"
  # What is wanted, and of their dependencies those that this system lacks.
  packages=$( { apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances rustc-web |
      grep -E '^(rustc-web|libstd-rust-web-|libllvm)' ; echo rust-web-src; echo "lld-$llvm";
      apt-get install --simulate --no-install-recommends rustc-web rust-web-src "lld-$llvm" 2>/dev/null | awk '/^Inst /{print $2}'; } | sort -u)
  say "unpacking Debian's Rust $version for $target into $place (about 150 MB to fetch; nothing is installed)"
  rm -rf "$place"
  mkdir -p "$place/packages"
  (cd "$place/packages" && apt-get download -qq $packages 2> >(grep -v 'unsandboxed as root' >&2)) || die "the packages cannot be fetched"
  for package in "$place"/packages/*.deb; do dpkg -x "$package" "$place"; done
  rm -rf "$place/packages"
  linker=usr/bin/wasm-ld-$llvm
  [ -x "$place/$linker" ] && [ -x "$place/usr/bin/rustc" ] || die "the packages do not hold what they should"
  LD_LIBRARY_PATH=$place/usr/lib/x86_64-linux-gnu "$place/usr/bin/rustc" --version >/dev/null || die "the unpacked compiler does not run here"
  # Of the sources only the library is compiled.
  find "$place"/usr/src/rustc-*/ -mindepth 1 -maxdepth 1 ! -name library -exec rm -rf {} +
  # The build script of crates/sandbox looks for this file.
  echo "$linker" >"$place/ready"
}

if [ "${1-}" = --unpack ]; then
  unpack
elif [ -e "$place/ready" ] || has_target; then
  exit 0
elif command -v rustup >/dev/null && say "adding $target to this Rust toolchain (rustup)" && timeout 180 rustup --quiet target add $target && has_target; then
  exit 0
else
  unpack
fi
