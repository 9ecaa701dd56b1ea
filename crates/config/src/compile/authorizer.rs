//! `spec.externalAuthorization`.

use super::fields::{self, MILLISECOND};
use super::header::{self, Use};
use super::{Context, TypedDocument, authorization, rate_limit};
use crate::document::{self, KeyPart, Operation};
use crate::duration::Duration;
use crate::problem::{Problem, Scope};
use crate::snapshot::{Authorizer, Function, Policy};
use leno_model::FunctionId;
use leno_model::egress::{Egress, EgressProtocol, authority};
use leno_model::{AppProtocol, AuthorizerProtocol, Run};
use leno_policy::reserved::is_same;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);
const LONGEST_TTL: Duration = Duration::from_secs(3600);
/// Authorizers of one policy.
const MOST: usize = 8;
/// Questions that one question may cause, because authorizers have authorizers themselves.
const MAX_FURTHER_QUESTIONS: usize = 16;
/// Longest prefix of a path, in bytes.
const LONGEST_PREFIX: usize = 256;

/// All functions that are named as authorizers, whether they exist or not.
pub(super) fn asking(policies: &[Arc<TypedDocument<document::Policy>>]) -> BTreeSet<FunctionId> {
    let with_authorizers =
        policies.iter().map(|placed| &placed.document).filter(|policy| !policy.spec.external_authorization.is_empty());
    let named = with_authorizers.flat_map(|policy| {
        let namespace = &policy.metadata.namespace;
        policy.spec.functions.iter().filter_map(move |name| match name.contains('/') {
            true => name.parse().ok(),
            false => FunctionId::new(namespace, name).ok(),
        })
    });
    named.collect()
}

/// The authorizers of one policy. [`connect`] determines how each is called, once all functions and
/// policies are known.
pub(super) fn authorizers(
    context: &Context<'_>,
    list: &Scope<'_>,
    (namespace, policy): (&str, &str),
    authorizers: &[document::Authorizer],
) -> Vec<Authorizer> {
    fields::unique_names(list, authorizers.iter().map(|authorizer| Some(authorizer.name.as_str())));
    if authorizers.len() > MOST {
        let fix = format!("expected at most {MOST} in a policy");
        list.problem(format!("{} authorizers are many", authorizers.len()), fix);
    }
    let compile = |(index, one)| authorizer(context, &list.element(index), (namespace, policy), one, index);
    authorizers.iter().enumerate().map(compile).collect()
}

fn authorizer(
    context: &Context<'_>,
    scope: &Scope<'_>,
    (namespace, policy): (&str, &str),
    authorizer: &document::Authorizer,
    index: usize,
) -> Authorizer {
    let when = scope.field("when");
    if let Some(operations) = &authorizer.when {
        fields::not_empty(&when, operations, "all requests");
    }
    let operation = |(index, one): (usize, &Operation)| {
        let element = when.element(index);
        if *one == Operation::default() {
            element.problem("an element without fields would match any request", "name something, or remove `when`");
        }
        authorization::operation(&element, one)
    };
    let names = |field: &str, names: &[String], purpose| headers(&scope.field(field), names, purpose);
    if !(400..=599).contains(&authorizer.status_on_error) {
        let message = format!("{} is not the status of a refusal", authorizer.status_on_error);
        scope.field("statusOnError").problem(message, "expected 400 to 599");
    }
    path_prefix(scope, authorizer);
    Authorizer {
        service: service(context, &scope.field("service"), namespace, &authorizer.service),
        only: authorizer.when.iter().flatten().enumerate().map(operation).collect(),
        config: leno_model::Authorizer {
            name: fields::rule_name(scope, policy, "externalAuthorization", Some(&authorizer.name), index),
            authority: String::new(),
            protocol: authorizer.protocol,
            path_prefix: authorizer.path_prefix.clone(),
            timeout: fields::within(&scope.field("timeout"), authorizer.timeout, MILLISECOND, LONGEST_TIMEOUT),
            status_on_error: authorizer.status_on_error,
            shown: shown(scope, authorizer),
            raw_headers: raw_headers(scope, authorizer),
            upstream_headers: names("upstreamHeaders", &authorizer.upstream_headers, Use::Edit),
            client_headers: names("clientHeaders", &authorizer.client_headers, Use::Edit),
            cache: authorizer.cache.as_ref().map(|section| cache(&scope.field("cache"), section)),
            audit: false,
        },
    }
}

fn service(context: &Context<'_>, scope: &Scope<'_>, namespace: &str, name: &str) -> Option<FunctionId> {
    let id = fields::function(context, scope, namespace, name)?;
    if context.jobs.contains_key(&id) && fields::is_of_another_tenant(scope, namespace, &id) {
        fields::not_callable(context, scope, &id, "it is a job, and nobody can call a job");
        return None;
    }
    if context.jobs.contains_key(&id) {
        scope.problem(format!("`{id}` is a job, and nobody can call a job"), "name a function or an External document");
        return None;
    }
    Some(id)
}

fn path_prefix(scope: &Scope<'_>, authorizer: &document::Authorizer) {
    let (prefix, scope) = (&authorizer.path_prefix, scope.field("pathPrefix"));
    if prefix.is_empty() {
        return;
    }
    if authorizer.protocol == AuthorizerProtocol::Grpc {
        scope.problem("a gRPC call has the path of its method", "remove it, or use `protocol: http`");
    } else if !is_prefix(prefix) {
        let fix = "expected a path such as /check: letters, digits, `-`, `.`, `_` and `~`, without a slash at its end";
        scope.problem(format!("`{}` cannot stand before a path", prefix.escape_debug()), fix);
    }
}

/// Whether a path can stand before the path of a question.
pub(super) fn is_prefix(prefix: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let dots = prefix.split('/').any(|segment| matches!(segment, "." | ".."));
    let good = prefix.starts_with('/') && !prefix.ends_with('/') && !prefix.contains("//") && !dots;
    good && prefix.bytes().all(plain) && prefix.len() <= LONGEST_PREFIX
}

fn raw_headers(scope: &Scope<'_>, authorizer: &document::Authorizer) -> bool {
    if authorizer.raw_headers && authorizer.protocol == AuthorizerProtocol::Http {
        scope
            .field("rawHeaders")
            .problem("a question over HTTP has headers as they came", "remove it, or use `protocol: grpc`");
    }
    authorizer.raw_headers
}

/// The headers that the authorizer receives.
fn shown(scope: &Scope<'_>, authorizer: &document::Authorizer) -> Option<Vec<String>> {
    let list = authorizer.include_headers.as_deref();
    let mut names = headers(&scope.field("includeHeaders"), list.unwrap_or_default(), Use::Read);
    match authorizer.protocol {
        AuthorizerProtocol::Grpc => list.is_some().then_some(names),
        AuthorizerProtocol::Http => {
            names.extend(["authorization", "cookie"].map(str::to_owned));
            Some(names)
        }
    }
}

fn headers(list: &Scope<'_>, names: &[String], purpose: Use) -> Vec<String> {
    let mut headers: Vec<String> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let scope = list.element(index);
        let Some(name) = header::name(&scope, name, purpose) else { continue };
        if headers.contains(&name) {
            scope.problem(format!("`{name}` is named twice"), "remove one of the two");
        }
        headers.push(name);
    }
    headers
}

fn cache(scope: &Scope<'_>, section: &document::AuthorizerCache) -> leno_model::AuthorizerCache {
    let key = scope.field("key");
    if section.key.is_empty() {
        let fix = "name all that its answers depend on, such as `[header: authorization, method, path]`";
        key.problem("all requests would get the same answer", fix);
    }
    for (index, part) in section.key.iter().enumerate() {
        if matches!(part, KeyPart::Claim(_)) {
            let fix = "copy the claim to a header with `claimsToHeaders`, and name that";
            key.element(index).problem("claims do not tell answers apart", fix);
        }
    }
    leno_model::AuthorizerCache {
        ttl: fields::within(&scope.field("ttl"), section.ttl, MILLISECOND, LONGEST_TTL),
        key: rate_limit::key(&key, &section.key),
    }
}

/// Determines how the authorizers are called, and makes them callees of the functions that ask
/// them. Refuses authorizers that cannot work: services that cannot answer, and endless chains of
/// questions.
pub(super) fn connect(
    context: &Context<'_>,
    documents: &[Arc<TypedDocument<document::Policy>>],
    policies: &mut [Arc<Policy>],
    functions: &mut BTreeMap<FunctionId, Function>,
    problems: &RefCell<Vec<Problem>>,
) {
    if policies.iter().all(|policy| policy.authorizers.is_empty()) {
        return;
    }
    for (placed, policy) in documents.iter().zip(policies.iter_mut()) {
        if policy.authorizers.is_empty() {
            continue;
        }
        let policy = Arc::make_mut(policy);
        let root = placed.scope(problems);
        let spec = root.field("spec");
        let list = spec.field("externalAuthorization");
        for (index, authorizer) in policy.authorizers.iter_mut().enumerate() {
            let service = list.element(index);
            let service = service.field("service");
            let Some((id, called)) = authorizer.service.as_ref().and_then(|id| functions.get_key_value(id)) else {
                continue;
            };
            match reached(id, called, authorizer.config.protocol, None) {
                Ok(authority) => authorizer.config.authority = authority,
                Err((_, fix)) if fields::is_of_another_tenant(&service, &policy.namespace, id) => {
                    fields::not_callable(context, &service, id, fix);
                    authorizer.service = None;
                }
                Err((message, fix)) => service.problem(message, fix),
            }
        }
    }
    // Authorizers of another namespace are removed first: if that breaks a circle, the others may
    // stay. Once circles are gone, questions can be counted.
    for others_tenant in [true, true, false] {
        for (index, number) in endless(context, documents, policies, functions, (others_tenant, problems)) {
            let authorizer = &mut Arc::make_mut(&mut policies[index]).authorizers[number];
            (authorizer.service, authorizer.config.authority) = (None, String::new());
        }
    }
    claims(context, documents, policies, functions, problems);
    for function in functions.values_mut().filter(|function| !matches!(function.run, Run::Job(_))) {
        let authorizers = function.policies.iter().flat_map(|index| &policies[*index].authorizers);
        for id in authorizers.filter_map(|authorizer| authorizer.service.clone()) {
            if !function.callees.contains(&id) {
                function.callees.push(id);
            }
        }
    }
}

/// The authority by which an authorizer is called. `at`: the only port of an External at which it may
/// be asked.
pub(super) fn reached(
    id: &FunctionId,
    called: &Function,
    protocol: AuthorizerProtocol,
    at: Option<u16>,
) -> Result<String, (String, &'static str)> {
    let grpc = protocol == AuthorizerProtocol::Grpc;
    let Run::Egress(egress) = &called.run else {
        let other = match called.protocol {
            AppProtocol::Http1 => Some("speaks HTTP/1.1"),
            AppProtocol::Chain => Some("is called through memory"),
            AppProtocol::H2c | AppProtocol::Grpc => None,
        };
        if let (Some(other), true) = (other, grpc) {
            return Err((format!("`{id}` {other}, and gRPC needs HTTP/2"), "give it `protocol: grpc`"));
        }
        return Ok(format!("{}.{}", id.name, id.namespace));
    };
    let Egress { hosts, addresses, ports, .. } = egress;
    let http = |protocol| matches!(protocol, EgressProtocol::Http | EgressProtocol::Https);
    let mut permitted = ports.iter().filter(|port| at.is_none_or(|at| port.number == at));
    let Some(port) = permitted.find(|port| http(port.protocol) && (port.http2 || !grpc)) else {
        let fix = "give it a port with `protocol: http` or `https`, for gRPC with `http2: true`";
        return Err((format!("`{id}` has no port at which it could be asked"), fix));
    };
    let single = addresses.iter().find(|block| block.prefix == if block.address.is_ipv4() { 32 } else { 128 });
    let host = hosts.iter().find(|host| !host.starts_with('*')).cloned();
    let literal = single.map(|block| match block.address {
        std::net::IpAddr::V4(address) => address.to_string(),
        std::net::IpAddr::V6(address) => format!("[{address}]"),
    });
    match host.or(literal) {
        Some(host) => Ok(authority(&host, *port)),
        None => Err((format!("`{id}` may be many: nothing says which of them to ask"), "give it a host without `*`")),
    }
}

/// Refuses authorizers that would be asked, directly or indirectly, about requests to themselves,
/// and authorizers of which a question causes too many further ones: they multiply from authorizer
/// to authorizer. Returns those that are removed, because another namespace causes the circle or
/// the questions.
fn endless(
    context: &Context<'_>,
    documents: &[Arc<TypedDocument<document::Policy>>],
    policies: &[Arc<Policy>],
    functions: &BTreeMap<FunctionId, Function>,
    (others_tenant, problems): (bool, &RefCell<Vec<Problem>>),
) -> Vec<(usize, usize)> {
    let asked = |id: &FunctionId| -> Vec<&FunctionId> {
        let applied = functions.get(id).into_iter().flat_map(|function| &function.policies);
        applied.flat_map(|index| &policies[*index].authorizers).filter_map(|one| one.service.as_ref()).collect()
    };
    let mut selected = vec![Vec::new(); policies.len()];
    for (id, function) in functions {
        function.policies.iter().for_each(|policy| selected[*policy].push(id));
    }
    let mut severed = Vec::new();
    for (number, ((placed, policy), selected)) in documents.iter().zip(policies).zip(selected).enumerate() {
        for (index, authorizer) in policy.authorizers.iter().enumerate() {
            if context.effort.is_over() {
                return severed;
            }
            let root = placed.scope(problems);
            let is_wanted = |service: &&FunctionId| {
                fields::is_of_another_tenant(&root, &policy.namespace, service) == others_tenant
            };
            let Some(service) = authorizer.service.as_ref().filter(is_wanted) else { continue };
            let (mut seen, mut next) = (BTreeSet::new(), asked(service));
            while let Some(id) = next.pop() {
                if seen.insert(id) {
                    next.extend(asked(id));
                }
            }
            let is_circle = selected.iter().any(|id| *id == service || seen.contains(id));
            let further = || further_questions(&asked, &mut vec![service]);
            if is_circle || further().is_some_and(|count| count > MAX_FURTHER_QUESTIONS) {
                let spec = root.field("spec");
                let list = spec.field("externalAuthorization");
                let (message, fix) = if is_circle {
                    let message = format!("`{service}` would be asked about each question to itself, without end");
                    (message, "do not select it: name the `functions`, or use labels that it does not carry")
                } else {
                    let message = format!(
                        "each question to `{service}` causes more than {MAX_FURTHER_QUESTIONS} others, because it has authorizers itself"
                    );
                    (message, "give it, and those that it asks, fewer authorizers")
                };
                let place = list.element(index);
                let place = place.field("service");
                if others_tenant {
                    place.doubt(context.doubts, format!("{message}: what it is asked about is refused"), fix);
                    severed.push((number, index));
                } else {
                    place.problem(message, fix);
                }
            }
        }
    }
    severed
}

/// The number of further questions that a question to the last of `above` causes, counted a little
/// beyond the limit. `None`: it leads into a circle, which is reported separately.
fn further_questions<'a>(
    asked: &impl Fn(&FunctionId) -> Vec<&'a FunctionId>,
    above: &mut Vec<&'a FunctionId>,
) -> Option<usize> {
    if above.len() > MAX_FURTHER_QUESTIONS + 1 {
        return Some(0);
    }
    let mut count = 0;
    for id in above.last().map(|last| asked(last)).unwrap_or_default() {
        if above.contains(&id) {
            return None;
        }
        above.push(id);
        count += 1 + further_questions(asked, above)?;
        above.pop();
        if count > MAX_FURTHER_QUESTIONS {
            break;
        }
    }
    Some(count)
}

/// Refuses answers that would overwrite headers made of a verified token's claims.
fn claims(
    context: &Context<'_>,
    documents: &[Arc<TypedDocument<document::Policy>>],
    policies: &[Arc<Policy>],
    functions: &BTreeMap<FunctionId, Function>,
    problems: &RefCell<Vec<Problem>>,
) {
    let mut reported = BTreeSet::new();
    for function in functions.values().take_while(|_| !context.effort.is_over()) {
        let issuers = || function.policies.iter().flat_map(|index| &policies[*index].authentication);
        let claimed = |name: &str| {
            let mut names = issuers().flat_map(|issuer| &issuer.claims_to_headers).map(|(_, claimed)| claimed);
            names.any(|claimed| is_same(claimed.as_bytes(), name.as_bytes()))
        };
        for policy in &function.policies {
            let written = &documents[*policy].document.spec.external_authorization;
            for (index, authorizer) in written.iter().enumerate() {
                for (number, name) in authorizer.upstream_headers.iter().enumerate() {
                    if claimed(name) && reported.insert((*policy, index, number)) {
                        let root = documents[*policy].scope(problems);
                        let spec = root.field("spec");
                        let list = spec.field("externalAuthorization");
                        let element = list.element(index);
                        let message = format!("`{name}` is made of a claim, in a policy of the same function");
                        let fix = "a claim is not to be overwritten; use another header";
                        element.field("upstreamHeaders").element(number).problem(message, fix);
                    }
                }
            }
        }
    }
}
