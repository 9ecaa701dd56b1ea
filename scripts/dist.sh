#!/usr/bin/env bash
# Builds packages into target/packages: a Debian package, a tarball with a static program, and an OCI image layout, each with completions, manual
# pages, systemd units and a list of the crates inside (CycloneDX). PROFILE=release: a quick build, to try this script.
set -euo pipefail
cd "$(dirname "$0")/.."

CYCLONEDX=0.5.9
PROFILE=${PROFILE:-dist}
triple=x86_64-unknown-linux-gnu
cargo=${CARGO:-cargo}
place=$PWD/target/packages
root=$place/root
say() { echo "== $*"; }
die() { echo "dist: $*" >&2; exit 1; }

missing=()
command -v dpkg-deb >/dev/null || missing+=(dpkg)
command -v umoci >/dev/null || missing+=(umoci)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
[ ${#missing[@]} = 0 ] || die "missing packages; type: sudo apt-get install ${missing[*]}"

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

say "building leno $version (profile $PROFILE)"
# With the C library inside, the program runs on any distribution. Build scripts and macros are built for this machine without the flag, because --target is given.
CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static" \
  "$cargo" build --locked --profile "$PROFILE" --target $triple -p leno
program=target/$triple/$PROFILE/leno

say "collecting files"
rm -rf "$place"
mkdir -p "$root"/usr/{bin,share/man/man1,share/doc/leno,share/bash-completion/completions,share/zsh/vendor-completions,share/fish/vendor_completions.d} \
  "$root"/usr/lib/systemd/system "$root"/usr/share/leno/{grafana,prometheus} "$root"/etc/leno
install -m 0755 "$program" "$root/usr/bin/leno"
strip "$root/usr/bin/leno"
"$root/usr/bin/leno" completions bash >"$root/usr/share/bash-completion/completions/leno"
"$root/usr/bin/leno" completions zsh >"$root/usr/share/zsh/vendor-completions/_leno"
"$root/usr/bin/leno" completions fish >"$root/usr/share/fish/vendor_completions.d/leno.fish"
"$root/usr/bin/leno" manual "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*.1
install -m 0644 packaging/systemd/*.service "$root/usr/lib/systemd/system"
install -m 0640 packaging/*.env "$root/etc/leno"
install -m 0644 packaging/grafana/*.json "$root/usr/share/leno/grafana"
install -m 0644 packaging/prometheus/rules.yaml "$root/usr/share/leno/prometheus"
install -m 0644 LICENSE README.md CHANGELOG.md SECURITY.md "$root/usr/share/doc/leno"
install -m 0644 target/ui/licences.txt "$root/usr/share/doc/leno/dashboard-licences.txt"

say "listing the crates inside"
tool=target/tools/cargo-cyclonedx
[[ "$("$tool/bin/cargo-cyclonedx" cyclonedx --version 2>/dev/null)" == *" $CYCLONEDX" ]] ||
  "$cargo" install --quiet --locked --debug --version $CYCLONEDX --root "$tool" cargo-cyclonedx
"$tool/bin/cargo-cyclonedx" cyclonedx --quiet --format json --target $triple --override-filename leno-dist-sbom --manifest-path crates/leno/Cargo.toml
find . -name leno-dist-sbom.json -not -path './target/*' -not -path './crates/leno/*' -delete
mv crates/leno/leno-dist-sbom.json "$root/usr/share/doc/leno/leno.cdx.json"
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

say "writing the Debian package"
mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: leno
Version: $version
Architecture: amd64
Maintainer: The Leno developers
Section: net
Priority: optional
Recommends: ca-certificates
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Description: service mesh for serverless functions
 Leno authenticates, authorises, limits, encrypts, retries and traces every call
 between functions. Each request has a fresh sandbox for its policies.
CONTROL
printf '/etc/leno/%s.env\n' control gateway node >"$root/DEBIAN/conffiles"
dpkg-deb --root-owner-group --build "$root" "$place/leno_${version}_amd64.deb" >/dev/null
rm -r "$root/DEBIAN"

say "writing the tarball"
name=leno-$version-x86_64-linux
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --transform "s,^\\.,$name," -C "$root" -czf "$place/$name.tar.gz" .

say "writing the image layout"
layout=$place/leno-$version.oci
umoci init --layout "$layout"
umoci new --image "$layout:$version"
umoci insert --rootless --image "$layout:$version" "$root/usr/bin/leno" /usr/bin/leno
umoci insert --rootless --image "$layout:$version" /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
umoci config --image "$layout:$version" --config.entrypoint /usr/bin/leno --config.cmd --help --architecture amd64 --os linux \
  --created "$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)"
umoci gc --layout "$layout"

rm -r "$root"
(cd "$place" && sha256sum ./*.deb ./*.tar.gz >SHA256SUMS)
du -sh "$place"/*
