#!/usr/bin/env bash
# Checks the page of the dashboard: format, unit tests, and all views in Debian's Chromium.
#
# usage: scripts/test-ui.sh [--quick]
#
# --quick: without the views of real meshes and without screenshots. LENO: another program than target/release/leno.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "== $*"; }

scripts/ui.sh --check
if ! command -v chromium >/dev/null; then
  say "SKIPPED: no chromium here, so no view is tested in a browser; type: sudo apt-get install chromium"
  exit 0
fi
if ! node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 20 ? 0 : 1)'; then
  say "SKIPPED: Node.js $(node --version) is too old for Playwright, so no view is tested in a browser; 20 or newer is needed"
  exit 0
fi
tests=(ui/test/browser/made-up.test.mjs)
if [ "${1:-}" != --quick ]; then
  [ -n "${LENO:-}" ] || "${CARGO:-cargo}" build --release -p leno
  export LENO=${LENO:-$PWD/target/release/leno}
  tests+=(ui/test/browser/real.test.mjs ui/test/browser/control.test.mjs)
fi
node --test --test-concurrency=1 "${tests[@]}"
