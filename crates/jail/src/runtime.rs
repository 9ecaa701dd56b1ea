//! A container in a jail: the first process has an OCI runtime, `crun`, create it, and then
//! supervises it like other programs.
//!
//! The jail exists already, with its network, its users, its processes and its control group. The
//! runtime only sets up the container's root, its mounts, its user and its rights, and starts the
//! program. The runtime does not stay. It works in two steps, and seals the container between them:
//! when the image's program begins, nothing in the jail has rights or an unfiltered system call any
//! more.

use crate::filter::Listener;
use crate::rights::{self, give_up_rights_but};
use crate::step::{During, Unmade};
use crate::user::{self, User};
use crate::view::{self, At};
use crate::wire::{ContainerTask, receive_descriptor};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nix::sched::{CloneFlags, setns};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Rlimit};
use rustix::thread::CapabilitySet;
use seccompiler::{BpfProgram, sock_filter};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The capabilities of a container's root user for the files, processes and users of that
/// container. They suffice to start common images, which change the owner of their folders and then
/// switch to another user. None of them concerns networks, mounts or the kernel. Other users have
/// none of them.
const ROOTS_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);
/// Paths of the runtime's state, its log and its PID file, and of the socket to which it sends the
/// listener of refused system calls.
const STATE: &str = "/run/crun";
const LOG: &str = "/run/crun.log";
const PID: &str = "/run/crun.pid";
const LISTENER: &str = "/run/refused.sock";
/// The only container of the jail.
const ID: &str = "container";
/// Settings of the machine, which their owner may change: the container's root user owns those of
/// the jail's network.
const READ_ONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
/// Paths that reveal properties of the machine that do not concern a container.
const MASKED_PATHS: [&str; 9] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
];

/// Creates the container and starts its program. `mounts`: the root, and the visible paths. Returns
/// the program, and the listener for its system calls.
pub(crate) fn start(
    task: &ContainerTask,
    mounts: &[OwnedFd],
    output: &OwnedFd,
    errors: &OwnedFd,
    filter: &BpfProgram,
) -> Result<(Pid, Listener), Unmade> {
    view::contain(task, mounts).during("the container's files")?;
    let root = rustix::fs::open(view::CONTAINER_ROOT, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let user = user::find(root.during("the container's root")?.as_fd(), &task.user).during("the container's user")?;
    let bundle = bundle(task, &user, filter).to_string();
    fs::write(Path::new(view::BUNDLE).join("config.json"), bundle).during("the container's configuration")?;
    let receiver = UnixListener::bind(LISTENER).during("the filter of system calls")?;

    let run = |arguments: &[&str]| run(&task.runtime, arguments, output, errors).during("the container");
    run(&["create", "--bundle", view::BUNDLE, "--pid-file", PID, ID])?;
    let program = program().during("the container's process")?;
    let (connection, _) = receiver.accept().during("the filter of system calls")?;
    seal(program, task.read_only).during("the container's root")?;
    // This process ends programs of other users.
    give_up_rights_but(CapabilitySet::KILL).during("capabilities")?;
    // Here no process answers the calls that the filter does not allow: they fail.
    seccompiler::apply_filter(filter).map_err(io::Error::other).during("the filter of system calls")?;
    run(&["start", ID])?;
    // The runtime sends the listener before the program begins. The container's process sends it,
    // so this does not hang if that process ends.
    let descriptor = arrived(&connection).during("the filter of system calls")?;
    Ok((program, Listener::from(descriptor)))
}

/// Runs a step of the runtime. Its log becomes the error.
fn run(runtime: &Path, arguments: &[&str], output: &OwnedFd, errors: &OwnedFd) -> io::Result<()> {
    let status = Command::new(runtime)
        .args(["--root", STATE, "--cgroup-manager", "disabled", "--log", LOG])
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?)
        .status()
        .at(runtime.display())?;
    if status.success() {
        return Ok(());
    }
    let said = fs::read_to_string(LOG).unwrap_or_default();
    let said = said.lines().last().unwrap_or_default();
    Err(io::Error::other(if said.is_empty() {
        format!("{}: {status}; its output says why", runtime.display())
    } else {
        said.to_owned()
    }))
}

/// The container's process, as the runtime reports it.
fn program() -> io::Result<Pid> {
    let text = fs::read_to_string(PID)?;
    text.trim().parse().ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Sets the attributes of the container's root. The runtime would drop the others with the one that
/// makes it read-only.
fn seal(program: Pid, read_only: bool) -> io::Result<()> {
    let open = |path: &str| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let (home, there) = (open("/proc/self/ns/mnt")?, open(&format!("/proc/{}/ns/mnt", program.as_raw_nonzero()))?);
    let read_only = if read_only { libc::MOUNT_ATTR_RDONLY } else { 0 };
    setns(there, CloneFlags::CLONE_NEWNS)?;
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | read_only;
    let set = view::set_attributes(CWD, Path::new("/"), attributes, false);
    setns(home, CloneFlags::CLONE_NEWNS)?;
    set
}

/// The descriptor that arrives on this connection.
fn arrived(connection: impl AsFd) -> io::Result<OwnedFd> {
    loop {
        match poll(&mut [PollFd::new(&connection, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            polled => {
                polled?;
                let missing = || io::Error::other("the runtime has not put it in force");
                return receive_descriptor(&connection)?.ok_or_else(missing);
            }
        }
    }
}

/// The configuration of the OCI runtime.
fn bundle(task: &ContainerTask, user: &User, filter: &BpfProgram) -> Value {
    let mut environment = task.environment.clone();
    environment.entry("HOME".to_owned()).or_insert_with(|| user.home.clone().unwrap_or_else(|| "/".to_owned()));
    let environment: Vec<String> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let capabilities = if user.user == 0 { ROOTS_CAPABILITIES } else { CapabilitySet::empty() };
    let capabilities: Vec<String> = capabilities.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    let limit = |name: &str, Rlimit { current, maximum }: Rlimit| json!({"type": name, "soft": current.unwrap_or(u64::MAX), "hard": maximum.unwrap_or(u64::MAX)});
    let mut limits = vec![limit("RLIMIT_NPROC", rights::processes(task.processes))];
    limits.extend(rights::LIMITS.iter().map(|(resource, name, most)| limit(name, rights::at_most(*resource, *most))));
    limits.extend(task.descriptors.map(|descriptors| limit("RLIMIT_NOFILE", rights::limit(descriptors, true))));
    json!({
        "ociVersion": "1.0.0",
        // Every jail has this filter. The `seccomp` section below names the process that answers
        // refused calls. Its own rules would apply if a runtime did not know this annotation; they
        // allow nothing.
        "annotations": {"run.oci.seccomp_bpf_data": STANDARD.encode(bytes(filter))},
        "root": {"path": view::CONTAINER_ROOT},
        "process": {
            "terminal": false,
            "args": task.argv,
            "env": environment,
            "cwd": task.directory,
            "user": {"uid": user.user, "gid": user.group, "additionalGids": user.groups, "umask": 0o022},
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "noNewPrivileges": true,
            "rlimits": limits,
        },
        "mounts": mounts(task),
        "linux": {
            "namespaces": [{"type": "mount"}],
            "readonlyPaths": READ_ONLY_PATHS,
            "maskedPaths": MASKED_PATHS,
            "seccomp": {"defaultAction": "SCMP_ACT_KILL_PROCESS", "listenerPath": LISTENER},
        },
    })
}

/// The mounts of the container, in this order.
fn mounts(task: &ContainerTask) -> Vec<Value> {
    let bind = |from: &Path, to: &Path, kind: &str| json!({"destination": to, "source": from, "type": "bind", "options": [kind, "ro", "nosuid", "nodev"]});
    let mut mounts = vec![
        json!({"destination": "/proc", "source": "proc", "type": "proc", "options": ["nosuid", "nodev", "noexec"]}),
        // Without `nodev`, and without `ro` for the mounts below it: /dev/shm is writable.
        json!({"destination": "/dev", "source": "/dev", "type": "bind", "options": ["rbind", "ro", "nosuid"]}),
        // The control group mounted below it may also belong to other containers.
        bind(Path::new("/sys"), Path::new("/sys"), if task.own_group { "rbind" } else { "bind" }),
    ];
    for (path, size) in &task.volumes {
        let options: Vec<String> =
            ["nosuid", "nodev"].map(str::to_owned).into_iter().chain(view::volume_options(*size)).collect();
        mounts.push(json!({"destination": path, "source": "tmpfs", "type": "tmpfs", "options": options}));
    }
    for (index, path) in task.visible.iter().enumerate() {
        mounts.push(bind(&view::shown(index), path, "rbind"));
    }
    for (index, path) in task.folders.iter().enumerate() {
        let source = view::shown(task.visible.len() + index);
        let options = ["bind", "rw", "nosuid", "nodev"];
        mounts.push(json!({"destination": path, "source": source, "type": "bind", "options": options}));
    }
    // Last, so that no other mount hides them.
    if !task.secrets.is_empty() {
        mounts.push(bind(&PathBuf::from(view::CONTAINER_SECRETS), Path::new(crate::SECRETS), "bind"));
    }
    mounts.extend(
        ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"].map(|file| bind(Path::new(file), Path::new(file), "bind")),
    );
    mounts
}

/// A filter as the kernel reads it.
fn bytes(filter: &[sock_filter]) -> Vec<u8> {
    let bytes = |it: &sock_filter| [&it.code.to_ne_bytes()[..], &[it.jt, it.jf], &it.k.to_ne_bytes()].concat();
    filter.iter().flat_map(bytes).collect()
}
