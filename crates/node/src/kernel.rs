//! The kernel's part of this node: it enforces which connections the instances in jails may open,
//! and proxies TCP between jails.

mod parts;

pub(crate) use parts::KernelParts;

use leno_ebpf::{Mesh, Network, Refusal, Refusals, Rule, Transport, Verdict};
use leno_model::FunctionId;
use leno_proxy::Node;
use leno_proxy::connection_rules::{self, Way};
use leno_proxy::kernel::{Kernel, Splice};
use leno_telemetry::flows;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use std::{fs, io, thread};
use tokio::net::TcpStream;

/// The BPF file system. Programs pinned there remain in force when the node is killed.
const PINS: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC`.
const BPF_FILE_SYSTEM: i64 = 0xcafe_4a11;
/// Name of a node's folder there, and of its control group. The rest is random.
const PREFIX: &str = "leno-node-";
/// Interval between reads of the kernel's refusals. Refusals beyond the capacity of its ring are
/// only counted: a program that is refused without end must not keep a processor busy with it.
const LOOK: Duration = Duration::from_millis(20);

/// The policy that the kernel enforces.
pub(crate) struct KernelPolicy {
    node: Weak<Node>,
    mesh: Arc<Mesh>,
    state: Mutex<State>,
    _pins: Option<Pins>,
}

#[derive(Default)]
struct State {
    callers: BTreeMap<FunctionId, Calls>,
    /// Names of the instances, by the network of their jails.
    instances: HashMap<Network, Arc<str>>,
}

/// The connections that the instances of one function may open.
#[derive(Default)]
struct Calls {
    jails: usize,
    rules: BTreeMap<Rule, Verdict>,
}

impl KernelPolicy {
    /// Enforces the policy for all processes in the node's control group. Until a jail is admitted,
    /// its processes cannot connect to anything outside. `None`: the kernel cannot do this, and the
    /// reason has been logged; then the node judges and proxies every connection itself.
    pub(crate) fn open(node: &Arc<Node>, group: Option<&Path>) -> Option<Arc<Self>> {
        let Some(group) = group else {
            tracing::info!("connections of jails are not judged in the kernel: the node has no control group (v2)");
            return None;
        };
        let mut mesh = match Mesh::attach(group) {
            Ok(mesh) => mesh,
            Err(error) => {
                tracing::info!("connections of jails are not judged in the kernel, but by the node: {error}");
                return None;
            }
        };
        let pins = match Pins::make(group, &mut mesh) {
            Ok(pins) => Some(pins),
            Err(error) => {
                tracing::info!("what the kernel knows ends with the node: {error}");
                None
            }
        };
        match mesh.unspliced() {
            None => tracing::info!("connections of jails are judged in the kernel, and spliced where they may be"),
            Some(reason) => tracing::info!("connections of jails are judged in the kernel; none is spliced: {reason}"),
        }
        Some(Arc::new(Self { node: Arc::downgrade(node), mesh: Arc::new(mesh), state: Mutex::default(), _pins: pins }))
    }

    /// An instance is about to start in the jail of this socket. It may open its function's
    /// connections until the result is dropped. Without a result, it can call no function.
    pub(crate) fn enter(
        self: &Arc<Self>,
        node: &Node,
        function: &FunctionId,
        instance: &Arc<str>,
        socket: &TcpListener,
    ) -> io::Result<JailAdmission> {
        let network = Network::of(socket)?;
        let none_left = || io::Error::other("all addresses of functions are given");
        let address = node.addresses.of(function).ok_or_else(none_left)?;
        let mut state = self.state();
        state.callers.entry(function.clone()).or_default().jails += 1;
        state.instances.insert(network, instance.clone());
        let entered = JailAdmission { policy: self.clone(), function: function.clone(), network };
        let calls = state.callers.entry(function.clone()).or_default();
        let told = calls
            .follow(&self.mesh, node, function)
            .and_then(|()| self.mesh.admit(network, address).map_err(io::Error::other));
        drop(state);
        told.map(|()| entered)
    }

    /// Reports the kernel's refusals, as long as the node lives.
    pub(crate) fn watch(self: &Arc<Self>, node: Weak<Node>) -> io::Result<()> {
        let refusals = self.mesh.refusals().map_err(io::Error::other)?;
        let policy = Arc::downgrade(self);
        thread::Builder::new().name("leno-ebpf".to_owned()).spawn(move || watch(&refusals, &policy, &node))?;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    /// Updates the kernel's rules to the connections that the function may open now.
    fn follow(&mut self, mesh: &Mesh, node: &Node, function: &FunctionId) -> io::Result<()> {
        let Some(caller) = node.addresses.of(function) else { return Ok(()) };
        let wanted: BTreeMap<Rule, Verdict> = connection_rules::of(node, function)
            .into_iter()
            .map(|connection_rules::Rule { callee, prefix, port, way }| {
                let verdict = match way {
                    Way::Refused => Verdict::Refused,
                    Way::ToTheNode => Verdict::ToTheNode,
                    Way::Spliced => Verdict::Direct,
                };
                (Rule { caller, callee, prefix, port, transport: Transport::Tcp }, verdict)
            })
            .collect();
        self.rules.retain(|rule, _| {
            let remains = wanted.contains_key(rule);
            if !remains {
                mesh.unset(rule);
            }
            remains
        });
        let mut failed = Ok(());
        for (rule, verdict) in wanted {
            if self.rules.get(&rule) == Some(&verdict) {
                continue;
            }
            match mesh.set(&rule, verdict) {
                Ok(()) => drop(self.rules.insert(rule, verdict)),
                Err(error) => {
                    // The former rule must not remain in force.
                    mesh.unset(&rule);
                    self.rules.remove(&rule);
                    failed = Err(io::Error::other(error));
                }
            }
        }
        failed
    }
}

impl Kernel for KernelPolicy {
    fn follow(&self) {
        let Some(node) = self.node.upgrade() else { return };
        for (function, calls) in &mut self.state().callers {
            if let Err(error) = calls.follow(&self.mesh, &node, function) {
                // The kernel refuses connections whose rule could not be set.
                tracing::error!(%function, %error, "the kernel does not know all that the function may call");
            }
        }
    }

    fn expect(&self, socket: BorrowedFd<'_>, bound: SocketAddr, port: u16) -> Option<Box<dyn Any + Send>> {
        let expected = self.mesh.expect(socket, bound, port);
        let expected = expected.inspect_err(|error| tracing::debug!(%error, "a connection is not spliced")).ok()?;
        Some(Box::new(expected))
    }

    fn splice(&self, caller: &TcpStream, callee: &TcpStream) -> Option<Box<dyn Splice>> {
        let addresses = |stream: &TcpStream| Ok::<_, io::Error>([stream.local_addr()?, stream.peer_addr()?]);
        let (from, to) = (addresses(caller).ok()?, addresses(callee).ok()?);
        let spliced = self.mesh.splice((caller, from), (callee, to));
        let spliced = spliced.inspect_err(|error| tracing::debug!(%error, "a connection is not spliced")).ok()?;
        Some(Box::new(SplicedPair(spliced?)))
    }
}

struct SplicedPair(leno_ebpf::Splice);

impl Splice for SplicedPair {
    fn bytes(&self) -> [u64; 2] {
        self.0.bytes()
    }
}

/// A jail that the kernel has admitted.
pub(crate) struct JailAdmission {
    policy: Arc<KernelPolicy>,
    function: FunctionId,
    network: Network,
}

impl Drop for JailAdmission {
    fn drop(&mut self) {
        let mesh = &self.policy.mesh;
        mesh.dismiss(self.network);
        let mut state = self.policy.state();
        state.instances.remove(&self.network);
        let Some(calls) = state.callers.get_mut(&self.function) else { return };
        calls.jails -= 1;
        if calls.jails == 0 {
            calls.rules.keys().for_each(|rule| mesh.unset(rule));
            state.callers.remove(&self.function);
        }
    }
}

fn watch(refusals: &Refusals, policy: &Weak<KernelPolicy>, node: &Weak<Node>) {
    let mut untold = 0;
    loop {
        let found = match refusals.wait(Duration::from_secs(1)) {
            Ok(found) => found,
            Err(error) => return tracing::error!(%error, "what the kernel refuses is not told any more"),
        };
        let (Some(policy), Some(node)) = (policy.upgrade(), node.upgrade()) else { return };
        for refusal in found {
            tell(&policy, &node, &refusal);
        }
        let now = refusals.untold();
        node.telemetry.connection_flows.missed(now - untold);
        untold = now;
        drop((policy, node));
        thread::sleep(LOOK);
    }
}

fn tell(policy: &KernelPolicy, node: &Node, refusal: &Refusal) {
    let instance = refusal.network.and_then(|network| policy.state().instances.get(&network).cloned());
    let during = instance.as_ref().and_then(|instance| node.credentials.of_instance(instance));
    let during = during.map(|caller| caller.handled_at(refusal.at));
    let function = refusal.caller.and_then(|address| node.addresses.function(address));
    let callee = node.addresses.function(refusal.callee);
    if let Some(function) = &function {
        let (host, port) = (refusal.callee.to_string(), refusal.port);
        node.telemetry.destinations.connection(function, callee.as_ref(), &host, port);
    }
    // If the jail has ended meanwhile, only its function is known, or not even that.
    let caller = function.as_ref().map(ToString::to_string);
    let source = instance.or_else(|| caller.as_deref().map(Into::into)).unwrap_or_else(|| "?".into());
    let reason = match (refusal.network, &callee, refusal.transport) {
        (None, ..) => "it is not allowed any more: what is sent does not arrive",
        (_, None, _) => "no function that it may call has this address",
        (_, Some(_), Some(Transport::Udp)) => "no datagrams are allowed",
        (_, Some(_), _) => "no rule allows it",
    };
    let snapshot = node.snapshot.load();
    let is_callee = |caller: &FunctionId| {
        let callees = snapshot.functions.get(caller).map(|entry| &entry.config.callees);
        callees.is_some_and(|known| known.iter().any(|known| Some(&known.id) == callee.as_ref()))
    };
    let rule = function.as_ref().filter(|caller| !is_callee(caller)).map(FunctionId::callees_rule).unwrap_or_default();
    node.telemetry.connection_flows.push(flows::Connection {
        instance: &source,
        during,
        target: callee.as_ref(),
        address: (refusal.callee, refusal.port).into(),
        protocol: match refusal.transport {
            Some(Transport::Tcp) => "tcp",
            Some(Transport::Udp) => "udp",
            None => "",
        },
        rule: &rule,
        outcome: Err(flows::ConnectionFailure::Refused(reason)),
        bytes: [0; 2],
        spliced: false,
        started: (std::time::SystemTime::now() - refusal.at.elapsed(), refusal.at),
    });
}

/// A folder that keeps the kernel's rules in force when the node is killed, as long as its
/// processes may still run. The next node removes it.
struct Pins {
    folder: PathBuf,
    _lock: OwnedFd,
}

impl Pins {
    /// Removes the folders that killed nodes left, and pins the rules.
    fn make(group: &Path, mesh: &mut Mesh) -> io::Result<Self> {
        let root = Path::new(PINS);
        let wrong = |error: &dyn std::fmt::Display| io::Error::other(format!("{PINS}: {error}"));
        let kind = rustix::fs::statfs(root).map_err(|error| wrong(&error))?.f_type;
        if kind as i64 != BPF_FILE_SYSTEM {
            return Err(wrong(&"no BPF file system is mounted there"));
        }
        for entry in fs::read_dir(root)?.flatten() {
            let left = entry.path();
            // An empty folder may belong to a node that is just creating it, and has not locked it
            // yet.
            let is_used = fs::read_dir(&left).is_ok_and(|mut pins| pins.next().is_some());
            if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_used && lock(&left).is_ok() {
                tracing::info!("removing the rules in the kernel that a killed node left behind");
                remove(&left);
            }
        }
        let folder = root.join(group.file_name().unwrap_or_default());
        // For this account only. If an instance could open the folder, it could lock it, and the
        // next node would leave it there.
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let pins = Self { _lock: lock(&folder)?, folder };
        mesh.pin(&pins.folder).map_err(|error| wrong(&error))?;
        Ok(pins)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

fn remove(folder: &Path) {
    // A BPF file system has no deeper folders. The next node retries to remove files that are left.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
    let _ = fs::remove_dir(folder);
}

/// Fails if another process holds the lock.
fn lock(folder: &Path) -> io::Result<OwnedFd> {
    let opened = rustix::fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive)?;
    Ok(opened)
}
