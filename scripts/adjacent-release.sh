#!/usr/bin/env bash
# Runs the tests of many nodes with two releases at once: scripts/adjacent-release.sh [REVISION]
# First this release's control plane with nodes of REVISION, then a control plane of REVISION with this release's nodes.
#
# REVISION is what git knows: a tag, a commit. Without one, it is the commit before this one. Its `leno` is built below target/adjacent,
# with dependencies of its own the first time. LENO_ADJACENT names a `leno` that is built already.
# The status is 0 if all tests pass, 1 if one fails, and 2 if they could not be run.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
home=$PWD/target/adjacent

say() { echo "== $*"; }
die() { echo "adjacent-release: $*" >&2; exit 2; }

if [ -n "${LENO_ADJACENT:-}" ]; then
  other=$(readlink -f "$LENO_ADJACENT") && [ -x "$other" ] || die "expected a program in LENO_ADJACENT, not \`$LENO_ADJACENT\`"
else
  revision=$(git rev-parse --verify --quiet "${1:-HEAD~1}^{commit}") || die "git knows no \`${1:-HEAD~1}\`; expected a tag or a commit"
  say "building leno of $(git log -1 --format='%h (%s)' "$revision")"
  mkdir -p "$home"
  if [ -e "$home/source" ]; then
    git -C "$home/source" checkout --quiet --detach "$revision"
  else
    git worktree prune
    git worktree add --quiet --detach "$home/source" "$revision"
  fi
  (cd "$home/source" && "$cargo" build --release -p leno --target-dir "$home/build") || die "leno of $revision does not build"
  other=$home/build/release/leno
fi

say "building this release and its tests"
"$cargo" test --release -p leno --test it --no-run
failed=0
say "a control plane of this release, nodes of the other"
LENO_TEST_NODES=$other "$cargo" test --release -p leno --test it -- nodes:: --skip egress_nodes:: || failed=1
say "a control plane of the other release, nodes of this one"
LENO_TEST_CONTROL=$other "$cargo" test --release -p leno --test it -- nodes:: --skip egress_nodes:: || failed=1
exit $failed
