//! The events that `leno observe` shows: exchanges, refusals before an exchange, and connections
//! without requests.

use super::exchange::{ExchangeRecord, RecordedVerdict};
use super::names::{direction_name, namespace, policy_name, protocol_name, recorded_for};
use super::request_line::cut;
use super::ring::{After, Ring};
use leno_model::FunctionId;
use leno_runtime::clock::rfc3339;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

/// Limit on refusals and connections. Older ones are forgotten, and counted.
const MOST: usize = 1024;
/// Limit on the requests that are noted with one refusal.
const MOST_REQUESTS: usize = 16;
/// An instance with more than this fraction of its namespace's share replaces its own events.
const SHARES: usize = 8;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The node that has recorded it; empty: the node that answers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// When it began (RFC 3339, UTC).
    pub time: String,
    /// The kind: `gateway`, `outbound` or `inbound` for an exchange, by its direction; `connection`
    /// for one without exchanges; `name` for a look-up of a name; `system-call`.
    pub kind: String,
    /// The source: a SPIFFE ID, an instance, or the address of a client outside the mesh.
    pub source: String,
    /// The called function, `namespace/name`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// `allow`, `deny`, or `error`: there was no reliable verdict.
    pub verdict: String,
    /// The rule that decided, or a name in place of one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Method of a request, name of a system call.
    pub what: String,
    /// The called host, with its port as sent; the name; the program.
    pub host: String,
    /// The path of a request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The called port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Protocol of a request, as policies see it; `tcp` or `tls` of a connection without requests.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Status of the response; 0: there was none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub status: u16,
    /// Bytes that the caller sent on a connection.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sent: u64,
    /// Bytes that it received.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub received: u64,
    /// The kernel spliced the connection from jail to jail.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spliced: bool,
    /// From head to end, in microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub time_us: u64,
    /// Why, if it was not allowed, or got no response.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The verdict if audited policies were enforced, where it differs: `deny: <rule>`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub audit: String,
    /// For `leno explain`. Of a refusal before an exchange: the request that the instance was
    /// handling, if it was handling exactly one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request_id: String,
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Flow {
    /// The namespace of the function whose sidecar or jail has recorded it; `None`: a gateway did,
    /// and it led to no function.
    pub fn namespace(&self) -> Option<&str> {
        recorded_for(&self.kind, self.target.as_deref(), &self.source)
    }

    /// Something that happens now, about which nothing else is known.
    fn now() -> Self {
        Self { time: rfc3339(SystemTime::now()).to_string(), ..Self::default() }
    }

    /// An exchange, from its record.
    pub(super) fn exchange(observed: &ExchangeRecord<Box<str>>) -> Self {
        let line = &observed.request_line;
        let failure = observed.failure.as_deref().unwrap_or_default();
        let (verdict, rule, reason) = match observed.judged.as_ref().map(|judged| &judged.verdict) {
            Some(RecordedVerdict::Allow { rule }) => ("allow", rule.to_string(), failure.to_owned()),
            Some(RecordedVerdict::Deny { policy, rule, clause, .. }) => {
                ("deny", rule.to_string(), format!("{}: {clause}", policy_name(*policy)))
            }
            Some(RecordedVerdict::Extension { rule, clause }) => ("deny", rule.to_string(), clause.to_string()),
            Some(RecordedVerdict::Fault { reason, .. }) => ("error", String::new(), reason.to_string()),
            // It did not come as far as a judge.
            None if (400..500).contains(&observed.status) => ("deny", String::new(), failure.to_owned()),
            None => ("error", String::new(), failure.to_owned()),
        };
        let audit = observed.judged.as_ref().and_then(|judged| judged.audit.as_ref());
        let peer = &observed.peer;
        let port = line.authority().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        Self {
            node: String::new(),
            time: rfc3339(observed.started_at).to_string(),
            kind: direction_name(observed.direction).to_owned(),
            source: peer.identity.as_deref().map_or_else(|| peer.address.ip().to_string(), str::to_owned),
            target: observed.target.as_deref().map(str::to_owned),
            verdict: verdict.to_owned(),
            rule,
            audit: audit.map(|audit| format!("{}: {}", audit.word(), audit.rule_and_clause().0)).unwrap_or_default(),
            what: line.method().to_owned(),
            host: line.authority().to_owned(),
            path: line.path().to_owned(),
            port,
            protocol: protocol_name(observed.protocol).to_owned(),
            status: observed.status,
            sent: 0,
            received: 0,
            spliced: false,
            time_us: observed
                .ended
                .saturating_duration_since(observed.started)
                .as_micros()
                .try_into()
                .unwrap_or(u64::MAX),
            reason,
            request_id: observed.request_id.to_string(),
        }
    }
}

/// The requests that an instance was handling when it was refused something.
#[derive(Clone, Debug)]
pub struct HandledRequests {
    function: FunctionId,
    /// Some of them.
    ids: Vec<Box<str>>,
    count: u32,
}

impl HandledRequests {
    /// The requests with these IDs, of an instance of this function.
    pub fn new<'a>(function: &FunctionId, ids: impl Iterator<Item = &'a str>) -> Self {
        let mut requests = Self { function: function.clone(), ids: Vec::new(), count: 0 };
        for id in ids {
            requests.count += 1;
            if requests.ids.len() < MOST_REQUESTS {
                requests.ids.push(id.into());
            }
        }
        requests
    }

    /// The function.
    pub fn function(&self) -> &FunctionId {
        &self.function
    }

    /// The IDs of the requests, or of some of them.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.ids.iter().map(|id| &**id)
    }

    /// How many there were.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The request, if there was exactly one.
    pub fn only(&self) -> Option<&str> {
        self.ids().next().filter(|_| self.count == 1)
    }
}

/// An event without an exchange, with the requests that its instance was handling.
#[derive(Clone, Debug)]
pub struct ConnectionEvent {
    pub(crate) flow: Flow,
    pub(crate) at: Instant,
    /// Of a refusal.
    pub(crate) during: Option<HandledRequests>,
}

impl ConnectionEvent {
    fn new(flow: Flow, at: Instant, during: Option<HandledRequests>) -> Self {
        let request_id = during.as_ref().and_then(HandledRequests::only).unwrap_or_default().to_owned();
        Self { flow: Flow { request_id, ..flow }, at, during }
    }
}

/// A refusal of an instance before there was a request.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// `connection`, `name` or `system-call`.
    pub kind: &'static str,
    /// The instance.
    pub instance: Box<str>,
    /// The requests that it was handling.
    pub during: Option<HandledRequests>,
    /// The rule that decided; empty: none.
    pub rule: Box<str>,
    /// The address, name or system call.
    pub what: Box<str>,
    /// The name, or the program.
    pub host: Box<str>,
    /// The cause of the refusal, and its effect.
    pub reason: &'static str,
}

impl From<Refusal> for ConnectionEvent {
    fn from(refusal: Refusal) -> Self {
        let Refusal { kind, instance, during, rule, mut what, mut host, reason } = refusal;
        for text in [&mut what, &mut host] {
            cut(text);
        }
        let flow = Flow {
            kind: kind.to_owned(),
            source: instance.into(),
            verdict: "deny".to_owned(),
            rule: rule.into(),
            what: what.into(),
            host: host.into(),
            reason: reason.to_owned(),
            ..Flow::now()
        };
        Self::new(flow, Instant::now(), during)
    }
}

/// A connection without requests, when it has ended or was refused.
#[derive(Clone, Debug)]
pub struct Connection<'a> {
    /// The caller's instance.
    pub instance: &'a str,
    /// If it was refused: the requests that the instance was handling when it began.
    pub during: Option<HandledRequests>,
    /// The function that it leads to; `None`: to none.
    pub target: Option<&'a FunctionId>,
    /// Where the caller connected to.
    pub address: SocketAddr,
    /// `tcp` or `tls`.
    pub protocol: &'static str,
    /// The rule that decided.
    pub rule: &'a str,
    /// Why it was refused or failed.
    pub outcome: Result<(), ConnectionFailure<'a>>,
    /// Bytes that the caller sent and received.
    pub bytes: [u64; 2],
    /// It was spliced.
    pub spliced: bool,
    /// When it began.
    pub started: (SystemTime, Instant),
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug)]
pub enum ConnectionFailure<'a> {
    /// It was not allowed, or is not any more.
    Refused(&'a str),
    /// There was no endpoint for it.
    Failed(&'a str),
}

impl From<Connection<'_>> for ConnectionEvent {
    fn from(connection: Connection<'_>) -> Self {
        let Connection { instance, during, target, address, protocol, rule, outcome, bytes, spliced, started } =
            connection;
        let (verdict, reason) = match outcome {
            Ok(()) => ("allow", ""),
            Err(ConnectionFailure::Refused(reason)) => ("deny", reason),
            Err(ConnectionFailure::Failed(reason)) => ("error", reason),
        };
        let mut reason = reason.into();
        cut(&mut reason);
        let [sent, received] = bytes;
        let flow = Flow {
            time: rfc3339(started.0).to_string(),
            kind: "connection".to_owned(),
            source: instance.to_owned(),
            target: target.map(ToString::to_string),
            verdict: verdict.to_owned(),
            rule: rule.to_owned(),
            what: "connect".to_owned(),
            host: address.to_string(),
            port: Some(address.port()),
            protocol: protocol.to_owned(),
            sent,
            received,
            spliced,
            time_us: started.1.elapsed().as_micros().try_into().unwrap_or(u64::MAX),
            reason: reason.into(),
            ..Flow::default()
        };
        Self::new(flow, started.1, during)
    }
}

/// The latest refusals, and connections without requests.
#[derive(Debug, Default)]
pub struct ConnectionFlows(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    /// By their numbers, which rise.
    events: BTreeMap<u64, ConnectionEvent>,
    /// The numbers of each namespace's.
    by_namespace: HashMap<Box<str>, BTreeSet<u64>>,
    /// The numbers of each instance's, oldest first.
    by_instance: HashMap<String, VecDeque<u64>>,
    pushed: u64,
}

impl ConnectionFlows {
    /// Adds an event. At the limit, it replaces another one: the oldest of its instance, if its
    /// namespace has used up its share and the instance has many; else the oldest of its namespace,
    /// if the share is used up; else the oldest of the largest namespace. So no namespace and no
    /// instance replaces the events of others.
    pub fn push(&self, event: impl Into<ConnectionEvent>) {
        let event = event.into();
        let source = &event.flow.source;
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.events.len() >= MOST {
            latest.forget_one(source);
        }
        let number = latest.pushed;
        latest.pushed += 1;
        latest.by_namespace.entry(namespace(source).into()).or_default().insert(number);
        latest.by_instance.entry(source.clone()).or_default().push_back(number);
        latest.events.insert(number, event);
    }

    /// Counts events without details.
    pub fn missed(&self, number: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pushed += number;
    }

    /// The refusals of instances that were handling one of these requests, in their order.
    pub(crate) fn during(&self, requests: &BTreeSet<Box<str>>) -> Vec<ConnectionEvent> {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_wanted = |event: &&ConnectionEvent| {
            event.during.as_ref().is_some_and(|during| during.ids().any(|id| requests.contains(id)))
        };
        latest.events.values().filter(is_wanted).cloned().collect()
    }

    fn after(&self, seen: u64) -> After<Flow> {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.min(latest.pushed);
        let found: Vec<Flow> = latest.events.range(seen..).map(|(_, event)| event.flow.clone()).collect();
        let missed = latest.pushed - seen - found.len() as u64;
        After { found, missed, next: vec![latest.pushed] }
    }
}

impl Latest {
    fn forget_one(&mut self, instance: &str) {
        let share = MOST / self.by_namespace.len().max(1);
        let own = self.by_namespace.get(namespace(instance)).filter(|numbers| numbers.len() >= share);
        let oldest = if let Some(own) = own {
            let instances = self.by_instance.get(instance).filter(|numbers| numbers.len() > share / SHARES);
            instances.and_then(|numbers| numbers.front()).or(own.first()).copied()
        } else {
            let largest = self.by_namespace.values().max_by_key(|numbers| numbers.len());
            largest.and_then(|numbers| numbers.first()).copied()
        };
        let Some((number, event)) = oldest.and_then(|number| self.events.remove_entry(&number)) else { return };
        let flow = event.flow;
        if let Some(numbers) = self.by_namespace.get_mut(namespace(&flow.source)) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_namespace.remove(namespace(&flow.source));
            }
        }
        if let Some(numbers) = self.by_instance.get_mut(&flow.source) {
            // It is the oldest of its instance, too.
            numbers.pop_front();
            if numbers.is_empty() {
                self.by_instance.remove(&flow.source);
            }
        }
    }
}

/// The events of a node since an earlier answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// Oldest first.
    pub flows: Vec<Flow>,
    /// The number of forgotten events in between.
    pub missed: u64,
    /// The position after this answer, from which the next one continues.
    pub next: String,
}

impl Flows {
    pub(super) fn after(ring: &Ring, others: &ConnectionFlows, seen: Option<&str>) -> Self {
        let counts: Vec<u64> = seen.unwrap_or_default().split('-').filter_map(|count| count.parse().ok()).collect();
        let (other, exchanged) = counts.split_first().map_or((0, &[][..]), |(other, rest)| (*other, rest));
        let (other, exchanged) = (others.after(other), ring.after(exchanged));
        let mut flows = other.found;
        flows.extend(exchanged.found.iter().map(Flow::exchange));
        flows.sort_by(|one, other| one.time.cmp(&other.time));
        let next: Vec<String> = other.next.iter().chain(&exchanged.next).map(u64::to_string).collect();
        // The first answer has missed nothing.
        let missed = seen.map_or(0, |_| other.missed + exchanged.missed);
        Self { flows, missed, next: next.join("-") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::observed;

    fn refusal(host: &str) -> Refusal {
        Refusal {
            kind: "name",
            instance: "i".into(),
            during: None,
            rule: "".into(),
            what: "look-up".into(),
            host: host.into(),
            reason: "no callee",
        }
    }

    #[test]
    fn each_is_reported_once_and_what_is_forgotten_is_counted() {
        let (ring, others) = (Ring::default(), ConnectionFlows::default());
        let shard = ring.shard();
        shard.push(&observed());
        others.push(refusal("a"));
        let all = Flows::after(&ring, &others, None);
        let kinds: Vec<&str> = all.flows.iter().map(|flow| flow.kind.as_str()).collect();
        assert_eq!((all.flows.len(), all.missed), (2, 0), "{kinds:?}");
        assert!(Flows::after(&ring, &others, Some(&all.next)).flows.is_empty());

        others.push(refusal("b"));
        let more = Flows::after(&ring, &others, Some(&all.next));
        assert_eq!(more.flows.iter().map(|flow| &*flow.host).collect::<Vec<_>>(), ["b"]);
        for _ in 0..MOST + 5 {
            others.push(refusal("c"));
        }
        let flood = Flows::after(&ring, &others, Some(&more.next));
        assert_eq!((flood.flows.len(), flood.missed), (MOST, 5));
        assert_eq!(Flows::after(&ring, &others, Some("nonsense")).flows.len(), MOST + 1);
        assert!(Flows::after(&ring, &others, Some("99999999")).flows.len() <= 1, "of another time of this node");
    }

    #[test]
    fn who_is_refused_without_end_pushes_out_its_own() {
        let (ring, others) = (Ring::default(), ConnectionFlows::default());
        let of = |instance: &str| Refusal { instance: instance.into(), ..refusal("x") };
        for number in 0..MOST {
            others.push(of(&format!("quiet-{}", number % 16)));
        }
        for _ in 0..10 * MOST {
            others.push(of("loud"));
        }
        let all = Flows::after(&ring, &others, None).flows;
        let of = |name: &str| all.iter().filter(|flow| flow.source.starts_with(name)).count();
        // Seventeen namespaces, of which each has its share.
        assert_eq!((all.len(), of("loud")), (MOST, MOST / 17));
        assert!((0..16).all(|number| of(&format!("quiet-{number}")) >= MOST / 17), "{}", of("quiet-0"));
        let latest = others.0.lock().unwrap();
        assert_eq!(latest.by_instance.values().map(VecDeque::len).sum::<usize>(), MOST);
        assert_eq!(latest.by_namespace.values().map(BTreeSet::len).sum::<usize>(), MOST);
    }

    #[test]
    fn a_namespace_with_many_instances_pushes_out_its_own() {
        let (ring, others) = (Ring::default(), ConnectionFlows::default());
        let of = |instance: String| Refusal { instance: instance.into(), ..refusal("x") };
        (0..100).for_each(|number| others.push(of(format!("shop/web/{number}"))));
        (0..10).for_each(|_| others.push(of("hostile/quiet/0".to_owned())));
        (0..20 * MOST).for_each(|number| others.push(of(format!("hostile/flood/{}", number % 200))));
        let all = Flows::after(&ring, &others, None);
        let of = |prefix: &str| all.flows.iter().filter(|flow| flow.source.starts_with(prefix)).count();
        assert_eq!((of("shop/"), of("hostile/")), (100, MOST - 100));
    }
}
