//! The start and the end of containers.

use super::support::*;
use leno_jail::{Container, Exit, Image};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

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
    // The first process, the shell, and the shell's child processes.
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

    let error = refusal(command("/bin")).await;
    assert!(error.contains("`/bin`: the program: not found in the image"), "{error}");
    fs::write(busybox.join("bin/bad"), "\x7fELF, but not really").unwrap();
    fs::set_permissions(busybox.join("bin/bad"), fs::Permissions::from_mode(0o755)).unwrap();
    let error = refusal(command("/bin/bad")).await;
    assert!(error.contains("`/bin/bad`: the program: Exec format error"), "{error}");

    // Links of `/proc` lead to files that the process has open which becomes the program: its own
    // program is a file of the machine.
    symlink("/proc/self/exe", busybox.join("bin/own")).unwrap();
    for program in ["/proc/self/exe", "/bin/own", "own"] {
        let error = refusal(command(program)).await;
        assert!(error.contains(&format!("`{program}`: the program: Too many levels of symbolic links")), "{error}");
    }
    symlink("/proc/self", busybox.join("self")).unwrap();
    for directory in ["/proc/self/fd/3", "/self/cwd", "/proc/1/root/etc", "/self/cwd/new"] {
        let error = refusal(Container { directory: Some(directory.into()), ..command("/bin/true") }).await;
        assert!(error.contains(directory), "{directory}: {error}");
    }
    let directory = Some("/home/web".into());
    fs::set_permissions(busybox.join("home/web"), fs::Permissions::from_mode(0o700)).unwrap();
    let error = refusal(Container { user: Some("7".to_owned()), directory, ..command("/bin/true") }).await;
    assert!(error.contains("its working directory: Permission denied"), "{error}");

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

#[tokio::test(flavor = "multi_thread")]
async fn jails_made_ahead_follow_demand_and_are_bounded() {
    const MOST: usize = 16;
    let jails = open(2).await;
    let waiting = || processes_of(jails.jailer()).len() - 1;
    // More starts find no jail than jails may wait.
    let burst = (0..60).map(|_| {
        let jails = jails.clone();
        tokio::spawn(async move { jails.take().await.unwrap().end().await })
    });
    for taken in burst.collect::<Vec<_>>() {
        taken.await.unwrap();
    }
    let begin = Instant::now();
    while waiting() != MOST {
        assert!(begin.elapsed() < TIMEOUT, "{} jails wait", waiting());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(waiting(), MOST);
    jails.shrink().await;
    // A process that has ended may still wait to be reaped.
    while waiting() != 2 {
        assert!(begin.elapsed() < TIMEOUT, "{} jails wait", waiting());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
