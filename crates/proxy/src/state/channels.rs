//! Channels of chains: calls that the kernel judges, because their rules depend only on the caller
//! and the callee.

mod switch;

pub use switch::{CHANNEL_VIOLATIONS, Channel, ChannelCounts, ChannelLimits, OpenedChannel, Switch};

use crate::state::function::FunctionEntry;
use crate::state::snapshot::NodeSnapshot;
use leno_model::FunctionId;
use leno_model::{AppProtocol, Callee};
use leno_policy::spec::{AuthorizationRule, Operation, ProgramSpec, Source};
use leno_telemetry::exposition::{Collector, Exposition, Family};
use leno_telemetry::families;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The port at which connection rules are evaluated. Calls through memory have none; requests of
/// the same functions are judged at the port of HTTP.
const PORT: u16 = 80;
/// Header fields of a call that goes through the kernel, at most.
const MOST_FIELDS: u32 = leno_shm::head::MOST_PLAIN as u32;

/// The open channels of a node.
#[derive(Default)]
pub struct Channels {
    switch: OnceLock<Arc<dyn Switch>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: HashMap<(Arc<str>, FunctionId), Vec<Arc<Open>>>,
    /// The counts of closed channels.
    ended: BTreeMap<Edge, ChannelCounts>,
    /// Pairs of an instance and a function between which a channel is being opened.
    opening: HashSet<(Arc<str>, FunctionId)>,
    /// Instances that have broken the rules too often.
    banned: HashSet<Arc<str>>,
}

/// A caller and its callee.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    /// `namespace/name` of the chain.
    pub chain: String,
    pub caller: FunctionId,
    pub callee: FunctionId,
}

/// An open channel.
pub(crate) struct Open {
    pub edge: Edge,
    pub channel: Box<dyn Channel>,
    /// The instances at its ends.
    pub caller: Arc<str>,
    pub callee: Arc<str>,
    /// The callee's address.
    pub address: SocketAddr,
}

impl Channels {
    /// Enables channels.
    pub fn set_switch(&self, switch: Arc<dyn Switch>) {
        // A node has one switch. A second call changes nothing.
        let _ = self.switch.set(switch);
    }

    pub(crate) fn switch(&self) -> Option<&Arc<dyn Switch>> {
        self.switch.get()
    }

    /// Whether the node can make channels at all.
    pub fn are_made(&self) -> bool {
        self.switch.get().is_some()
    }

    /// The addresses to which channels of an instance to a function lead.
    pub(crate) fn addresses(&self, caller: &Arc<str>, callee: &FunctionId) -> Vec<SocketAddr> {
        let state = self.state();
        let open = state.open.get(&(caller.clone(), callee.clone()));
        open.into_iter().flatten().map(|open| open.address).collect()
    }

    /// Marks that a channel from an instance to a function is about to be opened. Returns false if
    /// one is being opened already.
    pub(crate) fn begin(&self, caller: &Arc<str>, callee: &FunctionId) -> bool {
        self.state().opening.insert((caller.clone(), callee.clone()))
    }

    /// Ends the mark of [`Channels::begin`], whether the channel was opened or not.
    pub(crate) fn begun(&self, caller: &Arc<str>, callee: &FunctionId) {
        self.state().opening.remove(&(caller.clone(), callee.clone()));
    }

    pub(crate) fn is_banned(&self, instance: &str) -> bool {
        self.state().banned.contains(instance)
    }

    /// Refuses channels to the instance from now on.
    pub(crate) fn ban(&self, instance: &Arc<str>) {
        self.state().banned.insert(instance.clone());
    }

    /// Forgets an instance that has ended.
    pub fn forget(&self, instance: &str) {
        self.state().banned.remove(instance);
    }

    pub(crate) fn add(&self, open: Arc<Open>) {
        let key = (open.caller.clone(), open.edge.callee.clone());
        self.state().open.entry(key).or_default().push(open);
    }

    /// Removes a closed channel. Its counts stay in the totals.
    pub(crate) fn remove(&self, open: &Arc<Open>) {
        let mut state = self.state();
        let key = (open.caller.clone(), open.edge.callee.clone());
        if let Some(channels) = state.open.get_mut(&key) {
            channels.retain(|other| !Arc::ptr_eq(other, open));
            if channels.is_empty() {
                state.open.remove(&key);
            }
        }
        let counts = ChannelCounts { open: 0, held: 0, ..open.channel.counts() };
        state.ended.entry(open.edge.clone()).or_default().add(&counts);
    }

    /// The number of open channels from one function to another, and the counts of all channels
    /// that there have been.
    pub fn of(&self, caller: &FunctionId, callee: &FunctionId) -> (usize, ChannelCounts) {
        let state = self.state();
        let is_it = |edge: &Edge| edge.caller == *caller && edge.callee == *callee;
        let mut counts = ChannelCounts::default();
        state.ended.iter().filter(|(edge, _)| is_it(edge)).for_each(|(_, ended)| counts.add(ended));
        let open: Vec<_> = state.open.values().flatten().filter(|open| is_it(&open.edge)).collect();
        open.iter().for_each(|open| counts.add(&open.channel.counts()));
        (open.len(), counts)
    }

    /// The counts of all channels, for metrics.
    pub fn scrape(&self) -> Scrape {
        let state = self.state();
        let mut sums = state.ended.clone();
        for open in state.open.values().flatten() {
            sums.entry(open.edge.clone()).or_default().add(&open.channel.counts());
        }
        Scrape(sums)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels").field("open", &self.state().open.len()).finish_non_exhaustive()
    }
}

/// Calls that the kernel may judge.
pub(crate) struct Direct<'a> {
    pub callee: &'a Arc<FunctionEntry>,
    pub terms: Terms,
}

/// The terms of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Names by which the caller may call the callee.
    pub names: String,
    /// How long a call may take.
    pub timeout: Option<Duration>,
    /// The callee's revision.
    pub revision: u32,
}

/// Why calls need a sidecar.
pub(crate) struct Indirect {
    pub reason: String,
    /// The reason does not forbid calls that are under way.
    pub permits: bool,
}

/// Whether calls from one function of a chain to another may go without a sidecar. Their verdict
/// must depend on the caller and the callee alone, and no document may ask for a feature of the
/// sidecar.
///
/// # Errors
/// The reason why a sidecar is needed.
pub(crate) fn direct<'a>(
    snapshot: &'a NodeSnapshot,
    caller: &FunctionEntry,
    to: &Callee,
) -> Result<Direct<'a>, Indirect> {
    let not = |permits: bool, reason: &str| Err(Indirect { reason: reason.to_owned(), permits });
    let Some(callee) = snapshot.functions.get(&to.id) else { return not(false, "this node does not host it") };
    let to_callee = caller.outbound.spec.targets.iter().find(|target| target.function == *callee.name);
    let Some(to_callee) = to_callee else { return not(false, "it is no callee") };
    if !caller.outbound.spec.authorization.is_empty() {
        return not(false, "the caller's policies have rules about its calls");
    }
    if !caller.outbound_extensions.is_empty() || !callee.inbound_extensions.is_empty() {
        return not(false, "extensions see the requests");
    }
    let sides = [("the caller's", &caller.outbound.spec), ("its", &callee.inbound.spec)];
    let find = |needs: fn(&ProgramSpec) -> Option<&'static str>| {
        sides.iter().find_map(|(side, spec)| Some(format!("{side} policies have {}", needs(spec)?)))
    };
    if let Some(reason) = find(may_refuse) {
        return not(false, &reason);
    }
    if let Err(refused) = snapshot.judge_connection(caller, &to.id, PORT, "") {
        return not(false, &format!("it refuses the caller: {}", refused.reason));
    }
    if snapshot.mesh.limits.headers < MOST_FIELDS {
        return not(false, "the mesh allows fewer header fields than the kernel lets through");
    }
    // No reason from here on makes a call forbidden.
    if let Some(reason) = find(does_more) {
        return not(true, &reason);
    }
    let Some(chain) = caller.config.chain.as_ref().filter(|chain| chain.direct) else {
        return not(true, "the chain is not `direct`");
    };
    if !chain.to.contains(&to.id) {
        return not(true, "it is not in `to`");
    }
    if callee.config.chain.as_ref().is_none_or(|other| other.chain != chain.chain) {
        return not(false, "it is in another chain");
    }
    if [caller, callee].iter().any(|entry| entry.config.protocol != AppProtocol::Chain) {
        return not(true, "both need `protocol: chain`");
    }
    if callee.config.concurrency > 0 {
        return not(true, "it has a limit of `concurrency`");
    }
    if callee.config.revisions.split.is_some() {
        return not(true, "its requests are divided between revisions");
    }
    if !to.routes.is_empty() {
        return not(true, "its calls follow routes");
    }
    let targets = [Some(to_callee), callee.inbound.spec.targets.first()];
    if targets.into_iter().flatten().any(|target| target.retry.is_some() || target.breaker.is_some()) {
        return not(true, "there are retries or a circuit breaker");
    }
    let timeouts = targets.into_iter().flatten().map(|target| target.timeout_ms);
    let timeout = timeouts.filter(|timeout| *timeout > 0).min().map(Duration::from_millis);
    let names: Vec<&str> = to.hosts.iter().map(String::as_str).filter(|name| !name.contains(['*', ','])).collect();
    let terms = Terms { names: names.join(","), timeout, revision: callee.config.revisions.number };
    Ok(Direct { callee, terms })
}

/// The part of a program that may refuse a request, and that the kernel cannot evaluate.
fn may_refuse(spec: &ProgramSpec) -> Option<&'static str> {
    let sidecar = &spec.sidecar;
    [
        (!spec.authentication.is_empty(), "tokens"),
        (!spec.rate_limits.is_empty(), "rate limits"),
        (!spec.authorizers.is_empty(), "authorizers"),
        (!sidecar.protocols.is_empty() || !sidecar.ports.is_empty(), "protocols or ports"),
        (spec.audit_default, "an audit"),
        (!spec.authorization.iter().all(asks_only_who), "rules about more than who calls"),
    ]
    .into_iter()
    .find_map(|(needs, what)| needs.then_some(what))
}

/// The part of a program that the kernel does not carry out, and that refuses no request.
fn does_more(spec: &ProgramSpec) -> Option<&'static str> {
    let sidecar = &spec.sidecar;
    [
        (spec.tracing.enabled, "tracing"),
        (spec.access_log.enabled, "an access log"),
        (!sidecar.request_headers.is_empty() || !sidecar.response_headers.is_empty(), "edits of header fields"),
    ]
    .into_iter()
    .find_map(|(needs, what)| needs.then_some(what))
}

fn asks_only_who(rule: &AuthorizationRule) -> bool {
    let of_nobody_else = |source: &Source| {
        let Source { identities: _, labels: _, namespaces: _, request_principals, addresses } = source;
        request_principals.is_empty() && addresses.is_empty()
    };
    let anything = |operation: &Operation| *operation == Operation::default();
    !rule.audit && rule.when.is_empty() && rule.from.iter().all(of_nobody_else) && rule.to.iter().all(anything)
}

/// The counters of all channels, by caller and callee.
#[derive(Debug)]
pub struct Scrape(BTreeMap<Edge, ChannelCounts>);

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        type Count = fn(&ChannelCounts) -> u64;
        let families: [(&'static Family<3>, Count); 6] = [
            (&families::CHANNEL_CALLS, |counts| counts.calls),
            (&families::CHANNEL_ANSWERS, |counts| counts.answers),
            (&families::CHANNEL_FAILED, |counts| counts.failed),
            (&families::CHANNEL_CANCELLED, |counts| counts.cancelled),
            (&families::CHANNEL_REFUSED, |counts| counts.refused),
            (&families::CHANNEL_OPEN, |counts| counts.open.into()),
        ];
        let labels = |Edge { chain, caller, callee }: &Edge| [chain.clone(), caller.to_string(), callee.to_string()];
        for (family, count) in families {
            exposition.family(family).samples(self.0.iter().map(|(edge, counts)| (labels(edge), count(counts))));
        }
        let mut violations = exposition.family(&families::CHANNEL_VIOLATIONS);
        for (edge, counts) in &self.0 {
            let [chain, caller, callee] = &labels(edge);
            for (end, counts) in [("caller", &counts.caller_violations), ("callee", &counts.callee_violations)] {
                violations.samples(
                    CHANNEL_VIOLATIONS
                        .iter()
                        .zip(counts)
                        .map(|(kind, count)| ([&**chain, caller, callee, end, kind], *count)),
                );
            }
        }
    }
}

/// Describes whether calls from a function to a callee of its chain go through the kernel.
#[must_use]
pub fn in_words(snapshot: &NodeSnapshot, caller: &FunctionId, callee: &FunctionId) -> String {
    let Some(caller) = snapshot.functions.get(caller) else { return String::new() };
    let Some(to) = caller.config.callees.iter().find(|to| to.id == *callee) else { return String::new() };
    direct(snapshot, caller, to).map_or_else(|indirect| indirect.reason, |_| "direct".to_owned())
}
