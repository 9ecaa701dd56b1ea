//! Leases the supervisor's instances to the proxy, and gives each instance the credentials and
//! channels with which it calls other functions.

use crate::callers::Callers;
use crate::kernel::KernelParts;
use arc_swap::ArcSwap;
use leno_model::{FunctionId, OutputLine, OutputStream};
use leno_namespaces::{Importance, Namespaces, Source};
use leno_proxy::Interceptor;
use leno_proxy::credential::Credentials;
use leno_proxy::instances::{Acquire, Connect, ConnectError, InstanceProof, Instances, Lease, Unavailable, Unproven};
use leno_proxy::kernel::Kernel;
use leno_proxy::links::large_pages;
use leno_proxy::shards::Shards;
use leno_shm::{Link, Settings};
use leno_supervisor::{
    AcquireError, Function, Host, InstanceId, JailListeners, LinkEnd, LinkError, Linking, Processes, SyscallRefusal,
};
use leno_telemetry::flows::Refusal;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Once, OnceLock, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Bytes that a message about an event counts in the log's limit.
const EVENT: usize = 128;

/// The functions that this node runs.
#[derive(Default)]
pub(crate) struct HostedFunctions {
    functions: ArcSwap<Shards<FunctionId, Revisions>>,
}

/// The revisions of a function that get requests.
#[derive(Clone)]
pub(crate) struct Revisions {
    /// The function configuration's own revision. It also gets the requests of revisions that are
    /// gone.
    primary: Function,
    /// `None`: the primary revision gets all requests.
    others: Option<Arc<[(u32, Function)]>>,
    /// The function has left this node: a request that finds no free instance goes to another node.
    has_left: bool,
}

impl Revisions {
    /// Takes the result of [`Supervisor::apply_all`]; `None`: it is empty. `has_left`: the function
    /// has left this node.
    pub(crate) fn new(mut revisions: Vec<(u32, Function)>, has_left: bool) -> Option<Self> {
        let others = revisions.split_off(revisions.len().min(1));
        let (_, primary) = revisions.pop()?;
        Some(Self { primary, others: (!others.is_empty()).then(|| others.into()), has_left })
    }

    /// The revision with this number. If it is gone, the primary revision.
    fn of(&self, revision: u32) -> &Function {
        let Some(others) = &self.others else { return &self.primary };
        others.iter().find(|(number, _)| *number == revision).map_or(&self.primary, |(_, function)| function)
    }

    fn all(&self) -> impl Iterator<Item = &Function> {
        let others = self.others.iter().flat_map(|others| others.iter());
        std::iter::once(&self.primary).chain(others.map(|(_, function)| function))
    }
}

impl HostedFunctions {
    /// Replaces the functions whose instances are leased.
    pub(crate) fn set(&self, functions: Shards<FunctionId, Revisions>) {
        self.functions.store(Arc::new(functions));
    }

    fn find(&self, function: &FunctionId, revision: u32) -> Result<Function, Unavailable> {
        let functions = self.functions.load();
        let revisions = functions.get(function).filter(|revisions| !revisions.has_left);
        revisions.map(|revisions| revisions.of(revision).clone()).ok_or(Unavailable::Unknown)
    }
}

impl Instances for HostedFunctions {
    fn try_acquire(&self, function: &FunctionId, revision: u32, avoid: &[SocketAddr]) -> Option<Lease> {
        self.functions.load().get(function)?.of(revision).try_acquire(avoid).map(lend)
    }

    fn acquire<'a>(
        &'a self,
        function: &'a FunctionId,
        revision: u32,
        avoid: &'a [SocketAddr],
        deadline: Option<Instant>,
    ) -> Acquire<'a> {
        Box::pin(async move {
            let mut current = self.find(function, revision)?;
            loop {
                let lease = match deadline {
                    Some(deadline) => current.acquire_by(avoid, deadline).await,
                    None => current.acquire(avoid).await,
                };
                if matches!(lease, Err(AcquireError::Removed)) {
                    // The revision was removed while the request was on its way to it, or waited.
                    // Another revision now has its share.
                    let now = self.find(function, revision)?;
                    if !now.is(&current) {
                        current = now;
                        continue;
                    }
                }
                return lease.map(lend).map_err(unavailable);
            }
        })
    }

    fn count(&self, function: &FunctionId) -> u32 {
        let functions = self.functions.load();
        let ready = functions
            .get(function)
            .filter(|revisions| !revisions.has_left)
            .map_or(0, |revisions| revisions.all().map(|revision| revision.ready(&[])).sum());
        u32::try_from(ready).unwrap_or(u32::MAX)
    }

    fn may_start(&self, function: &FunctionId) -> bool {
        self.functions.load().get(function).is_some_and(|revisions| !revisions.has_left)
    }
}

/// A supervisor's lease as the proxy sees it.
struct SupervisorLease(leno_supervisor::Lease);

impl InstanceProof for SupervisorLease {
    fn connect(&self, _: SocketAddr) -> Connect<'_> {
        Box::pin(async {
            self.0.connect().await.map_err(|error| match error {
                leno_supervisor::ConnectError::Io(error) => ConnectError::Io(error),
                leno_supervisor::ConnectError::Unproven(error) => Unproven(error.to_string()).into(),
            })
        })
    }

    fn heard(&self) {
        self.0.heard();
    }

    fn timed_out(&self, since: Instant) {
        self.0.timed_out(since);
    }

    fn is_suspect(&self) -> bool {
        self.0.is_suspect()
    }

    fn connect_to<'a>(&'a self, port: u16, kernel: Option<&'a dyn Kernel>) -> Connect<'a> {
        Box::pin(async move {
            let prepare = |socket: BorrowedFd<'_>, bound| kernel.and_then(|kernel| kernel.expect(socket, bound, port));
            Ok(self.0.connect_to(port, prepare).await?)
        })
    }
}

fn lend(lease: leno_supervisor::Lease) -> Lease {
    Lease { address: lease.address(), instance: Some(lease.name().clone()), guard: Box::new(SupervisorLease(lease)) }
}

fn unavailable(error: AcquireError) -> Unavailable {
    match error {
        AcquireError::Timeout { waited } => Unavailable::Timeout(waited),
        AcquireError::NotReady { limit, .. } => Unavailable::Timeout(limit),
        AcquireError::QueueFull { .. } | AcquireError::NodeFull { .. } => Unavailable::QueueFull,
        AcquireError::NamespaceFull { namespace, bound } => Unavailable::NamespaceFull { namespace, bound },
        AcquireError::Removed => Unavailable::Unknown,
        AcquireError::Image { .. } => {
            Unavailable::Failed { reason: error.to_string(), retry_after: Some(Duration::from_secs(1)) }
        }
        AcquireError::Backoff { retry_after, ref reason } => {
            Unavailable::Failed { reason: reason.clone(), retry_after: Some(retry_after) }
        }
        error @ (AcquireError::Start { .. } | AcquireError::Exited { .. } | AcquireError::PortTaken { .. }) => {
            Unavailable::Failed { reason: error.to_string(), retry_after: None }
        }
    }
}

/// The node's callbacks for the supervisor. The supervisor is created before the node, so the node
/// is attached later.
#[derive(Clone, Default)]
pub(crate) struct InstanceHost {
    node: Arc<OnceLock<ServingNode>>,
    callers: Arc<Callers>,
    any_caller: bool,
    namespaces: Arc<Namespaces>,
}

/// A node that serves.
struct ServingNode {
    node: Weak<leno_proxy::Node>,
    outbound: Option<SocketAddr>,
    interceptor: Interceptor,
    kernel: Arc<KernelParts>,
}

impl InstanceHost {
    /// With `any_caller`, an instance's credential is accepted from any process.
    pub(crate) fn new(any_caller: bool, namespaces: Arc<Namespaces>) -> Self {
        Self { any_caller, namespaces, ..Self::default() }
    }

    /// Whether a message about an event may be logged.
    fn may_log(&self, function: &FunctionId, instance: &str) -> bool {
        let log = &self.namespaces.of(&function.namespace).log;
        log.admits(
            Source::Events,
            Importance::Allowed,
            &function.to_string(),
            EVENT + instance.len(),
            Instant::now().into_std(),
        )
    }

    /// The instances that call through the outbound listener.
    pub(crate) fn callers(&self) -> &Arc<Callers> {
        &self.callers
    }

    /// From now on, instances that start can call: in a jail through its sockets, and others with a
    /// credential for the outbound listener.
    pub(crate) fn attach(
        &self,
        node: &Arc<leno_proxy::Node>,
        outbound: Option<SocketAddr>,
        interceptor: Interceptor,
        kernel: Arc<KernelParts>,
    ) {
        // A process has one node. A second call changes nothing.
        let _ = self.node.set(ServingNode { node: Arc::downgrade(node), outbound, interceptor, kernel });
    }

    fn credentials<T>(&self, then: impl FnOnce(&Credentials, SocketAddr) -> T) -> Option<T> {
        let attached = self.node.get()?;
        Some(then(&attached.node.upgrade()?.credentials, attached.outbound?))
    }

    fn node(&self) -> Option<Arc<leno_proxy::Node>> {
        self.node.get()?.node.upgrade()
    }
}

impl Host for InstanceHost {
    fn environment(&self, function: &FunctionId, instance: InstanceId) -> Vec<(String, String)> {
        let name = instance.name(function);
        let minted = self.credentials(|credentials, outbound| {
            credentials.mint(function, &name).map(|minted| minted.proxy_url(outbound))
        });
        match minted {
            Some(Ok(url)) => ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"]
                .map(|name| (name.to_owned(), url.clone()))
                .into(),
            Some(Err(error)) => {
                tracing::error!(%function, %error, "the instance cannot call other functions");
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    fn jail_ready(&self, function: &FunctionId, instance: InstanceId, listeners: JailListeners) {
        let (Some(node), Some(attached)) = (self.node(), self.node.get()) else { return };
        let caller = node.credentials.admit(function, &instance.name(function));
        let JailListeners { http, names, guard } = listeners;
        let entered = attached.kernel.policy().map(|kernel| kernel.enter(&node, function, &caller.instance, &http));
        let entered = entered.transpose().unwrap_or_else(|error| {
            tracing::error!(instance = %caller.instance, %error, "the instance cannot call other functions");
            None
        });
        attached.interceptor.serve(caller, http, names, Box::new((guard, entered)));
    }

    fn link<'a>(&'a self, function: &'a FunctionId, instance: InstanceId, socket: OwnedFd) -> Linking<'a> {
        Box::pin(async move {
            let (Some(node), Some(attached)) = (self.node(), self.node.get()) else {
                return Err(LinkError::Ending);
            };
            let name = instance.name(function);
            let (Some(chain), Some(caller)) = (node.chain_of(function), node.credentials.of_instance(&name)) else {
                return Err(LinkError::NoChain);
            };
            let domain = node.links.chain(&chain.chain);
            let (memory, large_pages) = (chain.memory, chain.large_pages);
            let settings = Settings { instance_arena: memory, node_arena: memory, large_pages, ..Settings::default() };
            if large_pages {
                warn_without_large_pages();
            }
            let opened = Link::open(socket, &domain, &*name, &settings).await;
            let (link, incoming) = opened.map_err(|error| LinkError::Open(error.into()))?;
            node.links.insert(&name, link.clone());
            attached.interceptor.serve_link(caller, incoming);
            let end: LinkEnd = Box::pin(async move { link.ended().await.to_string() });
            Ok(end)
        })
    }

    fn refused(&self, function: &FunctionId, instance: InstanceId, refused: &SyscallRefusal) {
        let SyscallRefusal { call, program, killed } = refused;
        let name = instance.name(function);
        let reason = if *killed { "no jail allows it: the process was killed" } else { "no jail allows it: it failed" };
        if self.may_log(function, &name) {
            tracing::warn!(instance = %name, "`{program}` made the system call {call}; {reason}");
        }
        if let Some(node) = self.node() {
            let (what, host) = (call.as_str().into(), program.as_str().into());
            let during = node.credentials.of_instance(&name).map(|caller| caller.handled());
            let (kind, instance, rule) = ("system-call", (&*name).into(), Box::default());
            let refusal = Refusal { kind, instance, during, rule, what, host, reason };
            node.telemetry.connection_flows.push(refusal);
        }
    }

    fn started(&self, function: &FunctionId, instance: InstanceId, processes: &Arc<Processes>) {
        let Some(node) = self.node() else { return };
        let (told, processes, any_caller) = (processes.clone(), processes.clone(), self.any_caller);
        let opened = move |near, far| {
            if any_caller {
                return Ok(());
            }
            processes.verify_opened(near, far).map_err(|error| Unproven(error.to_string()))
        };
        let (name, processes) = (instance.name(function), &told);
        node.credentials.started(&name, Box::new(opened));
        self.callers.started(&node.credentials, function, &name, processes);
    }

    fn log(&self, function: &FunctionId, instance: InstanceId, line: &OutputLine) {
        let instance = instance.name(function);
        match line.stream {
            OutputStream::Stdout => tracing::info!(target: "instance", "{instance} | {}", line.text),
            OutputStream::Stderr => tracing::info!(target: "instance", "{instance} ! {}", line.text),
        }
    }

    fn ready(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        let name = instance.name(function);
        if self.may_log(function, &name) {
            tracing::info!(instance = %name, %address, "an instance is ready");
        }
    }

    fn draining(&self, function: &FunctionId, instance: InstanceId, address: SocketAddr) {
        if let Some(node) = self.node() {
            node.terminating.add(&instance.name(function), address);
        }
    }

    fn end_requests(&self, function: &FunctionId, instance: InstanceId, _: SocketAddr) {
        if let Some(node) = self.node() {
            node.end_requests(&instance.name(function));
        }
    }

    fn ended(&self, function: &FunctionId, instance: InstanceId) {
        let name = instance.name(function);
        if let Some(node) = self.node() {
            node.credentials.revoke(&name);
            self.callers.ended(&name);
            node.links.remove(&name);
            node.channels.forget(&name);
            node.terminating.remove(&name);
        }
        if self.may_log(function, &name) {
            tracing::info!(instance = %name, "an instance has ended");
        }
    }
}

/// Logs this once, and not for each instance.
fn warn_without_large_pages() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        if let Err(reason) = large_pages::check() {
            tracing::warn!("chains on this node ask for large pages, and there are {reason}");
        }
    });
}
