#!/usr/bin/env bash
# Makes sure that typos is there and prints the path of its program. Its authors publish it as a
# Python package with the program in it; without pip, it is built from source, which takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=1.52.0
home=target/tools/typos
program=$home/bin/typos

if [[ "$("$program" --version 2>/dev/null)" != "typos-cli $VERSION" ]]; then
  echo "== installing typos $VERSION into $home" >&2
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --upgrade --target "$home" "typos==$VERSION" >&2 ||
    "${CARGO:-cargo}" install --locked --debug --version "$VERSION" --root "$home" typos-cli >&2
fi
readlink -f "$program"
