//! Folders that a program of the machine can write to.

use super::{all, open, program, run};
use leno_jail::{Program, Volume, WritableFolder};
use std::os::unix::fs::{MetadataExt, chown};

fn volume(path: &str, size: u64) -> Volume {
    Volume { path: path.into(), size }
}

#[tokio::test]
async fn folders_in_memory_are_writable_and_bounded() {
    let jails = open(1).await;
    let script = "cd /var/lib/app && echo kept > file && cat file; stat -f -c %T .; stat -c %a .; \
        head -c 2000000 /dev/zero > large || echo full; head -c 2000000 /dev/zero > /tmp/large && echo fits; \
        touch /var/lib/other || echo closed; touch /run/app/inner/x && echo nested";
    let volumes = ["/var/lib/app", "/run/app", "/run/app/inner"].map(|path| volume(path, 1 << 20));
    let mut jail = jails.take().await.unwrap();
    let volumes = volumes.into_iter().chain([volume("/tmp", 4 << 20)]).collect();
    let output = run(&mut jail, Program { volumes, ..program(script) }).await.unwrap();
    let text = all(output).await;
    for line in ["kept", "tmpfs", "1777", "full", "fits", "closed", "nested"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    jail.end().await;
}

#[tokio::test]
async fn a_folder_of_the_machine_has_to_have_a_place_for_a_volume() {
    let jails = open(1).await;
    let machine = tempfile::tempdir().unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(machine.path(), everybody).unwrap();
    std::fs::create_dir(machine.path().join("cache")).unwrap();
    let attempt = async |inside: &str| {
        let path = machine.path().join(inside);
        let volumes = vec![volume(path.to_str().unwrap(), 1 << 20)];
        let directory = machine.path().to_owned();
        let mut jail = jails.take().await.unwrap();
        let script = format!("touch {}/x && echo written", path.display());
        let text = match run(&mut jail, Program { volumes, directory, ..program(&script) }).await {
            Ok(output) => all(output).await,
            Err(error) => error.to_string(),
        };
        jail.end().await;
        text
    };
    assert_eq!(attempt("cache").await, "written\n");
    let missing = attempt("missing").await;
    assert!(missing.contains("missing: make an empty folder there"), "{missing}");
    let hides = attempt("").await;
    assert!(hides.contains("would hide"), "{hides}");
}

#[tokio::test]
async fn volumes_hide_no_programs_of_the_machine() {
    let jails = open(1).await;
    for path in ["/usr/share", "/etc/ssl", "/proc/x", "/", "relative"] {
        let mut jail = jails.take().await.unwrap();
        let volumes = vec![volume(path, 1 << 20)];
        assert!(run(&mut jail, Program { volumes, ..program("true") }).await.is_err(), "{path}");
        jail.end().await;
    }
}

#[tokio::test]
async fn a_folder_of_the_machine_is_written_to_under_the_jails_own_numbers() {
    let jails = open(1).await;
    let machine = tempfile::tempdir().unwrap();
    let source = machine.path().join("data");
    std::fs::create_dir(&source).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(&source, Some(1000), Some(1000)).unwrap();
    }
    let mut expected = String::new();
    for round in 1..=2 {
        let mut jail = jails.take().await.unwrap();
        let folders = vec![WritableFolder { source: source.clone(), path: "/var/lib/app".into() }];
        let script = "cd /var/lib/app && echo round >> file && cat file && chmod 700 . && stat -c %u file";
        let output = run(&mut jail, Program { folders, ..program(script) }).await.unwrap();
        expected = "round\n".repeat(round) + "1000\n";
        assert_eq!(all(output).await, expected);
        jail.end().await;
    }
    let owner = std::fs::metadata(source.join("file")).unwrap().uid();
    assert_eq!(owner, if is_root { 1000 } else { rustix::process::geteuid().as_raw() }, "{expected}");
}
