#!/usr/bin/env bash
# Builds the page of the dashboard into target/ui, if its sources have changed. The npm packages come from ui/package-lock.json.
#
# usage: scripts/ui.sh [--optional | --check]
#
# --optional: without Node.js or the packages, says so and succeeds; leno then has no page.
# --check: also checks the format, and runs the unit tests.
set -euo pipefail
cd "$(dirname "$0")/../ui"

say() { echo "== $*"; }
die() {
  [ "$mode" = --optional ] || { echo "ui: $*" >&2; exit 1; }
  say "no page of the dashboard: $*"
  exit 0
}

mode=${1:-}
page=../target/ui/index.html
is_new() { [ ! -e "$2" ] || [ -n "$(find "$1" -newer "$2" -print -quit)" ]; }

command -v node >/dev/null && command -v npm >/dev/null || die "Node.js 18 or newer with npm is missing; type: sudo apt-get install nodejs npm"
node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 18 ? 0 : 1)' || die "Node.js $(node --version) is too old; the page needs 18 or newer"
if is_new package-lock.json node_modules/.package-lock.json; then
  say "installing the npm packages of the page"
  npm ci || die "npm could not install the packages of ui/package-lock.json"
  touch node_modules/.package-lock.json
fi
if is_new src "$page" || is_new index.html "$page" || is_new build.mjs "$page" || is_new package-lock.json "$page"; then
  say "building the page of the dashboard"
  # A page that does not build is a defect, and no matter of the machine.
  npm run --silent check
  npm run --silent build
fi
if [ "$mode" = --check ]; then
  npm run --silent format
  npm run --silent test
fi
