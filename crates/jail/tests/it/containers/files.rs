//! The files of a container: layers, what it writes, paths of the machine, and links.

use super::support::*;
use leno_jail::{Container, Volume, WritableFolder};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

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
async fn a_folder_of_the_machine_has_the_owners_of_the_container() {
    let (jails, layers) = (open(1).await, Layers::new());
    let busybox = layers.busybox();
    let machine = tempfile::tempdir().unwrap();
    let source = machine.path().join("data");
    fs::create_dir(&source).unwrap();
    let folders = vec![WritableFolder { source: source.clone(), path: "/data".into() }];
    let script = "touch /data/root; mkdir /data/web; chown web:data /data/web; su -s /bin/sh web -c 'touch /data/web/x'; ls -ln /data /data/web";
    let text = output(&jails, Container { folders, read_only: true, ..shell(image(&[&busybox]), script) }).await;
    let owner = |path: &str| fs::metadata(source.join(path)).map(|metadata| metadata.uid());
    assert_eq!([owner("root").unwrap(), owner("web").unwrap(), owner("web/x").unwrap()], [0, 33, 33], "{text}");
}

#[tokio::test]
async fn a_folder_that_the_machine_has_for_others_too_keeps_its_owner() {
    let (jails, layers) = (open(1).await, Layers::new());
    let busybox = layers.busybox();
    let machine = tempfile::tempdir().unwrap();
    let source = machine.path().join("data");
    fs::create_dir(&source).unwrap();
    std::os::unix::fs::chown(&source, Some(1234), Some(5678)).unwrap();
    fs::write(source.join("of-root"), "x").unwrap();
    fs::set_permissions(source.join("of-root"), fs::Permissions::from_mode(0o600)).unwrap();
    let host = |writable| {
        let access = leno_files::HostAccess::Any;
        vec![leno_jail::HostFolder { source: source.clone(), path: "/data".into(), writable, access }]
    };
    let script = "id -u; touch /data/$(id -u) || echo refused; stat -c %u /data; cat /data/of-root || echo closed; chown 5 /data || echo kept";
    for user in ["root", "web"] {
        let container =
            Container { host: host(true), user: Some(user.to_owned()), ..shell(image(&[&busybox]), script) };
        let text = output(&jails, container).await;
        let number = if user == "root" { "0" } else { "33" };
        assert_eq!(text.lines().filter(|line| *line == number).count(), 2, "{user}: {text}");
        assert!(text.contains("closed") && text.contains("kept") && !text.contains("refused"), "{user}: {text}");
        let made = fs::metadata(source.join(number)).unwrap();
        assert_eq!((made.uid(), made.gid()), (1234, 5678), "{user}");
    }
    let text = output(&jails, Container { host: host(false), ..shell(image(&[&busybox]), script) }).await;
    assert!(text.contains("refused") && text.contains("Read-only file system"), "{text}");
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
        ("etc/hostname", "/.secrets/key".to_owned()),
        ("etc/resolv.conf", "/proc/1/root/etc/resolv.conf".to_owned()),
        ("run", host.clone()),
        ("run", "/.root".to_owned()),
        ("data", "/".to_owned()),
        ("data", "/proc/1/root".to_owned()),
        ("etc", "/proc/self/cwd".to_owned()),
        ("tmp", up.clone()),
        ("data", host.clone()),
        ("dev", host.clone()),
        ("sys", "/".to_owned()),
        ("proc", host.clone()),
        ("proc", up.clone()),
        ("work", "../../.root".to_owned()),
    ];
    for (number, (link, target)) in targets.iter().enumerate() {
        let layer = layers.layer(&format!("hostile-{number}"));
        if link.starts_with("etc/") {
            fs::create_dir(layer.join("etc")).unwrap();
        }
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
                assert!(!link.starts_with("etc/"), "{link} -> {target}: {error}")
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
