#!/bin/bash
# Records the conversations of tests/recorded anew, as root: make kubernetes-recordings
set -euo pipefail
programs=$1
cd "$(dirname "$0")/../../.."
cargo=${CARGO:-cargo}
folder=$(mktemp -d)
directory=$folder/cluster
trap '"$programs/cluster" --directory "$directory" down || true; rm -rf "$folder"' EXIT

record() { # PROGRAMS TEST
    "$1/cluster" --directory "$directory" up --control-only
    LENO_RECORD=1 "$1/cluster" --directory "$directory" run \
        "$cargo" test --offline --release -p leno-controller --test it -- --exact "recorder::$2"
    "$1/cluster" --directory "$directory" down
}

"$cargo" test --release -p leno-controller --test it --no-run
record "$programs" record

# Debian's etcd is 3.4, with which an API server streams no lists.
if ! etcd --version 2>/dev/null | grep -q 'Version: 3\.4'; then
    echo 'recorded/refused.jsonl stays as it is: install etcd 3.4 (Debian: etcd-server) to record it' >&2
    exit
fi
mkdir "$folder/programs"
ln -s "$programs"/* "$folder/programs"
rm "$folder/programs/etcd" "$folder/programs/cluster"
ln -s "$(command -v etcd)" "$folder/programs/etcd"
cp "$programs/cluster" "$folder/programs/cluster"
record "$folder/programs" record_a_refusal
