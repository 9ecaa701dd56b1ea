//! `leno explain function`: the policies of one function in words.

use crate::client::Source;
use crate::names::NamespaceOptions;
use crate::output::Format;
use crate::screen::{shown, shown_all, shown_json};
use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use leno_api::policies::{FunctionPolicies, PolicyRule, PolicySection};
use serde_json::Value;
use std::fmt::Write;
use std::process::ExitCode;

/// Prints the policies of a function, job or External document.
pub(crate) fn run(name: &str, namespace: &NamespaceOptions, source: &Source, format: Format) -> Result<ExitCode> {
    let id = namespace.function(source.namespace(), name)?;
    let policies: Value = match source {
        Source::ControlPlane(connection) => {
            connection.get(&format!("/v1/functions/{}/{}/policies", id.namespace, id.name))?
        }
        Source::Node(node) => {
            let (status, body) = node.ask(&format!("/policies/{id}"))?;
            match status {
                200 => serde_json::from_str(&body).context("the node's answer is not JSON")?,
                _ => bail!("the node at {} answered {status}: {}", node.admin, shown(body.trim_end())),
            }
        }
    };
    if format.is_json() {
        println!("{}", shown_json(&policies.to_string()));
        return Ok(ExitCode::SUCCESS);
    }
    let policies: FunctionPolicies =
        serde_json::from_value(shown_all(policies)).context("the answer has no policies")?;
    policies.missing.iter().for_each(|missing| eprintln!("leno: {missing}"));
    print!("{}", text(&policies));
    Ok(ExitCode::SUCCESS)
}

fn text(policies: &FunctionPolicies) -> String {
    let mut text = format!("{}   {}\n", policies.function, policies.identity);
    // Writing to a string does not fail.
    let _ = write(&mut text, policies);
    text
}

fn write(text: &mut String, policies: &FunctionPolicies) -> std::fmt::Result {
    writeln!(text, "\nREACHED BY")?;
    let routes =
        policies.gateway.iter().filter(|section| section.policy == "routes").flat_map(|section| &section.rules);
    for route in routes.clone() {
        writeln!(text, "  clients of the gateway: {}", route.clauses.join(", "))?;
    }
    policies.callers.iter().try_for_each(|caller| writeln!(text, "  {caller}"))?;
    if policies.hidden_callers > 0 {
        writeln!(text, "  {} of namespaces that the token may not know", policies.hidden_callers)?;
    }
    if routes.count() == 0 && policies.callers.is_empty() && policies.hidden_callers == 0 {
        writeln!(text, "  nothing: no gateway exposes it, and no function lists it among its callees")?;
    }
    let since = policies.since.and_then(|since| Timestamp::from_second(i64::try_from(since).ok()?).ok());
    let since = since.map(|since| since.to_zoned(TimeZone::system()).strftime(", hits since %Y-%m-%d %H:%M:%S"));
    let since = since.map(|since| since.to_string()).unwrap_or_default();
    let gateway = policies.gateway.iter().filter(|section| section.policy != "routes");
    sections(text, &format!("REQUESTS TO IT, in the order of evaluation{since}"), policies.inbound.iter())?;
    sections(text, "REQUESTS OF THE GATEWAY TO IT", gateway)?;
    sections(text, &format!("ITS OWN CALLS, in the order of evaluation{since}"), policies.outbound.iter())?;
    let all = policies.inbound.iter().chain(&policies.outbound).flat_map(|section| &section.rules);
    let mut idle = all.filter_map(|rule| Some((rule, not_in_force(rule)?))).peekable();
    if idle.peek().is_some() {
        writeln!(text, "\nNOT IN FORCE")?;
    }
    idle.try_for_each(|(rule, why)| writeln!(text, "  {}: {why}", rule.name))
}

fn sections<'a>(
    text: &mut String,
    heading: &str,
    sections: impl Iterator<Item = &'a PolicySection>,
) -> std::fmt::Result {
    let mut sections = sections.peekable();
    if sections.peek().is_some() {
        writeln!(text, "\n{heading}")?;
    }
    sections.try_for_each(|section| {
        writeln!(text, "  {}", section.policy)?;
        for rule in &section.rules {
            let name = if rule.name.is_empty() { "(no rule)" } else { &rule.name };
            let mark = if not_in_force(rule).is_some() { " (not in force)" } else { "" };
            writeln!(text, "    {} {name}{mark}{}", rule.action, hits(rule))?;
            if rule.clauses.is_empty() && rule.action != "decide" {
                writeln!(text, "        every request")?;
            }
            rule.clauses.iter().try_for_each(|clause| writeln!(text, "        {clause}"))?;
        }
        if section.otherwise.is_empty() { Ok(()) } else { writeln!(text, "    otherwise: {}", section.otherwise) }
    })
}

/// Why a rule does not decide as it is written.
fn not_in_force(rule: &PolicyRule) -> Option<String> {
    let audited = rule.audited.then(|| "the node reports its decisions, and enforces none (mode: audit)".to_owned());
    audited.or_else(|| Some(rule.without_effect.clone()).filter(|why| !why.is_empty()))
}

/// `: 12 allowed, 3 denied`
fn hits(rule: &PolicyRule) -> String {
    let told = rule.hits.iter().map(|(verdict, requests)| match (&**verdict, &*rule.action) {
        ("allow", _) => format!("{requests} allowed"),
        ("deny", "allow") if !rule.name.ends_with("/callees") => format!("{requests} came nearest and were denied"),
        ("deny", _) => format!("{requests} denied"),
        ("audit_deny", _) => format!("{requests} would have been denied"),
        ("audit_allow", _) => format!("{requests} would have been allowed"),
        (other, _) => format!("{requests} {other}"),
    });
    let told: Vec<String> = told.collect();
    if told.is_empty() { String::new() } else { format!(": {}", told.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_callers_rules_and_those_that_are_not_in_force() {
        let rule = |name: &str, action: &str| PolicyRule {
            name: name.to_owned(),
            action: action.to_owned(),
            ..PolicyRule::default()
        };
        let hits = [("allow".to_owned(), 5), ("deny".to_owned(), 2)].into();
        let read = PolicyRule {
            clauses: vec!["to: methods [\"GET\"]".to_owned()],
            hits,
            ..rule("p/authorization/read", "allow")
        };
        let audited = PolicyRule { audited: true, ..rule("p/authorization/later", "deny") };
        let otherwise = "a request that no rule allows is refused with 403".to_owned();
        let inbound = PolicySection { policy: "authorization".to_owned(), rules: vec![read, audited], otherwise };
        let mut policies = FunctionPolicies {
            function: "demo/shop".to_owned(),
            identity: "spiffe://x/ns/demo/sa/shop".to_owned(),
            inbound: vec![inbound],
            ..FunctionPolicies::default()
        };
        let told = text(&policies);
        assert!(told.contains("  nothing: no gateway exposes it"), "{told}");
        assert!(
            told.contains(
                "    allow p/authorization/read: 5 allowed, 2 came nearest and were denied\n        to: methods"
            ),
            "{told}"
        );
        assert!(told.contains("    deny p/authorization/later (not in force)\n        every request\n"), "{told}");
        assert!(told.ends_with("NOT IN FORCE\n  p/authorization/later: the node reports its decisions, and enforces none (mode: audit)\n"), "{told}");
        policies.callers = vec!["demo/cart".to_owned()];
        policies.hidden_callers = 2;
        assert!(text(&policies).contains("REACHED BY\n  demo/cart\n  2 of namespaces that"), "{}", text(&policies));
    }
}
