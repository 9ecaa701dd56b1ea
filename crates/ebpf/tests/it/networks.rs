//! Networks for tests.

use nix::sched::{CloneFlags, unshare};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};

/// Whether tests can run here; otherwise prints why not.
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

    /// Runs a closure in the network. Its sockets remain in this network.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        self.jobs.send(Box::new(move || drop(done.send(job())))).unwrap();
        result.recv().unwrap()
    }
}
