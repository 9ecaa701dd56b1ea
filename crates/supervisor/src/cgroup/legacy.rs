//! Limits by control groups of version 1, for machines that have their controllers there. Each
//! controller has a separate hierarchy, so an instance has a group in each. The supervisor kills no
//! processes through these groups, and cannot start a process in them. They are for jails, whose
//! first process joins before there is a program.

use super::LimitError;
use super::owner::Owner;
use leno_model::Resources;
use rustix::fs::{Access, access};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The period of `cpu.cfs_quota_us`, in microseconds.
const PERIOD: u64 = 100_000;

/// The groups of this process in the hierarchies of the controllers that enforce limits.
#[derive(Clone, Debug)]
pub(super) struct Hierarchies {
    memory: PathBuf,
    cpu: PathBuf,
    pids: PathBuf,
}

/// The queues of sockets may hold a further part of the limit on memory: one of this many parts.
/// Version 1 counts them separately.
const SOCKETS_PART: u64 = 4;

/// The groups of one instance. Dropping it removes those that are empty.
#[derive(Debug)]
pub(crate) struct Groups {
    folders: Vec<PathBuf>,
    /// Groups of the namespace, where the instance needs no separate ones.
    shared: Vec<PathBuf>,
    /// The part of the limits that is not enforced, and why.
    unenforced: Option<String>,
}

impl Hierarchies {
    /// Finds the hierarchies and removes the groups that killed nodes left in them. The error names
    /// the missing hierarchy.
    pub(super) fn open(prefix: &str) -> Result<Self, LimitError> {
        let found = Self::of_this_process()?;
        for hierarchy in [&found.memory, &found.cpu, &found.pids] {
            sweep(hierarchy, prefix);
        }
        Ok(found)
    }

    /// Whether groups could be made in each hierarchy.
    pub(super) fn probe() -> Result<(), LimitError> {
        let found = Self::of_this_process()?;
        [&found.memory, &found.cpu, &found.pids].into_iter().try_for_each(|hierarchy| {
            access(hierarchy, Access::WRITE_OK).map_err(|error| LimitError::file(hierarchy)(error.into()))
        })
    }

    fn of_this_process() -> Result<Self, LimitError> {
        let read = |file: &str| fs::read_to_string(file).map_err(LimitError::file(file));
        Self::find(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?)
    }

    fn find(mounts: &str, groups: &str) -> Result<Self, LimitError> {
        let find = |controller: &str| {
            let missing = || LimitError::NoControllers { version: 1, names: controller.to_owned() };
            place(mounts, groups, controller).ok_or_else(missing)
        };
        Ok(Self { memory: find("memory")?, cpu: find("cpu")?, pids: find("pids")? })
    }

    /// Creates groups below these, for a namespace. `name` begins with the prefix.
    pub(super) fn below(&self, name: &str) -> io::Result<Self> {
        let make = |hierarchy: &Path| {
            let group = hierarchy.join(name);
            fs::create_dir(&group).map(|()| group)
        };
        Ok(Self { memory: make(&self.memory)?, cpu: make(&self.cpu)?, pids: make(&self.pids)? })
    }

    /// The files with the number of processes and the memory in use.
    pub(super) fn uses(&self) -> (PathBuf, PathBuf) {
        (self.pids.join("pids.current"), self.memory.join("memory.usage_in_bytes"))
    }

    /// Limits the processes in these groups and below; 0: no limit.
    pub(super) fn bound(&self, limits: &Resources) -> io::Result<()> {
        const NONE: &str = "-1";
        let Resources { memory, cpu_millis, pids } = *limits;
        let text = |number: u64| if number > 0 { number.to_string() } else { NONE.to_owned() };
        let both = self.memory.join("memory.memsw.limit_in_bytes");
        // Memory and swap together can never be less than memory.
        if both.exists() {
            fs::write(&both, NONE)?;
        }
        fs::write(self.memory.join("memory.limit_in_bytes"), text(memory))?;
        if both.exists() {
            fs::write(&both, text(memory))?;
        }
        fs::write(self.memory.join("memory.kmem.tcp.limit_in_bytes"), text(memory / SOCKETS_PART))?;
        fs::write(self.cpu.join("cpu.cfs_period_us"), PERIOD.to_string())?;
        fs::write(self.cpu.join("cpu.cfs_quota_us"), text(u64::from(cpu_millis) * PERIOD / 1000))?;
        fs::write(self.pids.join("pids.max"), if pids > 0 { pids.to_string() } else { "max".to_owned() })
    }

    /// Creates groups with limits, inside those of the namespace if it has any.
    pub(super) fn instance(&self, name: &str, limits: &Resources) -> io::Result<Groups> {
        let Resources { memory, cpu_millis, pids } = *limits;
        let mut groups = Groups { folders: Vec::new(), shared: Vec::new(), unenforced: None };
        let folders = &mut groups.folders;
        let mut set = |hierarchy: &Path, files: &[(&str, u64)]| {
            let group = hierarchy.join(name);
            fs::create_dir(&group)?;
            folders.push(group.clone());
            files.iter().try_for_each(|(file, value)| fs::write(group.join(file), value.to_string()))?;
            Ok::<_, io::Error>(group)
        };
        if memory > 0 {
            let group = set(&self.memory, &[("memory.limit_in_bytes", memory)])?;
            // Memory and swap together. It cannot be less than the limit on memory, so it comes second.
            super::set_if_there(&group.join("memory.memsw.limit_in_bytes"), memory)?;
            // The kernel counts sockets that the group's processes open from here on. Without this limit, it counts none.
            let sockets = group.join("memory.kmem.tcp.limit_in_bytes");
            if let Err(error) = fs::write(&sockets, (memory / SOCKETS_PART).to_string()) {
                let file = sockets.display();
                groups.unenforced = Some(format!("cgroup v1 does not count memory of sockets here: {file}: {error}"));
            }
        }
        if cpu_millis > 0 {
            let quota = u64::from(cpu_millis) * PERIOD / 1000;
            set(&self.cpu, &[("cpu.cfs_period_us", PERIOD), ("cpu.cfs_quota_us", quota)])?;
        }
        if pids > 0 {
            set(&self.pids, &[("pids.max", u64::from(pids))])?;
        }
        let needs_none = [(memory == 0, &self.memory), (cpu_millis == 0, &self.cpu), (pids == 0, &self.pids)];
        groups.shared.extend(needs_none.into_iter().filter(|(is_so, _)| *is_so).map(|(_, group)| group.clone()));
        Ok(groups)
    }
}

/// The folder of this process's group in the hierarchy of a controller.
fn place(mounts: &str, groups: &str, controller: &str) -> Option<PathBuf> {
    // Fields: ID, parent, device, root, mount point, options, optional fields, `-`, type, source, options of the hierarchy.
    let (root, mount) = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut kind = after.split(' ');
        let is_it = kind.next() == Some("cgroup") && kind.nth(1)?.split(',').any(|option| option == controller);
        let mut fields = before.split(' ').skip(3);
        is_it.then(|| Some((fields.next()?, fields.next()?))).flatten()
    })?;
    // Fields: ID of the hierarchy, controllers, path.
    let path = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|other| other == controller).then_some(path)
    })?;
    // In a container the mount may begin at the group itself.
    let below = path.strip_prefix(root).unwrap_or(path);
    Some(Path::new(mount).join(below.trim_start_matches('/')))
}

/// Removes empty groups of nodes that have ended. Groups whose names identify no process are of
/// earlier releases, which created them again.
fn sweep(hierarchy: &Path, prefix: &str) {
    for entry in fs::read_dir(hierarchy).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().and_then(|name| name.strip_prefix(prefix)) else { continue };
        // A node of another PID namespace may be alive.
        let is_left_behind = Owner::of(owner).is_none_or(|owner| owner.has_ended() == Some(true));
        if is_left_behind {
            let _ = super::remove(&entry.path());
        }
    }
}

impl Groups {
    /// The groups of a namespace, to be removed.
    pub(super) fn of(namespace: &Hierarchies) -> Self {
        let Hierarchies { memory, cpu, pids } = namespace.clone();
        Self { folders: vec![memory, cpu, pids], shared: Vec::new(), unenforced: None }
    }

    /// The part of the limits that is not enforced, and why.
    pub(super) fn unenforced(&self) -> Option<&str> {
        self.unenforced.as_deref()
    }

    /// Moves a process into the groups. Its future child processes begin in them.
    pub(super) fn join(&self, pid: u32) -> io::Result<()> {
        let mut groups = self.folders.iter().chain(&self.shared);
        groups.try_for_each(|group| fs::write(group.join(super::MEMBERS), pid.to_string()))
    }

    /// Whether the kernel killed a process in the groups because memory ran out.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        self.folders.iter().any(|group| super::counts_kills(&group.join("memory.oom_control")))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // The kernel takes a moment to see that the last process is gone. The next node removes
        // groups that are left then.
        const TRIES: usize = 10;
        for group in &self.folders {
            for _ in 0..TRIES {
                match fs::remove_dir(group) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(Duration::from_millis(1)),
                    _ => break,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_sweep_leaves_the_empty_groups_of_live_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let make = |owner: &str| {
            let group = folder.path().join(format!("leno-node-{owner}-0123-ns-shop"));
            fs::create_dir(&group).unwrap();
            group
        };
        let mut ended = Command::new("sleep").arg("infinity").spawn().unwrap();
        let of_ended = make(&Owner::of_process(i32::try_from(ended.id()).unwrap()).unwrap().name());
        ended.kill().unwrap();
        ended.wait().unwrap();
        let of_live = make(&Owner::this().unwrap().name());
        sweep(folder.path(), "leno-node-");
        assert!(of_live.exists(), "the next instance of the namespace would not start");
        assert!(!of_ended.exists());
    }

    #[test]
    fn what_waits_in_sockets_is_within_the_limit_on_memory() {
        const MEMORY: u64 = 64 << 20;
        let hierarchies = match Hierarchies::open("leno-test-sockets-") {
            Ok(found) => found,
            Err(missing) => return eprintln!("SKIPPED: {missing}"),
        };
        let limits = Resources { memory: MEMORY, cpu_millis: 0, pids: 0 };
        let groups = match hierarchies.instance(&format!("leno-test-sockets-{}", std::process::id()), &limits) {
            Ok(groups) => groups,
            Err(error) => return eprintln!("SKIPPED: no group of version 1 can be made here: {error}"),
        };
        // Streams without a reader, and datagrams.
        let script = "import socket,sys
open(sys.argv[1]+'/cgroup.procs','w').write('0')
listener=socket.create_server(('127.0.0.1',0),backlog=4096)
held,total=[],0
for _ in range(100):
    client=socket.create_connection(listener.getsockname())
    held+=[client,listener.accept()[0]]
    client.setblocking(False)
    try:
        while True: total+=client.send(bytes(1<<16))
    except BlockingIOError: pass
for _ in range(200):
    receiver=socket.socket(type=socket.SOCK_DGRAM)
    receiver.bind(('127.0.0.1',0))
    sender=socket.socket(type=socket.SOCK_DGRAM)
    held.append(receiver)
    for _ in range(10): sender.sendto(bytes(32000),receiver.getsockname())
    total+=int.from_bytes(receiver.getsockopt(socket.SOL_SOCKET,55,4),sys.byteorder)
print(total)";
        let output = Command::new("python3").args(["-c", script]).arg(&groups.folders[0]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let total: u64 = text.trim().parse().unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(groups.unenforced(), None);
        assert!(total > 0 && total < MEMORY, "{total} bytes");
    }

    #[test]
    fn the_group_of_each_controller_is_found() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                      38 31 0:35 /docker/abc /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                      40 31 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "4:memory:/docker/abc/inner\n1:cpu,cpuacct:/\n0::/\n";
        let find = |controller| place(mounts, groups, controller);
        assert_eq!(find("cpu"), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(find("memory"), Some("/sys/fs/cgroup/memory/inner".into()));
        assert_eq!(find("pids"), None);
        let missing = Hierarchies::find(mounts, groups).unwrap_err().to_string();
        assert_eq!(missing, "cgroup v1 has no pids controller here");
    }
}
