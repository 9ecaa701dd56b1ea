//! Networks and a control group for tests.
#![allow(dead_code, reason = "each test uses a part")]

use nix::sched::{CloneFlags, unshare};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether tests can run here; otherwise says why not.
pub(crate) fn may_run() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root may make network namespaces here, and load programs into the kernel");
    }
    root
}

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace in which every address is local, and a thread in it.
pub(crate) struct Network {
    jobs: Sender<Job>,
}

impl Network {
    pub(crate) fn new() -> Self {
        let (jobs, todo) = channel::<Job>();
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            for arguments in ["link set lo up", "route add local 0.0.0.0/0 dev lo src 127.0.0.1"] {
                assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success());
            }
            todo.iter().for_each(|job| job());
        });
        Self { jobs }
    }

    /// Runs something in the network. What it makes there remains of this network.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        self.jobs.send(Box::new(move || drop(done.send(job())))).unwrap();
        result.recv().unwrap()
    }

    pub(crate) fn namespace(&self) -> File {
        self.run(|| File::open("/proc/thread-self/ns/net").unwrap())
    }
}

/// A control group that this process is in until it is dropped. There is one at a time.
pub(crate) struct Group {
    pub(crate) path: PathBuf,
    parent: PathBuf,
    _only: MutexGuard<'static, ()>,
}

impl Group {
    pub(crate) fn enter() -> Self {
        static ONLY: Mutex<()> = Mutex::new(());
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("no cgroup2 is mounted");
        let group = fs::read_to_string("/proc/self/cgroup").unwrap();
        let group = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap().to_owned();
        let parent = Path::new(mount.split(' ').nth(4).unwrap()).join(group);
        let path = parent.join(format!("leno-test-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("cgroup.procs"), "0").unwrap();
        Self { path, parent, _only: only }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.parent.join("cgroup.procs"), "0");
        // A thread that has just ended is in it a little longer.
        for _ in 0..1000 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
