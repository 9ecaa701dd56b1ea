//! The same image, started by the runtime alone: create, start, and the first answer of the
//! program.

use anyhow::{Context, ensure};
use leno_testkit::free_addresses;
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use serde_json::json;
use std::ffi::CString;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Milliseconds of each start. The file tree is mounted before.
pub(super) fn starts(folder: &Path, layout: &Path, count: usize) -> anyhow::Result<Vec<f64>> {
    let layers = super::stages::layers(folder, layout)?;
    // In a separate mount namespace, a thread can hide mounts that the runtime refuses.
    let measured = std::thread::scope(|scope| scope.spawn(|| in_own_mounts(folder, &layers, count)).join());
    measured.map_err(|_| anyhow::anyhow!("the thread that starts containers panicked"))?
}

fn in_own_mounts(folder: &Path, layers: &[PathBuf], count: usize) -> anyhow::Result<Vec<f64>> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // `crun` refuses control groups of both versions. It fails where there is no second one.
    let _ = unmount("/sys/fs/cgroup/unified", UnmountFlags::DETACH);
    let place = folder.join("bare");
    let mut times = Vec::new();
    for number in 0..count {
        let bundle = place.join(number.to_string());
        for folder in ["upper", "work", "rootfs"] {
            fs::create_dir_all(bundle.join(folder))?;
        }
        let lower: Vec<String> = layers.iter().rev().map(|layer| layer.display().to_string()).collect();
        let (upper, work) = (bundle.join("upper"), bundle.join("work"));
        let options = format!("lowerdir={},upperdir={},workdir={}", lower.join(":"), upper.display(), work.display());
        let root = bundle.join("rootfs");
        mount("overlay", &root, "overlay", MountFlags::empty(), Some(CString::new(options)?.as_c_str()))?;
        let one = start(&bundle, &format!("leno-bench-{}-{number}", std::process::id()));
        let _ = unmount(&root, UnmountFlags::DETACH);
        times.push(one?);
    }
    Ok(times)
}

fn start(bundle: &Path, name: &str) -> anyhow::Result<f64> {
    let [address] = free_addresses();
    let namespaces = ["pid", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
    let config = json!({
        "ociVersion": "1.0.0",
        "root": {"path": "rootfs"},
        "hostname": "bench",
        "process": {
            "user": {"uid": 1000, "gid": 1000},
            "args": ["/bin/function", super::greeter::SUBCOMMAND],
            "env": [format!("PORT={}", address.port()), "PATH=/bin"],
            "cwd": "/",
            "noNewPrivileges": true,
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]},
        ],
        "linux": {"namespaces": namespaces},
    });
    fs::write(bundle.join("config.json"), config.to_string())?;
    let begin = Instant::now();
    crun(&["create", "--bundle", &bundle.display().to_string(), name])?;
    let answered = crun(&["start", name]).and_then(|()| answer(address, begin));
    let time = begin.elapsed();
    crun(&["delete", "--force", name])?;
    answered?;
    Ok(time.as_secs_f64() * 1e3)
}

fn answer(address: SocketAddr, begin: Instant) -> anyhow::Result<()> {
    loop {
        if let Ok(mut stream) = TcpStream::connect(address) {
            stream.write_all(b"GET / HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
            let mut head = [0; 12];
            stream.read_exact(&mut head)?;
            ensure!(head.starts_with(b"HTTP/1.1 200"), "it answered {:?}", String::from_utf8_lossy(&head));
            return Ok(());
        }
        ensure!(begin.elapsed() < TIMEOUT, "it does not listen after {TIMEOUT:?}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn crun(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("crun")
        .arg("--cgroup-manager=disabled")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .context("crun cannot be started (package crun)")?;
    ensure!(status.success(), "crun {arguments:?} ended with {status}");
    Ok(())
}
