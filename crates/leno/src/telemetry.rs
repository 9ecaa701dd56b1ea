//! The log of `leno`, and the text of decisions.

use crate::colour;
use crate::progress;
use crate::screen::Log;
use leno_telemetry::ring::{Explanation, InjectedFault, RefusedAttempt};
use std::fmt::Write;
use tracing_subscriber::EnvFilter;

/// Writes the log to standard error. `LENO_LOG` filters it (`debug`, `leno_proxy=trace`, …); the
/// default is `info`.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env("LENO_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let coloured = colour::are_wanted(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(coloured)
        .with_writer(move || Log::to(progress::Stderr, coloured))
        .init();
}

/// Every hop of a request, as text for users.
pub(crate) fn tell(hops: &[Explanation]) -> String {
    let mut text = String::new();
    for hop in hops {
        // Writing to a string does not fail.
        let _ = tell_hop(&mut text, hop);
    }
    text
}

fn tell_hop(text: &mut String, hop: &Explanation) -> std::fmt::Result {
    let target = hop.target.as_deref().unwrap_or("nobody");
    let peer = hop.peer.identity.as_deref().unwrap_or("somebody outside the mesh");
    let revision = hop.revision.as_deref().map(|revision| format!(" ({revision})")).unwrap_or_default();
    let node = if hop.recorded_by.is_empty() { String::new() } else { format!("   on node {}", hop.recorded_by) };
    writeln!(text, "{} {} -> {target}{revision}   {}{node}", hop.time, hop.hop, hop.request_id)?;
    writeln!(
        text,
        "  asked      {} {}{} ({})",
        hop.asked.method, hop.asked.authority, hop.asked.path, hop.asked.protocol
    )?;
    writeln!(text, "  by         {peer} at {}", hop.peer.address)?;
    if let Some(route) = &hop.route {
        let backend = route.backend.as_ref().map(|backend| format!(" to {backend}")).unwrap_or_default();
        let copy = if route.copy { " (a copy: the answer was discarded)" } else { "" };
        writeln!(text, "  route      {} rule {}{backend}{copy}", route.name, route.rule)?;
        writeln!(text, "             by {}", route.matched)?;
        if route.authority.is_some() || route.path.is_some() {
            let authority = route.authority.as_deref().unwrap_or(&hop.asked.authority);
            let path = route.path.as_deref().unwrap_or(&hop.asked.path);
            writeln!(text, "  rewritten  {authority}{path}")?;
        }
    }
    if let Some(judgement) = &hop.judgement {
        let what = match (judgement.verdict.as_str(), judgement.default) {
            ("deny", true) if judgement.rule.is_empty() => "denied: no rule allows anything".to_owned(),
            ("deny", true) => format!("denied: no rule allows it; nearest is {}", judgement.rule),
            ("deny", false) => format!("denied by {}", judgement.rule),
            ("allow", _) => format!("allowed by {}", judgement.rule),
            (verdict, _) => verdict.to_owned(),
        };
        let policy = judgement.policy.as_ref().map(|policy| format!(" ({policy})")).unwrap_or_default();
        writeln!(text, "  verdict    {what}{policy}")?;
        if !judgement.clause.is_empty() {
            writeln!(text, "  because    {}", judgement.clause)?;
        }
        if let Some(audit) = &judgement.audit {
            let why = if audit.clause.is_empty() { String::new() } else { format!(": {}", audit.clause) };
            let what = if audit.verdict == "allow" { "allowed" } else { "denied" };
            writeln!(text, "  audit      would have been {what} by {}{why}", audit.rule)?;
        }
        if let Some(principal) = &judgement.principal {
            writeln!(text, "  user       {principal}")?;
        }
        let engine = judgement.engine.as_deref().unwrap_or("none");
        let runs = match judgement.runs {
            0 if judgement.remembered => "no run: the decision on an equal request was remembered".to_owned(),
            1 => "1 fresh run".to_owned(),
            runs => format!("{runs} fresh runs"),
        };
        writeln!(
            text,
            "  sandbox    {engine} of {}, {runs}, {} us of {} us",
            judgement.function, judgement.sandbox_us, judgement.judge_us
        )?;
        if judgement.as_received {
            writeln!(text, "  path       sent on as it came; each reading was judged")?;
            for reading in &judgement.readings {
                writeln!(text, "             {reading}")?;
            }
        } else if judgement.path_changed {
            writeln!(text, "  path       normalised before it was judged and forwarded")?;
        }
    }
    if let Some(fault) = &hop.fault {
        tell_fault(text, fault, hop)?;
    }
    for signature in &hop.signatures {
        writeln!(text, "  signature  {} by key {}: {}", signature.algorithm, signature.key, signature.result)?;
    }
    for quota in &hop.quotas {
        let left = quota.remaining.map_or("refused".to_owned(), |left| format!("{left} left"));
        let shared = if quota.shared { " (the counter is shared: the limit has too many keys)" } else { "" };
        writeln!(text, "  quota      {}: {left}{shared}", quota.limit)?;
    }
    for asked in &hop.authorizers {
        let how = if asked.remembered { " (remembered)" } else { "" };
        writeln!(text, "  authorizer {}: {}{how}, {} us", asked.name, asked.result, asked.asked_us)?;
    }
    for run in &hop.extensions {
        writeln!(text, "  extension  {} ({}): {}, {} us", run.name, run.phase, run.result, run.run_us)?;
    }
    for (name, edits) in [("request", &hop.request_edits), ("response", &hop.response_edits)] {
        if !edits.is_empty() {
            writeln!(text, "  edits      {name}: {}", edits.join(", "))?;
        }
    }
    if let Some(trace) = &hop.trace {
        let parent = trace.parent_span_id.as_deref().unwrap_or("none");
        writeln!(text, "  trace      {} span {} parent {parent}", trace.trace_id, trace.span_id)?;
    }
    for (number, attempt) in hop.attempts.iter().enumerate() {
        let endpoint = attempt.endpoint.as_deref().unwrap_or("no endpoint");
        writeln!(text, "  try {}      {endpoint}: {} after {} us", number + 1, attempt.result, attempt.at_us)?;
    }
    for attempt in &hop.refusals {
        tell_refusal(text, attempt)?;
    }
    let response = &hop.response;
    let flag = response.flag.as_ref().map(|flag| format!(" {flag}")).unwrap_or_default();
    let failure = response.failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default();
    writeln!(
        text,
        "  response   {}{flag}{failure}, {} bytes, {} us in all",
        response.status, response.bytes_out, hop.stages.end_us
    )
}

/// A fault that a policy of the route's namespace injected.
fn tell_fault(text: &mut String, fault: &InjectedFault, hop: &Explanation) -> std::fmt::Result {
    let InjectedFault { name, until, delay_us, undelayed, aborted } = fault;
    let route = hop.route.as_ref().map(|route| &*route.name).or(hop.target.as_deref());
    let namespace = route.and_then(|route| route.split_once('/')).map_or("", |(namespace, _)| namespace);
    let policy = name.split('/').next().unwrap_or_default();
    writeln!(text, "  fault      {name} of policy {namespace}/{policy}, until {until}")?;
    match delay_us {
        Some(us) => writeln!(text, "             it delayed the request by {us} us")?,
        None if *undelayed => writeln!(text, "             no delay: too many requests are delayed already")?,
        None => {}
    }
    if *aborted {
        let status = hop.response.grpc_status.map_or(hop.response.status, u16::from);
        writeln!(text, "             this {status} is an injected fault: the back end got nothing")?;
    }
    Ok(())
}

/// An attempt of the callee's instance while it handled the request.
fn tell_refusal(text: &mut String, attempt: &RefusedAttempt) -> std::fmt::Result {
    let RefusedAttempt { kind, what, host, target, rule, reason, fix, at_us, count, among } = attempt;
    let what = match kind.as_str() {
        "name" => format!("look-up of {host}"),
        "connection" => match target {
            Some(target) => format!("connection to {target} at {host}"),
            None => format!("connection to {host}"),
        },
        _ => format!("system call {what} of `{host}`"),
    };
    let times = if *count == 1 { String::new() } else { format!(", {count} times") };
    let rule = if rule.is_empty() { String::new() } else { format!(" [{rule}]") };
    writeln!(text, "  refused    {what} after {at_us} us{times}: {reason}{rule}")?;
    if *among > 1 {
        writeln!(text, "             its instance was handling {among} requests, and it may belong to another one")?;
    }
    if !fix.is_empty() {
        writeln!(text, "             fix: {fix}")?;
    }
    Ok(())
}
