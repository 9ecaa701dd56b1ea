#!/usr/bin/env bash
# Makes sure that mdbook is there and prints the path of its program. It is built from source, which
# takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=0.5.4
home=target/tools/mdbook
program=$home/bin/mdbook

if [[ "$("$program" --version 2>/dev/null)" != "mdbook v$VERSION" ]]; then
  echo "== installing mdbook $VERSION into $home (some minutes)" >&2
  "${CARGO:-cargo}" install --locked --debug --no-default-features --features search --version "$VERSION" --root "$home" mdbook >&2
fi
readlink -f "$program"
