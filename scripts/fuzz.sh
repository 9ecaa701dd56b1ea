#!/usr/bin/env bash
# Builds the fuzz targets and runs them, as many at once as there are cores, each for some seconds: scripts/fuzz.sh SECONDS [TARGET...]
# What they learn stays in fuzz/corpus; what they find is left in fuzz/artifacts, and is a failure.
#
# There is no sanitizer: all that is fuzzed is safe Rust, which panics where it is wrong. Without one the targets build with stable Rust, in
# less time, and run faster.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.13.2
time=${1:-60}
shift || true
home=target/tools/cargo-fuzz
tool=$home/bin/cargo-fuzz
binaries=fuzz/target/x86_64-unknown-linux-gnu/release
# Slower than this, or larger, is a finding too: nobody may be kept busy by what he reads.
limits=(-timeout=10 -rss_limit_mb=1024)

die() { echo "fuzz: $*" >&2; exit 1; }

[[ $time =~ ^[1-9][0-9]*$ ]] || die "expected a number of seconds, not \`$time\`"
mapfile -t known < <(sed -n 's/^name = "\(.*\)"$/\1/p' fuzz/Cargo.toml | grep -vx leno-fuzz)
targets=("$@")
[ $# -gt 0 ] || targets=("${known[@]}")
for target in "${targets[@]}"; do
  [[ " ${known[*]} " == *" $target "* ]] || die "there is no target \`$target\`; expected some of: ${known[*]}"
done
command -v c++ >/dev/null || die "no C++ compiler, which libFuzzer is built with; type: sudo apt-get install build-essential"

if [ "$("$tool" --version 2>/dev/null)" != "cargo-fuzz $version" ]; then
  echo "== installing cargo-fuzz $version into $home (a minute)"
  "${CARGO:-cargo}" install --quiet --locked --debug --force --version "$version" --root "$home" cargo-fuzz
fi
echo "== building the targets (the first time takes a few minutes)"
one=()
[ ${#targets[@]} -gt 1 ] || one=("${targets[0]}")
# Without dead code: a target would count the edges of all crates that its own brings along.
"$tool" build --sanitizer none --strip-dead-code "${one[@]}"

cores=$(nproc)
echo "== fuzzing ${#targets[@]} targets for $time s each, $cores at once"
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$logs"' EXIT

# Inputs to begin with, beside those that earlier runs have left.
seeds() {
  [ ! -d "fuzz/seeds/$1" ] || echo "fuzz/seeds/$1"
  case $1 in
    yaml | documents) printf 'crates/config/tests/%s
' documents refused warned gateway-api ;;
    payload | wire) echo crates/control/tests/golden ;;
  esac
}

run() {
  local target=$1 log="$logs/$1" corpus="fuzz/corpus/$1" artifacts="fuzz/artifacts/$1" status=0 from found
  mkdir -p "$corpus" "$artifacts"
  mapfile -t from < <(seeds "$target")
  touch "$log.begun"
  "$binaries/$target" -max_total_time="$time" "${limits[@]}" -artifact_prefix="$artifacts/" "$corpus" "${from[@]}" >"$log" 2>&1 || status=$?
  local runs edges
  runs=$(grep -oE '^#[0-9]+' "$log" | tail -n1 | tr -d '#')
  edges=$(grep -o 'cov: [0-9]*' "$log" | tail -n1 | cut -d' ' -f2)
  printf '%-20s %10s runs  %6s edges  ' "$target" "${runs:-0}" "${edges:-0}"
  if [ "$status" = 0 ]; then echo ok; return; fi
  touch "$logs/failed"
  echo "FAILED (status $status)"
  grep -m1 -A4 'panicked at\|ERROR: libFuzzer' "$log" | grep -v 'stack backtrace' | cut -c-400 | sed 's/^/    /' || tail -n5 "$log" | sed 's/^/    /'
  found=$(find "$artifacts" -type f -newer "$log.begun" | head -n1)
  if [ -n "$found" ]; then
    echo "    input: $found"
    echo "    again: $tool run --sanitizer none $target $found"
  else
    echo "    it left no input; a stack that overflows leaves none. Again: $binaries/$target $corpus ${from[*]}"
  fi
}

for target in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$cores" ]; do wait -n || true; done
  run "$target" &
done
wait
[ ! -e "$logs/failed" ] || die "something was found"
