#!/usr/bin/env bash
# Builds the image of Leno's programs for Kubernetes into target/images, as a tar file of an OCI layout: static programs, root certificates, and the
# list of the crates inside (CycloneDX); no base image. PROFILE=release: a quick build. PROGRAMS=FOLDER: programs that are built already, with the
# libraries that they load. IMAGE: another name.
set -euo pipefail
cd "$(dirname "$0")/.."

PROFILE=${PROFILE:-dist}
triple=x86_64-unknown-linux-gnu
cargo=${CARGO:-cargo}
certificates=/etc/ssl/certs/ca-certificates.crt
packages=(leno leno-controller leno-cni)
say() { echo "== $*"; }
die() { echo "images: $*" >&2; exit 1; }

[ -e "$certificates" ] || die "missing packages; type: sudo apt-get install ca-certificates"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n1)
image=${IMAGE:-leno.dev/leno:$version}
place=$PWD/target/images
rm -rf "$place"
mkdir -p "$place/bin"

programs=${PROGRAMS:-}
if [ -z "$programs" ]; then
  say "building the programs (profile $PROFILE)"
  # With the C library inside, and without paths of this machine.
  CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$PWD=/leno --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
    "$cargo" build --locked --profile "$PROFILE" --target $triple "${packages[@]/#/-p}"
  programs=target/$triple/$PROFILE
fi
files=()
for package in "${packages[@]}"; do
  strip -o "$place/bin/$package" "$programs/$package"
  files+=("$place/bin/$package=/usr/bin/$package")
done
# ldd fails for a static program.
while read -r library; do files+=("$library=$library"); done \
  < <(for package in "${packages[@]}"; do ldd "$programs/$package" 2>/dev/null || true; done | sed -nE 's,^.*[[:space:]](/[^ ]+) \(0x.*,\1,p' | sort -u)

say "listing the crates inside"
scripts/sbom.py "${packages[@]}" >"$place/leno.cdx.json"
files+=("$place/leno.cdx.json=/usr/share/doc/leno/leno.cdx.json" "$certificates=$certificates")

say "writing the image, twice"
cluster=$place/cluster
PATH="$(dirname "$(scripts/go.sh)"):$PATH" go build -C kubernetes/cluster -o "$cluster" .
"$cluster" image "$image" "$place/leno-$version.oci.tar" "${files[@]}" -- /usr/bin/leno
"$cluster" image "$image" "$place/again.tar" "${files[@]}" -- /usr/bin/leno
cmp "$place/leno-$version.oci.tar" "$place/again.tar" || die "the same files made two images"
digest=$(tar -xOf "$place/leno-$version.oci.tar" index.json | python3 -c 'import json, sys; print(json.load(sys.stdin)["manifests"][0]["digest"])')
rm -r "${place:?}"/{again.tar,bin,cluster}
(cd "$place" && sha256sum ./*.tar >SHA256SUMS)
du -h "$place/leno-$version.oci.tar"
echo "$image $digest"
echo "push it: skopeo copy oci-archive:target/images/leno-$version.oci.tar docker://REGISTRY/leno:$version; then: leno install --image REGISTRY/leno@$digest"
