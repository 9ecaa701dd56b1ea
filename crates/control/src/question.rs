//! What the control plane asks nodes about what they host, and what they answer. Each answer is bounded by its question.

use crate::encoding;
use crate::wire::v1::{self, answer, question};
use crate::wire::{self, MAX_REASON};
use leno_config::{CandidatePrograms, FunctionId};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Candidates in one question.
pub(crate) const MAX_CANDIDATES: usize = 200;
/// Bytes of the candidates of one question.
pub(crate) const MAX_CANDIDATE_BYTES: usize = 8 << 20;
/// Bytes of lines in one answer.
pub(crate) const MAX_OUTPUT: u32 = 1 << 20;
/// Bytes of one line, with what marks it as cut.
const MAX_LINE: usize = 16 << 10;
/// Instances in one answer, and in one question.
const MAX_MARKS: usize = 1000;
/// Differences that are taken of one function.
const MAX_EXAMPLES: usize = 20;
/// Reasons and parts that are taken of one function.
const MAX_WORDS: usize = 20;

/// A question to a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// Which recorded requests would be decided differently?
    Replay {
        /// The programs that functions would have.
        candidates: Vec<CandidatePrograms>,
        /// How long it may take.
        limit: Duration,
    },
    /// What did instances write?
    Output(ReadOutput),
}

/// Asks for what instances of a function or job wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOutput {
    /// The function.
    pub function: FunctionId,
    /// Only of this instance.
    pub instance: Option<u64>,
    /// Only of the instance that ended last.
    pub previous: bool,
    /// Of instances that are not in `after`, only so many of the last lines.
    pub tail: Option<u32>,
    /// What was read before.
    pub after: Vec<OutputMark>,
    /// Bytes of lines that the answer may have.
    pub limit: u32,
}

/// How far the output of an instance was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputMark {
    /// Number of the instance.
    pub instance: u64,
    /// When the instance began, in milliseconds since 1970.
    pub began_ms: u64,
    /// The number of the line to begin with.
    pub next: u64,
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Why there is none.
    Declined(String),
    /// What became of the records of each function.
    Replays(BTreeMap<FunctionId, Result<Replayed, String>>),
    /// What instances wrote.
    Output(Output),
}

/// What became of the records of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Requests that were judged again.
    pub judged: u64,
    /// Of those, which were allowed and would be denied.
    pub newly_denied: u64,
    /// Of those, which were denied and would be allowed.
    pub newly_allowed: u64,
    /// Why requests could not be judged, and how many.
    pub unjudged: BTreeMap<String, u64>,
    /// Requests for which there was no time.
    pub skipped: u64,
    /// Some of the differences.
    pub examples: Vec<ReplayExample>,
    /// What the programs have and was not replayed.
    pub left_out: Vec<String>,
}

/// A request that would be decided differently.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in the access log")]
pub struct ReplayExample {
    pub at: SystemTime,
    pub request_id: String,
    pub direction: String,
    pub caller: String,
    /// Of an outbound call.
    pub callee: Option<String>,
    pub method: String,
    pub path: String,
    pub before: ReplayVerdict,
    pub after: ReplayVerdict,
}

/// A verdict and the rule that decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "as in the access log")]
pub struct ReplayVerdict {
    pub allowed: bool,
    pub policy: String,
    pub rule: String,
    pub clause: String,
}

/// What instances wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// By instance, oldest first.
    pub lines: Vec<OutputLine>,
    /// How far each instance was read.
    pub marks: Vec<OutputMark>,
    /// Lines that were forgotten before they were read.
    pub dropped: u64,
    /// There are more.
    pub more: bool,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLine {
    /// Number of the instance that wrote it.
    pub instance: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// It was written to standard error.
    pub stderr: bool,
    /// The line without its end.
    pub text: String,
}

impl Question {
    /// Fails if it is too large.
    pub(crate) fn to_wire(&self, id: u64) -> Result<v1::Question, String> {
        let question = match self {
            Self::Replay { candidates, limit } => question::Question::Replay(replay(candidates, *limit)?),
            Self::Output(read) => question::Question::Output(read_output(read)),
        };
        Ok(v1::Question { id, question: Some(question) })
    }

    /// Fails with a reason to decline, which names the place of what this release does not know.
    pub(crate) fn from_wire(sent: v1::Question) -> Result<Self, String> {
        match sent.question {
            Some(question::Question::Replay(v1::Replay { candidates, limit_ms })) => {
                let bytes: usize = candidates.iter().map(bytes::Bytes::len).sum();
                if candidates.len() > MAX_CANDIDATES || bytes > MAX_CANDIDATE_BYTES {
                    return Err("there are too many candidates in one question".to_owned());
                }
                let read = |payload: &bytes::Bytes| {
                    let candidate = encoding::from_bytes::<CandidatePrograms>(payload);
                    candidate.map_err(|error| format!("a candidate cannot be read: {error}"))
                };
                let candidates = candidates.iter().map(read).collect::<Result<_, _>>()?;
                Ok(Self::Replay { candidates, limit: Duration::from_millis(limit_ms) })
            }
            Some(question::Question::Output(sent)) => {
                let function = sent.function.parse::<FunctionId>().map_err(|error| error.to_string())?;
                Ok(Self::Output(ReadOutput {
                    function,
                    instance: Some(sent.instance).filter(|&instance| instance != 0),
                    previous: sent.previous,
                    tail: sent.tail,
                    after: sent.after.iter().take(MAX_MARKS).map(mark).collect(),
                    limit: sent.limit.min(MAX_OUTPUT),
                }))
            }
            None => Err("this release does not know the question".to_owned()),
        }
    }

    /// Takes an answer, if it is one to this question.
    pub(crate) fn answered(&self, sent: v1::Answer) -> Result<Answer, String> {
        let answer = Answer::from_wire(sent)?;
        match (self, &answer) {
            (_, Answer::Declined(_)) => {}
            (Self::Replay { candidates, .. }, Answer::Replays(replays)) => {
                let asked = |function: &&FunctionId| candidates.iter().any(|candidate| candidate.id == **function);
                if let Some(function) = replays.keys().find(|function| !asked(function)) {
                    return Err(format!("it answered about {function}, which nobody asked about"));
                }
            }
            (Self::Output(asked), Answer::Output(output)) => {
                let bytes: usize = output.lines.iter().map(|line| line.text.len()).sum();
                // The last line may go beyond the limit.
                if bytes > asked.limit.min(MAX_OUTPUT) as usize + MAX_LINE {
                    return Err("it answered more than it was asked for".to_owned());
                }
            }
            _ => return Err("it answered something else".to_owned()),
        }
        Ok(answer)
    }
}

fn replay(candidates: &[CandidatePrograms], limit: Duration) -> Result<v1::Replay, String> {
    let encode = |candidate: &CandidatePrograms| encoding::to_bytes(candidate).map(Into::into);
    let candidates: Vec<bytes::Bytes> =
        candidates.iter().map(encode).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let bytes: usize = candidates.iter().map(bytes::Bytes::len).sum();
    if candidates.len() > MAX_CANDIDATES || bytes > MAX_CANDIDATE_BYTES {
        return Err(format!(
            "a node takes at most {MAX_CANDIDATES} functions and {} MiB of programs at once, and there are {} and {bytes} bytes",
            MAX_CANDIDATE_BYTES >> 20,
            candidates.len()
        ));
    }
    Ok(v1::Replay { candidates, limit_ms: limit.as_millis().try_into().unwrap_or(u64::MAX) })
}

fn read_output(read: &ReadOutput) -> v1::ReadOutput {
    v1::ReadOutput {
        function: read.function.to_string(),
        instance: read.instance.unwrap_or_default(),
        previous: read.previous,
        tail: read.tail,
        after: read.after.iter().take(MAX_MARKS).map(sent_mark).collect(),
        limit: read.limit.min(MAX_OUTPUT),
    }
}

fn mark(&v1::OutputMark { instance, began_ms, next }: &v1::OutputMark) -> OutputMark {
    OutputMark { instance, began_ms, next }
}

fn sent_mark(&OutputMark { instance, began_ms, next }: &OutputMark) -> v1::OutputMark {
    v1::OutputMark { instance, began_ms, next }
}

impl Answer {
    /// Takes what is in an answer, cut to its limits.
    pub(crate) fn from_wire(sent: v1::Answer) -> Result<Self, String> {
        Ok(match sent.answer.ok_or("the answer is of a kind that this release does not know")? {
            answer::Answer::Declined(reason) => Self::Declined(cut(reason)),
            answer::Answer::Replays(sent) => {
                let functions = sent.functions.into_iter().take(MAX_CANDIDATES).map(|sent| {
                    let function = sent.function.parse::<FunctionId>().map_err(|error| error.to_string())?;
                    Ok((function, replayed(sent)?))
                });
                Self::Replays(functions.collect::<Result<_, String>>()?)
            }
            answer::Answer::Output(sent) => Self::Output(output(sent)),
        })
    }

    pub(crate) fn to_wire(&self, id: u64) -> v1::Answer {
        let answer = match self {
            Self::Declined(reason) => answer::Answer::Declined(cut(reason.clone())),
            Self::Replays(functions) => {
                answer::Answer::Replays(v1::Replays { functions: functions.iter().map(sent_replayed).collect() })
            }
            Self::Output(output) => answer::Answer::Output(v1::Output {
                lines: output.lines.iter().map(sent_line).collect(),
                marks: output.marks.iter().map(sent_mark).collect(),
                dropped: output.dropped,
                more: output.more,
            }),
        };
        v1::Answer { id, answer: Some(answer) }
    }
}

fn sent_replayed((function, outcome): (&FunctionId, &Result<Replayed, String>)) -> v1::Replayed {
    let function = function.to_string();
    let replayed = match outcome {
        Ok(replayed) => replayed.clone(),
        Err(reason) => return v1::Replayed { function, declined: cut(reason.clone()), ..v1::Replayed::default() },
    };
    let Replayed { judged, newly_denied, newly_allowed, unjudged, skipped, examples, left_out } = replayed;
    let unjudged = unjudged.into_iter().map(|(reason, requests)| v1::Unjudged { reason, requests }).collect();
    v1::Replayed {
        function,
        declined: String::new(),
        judged,
        newly_denied,
        newly_allowed,
        unjudged,
        skipped,
        examples: examples.into_iter().map(sent_example).collect(),
        left_out,
    }
}

fn sent_example(example: ReplayExample) -> v1::ReplayExample {
    let verdict = |ReplayVerdict { allowed, policy, rule, clause }| v1::ReplayVerdict { allowed, policy, rule, clause };
    v1::ReplayExample {
        at_ms: wire::millis(example.at),
        request_id: example.request_id,
        direction: example.direction,
        caller: example.caller,
        callee: example.callee.unwrap_or_default(),
        method: example.method,
        path: example.path,
        before: Some(verdict(example.before)),
        after: Some(verdict(example.after)),
    }
}

fn replayed(sent: v1::Replayed) -> Result<Result<Replayed, String>, String> {
    if !sent.declined.is_empty() {
        return Ok(Err(cut(sent.declined)));
    }
    let v1::Replayed { judged, newly_denied, newly_allowed, unjudged, skipped, examples, left_out, .. } = sent;
    let unjudged = unjudged.into_iter().take(MAX_WORDS).map(|sent| (cut(sent.reason), sent.requests)).collect();
    Ok(Ok(Replayed {
        judged,
        newly_denied,
        newly_allowed,
        unjudged,
        skipped,
        examples: examples.into_iter().take(MAX_EXAMPLES).map(example).collect::<Result<_, _>>()?,
        left_out: left_out.into_iter().take(MAX_WORDS).map(cut).collect(),
    }))
}

fn example(sent: v1::ReplayExample) -> Result<ReplayExample, String> {
    let verdict = |sent: Option<v1::ReplayVerdict>| {
        let v1::ReplayVerdict { allowed, policy, rule, clause } = sent.unwrap_or_default();
        ReplayVerdict { allowed, policy: cut(policy), rule: cut(rule), clause: cut(clause) }
    };
    Ok(ReplayExample {
        at: wire::time(sent.at_ms).map_err(|status| status.message().to_owned())?,
        request_id: cut(sent.request_id),
        direction: cut(sent.direction),
        caller: cut(sent.caller),
        callee: Some(cut(sent.callee)).filter(|callee| !callee.is_empty()),
        method: cut(sent.method),
        path: cut(sent.path),
        before: verdict(sent.before),
        after: verdict(sent.after),
    })
}

fn sent_line(line: &OutputLine) -> v1::OutputLine {
    let OutputLine { instance, at_ms, stderr, text } = line.clone();
    v1::OutputLine { instance, at_ms, stderr, text }
}

fn output(sent: v1::Output) -> Output {
    let v1::Output { lines, marks, dropped, more } = sent;
    let line = |v1::OutputLine { instance, at_ms, stderr, text }| OutputLine { instance, at_ms, stderr, text };
    let lines = lines.into_iter().map(line).collect();
    Output { lines, marks: marks.iter().take(MAX_MARKS).map(mark).collect(), dropped, more }
}

fn cut(mut text: String) -> String {
    // As long as the longest path that a record keeps, with what marks it as cut.
    text.truncate(text.floor_char_boundary(MAX_REASON + 3));
    text
}
