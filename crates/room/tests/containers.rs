//! Containers in rooms: images that these tests make of a static busybox, run by the OCI runtime of this machine.
//!
//! They need root, the packages `busybox-static` and `crun`, and a file system under the temporary folder that has idmapped mounts.

use leno_room::{Container, Exit, Image, Launcher, Refusals, Refused, Room, Rooms, Volume};
use std::collections::BTreeMap;
use std::fs;
use std::io::{PipeReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TIMEOUT: Duration = Duration::from_secs(60);

async fn open(ahead: usize) -> Rooms {
    let launcher = Launcher::start(Command::new(env!("CARGO_BIN_EXE_leno-test-launcher"))).unwrap();
    let rooms = Rooms::open(launcher, ahead, None).await.expect("rooms can be had here");
    assert_eq!(rooms.no_containers(), None, "run this test as root, with the package `crun`");
    rooms
}

/// Folders that vanish with the test.
struct Layers(PathBuf);

impl Layers {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("leno-container-test-{}-{number}", std::process::id()));
        // The folder above keeps others out, as a store of images does.
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    /// An empty layer.
    fn layer(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    /// A layer with a shell and all that belongs to it, and users.
    fn busybox(&self) -> PathBuf {
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

impl Drop for Layers {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn image(layers: &[&Path]) -> Image {
    Image { layers: layers.iter().map(|layer| layer.to_path_buf()).collect(), ..Image::default() }
}

/// A container that runs a shell script.
fn shell(image: Image, script: &str) -> Container {
    let command = Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec());
    Container { image, command, hostname: "guest".to_owned(), ..Container::default() }
}

async fn contain(room: &mut Room, container: Container) -> std::io::Result<PipeReader> {
    let (output, theirs) = std::io::pipe()?;
    let errors = OwnedFd::from(theirs.try_clone()?);
    room.contain(container, theirs.into(), errors).await?;
    Ok(output)
}

async fn start(rooms: &Rooms, container: Container) -> (Room, PipeReader) {
    let mut room = rooms.take_for_container().await.unwrap();
    let output = contain(&mut room, container).await.unwrap();
    (room, output)
}

/// All that a container writes until it has ended.
async fn output(rooms: &Rooms, container: Container) -> String {
    let (_room, output) = start(rooms, container).await;
    all(output).await
}

async fn all(mut output: PipeReader) -> String {
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    tokio::time::timeout(TIMEOUT, read).await.unwrap().unwrap().unwrap()
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|other| other == line), "no line `{line}` in:\n{text}");
}

#[tokio::test]
async fn a_container_has_its_image_and_nothing_else() {
    let (rooms, layers) = (open(1).await, Layers::new());
    let script = "hostname; id; pwd; echo $HOME $PATH $GIVEN; ls /; echo --; cat /etc/hostname /etc/hosts /etc/resolv.conf; \
        grep -E '^(CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp|SigBlk):' /proc/self/status; ulimit -n; cat /run/secrets/key; \
        stat -c '%u:%g %a %n' /home/web/file /tmp /dev/shm / /run/secrets/key; cat /home/web/file; mount; exit 7";
    let container = Container {
        secrets: vec![("key".to_owned(), b"swordfish\n".to_vec())],
        descriptors: Some(321),
        environment: BTreeMap::from([("GIVEN".to_owned(), "yes".to_owned())]),
        directory: Some("/not/there/before".into()),
        ..shell(image(&[&layers.busybox()]), script)
    };
    let (room, output) = start(&rooms, container).await;
    let text = all(output).await;
    for line in [
        "guest",
        "uid=0(root) gid=0(root) groups=0(root)",
        "/not/there/before",
        "/root /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin yes",
        "127.0.0.1 localhost guest",
        "nameserver 127.0.0.1",
        // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID.
        "CapEff:\t00000000000000fb",
        "CapBnd:\t00000000000000fb",
        "CapAmb:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "SigBlk:\t0000000000000000",
        "321",
        "swordfish",
        "33:44 644 /home/web/file",
        "0:0 1777 /tmp",
        "0:0 1777 /dev/shm",
        "0:0 755 /",
        "0:0 444 /run/secrets/key",
        "of the image",
    ] {
        has(&text, line);
    }
    let root: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("/root ")).skip(1).take_while(|line| *line != "--").collect();
    assert_eq!(root, ["bin", "dev", "etc", "home", "not", "proc", "root", "run", "sys", "tmp"], "{text}");
    for mount in text.lines().filter(|line| line.contains(" type ") && !line.starts_with("devtmpfs on /dev/")) {
        let options = mount.rsplit_once('(').unwrap().1.trim_end_matches(')').split(',').collect::<Vec<_>>();
        // The paths below /proc are read-only, and there are no devices in that file system.
        let is_proc = mount.contains(" on /proc/");
        assert!(is_proc || options.contains(&"nosuid"), "{mount}");
        assert!(is_proc || mount.contains(" on /dev ") || options.contains(&"nodev"), "{mount}");
    }
    room.exited().await;
    assert_eq!(room.end().await, Exit(7 << 8));
}
