//! The script that settles counters: its arguments, and the meaning of its answers.

use super::connection::{Connection, QuotaStoreError};
use aws_lc_rs::digest::{Context, SHA256};
use leno_policy::spec::QuotaAlgorithm;
use leno_proxy::limits::{Answer, CounterName, Question};
use redis::{Cmd, Value};
use std::fmt::Write;
use std::time::{Duration, SystemTime};

const SCRIPT: &str = include_str!("settle.lua");
/// How long a node may use its allowance after it has asked.
const TERM: Duration = Duration::from_secs(5);
/// How much longer the server waits before it counts an allowance as used: the maximum drift
/// between clocks within a term.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum number of counters of a limit. Further keys share [`SHARED`] counters. Both as on a
/// node.
const MOST_COUNTERS: u32 = 65_536;
const SHARED: u16 = 4096;

/// Makes calls of the script and reads their answers.
pub(super) struct Settling {
    prefix: String,
    /// Identifies this process. Another process on the same machine has its own allowances.
    node: String,
    sequence: u64,
    /// Identifies the server's data. If it changes, the server has lost data.
    epoch: String,
    /// The script as the server calls it.
    hash: String,
    /// Maximum number of counters of a limit.
    most: u32,
}

impl Settling {
    pub(super) fn new(prefix: String) -> std::io::Result<Self> {
        let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let sequence = u64::try_from(began.as_micros()).unwrap_or_default();
        Ok(Self { prefix, node: random()?, sequence, epoch: String::new(), hash: String::new(), most: MOST_COUNTERS })
    }

    /// Asks about several counters at once. Returns an answer for each, in the same order.
    pub(super) async fn ask(
        &mut self,
        connection: &mut Connection,
        questions: &[(&CounterName, Question)],
    ) -> Result<Vec<Answer>, QuotaStoreError> {
        let fresh = random()?;
        let reply = match connection.command(&self.call(questions, &fresh)).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                self.load(connection).await?;
                connection.command(&self.call(questions, &fresh)).await
            }
            reply => reply,
        };
        self.read(reply?, questions)
    }

    /// Loads the script into the server.
    pub(super) async fn load(&mut self, connection: &mut Connection) -> Result<(), QuotaStoreError> {
        let reply = connection.command(redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT)).await;
        self.hash = match reply? {
            Value::BulkString(hash) if hash.len() == 40 && hash.is_ascii() => {
                String::from_utf8_lossy(&hash).into_owned()
            }
            other => return Err(nonsense(&other)),
        };
        Ok(())
    }

    fn call(&mut self, questions: &[(&CounterName, Question)], fresh: &str) -> Cmd {
        self.sequence += 1;
        let mut call = redis::cmd("EVALSHA");
        // Without a hash, the server has no such script either.
        call.arg(if self.hash.is_empty() { "-" } else { &self.hash });
        call.arg(1 + 3 * questions.len()).arg(format!("{}:epoch", self.prefix));
        for (counter, question) in questions {
            self.keys(counter, &question.algorithm).iter().for_each(|key| {
                call.arg(key);
            });
        }
        call.arg(&self.node).arg(self.sequence).arg(&self.epoch).arg(fresh);
        call.arg(TERM.as_millis() as u64).arg(GRACE.as_millis() as u64).arg(self.most);
        for (_, Question { algorithm, unused, keep, need, extra }) in questions {
            let (kind, requests, period_ms, capacity) = match *algorithm {
                QuotaAlgorithm::TokenBucket { requests, period_ms, burst } => ("b", requests, period_ms, burst),
                QuotaAlgorithm::FixedWindow { requests, period_ms } => ("w", requests, period_ms, requests),
            };
            call.arg(kind).arg(requests.max(1)).arg(period_ms.max(1)).arg(capacity);
            call.arg(unused).arg(keep).arg(need).arg(extra);
        }
        call
    }

    /// The counter's own key, the key of the counter that it may have to share, and the index of
    /// its limit. Values that a client has chosen are hashed.
    fn keys(&self, counter: &CounterName, algorithm: &QuotaAlgorithm) -> [String; 3] {
        let kind = match algorithm {
            QuotaAlgorithm::TokenBucket { .. } => "bucket",
            QuotaAlgorithm::FixedWindow { .. } => "window",
        };
        let limit = digest(&counter.limit);
        let base = format!("{}:{}:{}:{kind}", self.prefix, counter.function, hexadecimal(&limit[..8]));
        let key = digest(&counter.key);
        let shared = u16::from_be_bytes([key[16], key[17]]) % SHARED;
        [format!("{base}:{}", hexadecimal(&key[..16])), format!("{base}:shared:{shared}"), format!("{base}:index")]
    }

    fn read(&mut self, reply: Value, questions: &[(&CounterName, Question)]) -> Result<Vec<Answer>, QuotaStoreError> {
        let Value::Array(parts) = &reply else { return Err(nonsense(&reply)) };
        let [Value::BulkString(epoch), Value::BulkString(sequence), parts @ ..] = parts.as_slice() else {
            return Err(nonsense(&reply));
        };
        if *sequence != self.sequence.to_string().into_bytes() {
            return Err(QuotaStoreError::OtherQuestion);
        }
        let epoch = String::from_utf8(epoch.clone()).map_err(|_| nonsense(&reply))?;
        if parts.len() != questions.len() || epoch.is_empty() || epoch.len() > 64 {
            return Err(nonsense(&reply));
        }
        let answers = parts.iter().zip(questions).map(|(part, (_, question))| answer(part, question));
        let answers = answers.collect::<Option<Vec<_>>>().ok_or_else(|| nonsense(&reply))?;
        if !self.epoch.is_empty() && self.epoch != epoch {
            tracing::warn!("Redis has lost its counters: they begin with nothing left, and fill as time passes");
        }
        self.epoch = epoch;
        Ok(answers)
    }
}

#[cfg(test)]
impl Settling {
    pub(super) fn limit_counters(&mut self, most: u32) {
        self.most = most;
    }

    /// Continues with the same node and the number of its next question.
    pub(super) fn another(&self) -> Self {
        let Self { prefix, node, sequence, epoch, hash, most } = self;
        Self {
            prefix: prefix.clone(),
            node: node.clone(),
            sequence: *sequence,
            epoch: epoch.clone(),
            hash: hash.clone(),
            most: *most,
        }
    }
}

/// An answer, if it is valid for this question.
fn answer(part: &Value, question: &Question) -> Option<Answer> {
    let Value::Array(numbers) = part else { return None };
    let number = |index: usize| match numbers.get(index)? {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let most = question.keep.saturating_add(question.need).saturating_add(question.extra);
    let held = u32::try_from(number(0)?).ok().filter(|held| *held <= most)?;
    Some(Answer {
        held,
        left: u32::try_from(number(1)?).ok()?,
        again: Duration::from_millis(number(2)?),
        reset: Duration::from_millis(number(3)?),
        counts: Duration::from_millis(number(4)?).min(TERM),
        shared: number(5)? != 0,
    })
}

/// Describes the answer of a server that is not Redis, or of a key that belongs to another program.
/// The answer is truncated, because it may have any content.
fn nonsense(value: &Value) -> QuotaStoreError {
    QuotaStoreError::Nonsense(format!("{value:?}").chars().take(100).collect())
}

fn digest(text: &str) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(text.as_bytes());
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn random() -> std::io::Result<String> {
    let mut bytes = [0; 8];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| std::io::Error::other("the system has no random numbers"))?;
    Ok(hexadecimal(&bytes))
}
