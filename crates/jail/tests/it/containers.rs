//! Containers in jails: images that these tests make of a static busybox, run by the OCI runtime of
//! this machine.
//!
//! They need root, the packages `busybox-static` and `crun`, and a file system under the temporary folder that has idmapped mounts.

use leno_jail::{Container, Exit, Image, Jail, Jailer, Jails, Refusals, SyscallRefusal, Volume};
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

async fn open(ahead: usize) -> Jails {
    let jailer = Jailer::start(Command::new(env!("CARGO_BIN_EXE_leno-test-jailer"))).unwrap();
    let jails = Jails::open(jailer, ahead, None).await.expect("jails can be had here");
    assert_eq!(jails.no_containers(), None, "run this test as root, with the package `crun`");
    jails
}

/// Folders that vanish with the test.
struct Layers(PathBuf);

impl Layers {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("leno-container-test-{}-{number}", std::process::id()));
        // The parent folder denies access to other users, as a store of images does.
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

async fn contain(jail: &mut Jail, container: Container) -> std::io::Result<PipeReader> {
    let (output, theirs) = std::io::pipe()?;
    let errors = OwnedFd::from(theirs.try_clone()?);
    jail.contain(container, theirs.into(), errors).await?;
    Ok(output)
}

async fn start(jails: &Jails, container: Container) -> (Jail, PipeReader) {
    let mut jail = jails.take_for_container().await.unwrap();
    let output = contain(&mut jail, container).await.unwrap();
    (jail, output)
}

/// All that a container writes until it has ended.
async fn output(jails: &Jails, container: Container) -> String {
    let (_jail, output) = start(jails, container).await;
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
    let (jails, layers) = (open(1).await, Layers::new());
    let script = "hostname; id; pwd; echo $HOME $PATH $GIVEN; ls /; echo --; cat /etc/hostname /etc/hosts /etc/resolv.conf; \
        grep -E '^(CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp|SigBlk):' /proc/self/status; ulimit -n; cat /run/secrets/key; \
        stat -c '%u:%g %a %n' /home/web/file /tmp /dev/shm / /run/secrets/key; cat /home/web/file; ls -l /proc/$$/fd; echo groups $(ls -A /sys/fs/cgroup); mount; exit 7";
    let container = Container {
        secrets: vec![("key".to_owned(), b"swordfish\n".to_vec())],
        descriptors: Some(321),
        environment: BTreeMap::from([("GIVEN".to_owned(), "yes".to_owned())]),
        directory: Some("/not/there/before".into()),
        ..shell(image(&[&layers.busybox()]), script)
    };
    let (jail, output) = start(&jails, container).await;
    let text = all(output).await;
    for line in [
        "guest",
        "uid=0(root) gid=0(root)",
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
        "groups",
        "of the image",
    ] {
        has(&text, line);
    }
    let open: Vec<&str> = text.lines().filter(|line| line.contains(" -> ")).collect();
    assert_eq!(open.len(), 3, "nothing of the jail's or the runtime's is open: {open:?}");
    let root: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("/root ")).skip(1).take_while(|line| *line != "--").collect();
    assert_eq!(root, ["bin", "dev", "etc", "home", "not", "proc", "root", "run", "sys", "tmp"], "{text}");
    for mount in text.lines().filter(|line| line.contains(" type ") && !line.starts_with("devtmpfs on /dev/")) {
        let options = mount.rsplit_once('(').unwrap().1.trim_end_matches(')').split(',').collect::<Vec<_>>();
        // The paths below /proc are read-only, and there are no devices in that file system.
        let is_proc = mount.contains(" on /proc/");
        assert!(is_proc || options.contains(&"nosuid"), "{mount}");
        assert!(is_proc || mount.contains(" on /dev ") || options.contains(&"nodev"), "{mount}");
    }
    jail.exited().await;
    assert_eq!(jail.end().await, Exit(7 << 8));
}

#[tokio::test]
async fn users_are_those_of_the_image() {
    let (jails, layers) = (open(1).await, Layers::new());
    let busybox = layers.busybox();
    let script = "id; echo $HOME; cat /proc/self/status; touch mine 2>&1; ls -ln mine";
    let at_home = |user: &str| {
        let image = Image { user: user.to_owned(), directory: "/home/web".to_owned(), ..image(&[&busybox]) };
        shell(image, script)
    };
    let text = output(&jails, at_home("web")).await;
    for line in [
        "uid=33(web) gid=44(web) groups=100(data)",
        "/home/web",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
    ] {
        has(&text, line);
    }
    assert!(text.lines().any(|line| line.starts_with("-rw-r--r--    1 33       44 ")), "{text}");
    let links = "echo to stdout > /dev/stdout; echo to stderr > /dev/stderr";
    for user in ["root", "web"] {
        let image = Image { user: user.to_owned(), ..image(&[&busybox]) };
        assert_eq!(output(&jails, shell(image, links)).await, "to stdout\nto stderr\n", "{user}");
    }
    let text = output(&jails, at_home("1234:data")).await;
    has(&text, "uid=1234 gid=100(data)");
    has(&text, "touch: mine: Permission denied");
    let text = output(&jails, Container { user: Some("33:7".to_owned()), ..at_home("root") }).await;
    has(&text, "uid=33(web) gid=7");

    for (user, error) in [
        ("stranger", "no user `stranger` in /etc/passwd"),
        ("web:stranger", "no group `stranger`"),
        ("65536", "up to 65535"),
    ] {
        let mut jail = jails.take_for_container().await.unwrap();
        let text = contain(&mut jail, at_home(user)).await.unwrap_err().to_string();
        assert!(text.contains(error), "{text}");
    }
    for (make, error) in [("mkfifo", "it is not a plain file"), ("mkdir", "it is not a plain file")] {
        let layer = layers.layer(make);
        fs::create_dir(layer.join("etc")).unwrap();
        assert!(Command::new(make).arg(layer.join("etc/passwd")).status().unwrap().success());
        let image = Image { user: "web".to_owned(), ..image(&[&busybox, &layer]) };
        let mut jail = jails.take_for_container().await.unwrap();
        let text = contain(&mut jail, shell(image, "")).await.unwrap_err().to_string();
        assert!(text.contains(error), "{text}");
    }
}

#[tokio::test]
async fn root_can_do_in_its_container_what_images_count_on_and_no_more() {
    let (jails, layers) = (open(1).await, Layers::new());
    let busybox = layers.busybox();
    fs::write(busybox.join("home/secret"), "web's\n").unwrap();
    chown(busybox.join("home/secret"), Some(33), Some(44)).unwrap();
    fs::set_permissions(busybox.join("home/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    for (name, mode) in [("setuid", 0o4755), ("setgid", 0o2755)] {
        fs::create_dir(busybox.join(name)).unwrap();
        fs::copy("/bin/busybox", busybox.join(name).join("id")).unwrap();
        fs::set_permissions(busybox.join(name).join("id"), fs::Permissions::from_mode(mode)).unwrap();
    }
    let script = "cat /home/secret; mkdir /data && chown web:data /data && stat -c %U:%G /data; \
        su -s /bin/sh web -c 'id; kill -0 $PPID || echo no signal; /setuid/id -u; /setgid/id -g; grep CapEff /proc/self/status'; \
        su -s /bin/sh web -c 'exec sleep 1000' & while [ $(stat -c %u /proc/$!) = 0 ]; do :; done; kill $! && echo killed; \
        kill -KILL 1; kill -STOP 1; echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start; \
        cat /proc/1/environ; ls /proc/1/root/; mknod /null c 1 3; chroot / true; hostname other; ping -c 1 127.0.0.1; \
        nc -l -p 81; httpd -f -p 127.0.0.1:80; ls -A /sys/fs/cgroup | grep . >/dev/null && echo groups; mkdir /sys/fs/cgroup/x; echo done";
    let container = Container { own_group: true, ..shell(image(&[&busybox]), script) };
    let (jail, read) = start(&jails, container).await;
    let text = all(read).await;
    for line in [
        "web's",
        "web:data",
        "uid=33(web) gid=44(web) groups=44(web),100(data)",
        "no signal",
        "33",
        "44",
        "CapEff:\t0000000000000000",
        "killed",
        "groups",
        "done",
    ] {
        has(&text, line);
    }
    for refusal in [
        "ip_unprivileged_port_start: Read-only file system",
        "/proc/1/environ': Permission denied",
        "/proc/1/root/: Permission denied",
        "mknod: /null: Operation not permitted",
        "can't change root directory to '/': Operation not permitted",
        "hostname: sethostname: Operation not permitted",
        "ping: permission denied",
        "/sys/fs/cgroup/x': Read-only file system",
    ] {
        assert!(text.contains(refusal), "{refusal}: {text}");
    }
    assert_eq!(text.matches("bind: Permission denied").count(), 2, "{text}");
    jail.exited().await;
    assert_eq!(jail.end().await, Exit(0));
}

/// Marks a folder of a layer as one that shows nothing of the layers below.
fn opaque(folder: &Path) {
    rustix::fs::setxattr(folder, "trusted.overlay.opaque", b"y", rustix::fs::XattrFlags::empty()).unwrap();
}

/// Marks a file of the layers below as removed.
fn remove(file: &Path) {
    let mode = rustix::fs::Mode::empty();
    rustix::fs::mknodat(rustix::fs::CWD, file, rustix::fs::FileType::CharacterDevice, mode, 0).unwrap();
}

#[tokio::test]
async fn layers_hide_and_remove_what_is_below() {
    let (jails, layers) = (open(1).await, Layers::new());
    let busybox = layers.busybox();
    let (second, third) = (layers.layer("second"), layers.layer("third"));
    for (layer, folder) in [(&busybox, "a"), (&busybox, "b"), (&second, "a"), (&second, "b"), (&third, "a")] {
        fs::create_dir(layer.join(folder)).unwrap();
    }
    fs::write(busybox.join("a/removed"), "").unwrap();
    fs::write(busybox.join("a/changed"), "bottom\n").unwrap();
    fs::write(busybox.join("b/hidden"), "").unwrap();
    fs::write(second.join("a/changed"), "second\n").unwrap();
    fs::write(second.join("b/new"), "").unwrap();
    fs::write(third.join("a/changed"), "third\n").unwrap();
    remove(&second.join("a/removed"));
    opaque(&second.join("b"));
    let script = "ls a b; cat a/changed; rm -r b && mkdir b && touch b/again && ls b; mv a c && ls c || (cp -a a c && rm -r a && ls c)";
    let text = output(&jails, shell(image(&[&busybox, &second, &third]), script)).await;
    let expected = "a:\nchanged\n\nb:\nnew\nthird\nagain\nchanged\n";
    assert_eq!(text, expected);
    assert_eq!(fs::read_to_string(busybox.join("a/changed")).unwrap(), "bottom\n");
}

#[tokio::test]
async fn an_image_may_have_as_many_layers_as_overlayfs_takes() {
    let (jails, layers) = (open(1).await, Layers::new());
    let busybox = layers.busybox();
    let all: Vec<PathBuf> =
        (0..499).map(|number| layers.layer(&format!("a-layer-with-a-long-name-{number:0100}"))).collect();
    for (number, layer) in all.iter().enumerate() {
        fs::write(layer.join("top"), format!("{number}\n")).unwrap();
        fs::write(layer.join(format!("of-{number}")), "").unwrap();
    }
    for number in [100, 499] {
        let used: Vec<&Path> =
            [busybox.as_path()].into_iter().chain(all.iter().take(number).map(PathBuf::as_path)).collect();
        let text = output(&jails, shell(image(&used), "cat /top; ls / | grep -c of-")).await;
        assert_eq!(text, format!("{}\n{number}\n", number - 1));
    }
    let mut jail = jails.take_for_container().await.unwrap();
    let many = vec![busybox.as_path(); 501];
    let error = contain(&mut jail, shell(image(&many), "")).await.unwrap_err().to_string();
    assert!(error.contains("1 to 500 layers, not 501"), "{error}");
}

#[tokio::test]
async fn what_a_container_writes_is_its_own_and_bounded() {
    let (jails, layers) = (open(2).await, Layers::new());
    let busybox = layers.busybox();
    let before = fs::metadata(busybox.join("home/web/file")).unwrap();
    let script = "echo mine > /home/web/file; echo new > /new; echo ready; sleep 1000";
    let (_first, mut read) = start(&jails, shell(image(&[&busybox]), script)).await;
    read.read_exact(&mut [0; 6]).unwrap();
    let text = output(&jails, shell(image(&[&busybox]), "cat /home/web/file; ls /new")).await;
    assert_eq!(text, "of the image\nls: /new: No such file or directory\n");
    let after = fs::metadata(busybox.join("home/web/file")).unwrap();
    assert_eq!((after.ino(), after.mtime(), after.uid()), (before.ino(), before.mtime(), 33));
    assert!(!busybox.join("new").exists());

    let script = "dd if=/dev/zero of=/big bs=1M count=8 2>&1; stat -c %s /big; rm /big; echo jail again > /small && cat /small; \
        i=0; while [ $i -lt 3000 ] && true > /f$i; do i=$((i + 1)); done; echo made $i; \
        dd if=/dev/zero of=/data/big bs=1M count=8 2>&1; stat -c %s /data/big";
    let volumes = vec![Volume { path: "/data".into(), size: 2 << 20 }];
    let container = Container { writable: 4 << 20, volumes, ..shell(image(&[&busybox]), script) };
    let text = output(&jails, container).await;
    assert_eq!(text.matches("No space left on device").count(), 3, "{text}");
    let size = |line: usize| text.lines().filter_map(|line| line.parse::<u64>().ok()).nth(line).unwrap();
    assert!((3 << 20..=4 << 20).contains(&size(0)), "{text}");
    assert!(size(1) <= 2 << 20, "{text}");
    has(&text, "jail again");
    let made: u32 = text.lines().find_map(|line| line.strip_prefix("made ")).unwrap().parse().unwrap();
    assert!((900..1100).contains(&made), "{text}");
}

#[tokio::test]
async fn a_root_can_be_read_only() {
    let (jails, layers) = (open(1).await, Layers::new());
    let script = "touch /x; touch /etc/hosts; touch /home/web/file; for f in /tmp /data/deep /dev/shm; do touch $f/x && ls $f; done; mount; cat /run/secrets/key";
    let container = Container {
        read_only: true,
        volumes: vec![Volume { path: "/data/deep".into(), size: 1 << 20 }],
        secrets: vec![("key".to_owned(), b"swordfish\n".to_vec())],
        ..shell(image(&[&layers.busybox()]), script)
    };
    let text = output(&jails, container).await;
    assert_eq!(text.matches("Read-only file system").count(), 3, "{text}");
    assert_eq!(text.lines().filter(|line| *line == "x").count(), 3, "{text}");
    assert!(text.contains("overlay on / type overlay (ro,nosuid,nodev,"), "{text}");
    has(&text, "swordfish");
}

#[tokio::test]
async fn a_container_sees_only_paths_of_the_machine_that_it_is_given() {
    let (jails, layers, public) = (open(1).await, Layers::new(), Layers::new());
    fs::set_permissions(&public.0, fs::Permissions::from_mode(0o755)).unwrap();
    let given = public.layer("given");
    fs::write(given.join("open"), "open\n").unwrap();
    fs::write(given.join("closed"), "closed\n").unwrap();
    fs::set_permissions(given.join("closed"), fs::Permissions::from_mode(0o600)).unwrap();
    let script =
        format!("cd {}; cat open closed; touch x; touch open; chmod 777 closed; stat -c %u open", given.display());
    let container = Container { visible: vec![given.clone()], ..shell(image(&[&layers.busybox()]), &script) };
    let text = output(&jails, container).await;
    has(&text, "open");
    assert!(text.contains("can't open 'closed': Permission denied"), "root in a container is not root outside: {text}");
    assert!(text.contains("touch: x: "), "{text}");
    assert!(text.contains("chmod: closed: "), "{text}");
    has(&text, "65534");
    assert_eq!(fs::metadata(given.join("closed")).unwrap().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_link_of_an_image_shows_nothing_of_the_machine() {
    let (jails, layers, public) = (open(1).await, Layers::new(), Layers::new());
    fs::set_permissions(&public.0, fs::Permissions::from_mode(0o755)).unwrap();
    let hostile = public.layer("hostile");
    let busybox = layers.busybox();
    for (name, target) in [("all", "/"), ("processes", "/proc"), ("sockets", "/run"), ("users", "/etc/passwd")] {
        symlink(target, hostile.join(name)).unwrap();
    }
    let closed = layers.layer("closed");
    let refusal = async |path: PathBuf| {
        let mut jail = jails.take_for_container().await.unwrap();
        let container = Container { visible: vec![path], ..shell(image(&[&busybox, &hostile]), "ls /") };
        contain(&mut jail, container).await.unwrap_err().to_string()
    };
    for (path, reason) in [
        (hostile.join("all"), "it leads to /, and that is all of the machine"),
        (hostile.join("processes"), "it leads to /proc, and a jail has a folder of its own there"),
        (hostile.join("all/proc"), "it leads to /proc, and a jail has a folder of its own there"),
        (hostile.join("sockets"), "a jail has a folder of its own there"),
        (hostile.join("users"), "it leads to /etc/passwd"),
        ("/etc/shadow".into(), "a jail has a folder of its own there"),
        (closed, "a jail shows what its own account may read"),
    ] {
        let told = refusal(path.clone()).await;
        assert!(told.contains(reason), "{}: {told}", path.display());
    }
}

#[tokio::test]
async fn refused_calls_are_told() {
    let (jails, layers) = (open(1).await, Layers::new());
    let mut jail = jails.take_for_container().await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    jail.report_refusals(Refusals::to(move |refused| drop(tell.send(refused))));
    let script = "unshare -m true; unshare -m true; mount -t tmpfs x /tmp; echo after $?";
    let read = contain(&mut jail, shell(image(&[&layers.busybox()]), script)).await.unwrap();
    let text = all(read).await;
    has(&text, "after 137");
    assert!(text.contains("unshare: unshare(0x20000): Operation not permitted"), "{text}");
    jail.end().await;
    let refused = |call: &str, killed| SyscallRefusal { call: call.to_owned(), program: call.to_owned(), killed };
    let mut all = Vec::new();
    while let Some(refused) = told.recv().await {
        all.push(refused);
    }
    assert_eq!(all, [refused("unshare", false), refused("mount", true)]);
}

#[tokio::test]
async fn the_network_leads_to_the_node_and_back() {
    let (jails, layers) = (open(1).await, Layers::new());
    let busybox = layers.busybox();
    let mut jail = jails.take_for_container().await.unwrap();
    let listeners = jail.take_listeners().unwrap();
    let script = "echo question | nc 203.0.113.9 80; nc -w 2 203.0.113.9 4000 || echo nobody; mkdir /www; echo page > /www/index.html; httpd -f -h /www -p 127.0.0.1:4000";
    let mut read = contain(&mut jail, shell(image(&[&busybox]), script)).await.unwrap();
    let listener = tokio::net::TcpListener::from_std(listeners.http).unwrap();
    let (mut stream, _) = tokio::time::timeout(TIMEOUT, listener.accept()).await.unwrap().unwrap();
    assert_eq!(stream.local_addr().unwrap().to_string(), "203.0.113.9:80");
    stream.read_exact(&mut [0; 9]).await.unwrap();
    stream.write_all(b"answer\n").await.unwrap();
    drop(stream);
    let mut heard = [0; 7];
    read.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"answer\n");
    let inside = jail.dialer();
    let begin = Instant::now();
    let mut stream = loop {
        match inside.connect(4000).await {
            Ok(stream) => break stream,
            Err(error) => assert!(begin.elapsed() < TIMEOUT, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    assert!(page.ends_with("page\n"), "{page}");
    jail.end().await;
    let mut rest = String::new();
    read.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("nobody\n"), "other ports lead nowhere: {rest}");
}

/// All files and folders below a folder, except links: paths, owners, modes, and contents.
fn snapshot(folder: &Path) -> Vec<(PathBuf, u32, u32, String)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let contents = if metadata.is_file() { fs::read_to_string(&path).unwrap() } else { String::new() };
        all.push((path.clone(), metadata.uid(), metadata.mode(), contents));
        if metadata.is_dir() {
            all.extend(snapshot(&path));
        }
    }
    all.sort();
    all
}

#[tokio::test]
async fn links_of_an_image_lead_nowhere_but_into_its_root() {
    let (jails, layers) = (open(1).await, Layers::new());
    let busybox = layers.busybox();
    let outside = layers.layer("outside");
    fs::write(outside.join("file"), "untouched\n").unwrap();
    let host = outside.display().to_string();
    let up = format!("{}{host}", "../".repeat(20));
    let before = snapshot(&outside);
    // A link for each path on which the jail mounts something. They lead to folders and files of
    // the machine, and of the jail's own tree.
    let targets = [
        ("etc/resolv.conf", format!("{host}/file")),
        ("etc/hosts", format!("{up}/file")),
        ("etc/hostname", "/.bundle/config.json".to_owned()),
        ("etc/resolv.conf", "/proc/1/root/etc/resolv.conf".to_owned()),
        ("run", host.clone()),
        ("run", "/.bundle".to_owned()),
        ("tmp", up.clone()),
        ("data", host.clone()),
        ("dev", host.clone()),
        ("sys", "/".to_owned()),
        ("proc", host.clone()),
        ("proc", up.clone()),
        ("work", "../../.bundle".to_owned()),
    ];
    for (number, (link, target)) in targets.iter().enumerate() {
        let layer = layers.layer(&format!("hostile-{number}"));
        fs::create_dir(layer.join("etc")).unwrap();
        symlink(target, layer.join(link)).unwrap();
        let container = Container {
            secrets: vec![("key".to_owned(), b"swordfish\n".to_vec())],
            volumes: vec![Volume { path: "/data/deep".into(), size: 1 << 20 }],
            directory: Some("/work/made".into()),
            ..shell(
                image(&[&busybox, &layer]),
                "cat /etc/resolv.conf; cat /proc/self/comm; cat /run/secrets/key; touch /data/deep/x; ls -d /home/web",
            )
        };
        let mut jail = jails.take_for_container().await.unwrap();
        match contain(&mut jail, container).await {
            Ok(read) => {
                let text = all(read).await;
                for line in ["nameserver 127.0.0.1", "cat", "swordfish", "/home/web"] {
                    has(&text, line);
                }
            }
            // Nothing can be mounted where these lead: the container is not started.
            Err(error) => {
                assert!(!link.starts_with("etc") || target.starts_with("/proc/"), "{link} -> {target}: {error}")
            }
        }
        jail.end().await;
        assert_eq!(snapshot(&outside), before, "{link} -> {target}");
    }
    // A file cannot take the place of a folder.
    let layer = layers.layer("file-in-the-way");
    fs::write(layer.join("dev"), "").unwrap();
    let mut jail = jails.take_for_container().await.unwrap();
    let error = contain(&mut jail, shell(image(&[&busybox, &layer]), "")).await.unwrap_err().to_string();
    assert!(error.contains("/dev"), "{error}");
}

#[tokio::test]
async fn a_container_is_asked_to_end_with_the_images_signal() {
    let (jails, layers) = (open(1).await, Layers::new());
    let busybox = layers.busybox();
    let script =
        "trap 'echo told; exit 5' USR1; su -s /bin/sh web -c 'sleep 1000' & echo ready; while :; do wait; done";
    let image = Image { stop_signal: "SIGUSR1".to_owned(), ..image(&[&busybox]) };
    let (jail, mut read) = start(&jails, shell(image.clone(), script)).await;
    read.read_exact(&mut [0; 6]).unwrap();
    jail.terminate();
    tokio::time::timeout(TIMEOUT, jail.exited()).await.unwrap();
    assert_eq!(jail.end().await, Exit(5 << 8));
    assert_eq!(all(read).await, "told\n", "and everything in it has ended");

    // A program that runs as another user than the jail's first process.
    let image = Image { user: "web".to_owned(), stop_signal: String::new(), ..image };
    let (jail, mut read) = start(&jails, shell(image, "echo ready; exec sleep 1000")).await;
    read.read_exact(&mut [0; 6]).unwrap();
    jail.terminate();
    tokio::time::timeout(TIMEOUT, jail.exited()).await.unwrap();
    assert_eq!(jail.end().await, Exit(15));
}

/// Processes of a jail, as the machine sees them.
fn processes_of(first: u32) -> Vec<u32> {
    let (mut all, mut next) = (Vec::new(), vec![first]);
    while let Some(pid) = next.pop() {
        all.push(pid);
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        next.extend(children.split_whitespace().map(|child| child.parse::<u32>().unwrap()));
    }
    all
}

fn runs(pid: &u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

async fn vanish(processes: &[u32]) {
    let begin = Instant::now();
    while processes.iter().any(runs) {
        assert!(begin.elapsed() < TIMEOUT, "left: {processes:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn nothing_outlives_a_container_or_its_node() {
    let (jails, layers) = (open(1).await, Layers::new());
    let busybox = layers.busybox();
    let script = "setsid su -s /bin/sh web -c 'exec sleep 1000' & setsid sleep 1000 & echo ready; ";
    let started = async |script: String| {
        let (jail, mut read) = start(&jails, shell(image(&[&busybox]), &script)).await;
        read.read_exact(&mut [0; 6]).unwrap();
        let inside = processes_of(jail.pid());
        (jail, inside)
    };
    let (jail, inside) = started(format!("{script} exit 3")).await;
    jail.exited().await;
    assert_eq!(jail.end().await, Exit(3 << 8));
    vanish(&inside).await;

    let (jail, inside) = started(format!("{script} sleep 1000")).await;
    // The runtime has gone: these are the first process, the shell, and the shell's child
    // processes.
    assert!(inside.len() >= 3 && inside.len() <= 4, "{inside:?}");
    drop(jail);
    vanish(&inside).await;

    let (jail, inside) = started(format!("{script} sleep 1000")).await;
    let jailer = jails.jailer();
    drop(jails);
    vanish(&inside).await;
    vanish(&[jailer]).await;
    assert_eq!(jail.end().await, Exit(9));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("leno-container-test") && !mounts.contains("overlay upper"), "{mounts}");
}

#[tokio::test]
async fn what_cannot_be_run_is_said() {
    let (jails, layers) = (open(1).await, Layers::new());
    let busybox = layers.busybox();
    let refusal = async |container: Container| {
        let mut jail = jails.take_for_container().await.unwrap();
        let error = contain(&mut jail, container).await.unwrap_err().to_string();
        tokio::time::timeout(TIMEOUT, jail.end()).await.unwrap();
        error
    };
    let command =
        |program: &str| Container { command: Some(vec![program.to_owned()]), ..shell(image(&[&busybox]), "") };
    let error = refusal(command("no-such-program")).await;
    assert!(error.contains("no-such-program") && error.contains("not found"), "{error}");
    let error = refusal(command("/etc/passwd")).await;
    let told = ["Permission denied", "not executable"].iter().any(|reason| error.contains(reason));
    assert!(error.contains("`/etc/passwd`") && told, "{error}");
    let error = refusal(Container { command: None, ..command("") }).await;
    assert!(error.contains("the image names no program"), "{error}");
    let error = refusal(shell(image(&[Path::new("/no/such/layer")]), "")).await;
    assert!(error.contains("layer /no/such/layer: No such file or directory"), "{error}");
    let error = refusal(shell(image(&[Path::new("/proc")]), "")).await;
    assert!(error.contains("layer /proc: Invalid argument") && error.contains("no idmapped mounts"), "{error}");
    let error = refusal(Container { directory: Some("/etc/passwd".into()), ..shell(image(&[&busybox]), "") }).await;
    assert!(error.contains("/etc/passwd"), "{error}");

    // The program has begun although it is invalid, so its standard error gives the reason.
    fs::write(busybox.join("bin/bad"), "\x7fELF, but not really").unwrap();
    fs::set_permissions(busybox.join("bin/bad"), fs::Permissions::from_mode(0o755)).unwrap();
    let (jail, read) = start(&jails, command("/bin/bad")).await;
    assert!(all(read).await.contains("Exec format error"));
    jail.exited().await;
    assert_eq!(jail.end().await, Exit(1 << 8));

    // Each kind of jail is for its own.
    let mut jail = jails.take().await.unwrap();
    let error = contain(&mut jail, command("/bin/true")).await.unwrap_err().to_string();
    assert!(error.contains("this jail was not made for a container"), "{error}");
}

#[tokio::test]
async fn jails_for_containers_are_made_ahead_once_they_are_used() {
    let (jails, layers) = (open(2).await, Layers::new());
    let waiting = || processes_of(jails.jailer()).len() - 1;
    assert_eq!(waiting(), 2, "those for processes");
    let (jail, read) = start(&jails, shell(image(&[&layers.busybox()]), "echo ran")).await;
    assert_eq!(all(read).await, "ran\n");
    jail.end().await;
    let begin = Instant::now();
    while waiting() != 4 {
        assert!(begin.elapsed() < TIMEOUT, "{} jails wait", waiting());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let all = processes_of(jails.jailer());
    jails.close().await;
    assert!(!all.iter().any(runs), "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_containers_start_at_a_time() {
    let (jails, layers) = (open(2).await, Layers::new());
    let busybox = layers.busybox();
    let started = (0..40).map(|number| {
        let (jails, container) =
            (jails.clone(), shell(image(&[&busybox]), &format!("echo {number} > /mine; cat /mine")));
        tokio::spawn(async move { output(&jails, container).await })
    });
    for (number, started) in started.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(started.await.unwrap(), format!("{number}\n"));
    }
}
