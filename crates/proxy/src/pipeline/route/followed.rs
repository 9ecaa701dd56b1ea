//! A request that follows a rule of a route: its back end, its filters and its time limits.

use crate::pipeline::judge::RequestSnapshot;
use crate::state::routes::rules::MatchedRule;
use http::{HeaderMap, response};
use leno_http::failure::Failure;
use leno_http::hop;
use leno_model::{Backend, BackendTarget, Mirror, RouteAuthorizer, RouteFilter, RouteRetry};
use leno_policy::spec::{Retry, RetryOn, Target};
use leno_routing::{BadRewrite, cors};
use std::time::Duration;

/// The base of pauses between attempts, if neither the rule nor a policy says one.
const PAUSE: u64 = 25;
/// The retries that a function may always have, and the part of its requests that they may be.
const BUDGET: (u8, u32) = (20, 3);

/// The rule that a request follows.
#[derive(Debug)]
pub(crate) struct FollowedRoute {
    pub matched: MatchedRule,
    /// Index of the back end among those of the rule.
    pub(crate) backend: usize,
    /// The head as it came, and the port that was asked for.
    pub asked: RequestSnapshot,
    pub port: u16,
    /// The path as it came, normalised; `None`: it is ambiguous, and goes on as it came.
    pub(crate) path: Option<Box<str>>,
    /// The field by which a browser says which page asks, if the rule shares resources with other
    /// origins.
    pub(crate) origin: HeaderMap,
}

pub(crate) fn unusable(bad: BadRewrite) -> Failure {
    Failure::Route(bad.to_string())
}

impl FollowedRoute {
    fn backend(&self) -> &Backend {
        &self.matched.rule.spec.backends[self.backend]
    }

    /// The back end.
    pub(crate) fn target(&self) -> &BackendTarget {
        &self.backend().target
    }

    /// The revision that gets the request; `None`: the function decides.
    pub(crate) fn revision(&self) -> Option<&str> {
        match self.target() {
            BackendTarget::Revision(_, revision) => Some(revision),
            _ => None,
        }
    }

    /// The port of an External that gets the request.
    pub(crate) fn external_port(&self) -> Option<u16> {
        match self.target() {
            BackendTarget::External(_, port) => Some(*port),
            _ => None,
        }
    }

    pub(crate) fn filters(&self) -> impl Iterator<Item = &RouteFilter> {
        self.matched.rule.spec.filters.iter().chain(&self.backend().filters)
    }

    /// The back ends that get copies of the request.
    pub(crate) fn mirrors(&self) -> impl Iterator<Item = &Mirror> {
        self.filters().filter_map(|filter| match filter {
            RouteFilter::Mirror(mirror) => Some(mirror),
            _ => None,
        })
    }

    /// The authorizers that are asked about the request, in order.
    pub(crate) fn authorizers(&self) -> impl Iterator<Item = &RouteAuthorizer> {
        self.filters().filter_map(|filter| match filter {
            RouteFilter::Authorize(asked) => Some(&**asked),
            _ => None,
        })
    }

    /// Changes the head of a response.
    pub(crate) fn respond(&self, head: &mut response::Parts) -> Result<(), Failure> {
        for filter in self.filters() {
            match filter {
                RouteFilter::ResponseHeaders(modifier) => {
                    leno_routing::modify(modifier, &mut head.headers).map_err(unusable)?;
                }
                RouteFilter::Cors(cors) => cors::response(cors, &self.origin, &mut head.headers),
                RouteFilter::RequestHeaders(_)
                | RouteFilter::Redirect(_)
                | RouteFilter::Rewrite(_)
                | RouteFilter::Mirror(_)
                | RouteFilter::Authorize(_) => {}
            }
        }
        Ok(())
    }

    /// Time limits and retries of the request; `None`: those of the policies.
    pub(crate) fn terms(&self, of_policies: &Target) -> Option<Target> {
        let rule = &self.matched.rule;
        let (timeouts, retry, is_ordered) = (rule.spec.timeouts, &rule.spec.retry, rule.is_ordered);
        if timeouts.request.is_none() && timeouts.backend_request.is_none() && retry.is_none() && !is_ordered {
            return None;
        }
        let mut terms = of_policies.clone();
        if let Some(request) = timeouts.request.or(is_ordered.then_some(Duration::ZERO)) {
            terms.timeout_ms = match self.is_of_the_callees_namespace() {
                true => millis(request),
                false => shorter(millis(request), terms.timeout_ms),
            };
        }
        terms.retry = match retry {
            Some(retry) => Some(plan(retry, &rule.route, of_policies.retry.as_ref())).filter(|plan| plan.attempts > 0),
            None if is_ordered => None,
            None => terms.retry,
        };
        if let Some(attempt) = timeouts.backend_request.map(millis) {
            match &mut terms.retry {
                Some(retry) => retry.per_try_timeout_ms = attempt,
                None => terms.timeout_ms = shorter(attempt, terms.timeout_ms),
            }
        }
        Some(terms)
    }

    /// The facts that the callee's sidecar must know; `None`: nothing.
    pub(crate) fn hop_terms(&self) -> Option<hop::RouteTerms> {
        let rule = &self.matched.rule;
        let is_limited = rule.is_ordered || rule.spec.timeouts.request.is_some();
        let is_limited_by_caller = is_limited && self.is_of_the_callees_namespace();
        let revision = self.revision().map(Into::into);
        (is_limited_by_caller || revision.is_some()).then_some(hop::RouteTerms {
            is_limited_by_caller,
            is_copy: false,
            revision,
        })
    }

    /// Whether the route and its back end have one namespace. A time limit protects the function that
    /// has it, so routes of other namespaces can only shorten it.
    fn is_of_the_callees_namespace(&self) -> bool {
        self.target().function().is_some_and(|callee| *callee.namespace == *self.matched.rule.namespace())
    }

    /// The shortest pause before another attempt.
    pub(crate) fn shortest_pause(&self) -> Duration {
        self.matched.rule.spec.retry.as_ref().and_then(|retry| retry.backoff).unwrap_or_default()
    }
}

/// The retries of a rule. The pauses and the budget are those of the policies, if these have any.
fn plan(retry: &RouteRetry, route: &str, of_policies: Option<&Retry>) -> Retry {
    let failures = [RetryOn::ConnectFailure, RetryOn::RefusedStream, RetryOn::Reset, RetryOn::Timeout];
    let statuses = retry.codes.iter().copied().map(RetryOn::Status);
    let base = retry.backoff.map_or_else(|| of_policies.map_or(PAUSE, |plan| plan.backoff_base_ms), millis);
    Retry {
        name: route.to_owned(),
        attempts: retry.attempts.unwrap_or(1).try_into().unwrap_or(u8::MAX),
        per_try_timeout_ms: of_policies.map_or(0, |plan| plan.per_try_timeout_ms),
        backoff_base_ms: base,
        backoff_max_ms: of_policies.map_or(0, |plan| plan.backoff_max_ms).max(base.saturating_mul(10)),
        on: failures.into_iter().chain(statuses).collect(),
        non_idempotent: false,
        budget_percent: of_policies.map_or(BUDGET.0, |plan| plan.budget_percent),
        budget_min: of_policies.map_or(BUDGET.1, |plan| plan.budget_min),
    }
}

/// The shorter one of two time limits; 0: none.
fn shorter(one: u64, other: u64) -> u64 {
    [one, other].into_iter().filter(|limit| *limit > 0).min().unwrap_or_default()
}

/// Whole milliseconds, rounded up: only zero means no limit.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
