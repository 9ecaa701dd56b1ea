//! Judges recorded requests again, by the program that a function would have.
//!
//! A replay has no effects: it takes from no counter, asks no authorizer, and remembers nothing.
//! Rate limits and circuit breakers depend on state that is gone, so the replay leaves them out of
//! the program and lists them in its result. If the program would read a part of a request that was
//! not recorded, the request is not judged again, and the result gives the reason.

mod error;
mod head;
mod verdict;

use crate::state::function::{FunctionEntry, LoadedProgram};
use head::Head;
use leno_model::{CandidatePrograms, FunctionId, JwksFetch};
use leno_policy::input::{Peer, RequestInput};
use leno_policy::needs::Reads;
use leno_policy::outcome::Output;
use leno_policy::spec::ProgramSpec;
use leno_sandbox::{Engine, Image, Pool};
use leno_telemetry::exchange::{ExchangeRecord, JudgementRecord};
use leno_telemetry::inputs::Inputs;
use leno_telemetry::ring::Ring;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Instant, SystemTime};
use verdict::{Change, Comparison};

pub use error::ReplayError;
pub use verdict::Verdict;

/// Maximum number of examples of each kind of difference for one function.
const EXAMPLES: usize = 5;
/// Maximum number of different reasons that are counted separately.
const REASONS: usize = 16;

/// A record that was decoded from the ring.
type DecodedRecord = ExchangeRecord<Box<str>>;

/// The records of a node at one moment, by the function that judged. They stay encoded, because
/// there may be many.
#[derive(Debug, Default)]
pub struct Records(HashMap<Box<str>, Vec<Box<[u8]>>>);

/// The result of replaying the records of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Requests that were judged again.
    pub judged: u64,
    /// The number of those that were allowed and would be denied.
    pub newly_denied: u64,
    /// The number of those that were denied and would be allowed.
    pub newly_allowed: u64,
    /// The reasons for which requests could not be judged, and the number of requests for each.
    pub unjudged: BTreeMap<String, u64>,
    /// Requests for which there was no time.
    pub skipped: u64,
    /// Some of the differences, the latest first.
    pub examples: Vec<Example>,
    /// The parts of the program that were not replayed.
    pub left_out: Vec<String>,
}

/// A request that would be decided differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The time at which the request began.
    pub at: SystemTime,
    /// Its ID, for `leno explain`.
    pub request_id: String,
    /// `outbound`: the function's own call; `inbound` or `gateway`: a call to it.
    pub direction: &'static str,
    /// `namespace/name`, or the address of a caller outside of the mesh.
    pub caller: String,
    /// The callee of an outbound call.
    pub callee: Option<String>,
    /// Method, as sent.
    pub method: String,
    /// Path as judged, without query.
    pub path: String,
    /// The recorded verdict.
    pub before: Verdict,
    /// The candidate's verdict.
    pub after: Verdict,
}

impl Records {
    /// Copies the records that the ring holds at this moment.
    pub fn of(ring: &Ring) -> Self {
        let mut records: HashMap<Box<str>, Vec<Box<[u8]>>> = HashMap::new();
        for record in ring.copy() {
            let judged = ExchangeRecord::decode(&record).and_then(|recorded| recorded.judged);
            if let Some(JudgementRecord { function, .. }) = judged {
                records.entry((*function).into()).or_default().push(record);
            }
        }
        Self(records)
    }

    fn of_function(&self, id: &FunctionId) -> impl Iterator<Item = DecodedRecord> {
        let records = self.0.get(id.to_string().as_str()).into_iter().flatten();
        records.filter_map(|record| ExchangeRecord::decode(record))
    }
}

/// Judges the records of a function by the candidate's programs, until there are no more or the
/// time is over. `in_force` is the function's current configuration.
pub fn replay(
    engine: &Engine,
    candidate: &CandidatePrograms,
    in_force: &FunctionEntry,
    records: &Records,
    until: Instant,
) -> Result<ReplayReport, ReplayError> {
    let mut recorded: Vec<DecodedRecord> = records.of_function(&candidate.id).collect();
    recorded.sort_by_key(|recorded| std::cmp::Reverse(recorded.started));
    let mut result = ReplayReport { left_out: left_out(candidate), ..ReplayReport::default() };
    let inbound = Replayer::new(engine, with_known_keys(candidate, in_force), candidate)?;
    let outbound = Replayer::new(engine, candidate.outbound.clone(), candidate)?;
    let mut pool = Pool::with_cap(1);
    for recorded in &recorded {
        if Instant::now() >= until {
            result.skipped += 1;
            continue;
        }
        let replayer = if is_outbound(recorded) { &outbound } else { &inbound };
        match replayer.judge(&mut pool, recorded) {
            Ok(compared) => result.add(recorded, compared),
            Err(error) => result.not_judged(error.to_string()),
        }
    }
    Ok(result)
}

fn is_outbound(recorded: &DecodedRecord) -> bool {
    recorded.direction == leno_http::peer::TrafficDirection::Outbound
}

/// The inbound program, with the keys that the node has fetched for the current function.
fn with_known_keys(candidate: &CandidatePrograms, in_force: &FunctionEntry) -> ProgramSpec {
    let mut spec = candidate.inbound.clone();
    for fetch in &candidate.jwks {
        let source = |fetch: &JwksFetch| (fetch.url.clone(), fetch.ca_file.clone(), fetch.ca.clone());
        let same = in_force.config.jwks.iter().find(|known| source(known) == source(fetch));
        let known = same.and_then(|known| in_force.inbound.spec.authentication.get(known.issuer));
        if let (Some(known), Some(issuer)) = (known, spec.authentication.get_mut(fetch.issuer)) {
            issuer.keys.clone_from(&known.keys);
            issuer.keys_pending = known.keys_pending;
        }
    }
    spec
}

fn left_out(candidate: &CandidatePrograms) -> Vec<String> {
    let specs = [&candidate.inbound, &candidate.outbound];
    let breaks = |spec: &&ProgramSpec| spec.targets.iter().any(|target| target.breaker.is_some());
    let parts = [
        ("rate limits", specs.iter().any(|spec| !spec.rate_limits.is_empty())),
        ("circuit breakers", specs.iter().any(breaks)),
        ("external authorizers", specs.iter().any(|spec| !spec.authorizers.is_empty())),
        ("extensions", candidate.extensions),
    ];
    parts.into_iter().filter(|(_, is_there)| *is_there).map(|(part, _)| part.to_owned()).collect()
}

/// One program, without the policies that depend on state that is gone.
struct Replayer {
    program: LoadedProgram,
    reads: Reads,
}

impl Replayer {
    fn new(engine: &Engine, mut spec: ProgramSpec, candidate: &CandidatePrograms) -> Result<Self, ReplayError> {
        spec.rate_limits.clear();
        spec.targets.iter_mut().for_each(|target| target.breaker = None);
        let program = LoadedProgram::load(engine, &spec, candidate.deadline);
        let replayer = Self { reads: Reads::of(&spec), program };
        replayer.image()?;
        Ok(replayer)
    }

    fn image(&self) -> Result<&Image, ReplayError> {
        let direction = self.program.spec.direction;
        self.program.image.as_ref().map_err(|error| ReplayError::Program { direction, reason: error.to_string() })
    }

    /// Compares the recorded verdict with the program's. An error gives the reason why that is not
    /// possible.
    fn judge(&self, pool: &mut Pool, recorded: &DecodedRecord) -> Result<Comparison, ReplayError> {
        let inputs = recorded.inputs.as_deref().ok_or(ReplayError::NoInputs)?;
        let head = Head::rebuild(recorded, inputs, &self.program.needs, &self.reads)?;
        let output = self.run(pool, recorded, inputs, &head)?;
        match output {
            Output::Decided(decision) => verdict::compare(recorded, &decision, &self.program.spec),
            Output::Unverified(want) => {
                let denial = verdict::wrong_signature(recorded, want);
                verdict::compare_denial(recorded, denial.ok_or(ReplayError::NoSignature)?)
            }
            Output::Unreadable(reason) => Err(ReplayError::Unreadable(reason)),
        }
    }

    fn run(
        &self,
        pool: &mut Pool,
        recorded: &DecodedRecord,
        inputs: &Inputs,
        head: &Head,
    ) -> Result<Output, ReplayError> {
        let image = self.image()?;
        let line = &recorded.request_line;
        let since = recorded.started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let needs = &self.program.needs;
        let input = RequestInput {
            now_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            peer: Peer {
                identity: recorded.peer.identity.as_deref(),
                address: needs.address.then(|| recorded.peer.address.ip()),
            },
            target: match is_outbound(recorded) {
                true => recorded.target.as_deref().unwrap_or_default(),
                false => &self.program.spec.function,
            },
            port: inputs.port,
            protocol: recorded.protocol,
            method: line.method(),
            authority: recorded.judged_place().0,
            path: &head.path,
            headers: head.fields().filter(|field| needs.gives(field.name)).collect(),
            verified: verdict::verified(recorded),
        };
        Ok(pool.run(image, &input, self.program.deadline)?)
    }
}

impl ReplayReport {
    fn add(&mut self, recorded: &DecodedRecord, compared: Comparison) {
        self.judged += 1;
        let Comparison { change, before, after } = compared;
        let count = match change {
            Change::None => return,
            Change::Denied => &mut self.newly_denied,
            Change::Allowed => &mut self.newly_allowed,
        };
        *count += 1;
        if usize::try_from(*count).is_ok_and(|count| count <= EXAMPLES) {
            self.examples.push(example(recorded, before, after));
        }
    }

    fn not_judged(&mut self, reason: String) {
        let is_new = !self.unjudged.contains_key(&reason);
        let reason = if is_new && self.unjudged.len() >= REASONS { "other reasons".to_owned() } else { reason };
        *self.unjudged.entry(reason).or_default() += 1;
    }
}

fn example(recorded: &DecodedRecord, before: Verdict, after: Verdict) -> Example {
    let address: IpAddr = recorded.peer.address.ip();
    let caller = recorded.source().map(|(namespace, name)| format!("{namespace}/{name}"));
    Example {
        at: recorded.started_at,
        request_id: recorded.request_id.to_string(),
        direction: leno_telemetry::names::direction_name(recorded.direction),
        caller: caller.unwrap_or_else(|| address.to_string()),
        callee: recorded.target.as_deref().filter(|_| is_outbound(recorded)).map(str::to_owned),
        method: recorded.request_line.method().to_owned(),
        path: recorded.request_line.path().to_owned(),
        before,
        after,
    }
}
