//! The sections of a function's policies, in the order in which a sidecar applies them.

use super::{PolicyRule, PolicySection};
use leno_config::duration::Duration;
use leno_config::{Timestamp, retry_condition, rules_without_effect};
use leno_model::{Extension, Fault, FaultAbort, FieldValues, FunctionConfig};
use leno_policy::clauses;
use leno_policy::outcome::PolicyKind;
use leno_policy::spec::{
    AccessLog, Action, Breaker, Counts, HeaderRule, Issuer, ProgramSpec, QuotaAlgorithm, RateLimit, Retry, Sidecar,
    Target, TokenSource, Tracing,
};
use leno_telemetry::names::{EXTENSIONS, policy_name, protocol_name};
use std::fmt::Display;
use std::time::UNIX_EPOCH;

/// The sections of requests to the function.
pub(super) fn inbound(config: &FunctionConfig) -> Vec<PolicySection> {
    let program = &config.inbound;
    let refused = "a request that no rule allows is refused with 403";
    let audited = "a request that no rule allows enters, and the node reports it";
    let otherwise = if program.audit_default { audited } else { refused };
    let sections = [
        sidecar(&program.sidecar),
        section(PolicyKind::Authentication, program.authentication.iter().map(issuer).collect()),
        Some(PolicySection { otherwise: otherwise.to_owned(), ..authorization(program) }),
        section(PolicyKind::RateLimit, program.rate_limits.iter().map(rate_limit).collect()),
        section(PolicyKind::ExternalAuthorization, authorizers(config)),
        extensions(&config.inbound_extensions),
        tracing(&program.tracing),
        access_log(&program.access_log),
    ];
    sections.into_iter().flatten().collect()
}

/// The sections of the function's own calls.
pub(super) fn outbound(config: &FunctionConfig) -> Vec<PolicySection> {
    let program = &config.outbound;
    let callees = program.targets.iter().map(|target| target.function.clone()).collect();
    let callees = PolicySection {
        policy: "callees".to_owned(),
        rules: vec![rule(&format!("{}/callees", program.function), "allow", callees)],
        otherwise: "a call to any other function or host is refused with 403".to_owned(),
    };
    let rules = authorization(program);
    let narrows = rules.rules.iter().any(|rule| rule.action == "allow" && !rule.audited);
    let otherwise = if narrows { "a call that no rule allows is refused with 403" } else { "" };
    let sections = [
        Some(callees),
        sidecar(&program.sidecar),
        Some(PolicySection { otherwise: otherwise.to_owned(), ..rules }).filter(|section| !section.rules.is_empty()),
        section(PolicyKind::RateLimit, program.rate_limits.iter().map(rate_limit).collect()),
        extensions(&config.outbound_extensions),
        tracing(&program.tracing),
        access_log(&program.access_log),
    ];
    sections.into_iter().flatten().chain(of_targets(&program.targets)).collect()
}

/// The sections by which a gateway routes requests to the function; none: it is not exposed.
pub(super) fn gateway(config: &FunctionConfig) -> Vec<PolicySection> {
    let route = |expose: &leno_model::Expose| format!("hosts {}, path {}", expose.hosts.join(" "), expose.path);
    let routes = config.expose.iter().map(|expose| rule(&config.id.to_string(), "route", vec![route(expose)]));
    let routes = PolicySection { policy: "routes".to_owned(), rules: routes.collect(), ..PolicySection::default() };
    let targets = if config.expose.is_empty() { &[][..] } else { &config.inbound.targets[..] };
    let rules = config.faults.iter().map(fault).collect();
    let faults = PolicySection { policy: "faults".to_owned(), rules, ..PolicySection::default() };
    let sections = [routes, faults].into_iter().filter(|section| !section.rules.is_empty());
    sections.chain(of_targets(targets)).collect()
}

fn fault(fault: &Fault) -> PolicyRule {
    let until = Timestamp::from(UNIX_EPOCH + Duration::from_millis(fault.until_ms).0);
    let field = |FieldValues { name, values }: &FieldValues| {
        format!("header {name} is {}", list(values.iter().map(clauses::text)))
    };
    let share = (fault.per_10k < 10_000).then(|| format!("{} % of requests", f64::from(fault.per_10k) / 100.0));
    let delay = (!fault.delay.is_zero()).then(|| format!("delay of {}", Duration(fault.delay)));
    let abort = fault.abort.map(|abort| match abort {
        FaultAbort::Status(status) => format!("answer with status {status}"),
        FaultAbort::Grpc(status) => format!("answer with gRPC status {status}"),
    });
    let effect = [share, delay, abort].into_iter().flatten().chain([format!("until {until}")]);
    let is_over = until <= Timestamp::now();
    let without_effect = if is_over { "it has ended".to_owned() } else { String::new() };
    PolicyRule { without_effect, ..rule(&fault.name, "inject", fault.when.iter().map(field).chain(effect).collect()) }
}

/// Circuit breakers, retries and time limits of the side that forwards.
fn of_targets(targets: &[Target]) -> impl Iterator<Item = PolicySection> {
    let of = |target: &Target, mut rule: PolicyRule| {
        rule.clauses.insert(0, format!("to {}", target.function));
        rule
    };
    let breakers = targets.iter().filter_map(|target| Some(of(target, breaker(target.breaker.as_ref()?)))).collect();
    let retries = targets.iter().filter_map(|target| Some(of(target, retry(target.retry.as_ref()?)))).collect();
    let limits = targets.iter().filter(|target| target.timeout_ms > 0).map(|target| {
        of(target, rule("", "limit", vec![format!("{} for all attempts together", millis(target.timeout_ms))]))
    });
    let limits = PolicySection { policy: "timeouts".to_owned(), rules: limits.collect(), ..PolicySection::default() };
    let limits = Some(limits).filter(|limits| !limits.rules.is_empty());
    [section(PolicyKind::CircuitBreaker, breakers), section(PolicyKind::Retry, retries), limits].into_iter().flatten()
}

fn section(policy: PolicyKind, rules: Vec<PolicyRule>) -> Option<PolicySection> {
    let policy = policy_name(policy).to_owned();
    (!rules.is_empty()).then(|| PolicySection { policy, rules, otherwise: String::new() })
}

fn rule(name: &str, action: &str, clauses: Vec<String>) -> PolicyRule {
    PolicyRule { name: name.to_owned(), action: action.to_owned(), clauses, ..PolicyRule::default() }
}

fn sidecar(sidecar: &Sidecar) -> Option<PolicySection> {
    let Sidecar { name, ports, protocols, request_headers, response_headers, judge_each_request } = sidecar;
    let ports = (!ports.is_empty()).then(|| format!("ports {}", list(ports)));
    let protocols = (!protocols.is_empty())
        .then(|| format!("protocols {}", list(protocols.iter().map(|protocol| protocol_name(*protocol)))));
    let required: Vec<String> = ports.into_iter().chain(protocols).collect();
    let mut edits: Vec<String> = request_headers.iter().map(|edit| format!("{} of requests", header(edit))).collect();
    edits.extend(response_headers.iter().flat_map(|rule| {
        let which = statuses(&rule.statuses);
        rule.edits.iter().map(move |edit| format!("{} of responses{which}", header(edit)))
    }));
    let each = judge_each_request.then(|| "each request by a fresh sidecar".to_owned());
    let rules = [("require", required), ("edit", edits), ("judge", each.into_iter().collect())];
    let rules = rules.into_iter().filter(|(_, clauses)| !clauses.is_empty());
    section(PolicyKind::Sidecar, rules.map(|(action, clauses)| rule(name, action, clauses)).collect())
}

/// Names of header fields only: a value may be confidential.
fn header(edit: &HeaderRule) -> String {
    match edit {
        HeaderRule::Set(name, _) => format!("set header {name}"),
        HeaderRule::Append(name, _) => format!("append to header {name}"),
        HeaderRule::Remove(name) => format!("remove header {name}"),
    }
}

fn issuer(issuer: &Issuer) -> PolicyRule {
    let place = |source: &TokenSource| match source {
        TokenSource::Header { name, .. } => format!("header {name}"),
        TokenSource::Query(name) => format!("query {name}"),
        TokenSource::Cookie(name) => format!("cookie {name}"),
    };
    let mut clauses = vec![format!("issuer \"{}\"", issuer.issuer)];
    if !issuer.audiences.is_empty() {
        clauses.push(format!("audience {}", list(&issuer.audiences)));
    }
    clauses.push(format!("token in {}", list(issuer.sources.iter().map(place))));
    clauses.push(match issuer.required {
        true => "a request without a token is refused with 401".to_owned(),
        false => "a request without a token goes on without a user".to_owned(),
    });
    let pending = "its key set is not fetched yet: a request with a token gets 503";
    let without_effect = if issuer.keys_pending { pending } else { "" }.to_owned();
    PolicyRule { without_effect, ..rule(&issuer.name, "authenticate", clauses) }
}

/// Deny rules first, as they are evaluated.
fn authorization(program: &ProgramSpec) -> PolicySection {
    let reasons = rules_without_effect(program);
    let rules = program.authorization.iter().zip(reasons);
    let rules = rules.map(|(authorization, reason)| PolicyRule {
        audited: authorization.audit,
        without_effect: reason.unwrap_or_default(),
        ..rule(
            &authorization.name,
            if authorization.action == Action::Allow { "allow" } else { "deny" },
            authorization.clauses(),
        )
    });
    let (deny, allow): (Vec<_>, Vec<_>) = rules.partition(|rule| rule.action == "deny");
    let rules = deny.into_iter().chain(allow).collect();
    PolicySection { policy: policy_name(PolicyKind::Authorization).to_owned(), rules, otherwise: String::new() }
}

fn rate_limit(limit: &RateLimit) -> PolicyRule {
    let what = match limit.counts {
        Counts::Requests => "requests",
        Counts::AuthenticationFailures => "requests that authentication refuses",
    };
    let amount = match limit.algorithm {
        QuotaAlgorithm::TokenBucket { requests, period_ms, burst } => {
            format!("{requests} {what} each {}, at most {burst} at once", millis(period_ms))
        }
        QuotaAlgorithm::FixedWindow { requests, period_ms } => {
            format!("{requests} {what} in each window of {}", millis(period_ms))
        }
    };
    let clauses = std::iter::once(amount).chain(limit.clauses()).collect();
    PolicyRule { audited: limit.audit, ..rule(&limit.name, "limit", clauses) }
}

fn authorizers(config: &FunctionConfig) -> Vec<PolicyRule> {
    let asked = config.inbound.authorizers.iter().zip(&config.authorizers);
    let asked = asked.map(|(selected, authorizer)| {
        let only = clauses::operations("to", &selected.only);
        let clauses = std::iter::once(format!("asks {}", authorizer.authority)).chain(only).collect();
        PolicyRule { audited: selected.audit, ..rule(&selected.name, "ask", clauses) }
    });
    asked.collect()
}

fn extensions(extensions: &[Extension]) -> Option<PolicySection> {
    let run = |extension: &Extension| {
        let fails = if extension.fail_open {
            "if it fails, the request goes on"
        } else {
            "if it fails, the request is refused"
        };
        rule(&extension.name, "run", vec![fails.to_owned()])
    };
    let rules = extensions.iter().map(run).collect();
    (!extensions.is_empty()).then(|| PolicySection { policy: EXTENSIONS.to_owned(), rules, otherwise: String::new() })
}

fn tracing(tracing: &Tracing) -> Option<PolicySection> {
    let percent = f64::from(tracing.sampling_per_10k) / 100.0;
    let traced = || rule(&tracing.name, "record", vec![format!("a span of {percent} % of new traces")]);
    let is_set = tracing.enabled && !tracing.name.is_empty();
    section(PolicyKind::Tracing, is_set.then(traced).into_iter().collect())
}

fn access_log(log: &AccessLog) -> Option<PolicySection> {
    let logged = || {
        let what = format!("a line of the access log for responses{}", statuses(&log.statuses));
        rule(&log.name, "record", vec![what])
    };
    let is_set = log.enabled && !log.name.is_empty();
    section(PolicyKind::AccessLog, is_set.then(logged).into_iter().collect())
}

fn breaker(breaker: &Breaker) -> PolicyRule {
    let bounds = [
        ("requests", breaker.max_requests),
        ("waiting requests", breaker.max_pending),
        ("connections", breaker.max_connections),
    ];
    let bounds = bounds.into_iter().filter(|(_, most)| *most < u32::MAX);
    let mut clauses: Vec<String> = bounds.map(|(what, most)| format!("at most {most} {what}")).collect();
    if let Some(outlier) = &breaker.outlier {
        let failures = [("failures", outlier.consecutive_5xx), ("gateway failures", outlier.consecutive_gateway)];
        let failures = failures.into_iter().filter(|(_, count)| *count > 0);
        let failures: Vec<String> = failures.map(|(what, count)| format!("{count} {what} in a row")).collect();
        clauses.push(format!(
            "ejects an endpoint after {}, for {} and longer each time",
            failures.join(" or "),
            millis(outlier.base_ejection_ms)
        ));
    }
    rule(&breaker.name, "limit", clauses)
}

fn retry(retry: &Retry) -> PolicyRule {
    let mut clauses = vec![
        format!("up to {} more attempts", retry.attempts),
        format!("on {}", list(retry.on.iter().map(|on| retry_condition(*on)))),
    ];
    if retry.per_try_timeout_ms > 0 {
        clauses.push(format!("{} for each attempt", millis(retry.per_try_timeout_ms)));
    }
    if retry.non_idempotent {
        clauses.push("also of methods that are not idempotent".to_owned());
    }
    rule(&retry.name, "retry", clauses)
}

/// ` with status 500-599`; empty: all.
fn statuses(ranges: &[(u16, u16)]) -> String {
    let range = |(low, high): &(u16, u16)| if low == high { low.to_string() } else { format!("{low}-{high}") };
    if ranges.is_empty() { String::new() } else { format!(" with status {}", list(ranges.iter().map(range))) }
}

fn list(items: impl IntoIterator<Item = impl Display>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
