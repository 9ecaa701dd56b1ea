//! Queries of the control plane about the functions and jobs that a node hosts, and the node's
//! answers. Each query bounds its answer.

use crate::encoding;
use crate::messages::{self, MAX_REASON};
use crate::question_error::{BadAnswer, BadQuestion, MAX_CANDIDATE_BYTES, MAX_CANDIDATES};
use crate::v1::{self, answer, question};
use crate::view::{ViewQuery, ViewRows};
use leno_model::{CandidatePrograms, FunctionId, Output, OutputLine, OutputMark, OutputQuery, OutputStream};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Maximum size of the lines in one answer, in bytes.
const MAX_OUTPUT: u32 = 1 << 20;
/// Maximum size of one line in bytes, with the mark that shows a cut.
const MAX_LINE: usize = 16 << 10;
/// Maximum number of instances in one answer, and in one question.
const MAX_MARKS: usize = 1000;
/// Maximum number of differences that an answer has for one function.
const MAX_EXAMPLES: usize = 20;
/// Maximum number of reasons that an answer has for one function, and of parts left out.
const MAX_REASONS: usize = 20;

/// A question to a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// Which recorded requests would be decided differently?
    Replay {
        /// The changed programs of functions.
        candidates: Vec<CandidatePrograms>,
        /// How long the node may take.
        limit: Duration,
    },
    /// Which lines did instances write?
    Output(OutputQuery),
    /// Which rows does a view have?
    View(ViewQuery),
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The node declines, for this reason.
    Declined(String),
    /// The result of a replay for each function, or the reason to decline it.
    Replays(BTreeMap<FunctionId, Result<ReplaySummary, String>>),
    /// Output of instances.
    Output(Output),
    /// The rows of a view.
    View(ViewRows),
}

/// The result of replaying the recorded requests of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Requests that were judged again.
    pub judged: u64,
    /// Judged requests that were allowed and would be denied.
    pub newly_denied: u64,
    /// Judged requests that were denied and would be allowed.
    pub newly_allowed: u64,
    /// Number of requests that could not be judged, by reason.
    pub unjudged: BTreeMap<String, u64>,
    /// Requests for which the time did not suffice.
    pub skipped: u64,
    /// Some of the differences.
    pub examples: Vec<ReplayExample>,
    /// Parts of the programs that a replay does not execute.
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
    /// Only an outbound call has one.
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

impl Question {
    /// Encodes the question. Fails if it is too large.
    pub fn to_wire(&self, id: u64) -> Result<v1::Question, BadQuestion> {
        let question = match self {
            Self::Replay { candidates, limit } => question::Question::Replay(replay(candidates, *limit)?),
            Self::Output(read) => question::Question::Output(read_output(read)),
            Self::View(query) => question::Question::View(query.to_wire()?),
        };
        Ok(v1::Question { id, question: Some(question) })
    }

    /// Decodes a question. The error is a reason to decline it.
    pub fn from_wire(sent: v1::Question) -> Result<Self, BadQuestion> {
        match sent.question {
            Some(question::Question::Replay(v1::Replay { candidates, limit_ms })) => {
                let bytes: usize = candidates.iter().map(bytes::Bytes::len).sum();
                if candidates.len() > MAX_CANDIDATES || bytes > MAX_CANDIDATE_BYTES {
                    return Err(BadQuestion::TooManyCandidates);
                }
                let read = |payload: &bytes::Bytes| encoding::from_bytes(payload).map_err(BadQuestion::Candidate);
                let candidates = candidates.iter().map(read).collect::<Result<_, _>>()?;
                Ok(Self::Replay { candidates, limit: Duration::from_millis(limit_ms) })
            }
            Some(question::Question::Output(sent)) => Ok(Self::Output(OutputQuery {
                function: sent.function.parse()?,
                instance: Some(sent.instance).filter(|&instance| instance != 0),
                previous: sent.previous,
                attempt: Some(sent.attempt).filter(|&attempt| attempt != 0),
                tail: sent.tail,
                after: sent.after.iter().take(MAX_MARKS).map(mark).collect(),
                limit: sent.limit.min(MAX_OUTPUT),
            })),
            Some(question::Question::View(sent)) => ViewQuery::from_wire(sent).map(Self::View),
            None => Err(BadQuestion::Unknown),
        }
    }

    /// Decodes an answer to this question.
    pub fn answered(&self, sent: v1::Answer) -> Result<Answer, BadAnswer> {
        let answer = Answer::from_wire(sent)?;
        match (self, &answer) {
            (_, Answer::Declined(_)) => {}
            (Self::Replay { candidates, .. }, Answer::Replays(replays)) => {
                let asked = |function: &&FunctionId| candidates.iter().any(|candidate| candidate.id == **function);
                if let Some(function) = replays.keys().find(|function| !asked(function)) {
                    return Err(BadAnswer::OtherFunction(function.clone()));
                }
            }
            (Self::Output(asked), Answer::Output(output)) => {
                let bytes: usize = output.lines.iter().map(|line| line.text.len()).sum();
                // The last line may go beyond the limit.
                if bytes > asked.limit.min(MAX_OUTPUT) as usize + MAX_LINE {
                    return Err(BadAnswer::TooLong);
                }
            }
            (Self::View(query), Answer::View(rows)) => query.check(rows)?,
            _ => return Err(BadAnswer::OtherKind),
        }
        Ok(answer)
    }
}

fn replay(candidates: &[CandidatePrograms], limit: Duration) -> Result<v1::Replay, BadQuestion> {
    let encode = |candidate: &CandidatePrograms| encoding::to_bytes(candidate).map(Into::into);
    let candidates: Vec<bytes::Bytes> =
        candidates.iter().map(encode).collect::<Result<_, _>>().map_err(BadQuestion::Encoding)?;
    let bytes: usize = candidates.iter().map(bytes::Bytes::len).sum();
    if candidates.len() > MAX_CANDIDATES || bytes > MAX_CANDIDATE_BYTES {
        return Err(BadQuestion::TooLarge { functions: candidates.len(), bytes });
    }
    Ok(v1::Replay { candidates, limit_ms: limit.as_millis().try_into().unwrap_or(u64::MAX) })
}

fn read_output(read: &OutputQuery) -> v1::ReadOutput {
    v1::ReadOutput {
        function: read.function.to_string(),
        instance: read.instance.unwrap_or_default(),
        previous: read.previous,
        attempt: read.attempt.unwrap_or_default(),
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
    /// Decodes an answer, cut to its limits.
    pub fn from_wire(sent: v1::Answer) -> Result<Self, BadAnswer> {
        Ok(match sent.answer.ok_or(BadAnswer::Unknown)? {
            answer::Answer::Declined(reason) => Self::Declined(cut(reason)),
            answer::Answer::Replays(sent) => {
                let functions = sent.functions.into_iter().take(MAX_CANDIDATES);
                let functions = functions.map(|sent| Ok((sent.function.parse()?, replayed(sent)?)));
                Self::Replays(functions.collect::<Result<_, BadAnswer>>()?)
            }
            answer::Answer::Output(sent) => Self::Output(output(sent)?),
            answer::Answer::View(sent) => Self::View(sent.into()),
        })
    }

    /// Encodes the answer to question number `id`.
    pub fn to_wire(&self, id: u64) -> v1::Answer {
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
            Self::View(rows) => answer::Answer::View(rows.into()),
        };
        v1::Answer { id, answer: Some(answer) }
    }
}

fn sent_replayed((function, outcome): (&FunctionId, &Result<ReplaySummary, String>)) -> v1::Replayed {
    let function = function.to_string();
    let replayed = match outcome {
        Ok(replayed) => replayed.clone(),
        Err(reason) => return v1::Replayed { function, declined: cut(reason.clone()), ..v1::Replayed::default() },
    };
    let ReplaySummary { judged, newly_denied, newly_allowed, unjudged, skipped, examples, left_out } = replayed;
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
        at_ms: messages::millis(example.at),
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

fn replayed(sent: v1::Replayed) -> Result<Result<ReplaySummary, String>, BadAnswer> {
    if !sent.declined.is_empty() {
        return Ok(Err(cut(sent.declined)));
    }
    let v1::Replayed { judged, newly_denied, newly_allowed, unjudged, skipped, examples, left_out, .. } = sent;
    let unjudged = unjudged.into_iter().take(MAX_REASONS).map(|sent| (cut(sent.reason), sent.requests)).collect();
    Ok(Ok(ReplaySummary {
        judged,
        newly_denied,
        newly_allowed,
        unjudged,
        skipped,
        examples: examples.into_iter().take(MAX_EXAMPLES).map(example).collect::<Result<_, _>>()?,
        left_out: left_out.into_iter().take(MAX_REASONS).map(cut).collect(),
    }))
}

fn example(sent: v1::ReplayExample) -> Result<ReplayExample, BadAnswer> {
    let verdict = |sent: Option<v1::ReplayVerdict>| {
        let v1::ReplayVerdict { allowed, policy, rule, clause } = sent.unwrap_or_default();
        ReplayVerdict { allowed, policy: cut(policy), rule: cut(rule), clause: cut(clause) }
    };
    Ok(ReplayExample {
        at: time(sent.at_ms)?,
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
    let OutputLine { instance, at, stream, text } = line.clone();
    v1::OutputLine { instance, at_ms: messages::millis(at), stderr: stream == OutputStream::Stderr, text }
}

fn output(sent: v1::Output) -> Result<Output, BadAnswer> {
    let v1::Output { lines, marks, dropped, more } = sent;
    let line = |v1::OutputLine { instance, at_ms, stderr, text }| {
        let stream = if stderr { OutputStream::Stderr } else { OutputStream::Stdout };
        Ok(OutputLine { instance, at: time(at_ms)?, stream, text })
    };
    let lines = lines.into_iter().map(line).collect::<Result<_, BadAnswer>>()?;
    Ok(Output { lines, marks: marks.iter().take(MAX_MARKS).map(mark).collect(), dropped, more })
}

fn time(at_ms: u64) -> Result<SystemTime, BadAnswer> {
    messages::time(at_ms).map_err(|status| BadAnswer::Time(status.message().to_owned()))
}

fn cut(mut text: String) -> String {
    // The longest path in a record, with the mark that shows a cut.
    text.truncate(text.floor_char_boundary(MAX_REASON + 3));
    text
}
