//! Tests of control groups.

use super::*;
use std::process::{Child, Command};

/// A process that holds the folders of all of these groups open, has locked them, and is in the
/// first one.
fn holder(member_of: &Path, folders: &[&Path]) -> Child {
    let script = "import fcntl,os,sys,time
held=[os.open(f,os.O_RDONLY) for f in sys.argv[2:]]
for f in held: fcntl.flock(f,fcntl.LOCK_EX)
os.chdir(sys.argv[2])
open(sys.argv[1]+'/cgroup.procs','w').write('0')
time.sleep(1000)";
    let (first, rest) = (member_of.as_os_str(), folders.iter().map(|folder| folder.as_os_str()));
    let child = Command::new("python3").args(["-c", script]).arg(first).args(rest).spawn().unwrap();
    let is_in = || read(&member_of.join(MEMBERS)).unwrap().contains(&child.id().to_string());
    while !is_in() {
        thread::sleep(POLL_INTERVAL);
    }
    child
}

#[test]
fn a_process_that_locks_the_nodes_group_ends_with_the_node() {
    let Ok(parent) = own_group() else { return eprintln!("SKIPPED: no cgroup v2") };
    let mut node = Command::new("sleep").arg("1000").spawn().unwrap();
    let owner = Owner::of_process(i32::try_from(node.id()).unwrap()).unwrap();
    let group = parent.join(format!("{PREFIX}{}-{:016x}", owner.name(), fastrand::u64(..)));
    if let Err(error) = fs::create_dir(&group) {
        node.kill().and_then(|()| node.wait()).unwrap();
        return eprintln!("SKIPPED: no control group can be made here: {error}");
    }
    let (instance, deeper) = (group.join("7"), group.join("7/own/deeper"));
    fs::create_dir_all(&deeper).unwrap();
    let mut holders = [holder(&deeper, &[&group, &instance, &deeper]), holder(&instance, &[&instance.join("own")])];
    // As long as the node lives, its groups stay.
    sweep(&parent).unwrap();
    assert!(holders.iter_mut().all(|holder| holder.try_wait().unwrap().is_none()));
    node.kill().unwrap();
    while owner.has_ended() == Some(false) {
        thread::sleep(POLL_INTERVAL);
    }
    sweep(&parent).unwrap();
    assert!(!group.exists());
    for mut holder in holders {
        holder.wait().unwrap();
    }
    node.wait().unwrap();
}
