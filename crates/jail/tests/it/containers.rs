//! Containers in jails: images that these tests make of a static busybox.
//!
//! They need root, the package `busybox-static`, and a file system under the temporary folder that
//! has idmapped mounts.

mod files;
mod lifecycle;
mod support;

use leno_jail::{Container, Exit, Image, Refusals, SyscallRefusal};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::{Duration, Instant};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn a_container_has_its_image_and_nothing_else() {
    let (jails, layers) = (open(1).await, Layers::new());
    let script = "hostname; id; pwd; echo $HOME $PATH $GIVEN; ls /; echo --; cat /etc/hostname /etc/hosts /etc/resolv.conf; \
        grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp|SigBlk|SigIgn):' /proc/self/status; ulimit -n; umask; cat /run/secrets/key; \
        echo first $(grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/1/status); \
        echo hidden $(cat /proc/interrupts /proc/keys /proc/timer_list /proc/kcore | wc -c) $(ls -A /proc/scsi; ls -A /proc/acpi); \
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
        "CapInh:\t0000000000000000",
        "CapPrm:\t00000000000000fb",
        "CapEff:\t00000000000000fb",
        "CapBnd:\t00000000000000fb",
        "CapAmb:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "SigBlk:\t0000000000000000",
        "321",
        "0022",
        // The first process may signal the container's users, and nothing else.
        "first CapInh: 0000000000000000 CapPrm: 0000000000000020 CapEff: 0000000000000020 \
         CapBnd: 00000000000000fb CapAmb: 0000000000000000 NoNewPrivs: 1 Seccomp: 2",
        "hidden 0",
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
    let ignored = text.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & 1 << 12, 0, "SIGPIPE ends its programs: {ignored}");
    let open: Vec<&str> = text.lines().filter(|line| line.contains(" -> ")).collect();
    assert_eq!(open.len(), 3, "nothing of the jail's is open: {open:?}");
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
        httpd -p 81 && echo low port; httpd -f -p 127.0.0.1:80; ls -A /sys/fs/cgroup | grep . >/dev/null && echo groups; mkdir /sys/fs/cgroup/x; echo done";
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
        "low port",
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
    assert_eq!(text.matches("bind: Address").count(), 1, "the node's listener is at port 80: {text}");
    jail.exited().await;
    assert_eq!(jail.end().await, Exit(0));
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
