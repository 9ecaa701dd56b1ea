use crate::error::{CaptureError, Explain};
use leno_ebpf::Network;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Socket, Type};
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::{io, thread};

/// The network namespace of a pod. It exists as long as this.
#[derive(Clone, Debug)]
pub struct PodNetwork {
    namespace: Arc<File>,
}

impl PodNetwork {
    /// The network at a path, as a CNI plug-in gets it. If the path is not among the files of this
    /// process, it is one of the machine: the agent may run in a container.
    ///
    /// # Errors
    /// The path cannot be opened.
    pub fn at(path: &Path) -> Result<Self, CaptureError> {
        let opened = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => open_below(MACHINE, path),
            opened => opened,
        };
        Ok(Self { namespace: Arc::new(opened.explain("the pod's network")?) })
    }

    /// Whether it is the network of the machine, or that of this process.
    pub(crate) fn is_host(&self) -> bool {
        let number = |path: &str| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let own = self.namespace.metadata().ok().map(|found| (found.dev(), found.ino()));
        own.is_none() || own == number("/proc/1/ns/net") || own == number("/proc/self/ns/net")
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    /// Moves the calling thread into the network. It must do no other work later.
    pub(crate) fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.descriptor(), Some(LinkNameSpaceType::Network))?)
    }

    /// Runs a job on a new thread in the network.
    pub(crate) fn run<T: Send>(&self, job: impl FnOnce() -> Result<T, CaptureError> + Send) -> Result<T, CaptureError> {
        let entered = || {
            self.enter().explain("entering the pod's network")?;
            job()
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("pod network".to_owned()).spawn_scoped(scope, entered);
            let thread = thread.explain("a thread for the pod's network")?;
            let panicked =
                || Err(io::Error::other("a thread in the pod's network panicked")).explain("the pod's network");
            thread.join().unwrap_or_else(|_| panicked())
        })
    }
}

/// The files of the machine's first process, for an agent in a container that shares its processes.
const MACHINE: &str = "/proc/1/root";

/// Opens a file below a root, where its links end as well.
fn open_below(root: &str, path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(openat2(File::open(root)?, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?.into())
}

/// The number of the calling thread's network.
pub(crate) fn cookie() -> Result<Network, CaptureError> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None);
    socket.and_then(Network::of).explain("the number of the pod's network")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_the_machine_is_found_from_a_container() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: this test needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("link")).unwrap();
        let (file, by_link) = (folder.path().join("network"), folder.path().join("link/network"));
        fs::write(&file, "").unwrap();
        let wanted = fs::metadata(&file).unwrap().ino();
        // It stands for the machine's first process.
        let mut first = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let root = format!("/proc/{}/root", first.id());
        let container = thread::spawn(move || {
            use nix::mount::{MsFlags, mount};
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            mount(Some("none"), file.parent().unwrap(), Some("tmpfs"), MsFlags::empty(), none).unwrap();
            assert!(File::open(&file).is_err());
            for path in [&file, &by_link] {
                assert_eq!(open_below(&root, path).unwrap().metadata().unwrap().ino(), wanted);
            }
            let missing = open_below(&root, &file.with_extension("other")).unwrap_err();
            assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        });
        let outcome = container.join();
        first.kill().unwrap();
        first.wait().unwrap();
        outcome.unwrap();
    }
}
