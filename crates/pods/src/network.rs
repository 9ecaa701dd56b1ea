use crate::error::{CaptureError, Explain};
use leno_ebpf::Network;
use leno_model::PodUid;
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
    /// The network of the oldest process of a pod: the one that holds the network for the others.
    ///
    /// # Errors
    /// No process of the pod runs, or its network cannot be opened.
    pub fn of_pod(uid: &PodUid) -> Result<Self, CaptureError> {
        let mut oldest: Option<(u64, u32)> = None;
        for entry in fs::read_dir("/proc").explain("/proc")? {
            let Ok(entry) = entry else { continue };
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // A process may end at any time.
            let Ok(groups) = fs::read_to_string(entry.path().join("cgroup")) else { continue };
            if !is_in_pod(&groups, uid) {
                continue;
            }
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let found = start_time(&stat).map(|started| (started, process));
            oldest = [oldest, found].into_iter().flatten().min();
        }
        let (_, process) = oldest.ok_or_else(|| CaptureError::NoProcess(uid.clone()))?;
        Self::at(Path::new(&format!("/proc/{process}/ns/net")))
    }

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

/// Whether control groups, as `/proc/PID/cgroup` lists them, are those of a pod. Container runtimes
/// name the pod's group `podUID`, or by systemd `kubepods-…-podUID.slice` with `_` in place of `-`.
fn is_in_pod(groups: &str, uid: &PodUid) -> bool {
    let uid = uid.to_string();
    let (plain, slice) = (format!("pod{uid}"), format!("pod{}.slice", uid.replace('-', "_")));
    let is_pods = |part: &str| {
        part == plain || part.strip_suffix(&slice).is_some_and(|class| class.is_empty() || class.ends_with('-'))
    };
    groups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| path.split('/').any(is_pods))
}

/// When a process was started, in clock ticks after the machine was: the 22nd field of
/// `/proc/PID/stat`. The second is a name in parentheses, which may contain anything.
fn start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6f0e6d1c-2a54-4c2b-9c43-0a3f5d0f7b11";

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

    #[test]
    fn pods_are_known_by_the_groups_of_all_runtimes() {
        let uid: PodUid = UID.parse().unwrap();
        let under = UID.replace('-', "_");
        for groups in [
            // containerd, cgroupfs driver, v1 and v2.
            format!("12:memory:/kubepods/burstable/pod{UID}/4fd1\n1:name=systemd:/kubepods/burstable/pod{UID}/4fd1\n"),
            format!("0::/kubepods/besteffort/pod{UID}/4fd1\n"),
            format!("0::/kubepods/pod{UID}/4fd1\n"),
            // containerd and CRI-O, systemd driver.
            format!("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-4f.scope\n"),
            format!("0::/kubepods.slice/kubepods-pod{under}.slice/crio-4fd1.scope/container\n"),
            format!("3:cpu:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{under}.slice:cri-containerd:4f\n")
                .replace(".slice:cri", ".slice/cri"),
            // From within a control group namespace.
            format!("0::/../../kubepods/pod{UID}/4fd1\n"),
        ] {
            assert!(is_in_pod(&groups, &uid), "{groups}");
        }
    }

    #[test]
    fn other_groups_are_not_a_pods() {
        let uid: PodUid = UID.parse().unwrap();
        let under = UID.replace('-', "_");
        for groups in [
            "0::/init.scope\n".to_owned(),
            String::new(),
            format!("0::/kubepods/pod{UID}0/4fd1\n"),
            format!("0::/kubepods/burstable/xpod{UID}\n"),
            format!("0::/kubepods.slice/kubepods-pod{under}x.slice/crio-1.scope\n"),
            format!("0::/kubepods.slice/evilpod{under}.slice/crio-1.scope\n"),
            format!("pod{UID}"),
        ] {
            assert!(!is_in_pod(&groups, &uid), "{groups}");
        }
    }

    #[test]
    fn names_of_processes_hide_no_start_time() {
        let fields = (3..=52).map(|number| if number == 22 { "4711".to_owned() } else { "1".to_owned() });
        let fields = fields.collect::<Vec<_>>().join(" ");
        assert_eq!(start_time(&format!("7 (a) S) 1 (x) {fields}")), Some(4711));
        assert_eq!(start_time("7 (a)"), None);
    }
}
