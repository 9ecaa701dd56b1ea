//! After a hot restart, the child counts for rate limits. For the requests that it still admits,
//! the parent asks the child, one question at a time, on a dedicated socket. A worker waits for the
//! answer, which takes no longer than a function call in the other process.

use leno_model::FunctionId;
use leno_policy::quota::QuotaState;
use leno_policy::quota::TakeResult;
use leno_policy::spec::{Counts, QuotaAlgorithm, RateLimit};
use leno_proxy::Node;
use leno_proxy::limits::{Demand, Grant, LimitRefusal, RemoteLimits};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;

/// Name under which the socket is passed.
pub(crate) const SOCKET: &str = "counting";
/// Longest wait for an answer. Without one, the request is refused.
const ANSWER: Duration = Duration::from_secs(1);
/// Reason to refuse a request that the other process cannot count.
const UNCOUNTED: &str = "the process that counts does not know what is left";
/// Longest question or answer, in bytes. Keys of counters are made of values from a request's head.
const LONGEST: usize = 4 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question<'a> {
    function: Cow<'a, str>,
    demands: Vec<CounterDemand<'a>>,
    now_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CounterDemand<'a> {
    limit: Cow<'a, str>,
    algorithm: QuotaAlgorithm,
    key: Cow<'a, str>,
    cost: u32,
}

/// The remaining quota of each counter, or the counter that is exhausted.
#[derive(Serialize, Deserialize)]
enum Answer {
    Granted(Vec<CounterStatus>),
    Refused(usize, CounterStatus),
    /// No process knows the remaining quota of the counter.
    Uncounted(usize, CounterStatus),
}

/// A [`TakeResult`], and whether other keys share the counter.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CounterStatus {
    state: QuotaState,
    allowed: bool,
    remaining: u32,
    limit: u32,
    retry_after_ms: u64,
    reset_ms: u64,
    shared: bool,
}

impl CounterStatus {
    fn of(taken: TakeResult, shared: bool) -> Self {
        let TakeResult { state, allowed, remaining, limit, retry_after_ms, reset_ms } = taken;
        Self { state, allowed, remaining, limit, retry_after_ms, reset_ms, shared }
    }

    fn taken(self) -> (TakeResult, bool) {
        let Self { state, allowed, remaining, limit, retry_after_ms, reset_ms, shared } = self;
        (TakeResult { state, allowed, remaining, limit, retry_after_ms, reset_ms }, shared)
    }
}

/// The parent's end.
pub(crate) struct ChildCounters(Mutex<UnixStream>);

impl ChildCounters {
    pub(crate) fn at(socket: UnixStream) -> io::Result<Self> {
        socket.set_read_timeout(Some(ANSWER))?;
        socket.set_write_timeout(Some(ANSWER))?;
        Ok(Self(Mutex::new(socket)))
    }

    fn ask(&self, question: &Question<'_>) -> io::Result<Answer> {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = write(&mut socket, question).and_then(|()| read(&mut socket));
        if answer.is_err() {
            // The socket closes, so that a late answer is not taken for the answer to the next
            // question.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        answer?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl RemoteLimits for ChildCounters {
    fn take(&self, function: &str, demands: &[Demand<'_>], now_ms: u64) -> Option<Result<Vec<Grant>, LimitRefusal>> {
        let wanted = demands.iter().map(|demand| CounterDemand {
            limit: demand.limit.name.as_str().into(),
            algorithm: demand.limit.algorithm,
            key: demand.key.into(),
            cost: demand.cost,
        });
        let demands = wanted.collect();
        let answer = self.ask(&Question { function: function.into(), demands, now_ms });
        let answer = answer.inspect_err(|error| tracing::warn!(function, %error, "the child process does not count"));
        Some(match answer.ok()? {
            Answer::Granted(granted) => {
                let of = |left: CounterStatus| {
                    let (taken, shared) = left.taken();
                    Grant { taken, shared }
                };
                Ok(granted.into_iter().map(of).collect())
            }
            Answer::Refused(index, left) => {
                let (taken, shared) = left.taken();
                Err(LimitRefusal { index, taken, shared, uncounted: None })
            }
            Answer::Uncounted(index, left) => {
                let (taken, shared) = left.taken();
                Err(LimitRefusal { index, taken, shared, uncounted: Some(UNCOUNTED) })
            }
        })
    }
}

/// The child's end, which counts as long as the parent lives. It blocks, so it needs its own
/// thread.
pub(crate) fn answer(mut socket: UnixStream, node: &Weak<Node>, runtime: &Handle) {
    while let Ok(Some(Question { function, demands, now_ms })) = read::<Question<'static>>(&mut socket) {
        let (Some(node), Ok(function)) = (node.upgrade(), function.parse::<FunctionId>()) else { return };
        let limits: Vec<RateLimit> = demands.iter().map(limit).collect();
        let demands = demands.iter().zip(&limits);
        let demands: Vec<_> =
            demands.map(|(wanted, limit)| Demand { limit, key: &wanted.key, cost: wanted.cost }).collect();
        let limits_of_function = node.policy_state.limits.function(&function);
        // This may wait for a store, if the mesh has got one since this process was started.
        let answer = match runtime.block_on(limits_of_function.take_or_wait(&demands, now_ms)) {
            Ok(granted) => Answer::Granted(
                granted.into_iter().map(|Grant { taken, shared }| CounterStatus::of(taken, shared)).collect(),
            ),
            Err(LimitRefusal { index, taken, shared, uncounted: None }) => {
                Answer::Refused(index, CounterStatus::of(taken, shared))
            }
            Err(LimitRefusal { index, taken, shared, uncounted: Some(_) }) => {
                Answer::Uncounted(index, CounterStatus::of(taken, shared))
            }
        };
        if write(&mut socket, &answer).is_err() {
            return;
        }
    }
}

/// A limit, reduced to the fields that its counters need. The parent has already judged which
/// callers it applies to.
fn limit(wanted: &CounterDemand<'_>) -> RateLimit {
    RateLimit {
        name: wanted.limit.as_ref().into(),
        counts: Counts::Requests,
        only: None,
        from: Vec::new(),
        except: Vec::new(),
        audit: false,
        key: Vec::new(),
        algorithm: wanted.algorithm,
    }
}

fn write(socket: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length as usize <= LONGEST);
    let mut frame = length.ok_or(io::ErrorKind::FileTooLarge)?.to_be_bytes().to_vec();
    frame.extend(body);
    socket.write_all(&frame)
}

/// `None`: the other end is closed.
fn read<T: DeserializeOwned>(socket: &mut UnixStream) -> io::Result<Option<T>> {
    let mut head = [0; 4];
    match socket.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_be_bytes(head) as usize;
    if length > LONGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body)?;
    Ok(Some(serde_json::from_slice(&body)?))
}
