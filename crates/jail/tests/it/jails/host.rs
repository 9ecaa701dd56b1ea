//! Folders that a program shares with the machine.

use super::{all, open, program, run};
use leno_files::{HostAccess, Owner};
use leno_jail::{HostFolder, Jails, Program};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The owner of files in these tests.
const OWNER: Owner = Owner { user: 1234, group: 5678 };

/// A folder that only [`OWNER`] may enter.
fn owned(path: &Path) -> PathBuf {
    fs::create_dir_all(path).unwrap();
    chown(path, Some(OWNER.user), Some(OWNER.group)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    path.to_owned()
}

fn listed(path: &Path, owner: Option<Owner>) -> HostAccess {
    HostAccess::Listed(vec![leno_files::HostFolder { path: path.to_owned(), owner }])
}

/// The output of a script with the folder at `/data`, or the reason why there is none.
async fn shared(jails: &Jails, source: &Path, writable: bool, access: HostAccess, script: &str) -> String {
    let mut jail = jails.take().await.unwrap();
    let host = vec![HostFolder { source: source.to_owned(), path: "/data".into(), writable, access }];
    let text = match run(&mut jail, Program { host, ..program(script) }).await {
        Ok(output) => all(output).await,
        Err(error) => error.to_string(),
    };
    jail.end().await;
    text
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only a node that is root maps owners");
    }
    is_root
}

#[tokio::test]
async fn files_of_a_program_belong_to_the_owner_of_the_folder() {
    let (jails, machine) = (open(1).await, tempfile::tempdir().unwrap());
    if !is_root() {
        let told = shared(&jails, machine.path(), true, HostAccess::Any, "true").await;
        return assert!(told.contains("needs a node that runs as root"), "{told}");
    }
    let source = owned(&machine.path().join("data"));
    fs::write(source.join("others"), "secret\n").unwrap();
    fs::set_permissions(source.join("others"), Permissions::from_mode(0o600)).unwrap();
    let script = "cd /data && echo hello > file && mkdir inner && touch inner/x && cp /bin/true tool && stat -c %u:%g file; \
                  cat others || echo closed; chown 0 file || echo not given; grep ' /data ' /proc/self/mountinfo";
    let text = shared(&jails, &source, true, HostAccess::Any, script).await;
    for line in ["1000:1000", "closed", "not given"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(text.contains("rw,nosuid,nodev"), "{text}");
    for name in ["file", "inner", "inner/x", "tool"] {
        let made = fs::metadata(source.join(name)).unwrap();
        assert_eq!((made.uid(), made.gid()), (OWNER.user, OWNER.group), "{name}");
    }
    assert_eq!(fs::read_to_string(source.join("file")).unwrap(), "hello\n");
}

#[tokio::test]
async fn an_operator_names_another_owner() {
    if !is_root() {
        return;
    }
    let (jails, machine) = (open(1).await, tempfile::tempdir().unwrap());
    // The folder is root's.
    let source = machine.path().join("data");
    fs::create_dir(&source).unwrap();
    fs::set_permissions(&source, Permissions::from_mode(0o777)).unwrap();
    let told = shared(&jails, &source, true, listed(machine.path(), None), "touch /data/x").await;
    assert!(told.contains("belongs to root") && told.contains("`owner`"), "{told}");
    let root = Owner { user: 0, group: 0 };
    let told = shared(&jails, &source, true, listed(machine.path(), Some(root)), "touch /data/x").await;
    assert!(told.contains("no program writes as root"), "{told}");
    let text = shared(&jails, &source, true, listed(machine.path(), Some(OWNER)), "touch /data/x && echo made").await;
    assert_eq!(text, "made\n");
    assert_eq!(fs::metadata(source.join("x")).unwrap().uid(), OWNER.user);
}

#[tokio::test]
async fn a_folder_that_is_read_only_stays_so() {
    if !is_root() {
        return;
    }
    let (jails, machine) = (open(1).await, tempfile::tempdir().unwrap());
    let source = owned(&machine.path().join("data"));
    fs::write(source.join("file"), "kept\n").unwrap();
    chown(source.join("file"), Some(OWNER.user), Some(OWNER.group)).unwrap();
    let script = "cat /data/file; echo changed > /data/file || echo refused; touch /data/x || echo refused; rm -f /data/file || echo refused";
    let text = shared(&jails, &source, false, HostAccess::Any, script).await;
    assert_eq!(text.lines().filter(|line| *line == "refused").count(), 3, "{text}");
    assert!(text.contains("kept"), "{text}");
    assert_eq!(fs::read_to_string(source.join("file")).unwrap(), "kept\n");
}

#[tokio::test]
async fn folders_outside_of_the_listed_ones_and_of_the_kernel_are_refused() {
    if !is_root() {
        return;
    }
    let (jails, machine) = (open(1).await, tempfile::tempdir().unwrap());
    let own = |name: &str| machine.path().join(name);
    let (mine, other) = (owned(&own("mine")), owned(&own("other")));
    symlink("../other", mine.join("up")).unwrap();
    symlink("/etc", mine.join("absolute")).unwrap();
    let access = || listed(&mine, None);
    for (source, reason) in [
        (other.clone(), "none of the folders that its namespace may have"),
        (mine.join("up"), "leads out of the folders"),
        (mine.join("absolute"), "leads out of the folders"),
        (mine.join("missing"), "make it, or place the function on nodes that have it"),
    ] {
        let told = shared(&jails, &source, true, access(), "touch /data/x").await;
        assert!(told.contains(reason), "{}: {told}", source.display());
    }
    for source in ["/", "/proc/sys", "/etc", "/run", "/sys"] {
        let told = shared(&jails, Path::new(source), true, HostAccess::Any, "touch /data/x").await;
        assert!(told.contains("no program may have the folder"), "{source}: {told}");
    }
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_replaces_a_folder_meanwhile_leads_nowhere() {
    if !is_root() {
        return;
    }
    let (jails, machine) = (open(1).await, tempfile::tempdir().unwrap());
    let own = |name: &str| machine.path().join(name);
    let (mine, other) = (owned(&own("mine")), owned(&own("other")));
    let folder = owned(&mine.join("folder"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let target = ["folder", "../other", "/etc"][round % 3];
                symlink(target, mine.join("next")).unwrap();
                fs::rename(mine.join("next"), mine.join("changing")).unwrap();
            }
        });
        let rounds = async {
            let mut written = 0;
            while written < 10 {
                let access = listed(&mine, None);
                let text = shared(&jails, &mine.join("changing"), true, access, "touch /data/x && echo made").await;
                written += usize::from(text == "made\n");
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(rounds));
        stop.store(true, Ordering::Relaxed);
    });
    assert!(folder.join("x").exists());
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    assert!(!Path::new("/etc/x").exists());
}

#[tokio::test]
async fn a_file_system_without_mapped_owners_is_refused() {
    if !is_root() {
        return;
    }
    let (jails, machine) = (open(1).await, tempfile::tempdir().unwrap());
    let place = machine.path().join("ram");
    fs::create_dir(&place).unwrap();
    rustix::mount::mount("ramfs", &place, "ramfs", rustix::mount::MountFlags::empty(), None).unwrap();
    let source = owned(&place.join("data"));
    let told = shared(&jails, &source, true, HostAccess::Any, "touch /data/x").await;
    let made = source.join("x").exists();
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()).unwrap();
    assert!(told.contains("no idmapped mounts") && !made, "{told}");
}
