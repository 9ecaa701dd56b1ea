//! Queries to nodes: output of instances, and replays of recorded requests.

use super::error::ApiError;
use super::service::Service;
use super::tokens::Caller;
use super::types::{FunctionReplay, Replay, ReplayExample, ReplayVerdict, UnjudgedRequests};
use crate::log_page::{LogPage, LogQuery, Marks};
use leno_config::DocumentId;
use leno_control::{AskError, Control};
use leno_model::{CandidatePrograms, FunctionId};
use leno_wire::{Answer, Question, ReplaySummary};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Bytes of lines in one page, from all nodes.
const PAGE: u32 = 1 << 20;
/// Nodes that one request queries for output.
pub(super) const MAX_NODES: usize = 100;
/// Timeout of a query for output.
const LOOK_UP: Duration = Duration::from_secs(5);
/// How long a node can replay for one query, and the query's timeout.
const REPLAY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(15));
/// Timeout of all replays of a request.
const ALL_REPLAYS: Duration = Duration::from_secs(45);
/// Functions in one query.
const AT_A_TIME: usize = 50;
/// Most examples of one function.
const MAX_EXAMPLES: usize = 10;

impl Service {
    /// The output of a function's or job's instances.
    pub async fn logs(&self, caller: &Caller, id: &FunctionId, query: &LogQuery) -> Result<LogPage, ApiError> {
        let document = |kind: &str| DocumentId {
            kind: kind.to_owned(),
            namespace: id.namespace.to_string(),
            name: id.name.to_string(),
        };
        if !caller.may_read(&document("Function")) {
            return Err(ApiError::Forbidden(format!("the namespace {} is not for this token", id.namespace)));
        }
        let control = self.leading()?.control.clone();
        let is_there = |kind| self.state().entries.documents.contains_key(&document(kind));
        if !is_there("Function") && !is_there("Job") {
            return Err(ApiError::NotFound(format!("function or job {id}")));
        }
        let before = Marks::read(&query.after).map_err(|error| ApiError::Bad(error.to_string()))?;
        let (mut page, mut marks) = (LogPage::default(), before.clone());
        let mut nodes = match query.attempt {
            // Any node may have run it.
            Some(_) => control.nodes_with(&BTreeSet::new()),
            None => control.nodes_of(id),
        };
        if let Some(node) = query.node.as_ref().filter(|_| is_there("Job")) {
            nodes = vec![node.as_str().into()];
        } else if nodes.is_empty() {
            page.missing.push(format!("no node has {id}"));
        } else if let Some(node) = &query.node {
            nodes.retain(|known| **known == **node);
            if nodes.is_empty() {
                page.missing.push(format!("node {node}: it does not have {id}"));
            }
        }
        for node in nodes.drain(nodes.len().min(MAX_NODES)..) {
            page.missing.push(format!("node {node}: at most {MAX_NODES} nodes are asked at once; name it with --node"));
        }
        let limit = PAGE / u32::try_from(nodes.len().max(1)).unwrap_or(u32::MAX);
        let mut asking = JoinSet::new();
        for node in nodes {
            let question = Question::Output(query.of_node(id, &before, &node, limit));
            let control = control.clone();
            asking.spawn(async move {
                let answer = control.ask(&node, &question, LOOK_UP).await;
                (node, answer)
            });
        }
        let (mut answered, mut declined) = (false, Vec::new());
        while let Some(Ok((node, answer))) = asking.join_next().await {
            match answer {
                Ok(Answer::Output(output)) => {
                    answered = true;
                    page.add(&node, output, &mut marks);
                }
                // One of the nodes has run the attempt.
                Ok(Answer::Declined(reason)) if query.attempt.is_some() => {
                    declined.push(format!("node {node}: {reason}"));
                }
                answer => page.missing.push(format!("node {node}: {}", why_not(answer))),
            }
        }
        page.missing.extend(declined.into_iter().filter(|_| !answered));
        page.missing.sort();
        Ok(page.finish(&marks))
    }
}

/// Replays recorded requests with these programs, on the nodes that host their functions.
pub(super) async fn replay(control: &Control, candidates: Vec<CandidatePrograms>) -> Replay {
    let mut by_node: BTreeMap<Arc<str>, Vec<CandidatePrograms>> = BTreeMap::new();
    let mut found: BTreeMap<FunctionId, FunctionReplay> = BTreeMap::new();
    for candidate in candidates {
        let id = candidate.id.clone();
        let nodes = control.nodes_of(&id);
        let missing = if nodes.is_empty() { vec!["no node hosts it".to_owned()] } else { Vec::new() };
        found.insert(id.clone(), FunctionReplay { function: id.to_string(), missing, ..FunctionReplay::default() });
        for node in nodes {
            by_node.entry(node).or_default().push(candidate.clone());
        }
    }
    let until = Instant::now() + ALL_REPLAYS;
    let mut asking = JoinSet::new();
    for (node, candidates) in by_node {
        let control = control.clone();
        asking.spawn(async move { replay_on(&control, node, candidates, until).await });
    }
    while let Some(Ok(answers)) = asking.join_next().await {
        for (node, id, outcome) in answers {
            let Some(function) = found.get_mut(&id) else { continue };
            match outcome {
                Ok(replayed) => function.add(&node, replayed),
                Err(reason) => function.missing.push(format!("node {node}: {reason}")),
            }
        }
    }
    let functions = found.into_values().map(|mut function| {
        function.examples.sort_by(|one, other| other.time.total_cmp(&one.time));
        function.examples.truncate(MAX_EXAMPLES);
        function.missing.sort();
        function
    });
    Replay { functions: functions.collect(), hidden: 0 }
}

type OnNode = (Arc<str>, FunctionId, Result<ReplaySummary, String>);

/// Queries one node, for some functions at a time.
async fn replay_on(
    control: &Control,
    node: Arc<str>,
    candidates: Vec<CandidatePrograms>,
    until: Instant,
) -> Vec<OnNode> {
    let mut outcomes = Vec::new();
    for candidates in candidates.chunks(AT_A_TIME) {
        let (limit, longest) = REPLAY;
        let question = Question::Replay { candidates: candidates.to_vec(), limit };
        let answer = timeout_at(until, control.ask(&node, &question, longest)).await;
        let mut replays = match answer {
            Ok(Ok(Answer::Replays(replays))) => replays,
            answer => {
                let reason = answer.map_or_else(|_| "there was no time for it".to_owned(), why_not);
                let declined = |candidate: &CandidatePrograms| (candidate.id.clone(), Err(reason.clone()));
                candidates.iter().map(declined).collect()
            }
        };
        for CandidatePrograms { id, .. } in candidates {
            let outcome = replays.remove(id).unwrap_or_else(|| Err("it said nothing about it".to_owned()));
            outcomes.push((node.clone(), id.clone(), outcome));
        }
    }
    outcomes
}

/// The reason for a missing answer.
pub(super) fn why_not(answer: Result<Answer, AskError>) -> String {
    match answer {
        Err(error) => error.to_string(),
        Ok(Answer::Declined(reason)) => reason,
        Ok(_) => "it answered something else".to_owned(),
    }
}

impl FunctionReplay {
    fn add(&mut self, node: &str, replayed: ReplaySummary) {
        let ReplaySummary { judged, newly_denied, newly_allowed, unjudged, skipped, examples, left_out } = replayed;
        self.judged += judged;
        self.newly_denied += newly_denied;
        self.newly_allowed += newly_allowed;
        self.skipped += skipped;
        for (reason, requests) in unjudged {
            match self.unjudged.iter_mut().find(|known| known.reason == reason) {
                Some(known) => known.requests += requests,
                None => self.unjudged.push(UnjudgedRequests { reason, requests }),
            }
        }
        for part in left_out {
            if !self.left_out.contains(&part) {
                self.left_out.push(part);
            }
        }
        self.examples.extend(examples.into_iter().map(|example| told(node, example)));
    }
}

fn told(node: &str, example: leno_wire::ReplayExample) -> ReplayExample {
    let leno_wire::ReplayExample { at, request_id, direction, caller, callee, method, path, before, after } = example;
    let verdict = |leno_wire::ReplayVerdict { allowed, policy, rule, clause }| {
        let verdict = if allowed { "allow" } else { "deny" }.to_owned();
        ReplayVerdict { verdict, policy: Some(policy).filter(|policy| !policy.is_empty()), rule, clause }
    };
    let since = at.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    ReplayExample {
        time: since.as_secs_f64(),
        node: node.to_owned(),
        request_id,
        direction,
        caller,
        callee,
        method,
        path,
        before: verdict(before),
        after: verdict(after),
    }
}
