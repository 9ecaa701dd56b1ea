//! The share of a namespace on this node: a control group for each namespace, which contains the
//! groups of its instances.

use super::legacy::{Groups, Hierarchies};
use super::{CONTROLLERS, Cgroups, LimitError, PREFIX, set_limits, switch};
use leno_model::NamespaceBounds;
use leno_model::Resources;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Prefix of the names of these groups. Names of instances' groups are numbers.
const NAMESPACE: &str = "ns-";

/// The shares of all namespaces.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// The configured bounds. Namespaces without an entry have the default.
    bounds: Mutex<HashMap<String, Resources>>,
    made: Mutex<HashMap<String, Share>>,
}

/// The groups of one namespace. They remain until the node ends.
#[derive(Debug)]
struct Share {
    folder: PathBuf,
    /// The groups that enforce the bounds, or the reason why there are none.
    enforcer: Result<Enforcer, LimitError>,
    /// The configured bounds.
    bounds: Resources,
    enforced: Option<Resources>,
    unenforced: Option<String>,
}

#[derive(Clone, Debug)]
enum Enforcer {
    Current,
    Legacy(Hierarchies),
}

/// The parent of an instance's group.
pub(super) struct Place {
    /// The namespace's group of version 2.
    pub folder: PathBuf,
    /// Whether limits can be enforced there, or why not.
    pub controlled: Result<(), LimitError>,
    /// The namespace's groups of version 1, if those of version 2 enforce nothing.
    pub legacy: Option<Hierarchies>,
}

/// The use of a namespace's share of this node by all its instances together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceShare {
    /// Processes and threads; `None`: they are not counted.
    pub pids: Option<u64>,
    /// Bytes of memory; `None`: it is not counted.
    pub memory: Option<u64>,
    /// Their bound; 0: none.
    pub bounds: Resources,
    /// Why the bounds are not enforced; `None`: they are.
    pub unenforced: Option<String>,
}

/// Bounds on the instances of a namespace together; 0: no bound.
pub(crate) fn resources(bounds: &NamespaceBounds) -> Resources {
    let memory = bounds.memory.unwrap_or_else(|| machine_memory() / 2);
    Resources { memory, cpu_millis: bounds.cpu_millis.unwrap_or_default(), pids: bounds.pids() }
}

/// The machine's memory, in bytes; 0: it cannot be read.
fn machine_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    kibibytes.and_then(|number| number.parse::<u64>().ok()).map_or(0, |number| number << 10)
}

impl Cgroups {
    /// Sets the bounds of all instances of a namespace together, including those that run.
    pub(crate) fn bound(&self, namespace: &str, bounds: &NamespaceBounds) {
        let bounds = resources(bounds);
        let before = self.shares.bounds().insert(namespace.to_owned(), bounds);
        if before != Some(bounds)
            && let Some(share) = self.shares.made().get_mut(namespace)
        {
            share.enforce(bounds);
        }
    }

    /// Maximum number of processes and threads of all instances of a namespace together.
    pub(crate) fn processes(cgroups: Option<&Self>, namespace: &str) -> u32 {
        let bounds = cgroups.and_then(|cgroups| cgroups.shares.bounds().get(namespace).copied());
        bounds.map_or_else(|| NamespaceBounds::default().pids(), |bounds| bounds.pids)
    }

    /// The share of a namespace; `None`: it has had no instance here.
    pub(crate) fn share(&self, namespace: &str) -> Option<NamespaceShare> {
        let made = self.shares.made();
        let Share { folder, enforcer, bounds, unenforced, .. } = made.get(namespace)?;
        let (pids, memory) = match enforcer {
            Ok(Enforcer::Current) => (folder.join("pids.current"), folder.join("memory.current")),
            Ok(Enforcer::Legacy(hierarchies)) => hierarchies.uses(),
            Err(_) => Default::default(),
        };
        let read = |file: PathBuf| fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        Some(NamespaceShare { pids: read(pids), memory: read(memory), bounds: *bounds, unenforced: unenforced.clone() })
    }

    /// The parent of the group of an instance.
    pub(super) fn place(&self, namespace: &str) -> io::Result<Place> {
        let bounds = self.shares.bounds().get(namespace).copied();
        let bounds = bounds.unwrap_or_else(|| resources(&NamespaceBounds::default()));
        let mut made = self.shares.made();
        let share = match made.get_mut(namespace) {
            Some(share) => share,
            None => made.entry(namespace.to_owned()).or_insert(self.make(namespace)?),
        };
        share.enforce(bounds);
        let Share { folder, enforcer, .. } = share;
        let (controlled, legacy) = match enforcer {
            Ok(Enforcer::Current) => (Ok(()), None),
            Ok(Enforcer::Legacy(hierarchies)) => (Err(LimitError::InLegacy), Some(hierarchies.clone())),
            Err(reason) => (Err(reason.clone()), None),
        };
        Ok(Place { folder: folder.clone(), controlled, legacy })
    }

    /// The parent of the group of an instance without a jail.
    pub(super) fn place_of_process(&self, namespace: &str) -> io::Result<Place> {
        let place = self.place(namespace)?;
        if place.legacy.is_some()
            && let Some(share) = self.shares.made().get_mut(namespace)
        {
            share.unenforced = Some("cgroup v1 bounds instances in jails, and some are in none".to_owned());
        }
        Ok(place)
    }

    /// The group of a namespace, which may not exist yet.
    pub(super) fn namespace(&self, namespace: &str) -> PathBuf {
        self.node.join(format!("{NAMESPACE}{namespace}"))
    }

    fn make(&self, namespace: &str) -> io::Result<Share> {
        let folder = self.namespace(namespace);
        fs::create_dir(&folder)?;
        let enforcer = self.enforcer(namespace, &folder);
        if let Err(reason) = &enforcer {
            tracing::warn!(
                namespace,
                "what its instances may have together of {} is not enforced: {reason}",
                CONTROLLERS.join(", ")
            );
        }
        let unenforced = enforcer.as_ref().err().map(ToString::to_string);
        Ok(Share { folder, enforcer, bounds: Resources::default(), enforced: None, unenforced })
    }

    fn enforcer(&self, namespace: &str, folder: &std::path::Path) -> Result<Enforcer, LimitError> {
        let reason = match self.controlled.get_or_init(|| self.control()) {
            Ok(_) => {
                let switched = switch(folder, '+').map(|()| Enforcer::Current);
                return switched.map_err(LimitError::file(folder));
            }
            Err(reason) => reason,
        };
        let hierarchies = self.legacy.get_or_init(|| Hierarchies::open(PREFIX));
        let hierarchies = hierarchies.as_ref().map_err(|missing| reason.and(missing.clone()))?;
        let node = self.node.file_name().unwrap_or_default().to_string_lossy();
        let below = hierarchies.below(&format!("{node}-{NAMESPACE}{namespace}"));
        below.map(Enforcer::Legacy).map_err(|error| reason.and(LimitError::Legacy(error.into())))
    }
}

impl Share {
    /// Puts these bounds in force. Logs those that cannot be enforced.
    fn enforce(&mut self, bounds: Resources) {
        self.bounds = bounds;
        let Ok(enforcer) = &self.enforcer else { return };
        if self.enforced == Some(bounds) {
            return;
        }
        let set = match enforcer {
            Enforcer::Current => set_limits(&self.folder, &bounds, self.enforced.is_some()),
            Enforcer::Legacy(hierarchies) => hierarchies.bound(&bounds),
        };
        match set {
            Ok(()) => (self.enforced, self.unenforced) = (Some(bounds), None),
            Err(error) => {
                let reason = Some(format!("its control group: {error}"));
                if self.unenforced != reason {
                    tracing::warn!(group = %self.folder.display(), %error, "bounds of a namespace are not enforced");
                }
                self.unenforced = reason;
            }
        }
    }
}

impl Shares {
    fn bounds(&self) -> MutexGuard<'_, HashMap<String, Resources>> {
        self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn made(&self) -> MutexGuard<'_, HashMap<String, Share>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the groups, if they are empty.
    pub(super) fn remove(&self) {
        for share in self.made().values() {
            let _ = super::remove(&share.folder);
            if let Ok(Enforcer::Legacy(hierarchies)) = &share.enforcer {
                drop(Groups::of(hierarchies));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::JailLimits;
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, ChildStdout, Command, Stdio};

    /// A program that starts as many processes as requested, and reports how many it has.
    struct Program {
        child: Child,
        output: BufReader<ChildStdout>,
        _limits: JailLimits,
    }

    impl Program {
        fn start(cgroups: &Cgroups, namespace: &str, number: u64, limits: &Resources) -> Result<Self, LimitError> {
            let script = "import os,sys,time
made=0
for line in sys.stdin:
    try:
        for _ in range(int(line)):
            if not os.fork(): time.sleep(1000)
            made+=1
    except BlockingIOError: pass
    print(made,flush=True)";
            let limits = cgroups.jail(namespace, number, limits)?;
            let mut command = Command::new("python3");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            limits.join(child.id()).unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            Ok(Self { child, output, _limits: limits })
        }

        fn fork(&mut self, number: u32) -> u32 {
            writeln!(self.child.stdin.as_ref().unwrap(), "{number}").unwrap();
            let mut line = String::new();
            self.output.read_line(&mut line).unwrap();
            line.trim().parse().unwrap()
        }
    }

    /// Whether a process runs, and is not a zombie.
    fn runs(process: u32) -> bool {
        std::fs::read_to_string(format!("/proc/{process}/stat"))
            .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
    }

    impl Drop for Program {
        fn drop(&mut self) {
            let forked = crate::processes::descendants(self.child.id());
            for process in &forked {
                let pid = i32::try_from(*process).ok().and_then(rustix::process::Pid::from_raw).unwrap();
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
            // Their groups cannot be removed before.
            while forked.iter().any(|process| runs(*process)) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_namespace_has_its_share_however_many_instances_it_has() {
        let cgroups = match Cgroups::open() {
            Ok(cgroups) => cgroups,
            Err(error) => return eprintln!("SKIPPED: no control groups: {error}"),
        };
        let bounds = |pids| NamespaceBounds { pids: Some(pids), memory: Some(256 << 20), ..NamespaceBounds::default() };
        cgroups.bound("tenant", &bounds(20));
        // One instance without limits, and one whose limits exceed those of its namespace.
        let greedy = Resources { memory: 1 << 30, cpu_millis: 2000, pids: 1000 };
        let mut one = match Program::start(&cgroups, "tenant", 1, &Resources::default()) {
            Ok(program) => program,
            Err(missing) => return eprintln!("SKIPPED: limits cannot be enforced here: {missing}"),
        };
        let mut two = Program::start(&cgroups, "tenant", 2, &greedy).unwrap();
        let mut other = Program::start(&cgroups, "another", 3, &Resources::default()).unwrap();
        assert_eq!(one.fork(10), 10);
        assert_eq!(two.fork(30), 8, "20 with the two programs themselves");
        assert_eq!(one.fork(1), 10);
        let share = cgroups.share("tenant").unwrap();
        assert_eq!((share.pids, share.bounds.pids, share.unenforced), (Some(20), 20, None));
        assert!(share.memory.unwrap() > 0 && share.bounds.memory == 256 << 20);
        assert_eq!(cgroups.share("nobody"), None);
        assert_eq!(other.fork(30), 30);
        // A change also applies to running instances.
        cgroups.bound("tenant", &bounds(25));
        assert_eq!(two.fork(30), 13);
        let node = cgroups.path().to_owned();
        drop((one, two, other));
        drop(cgroups);
        assert!(!node.exists(), "nothing is left");
    }
}
