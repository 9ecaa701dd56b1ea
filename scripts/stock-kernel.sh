#!/usr/bin/env bash
# Runs tests as root on a stock Debian kernel, in a virtual machine that needs no /dev/kvm: scripts/stock-kernel.sh [TEST...] [-- ARGUMENT...]
# A test is a file such as crates/jail/tests/it/jails.rs: a module of the program `it`, or a program. Arguments go to the
# test programs, for example a part of a test's name.
#
# A developer's machine often lacks what Leno meets elsewhere: cgroup v2 with all controllers, say, or parts of the kernel that are modules. The
# guest sees this machine's files, read-only, below a layer in its own memory: nothing that a test does there changes anything here. Every
# instruction is emulated, so this shows what works, not how fast. Build nothing while it runs: the guest reads the programs where they are.
#
# KERNEL is the kernel's Debian package, `linux-image-amd64` unless set; LIMIT the seconds that all tests may take, 2400 unless set. The status is
# 0 if all tests pass, 1 if one fails, and 2 if they could not be run.
set -euo pipefail
cd "$(dirname "$0")/.."

kernel=${KERNEL:-linux-image-amd64}
limit=${LIMIT:-2400}
home=$PWD/target/stock-kernel
image=$home/$kernel

say() { echo "== $*"; }
die() { echo "stock-kernel: $*" >&2; exit 2; }

tests=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do tests+=("$1"); shift; done
[ $# = 0 ] || shift
arguments=("$@") options=()
for argument in "$@"; do [[ $argument != -* || $argument = --exact ]] || options+=("$argument"); done
[ ${#tests[@]} -gt 0 ] || tests=(crates/jail/tests/it/{jails,containers}.rs crates/ebpf/tests/{it/direct,it/intercept,it/pods,mesh}.rs crates/pods/tests/it/{agents,capture,enforced,release}.rs crates/leno/tests/it/jails.rs)
for test in "${tests[@]}"; do
  [[ $test == crates/*/tests/*.rs && -e $test ]] || die "expected a file such as crates/jail/tests/it/jails.rs, not \`$test\`"
done
[[ $limit =~ ^[1-9][0-9]*$ ]] || die "expected a number of seconds in LIMIT, not \`$limit\`"

command -v apt-get >/dev/null || die "no apt-get; the kernel comes from Debian's packages"
if [ "$(id -u)" = 0 ]; then run=; elif sudo -n true 2>/dev/null; then run=sudo; else run=no; fi
if ! command -v qemu-system-x86_64 >/dev/null; then
  [ "$run" != no ] || die "no QEMU; type: sudo apt-get install --no-install-recommends qemu-system-x86"
  say "installing qemu-system-x86"
  $run apt-get update -qq
  $run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-x86 >/dev/null
fi

# The kernel package and those of its parts, if it is divided; nothing where apt does not know it.
packages() {
  local quiet=(--no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances)
  apt-cache depends --recurse "${quiet[@]}" "$kernel" 2>/dev/null | grep -E '^linux-[a-z]+-[0-9]' | sort -u || true
}

# The guest's first process, until this machine's files are its root. If it fails, the kernel panics, which ends the machine.
first_process() {
  cat <<'GUEST'
#!/bin/busybox sh
set -e
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in virtio_pci 9pnet_virtio 9p overlay; do modprobe $module; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose machine /machine
mount -t tmpfs -o mode=755 tmpfs /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/machine,upperdir=/layer/upper,workdir=/layer/work overlay /root
for folder in proc sys dev; do mount --move /$folder /root/$folder; done
mount -t tmpfs -o mode=755 tmpfs /root/run
cp /bin/busybox /root/run/
# The kernel gives its first process what it does not understand of its command line.
exec switch_root /root /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash "$commands"
GUEST
}

# What it does then: furnishes the machine as an init system would, runs the tests, and ends the machine.
commands() {
  cat <<'GUEST'
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
[[ $PWD/ == /tmp/* ]] || mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo "+cpu +cpuset +io +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
mount -t bpf -o mode=700 bpf /sys/fs/bpf
mount -t securityfs securityfs /sys/kernel/security
mount -t tracefs tracefs /sys/kernel/tracing
# The kernel loads modules when they are asked for; sock_diag is one. This machine may have no modprobe.
mkdir -p /lib/modules
ln -sfn "$image/modules" "/lib/modules/$(uname -r)"
ln -s busybox /run/modprobe
echo /run/modprobe >/proc/sys/kernel/modprobe
/run/busybox ip link set lo up
/run/busybox hostname stock
# What systemd sets.
ulimit -Hn 524288
echo 4194304 >/proc/sys/kernel/pid_max
for line in 1 2; do /run/busybox stty -F /dev/ttyS$line raw; done

run_all() {
  local index begin status
  echo "== Linux $(uname -r), up after $(cut -d' ' -f1 /proc/uptime) s, control groups with $(cat /sys/fs/cgroup/cgroup.controllers)"
  begin=$SECONDS
  for index in "${!programs[@]}"; do
    status=0
    cd "${folders[index]}"
    echo "== ${tests[index]}"
    # shellcheck disable=SC2086 # names are words
    timeout --kill-after 10 $((limit - SECONDS > 0 ? limit - SECONDS : 1)) \
      "${programs[index]}" --exact ${names[index]:-none} "${options[@]}" || status=$?
    case $status in
      0) echo "== ${tests[index]}: passed, $((SECONDS - begin)) s after the start" ;;
      124 | 137) echo "== ${tests[index]}: FAILED, the $limit s are over" ;;
      *) echo "== ${tests[index]}: FAILED (status $status), $((SECONDS - begin)) s after the start" ;;
    esac
    [ $status = 0 ] || failed=1
  done
  return $failed
}
failed=0
# Through a pipe, since tests colour what they write to a terminal, which the serial line is.
run_all 2>&1 </dev/null | cat >/dev/ttyS1
echo "${PIPESTATUS[0]}" >/dev/ttyS2
/run/busybox poweroff -f
GUEST
}

# Unpacks the kernel into $image, with an initial file system that can mount this machine's. Nothing is installed.
fetch() {
  local new=$image.new names busybox modules version
  names=$(packages)
  if [ -z "$names" ] && [ "$run" != no ]; then $run apt-get update -qq; names=$(packages); fi
  [ -n "$names" ] || die "apt knows no kernel \`$kernel\`; type sudo apt-get update, or set KERNEL to a package that it knows"
  say "fetching $(tr '\n' ' ' <<<"$names")and busybox-static into ${new#"$PWD/"} (some 75 MB)"
  rm -rf "$new" "$image"
  mkdir -p "$new"/{packages,unpacked,first/{bin,proc,sys,dev,machine,layer,root}}
  # shellcheck disable=SC2086 # names are words
  (cd "$new/packages" && apt-get download -qq -o APT::Sandbox::User="$(id -un)" $names busybox-static >/dev/null)
  for package in "$new"/packages/*.deb; do dpkg-deb -x "$package" "$new/unpacked"; done

  mv "$new"/unpacked/boot/vmlinuz-* "$new/vmlinuz"
  modules=$(find "$new/unpacked" -path '*lib/modules/*' -name modules.order -printf '%h\n' -quit)
  version=${modules##*/}
  for needed in drivers/virtio net/9p fs/9p fs/overlayfs; do
    [ -d "$modules/kernel/$needed" ] || die "\`$kernel\` has no modules in $needed, by which it would mount this machine's files; set KERNEL to another package"
  done
  # Without drivers of hardware that QEMU does not show here, and not compressed: the guest is slow.
  find "$modules/kernel/drivers" -mindepth 1 -maxdepth 1 ! -name virtio ! -name net -exec rm -rf {} +
  rm -rf "$modules/kernel/sound"
  find "$modules" -name '*.ko.xz' -exec xz -d {} +
  busybox=$new/first/bin/busybox
  mv "$(find "$new/unpacked" -path '*bin/busybox' -type f)" "$busybox"
  mkdir -p "$new/first/lib/modules/$version/kernel"
  (cd "$modules" && cp -r --parents modules.order modules.builtin kernel/{drivers/virtio,net/9p,fs/{9p,overlayfs}} "$new/first/lib/modules/$version")
  (cd "$modules" && cp -r --parents kernel/fs/{netfs,fscache} "$new/first/lib/modules/$version" 2>/dev/null) || true
  "$busybox" depmod -b "$new/first" "$version"
  mkdir -p "$new/lib/modules"
  mv "$modules" "$new/lib/modules/"
  "$busybox" depmod -b "$new" "$version"
  ln -s "lib/modules/$version" "$new/modules"
  first_process >"$new/init"
  install -m 755 "$new/init" "$new/first/init"
  (cd "$new/first" && find . | "$busybox" cpio -o -H newc 2>/dev/null) | gzip -1 >"$new/initrd"
  rm -rf "$new"/{packages,unpacked,first}
  mv "$new" "$image"
}

say "building the tests"
select=() folders=() programs=() names=()
for test in "${tests[@]}"; do
  folder=$PWD/${test%/tests/*}
  folders+=("$folder")
  target=${test#*/tests/} target=${target%%/*}
  select+=(-p "$(sed -n 's/^name = "\(.*\)"$/\1/p' "$folder/Cargo.toml" | head -n1)" --test "${target%.rs}")
done
# All at once, so that they share one build of what they depend on. Cargo says in JSON, an object a line, where each program is.
built=$("${CARGO:-cargo}" test --release --no-run --message-format json-render-diagnostics "${select[@]}")
for test in "${tests[@]}"; do
  source=${test/\/it\/*//it/main.rs}
  program=$(grep -F "\"src_path\":\"$PWD/$source\"" <<<"$built" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' || true)
  [ -x "$program" ] || die "cargo has built no program of $test"
  programs+=("$program")
  module=
  [ "$source" = "$test" ] || { module=${test#*/it/} module=${module%.rs} module=${module//\//::}::; }
  names+=("$("$program" --list --format terse "${arguments[@]}" | sed -n "s/^\($module.*\): test$/\1/p")")
done
# The functions that the tests of `leno` run are its examples.
[[ " ${tests[*]}" != *" crates/leno/"* ]] || "${CARGO:-cargo}" build --release -p leno --examples
cmp -s <(first_process) "$image/init" || fetch

this=$(mktemp -d "$home/run.XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$this"' EXIT
{ declare -p PWD image limit tests programs folders names options; commands; } >"$this/commands"
say "starting Linux in QEMU; expect several minutes for all tests"
# shellcheck disable=SC2054 # the commas are QEMU's
machine=(
  -no-user-config -nodefaults -display none -no-reboot -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 2048
  -kernel "$image/vmlinuz" -initrd "$image/initrd"
  # Without `tsc=reliable` the kernel does not trust the emulated clock, and reads a slow one.
  -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable commands=\"$this/commands\""
  -virtfs local,path=/,mount_tag=machine,security_model=none,readonly=on,multidevs=remap
  # What the kernel says, what the tests say, and the status.
  -serial "file:$this/console" -serial stdio -serial "file:$this/status"
)
# QEMU would make our own output non-blocking, for others too.
exec 3> >(cat)
relay=$!
timeout --kill-after 5 $((limit + 120)) nice qemu-system-x86_64 "${machine[@]}" </dev/null >&3 3>&- &
exec 3>&-
status=0
wait $! || status=$?
wait "$relay" || true
if [ ! -s "$this/status" ]; then
  tail -n 60 "$this/console" >&2
  [ "$status" != 124 ] || die "the time is over"
  die "the guest has ended early (status $status)"
fi
exit "$(cat "$this/status")"
