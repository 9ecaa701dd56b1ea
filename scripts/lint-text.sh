#!/usr/bin/env bash
# Checks that take no build: scripts, spelling, links and prose. They take a few seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

if git grep -nE '^(<{7}|>{7}) '; then echo "lint-text: a conflict of a merge is left in these lines" >&2; exit 1; fi
git grep -lzE '^#!.*\b(ba)?sh$' | xargs -0 shellcheck --severity=warning
if command -v gofmt >/dev/null; then
  misformatted=$(git ls-files -z '*.go' | xargs -0 gofmt -l)
  [ -z "$misformatted" ] || { echo "lint-text: gofmt -w $misformatted" >&2; exit 1; }
fi
"$(scripts/typos.sh)"
scripts/links.py
scripts/crates.py
scripts/prose.py
