//! Images of a static busybox, and containers that run a shell in them.

use leno_jail::{Container, Image, Jail, Jailer, Jails};
use std::fs;
use std::io::{PipeReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn open(ahead: usize) -> Jails {
    let jailer = Jailer::start(Command::new(env!("CARGO_BIN_EXE_leno-test-jailer"))).unwrap();
    let jails = Jails::open(jailer, ahead, None).await.expect("jails can be had here");
    assert_eq!(jails.no_containers(), None, "run this test as root");
    jails
}

/// Folders that vanish with the test.
pub(crate) struct Layers(pub(crate) TempDir);

impl Layers {
    pub(crate) fn new() -> Self {
        // The parent folder denies access to other users, as a store of images does.
        let mode = fs::Permissions::from_mode(0o700);
        Self(tempfile::Builder::new().permissions(mode).tempdir().unwrap())
    }

    /// An empty layer.
    pub(crate) fn layer(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    /// A layer with a shell and all that belongs to it, and users.
    pub(crate) fn busybox(&self) -> PathBuf {
        let layer = self.layer("busybox");
        for folder in ["bin", "etc", "home", "home/web", "root"] {
            fs::create_dir(layer.join(folder)).unwrap();
        }
        fs::copy("/bin/busybox", layer.join("bin/busybox")).expect("the package `busybox-static`");
        let programs = Command::new("/bin/busybox").arg("--list").output().unwrap();
        for program in String::from_utf8(programs.stdout).unwrap().lines().filter(|name| *name != "busybox") {
            symlink("busybox", layer.join("bin").join(program)).unwrap();
        }
        fs::write(layer.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:44::/home/web:/bin/sh\n").unwrap();
        fs::write(layer.join("etc/group"), "root:x:0:\nweb:x:44:\ndata:x:100:web\n").unwrap();
        fs::write(layer.join("home/web/file"), "of the image\n").unwrap();
        for path in ["home/web", "home/web/file"] {
            chown(layer.join(path), Some(33), Some(44)).unwrap();
        }
        layer
    }
}

pub(crate) fn image(layers: &[&Path]) -> Image {
    Image { layers: layers.iter().map(|layer| layer.to_path_buf()).collect(), ..Image::default() }
}

/// A container that runs a shell script.
pub(crate) fn shell(image: Image, script: &str) -> Container {
    let command = Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec());
    Container { image, command, hostname: "guest".to_owned(), ..Container::default() }
}

pub(crate) async fn contain(jail: &mut Jail, container: Container) -> std::io::Result<PipeReader> {
    let (output, theirs) = std::io::pipe()?;
    let errors = OwnedFd::from(theirs.try_clone()?);
    jail.contain(container, theirs.into(), errors).await?;
    Ok(output)
}

pub(crate) async fn start(jails: &Jails, container: Container) -> (Jail, PipeReader) {
    let mut jail = jails.take_for_container().await.unwrap();
    let output = contain(&mut jail, container).await.unwrap();
    (jail, output)
}

/// All that a container writes until it has ended.
pub(crate) async fn output(jails: &Jails, container: Container) -> String {
    let (_jail, output) = start(jails, container).await;
    all(output).await
}

pub(crate) async fn all(mut output: PipeReader) -> String {
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    tokio::time::timeout(TIMEOUT, read).await.unwrap().unwrap().unwrap()
}

pub(crate) fn has(text: &str, line: &str) {
    assert!(text.lines().any(|other| other == line), "no line `{line}` in:\n{text}");
}

/// Processes of a jail, as the machine sees them.
pub(crate) fn processes_of(first: u32) -> Vec<u32> {
    let (mut all, mut next) = (Vec::new(), vec![first]);
    while let Some(pid) = next.pop() {
        all.push(pid);
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        next.extend(children.split_whitespace().map(|child| child.parse::<u32>().unwrap()));
    }
    all
}

pub(crate) fn runs(pid: &u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

pub(crate) async fn vanish(processes: &[u32]) {
    let begin = Instant::now();
    while processes.iter().any(runs) {
        assert!(begin.elapsed() < TIMEOUT, "left: {processes:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
