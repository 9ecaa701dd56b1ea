//! `spec.authorization`.

use super::forms::Form;
use super::header::{self, Use};
use super::{Context, fields, label, template, text};
use crate::document::{Action, Authorization, AuthorizationRule, Condition, Mode, Operation, Source};
use crate::problem::Scope;
use leno_policy::spec;

pub(super) fn authorization(
    context: &Context<'_>,
    scope: &Scope<'_>,
    policy: (&str, &str),
    section: &Authorization,
) -> Vec<spec::AuthorizationRule> {
    let list = scope.field("rules");
    fields::unique_names(&list, section.rules.iter().map(|rule| rule.name.as_deref()));
    section
        .rules
        .iter()
        .enumerate()
        .map(|(index, one)| rule(context, &list.element(index), policy, one, index))
        .collect()
}

fn rule(
    context: &Context<'_>,
    scope: &Scope<'_>,
    (namespace, policy): (&str, &str),
    rule: &AuthorizationRule,
    index: usize,
) -> spec::AuthorizationRule {
    let from = scope.field("from");
    let to = scope.field("to");
    let when = scope.field("when");
    spec::AuthorizationRule {
        name: fields::rule_name(scope, policy, "authorization", rule.name.as_deref(), index),
        action: match rule.action {
            Action::Allow => spec::Action::Allow,
            Action::Deny => spec::Action::Deny,
        },
        from: elements(&from, rule.from.as_deref(), "anybody", |scope, one| source(context, scope, namespace, one)),
        to: elements(&to, rule.to.as_deref(), "any request", |scope, one| {
            if *one == Operation::default() {
                empty(scope, "any request", "to");
            }
            operation(scope, one)
        }),
        when: elements(&when, rule.when.as_deref(), "no further condition", condition).into_iter().flatten().collect(),
        audit: rule.mode == Mode::Audit,
    }
}

fn elements<S, T>(
    scope: &Scope<'_>,
    list: Option<&[S]>,
    without: &str,
    mut compile: impl FnMut(&Scope<'_>, &S) -> T,
) -> Vec<T> {
    let Some(list) = list else { return Vec::new() };
    fields::not_empty(scope, list, without);
    list.iter().enumerate().map(|(index, one)| compile(&scope.element(index), one)).collect()
}

/// Reports an element without fields. It would match everything, which its author cannot mean.
fn empty(scope: &Scope<'_>, means: &str, field: &str) {
    scope.problem(
        format!("an element without fields would match {means}"),
        format!("name something, or remove `{field}`"),
    );
}

/// The callers; also selects the callers that a rate limit has an override for.
pub(super) fn source(context: &Context<'_>, scope: &Scope<'_>, namespace: &str, source: &Source) -> spec::Source {
    if *source == Source::default() {
        empty(scope, "anybody", "from");
    }
    let identity = |scope: &Scope<'_>, name: &String| text::identity(context, scope, namespace, name);
    let namespaces = text::matches(
        scope,
        ("namespaces", source.namespaces.as_deref()),
        ("notNamespaces", &source.not_namespaces),
        "any namespace",
        |scope, name| text::namespace(scope, name),
    );
    let labels = (source.labels.as_ref(), source.label_expressions.as_deref());
    spec::Source {
        labels: label::callers(context, scope, namespace, &namespaces, labels),
        identities: text::matches(
            scope,
            ("identities", source.identities.as_deref()),
            ("notIdentities", &source.not_identities),
            "anybody",
            identity,
        ),
        namespaces,
        request_principals: text::matches(
            scope,
            ("requestPrincipals", source.request_principals.as_deref()),
            ("notRequestPrincipals", &source.not_request_principals),
            "anybody",
            |scope, principal| text::principal(context, scope, namespace, principal),
        ),
        addresses: text::matches(
            scope,
            ("addresses", source.addresses.as_deref()),
            ("notAddresses", &source.not_addresses),
            "any address",
            |scope, block| text::cidr(scope, block),
        ),
    }
}

/// The requested operation; also selects the requests that a rate limit counts.
pub(crate) fn operation(scope: &Scope<'_>, operation: &Operation) -> spec::Operation {
    spec::Operation {
        methods: text::matches(
            scope,
            ("methods", operation.methods.as_deref()),
            ("notMethods", &operation.not_methods),
            "any method",
            |scope, method| text::or_regex(scope, method, Form::Method, text::method),
        ),
        hosts: text::matches(
            scope,
            ("hosts", operation.hosts.as_deref()),
            ("notHosts", &operation.not_hosts),
            "any host",
            |scope, host| text::or_regex(scope, host, Form::Host, text::host),
        ),
        ports: text::matches(
            scope,
            ("ports", operation.ports.as_deref()),
            ("notPorts", &operation.not_ports),
            "any port",
            |scope, port| Some(fields::port(scope, *port)),
        ),
        paths: text::matches(
            scope,
            ("paths", operation.paths.as_deref()),
            ("notPaths", &operation.not_paths),
            "any path",
            template::path,
        ),
    }
}

/// A further condition. `None`: a problem was reported.
pub(super) fn condition(scope: &Scope<'_>, condition: &Condition) -> Option<spec::Condition> {
    let Condition { header, query, claim, audience, .. } = condition;
    let key = match (header, query, claim, audience) {
        (Some(name), None, None, None) => {
            header::name(&scope.field("header"), name, Use::Read).map(spec::ConditionKey::Header)
        }
        (None, Some(name), None, None) => {
            if name.is_empty() {
                scope.field("query").problem("the name is empty", "expected the name of a query parameter");
            }
            Some(spec::ConditionKey::Query(name.clone()))
        }
        (None, None, Some(claim), None) => Some(spec::ConditionKey::Claim(claim.0.clone())),
        (None, None, None, Some(true)) => Some(spec::ConditionKey::Audience),
        _ => {
            scope.problem(
                "a condition looks at one thing",
                "expected one of `header`, `query`, `claim` and `audience: true`",
            );
            None
        }
    };
    if let Some(present) = condition.present {
        if condition.values.is_some() || !condition.not_values.is_empty() {
            scope.field("present").problem("the condition has values too", "keep either `present` or the values");
        }
        let any = vec![spec::StringMatch::Any];
        let values = if present {
            spec::Matches { any, none: Vec::new() }
        } else {
            spec::Matches { any: Vec::new(), none: any }
        };
        return Some(spec::Condition { key: key?, values });
    }
    if condition.values.is_none() && condition.not_values.is_empty() {
        scope.problem(
            "the condition has no values",
            "add `values`, `notValues` or `present`; `values: [\"*\"]` means any that is not empty",
        );
    }
    let form = if condition.header.is_some() { Form::HeaderValue } else { Form::Any };
    let values = text::matches(
        scope,
        ("values", condition.values.as_deref()),
        ("notValues", &condition.not_values),
        "any value",
        |scope, value| text::or_regex(scope, value, form, text::string),
    );
    Some(spec::Condition { key: key?, values })
}
