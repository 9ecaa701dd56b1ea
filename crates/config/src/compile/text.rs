//! Matches of text: strings, identities, address blocks, hosts, methods.

use super::Context;
use super::forms::Form;
use super::{fields, pods, regex};
use crate::document::{RequestPrincipal, TextMatch};
use crate::host;
use crate::problem::Scope;
use leno_model::function_id::is_label;
use leno_model::{SpiffeId, TrustDomain};
use leno_policy::spec::{Cidr, Matches, PrincipalMatch, StringMatch};
use std::net::{IpAddr, Ipv4Addr};

/// The two lists of a field: `x`, and none of `notX`.
pub(super) fn matches<S, T>(
    scope: &Scope<'_>,
    (field, any): (&str, Option<&[S]>),
    (not_field, none): (&str, &[S]),
    without: &str,
    mut compile: impl FnMut(&Scope<'_>, &S) -> Option<T>,
) -> Matches<T> {
    let mut each = |field: &str, texts: &[S]| {
        let list = scope.field(field);
        texts.iter().enumerate().filter_map(|(index, text)| compile(&list.element(index), text)).collect()
    };
    if let Some(any) = any {
        fields::not_empty(&scope.field(field), any, without);
    }
    Matches { any: any.map(|any| each(field, any)).unwrap_or_default(), none: each(not_field, none) }
}

/// A text of some kind, or a regular expression.
pub(crate) fn or_regex(
    scope: &Scope<'_>,
    matched: &TextMatch,
    form: Form,
    text: impl Fn(&Scope<'_>, &str) -> Option<StringMatch>,
) -> Option<StringMatch> {
    match matched {
        TextMatch::Text(written) => text(scope, written),
        TextMatch::Regex { regex, with_query } => {
            if *with_query {
                scope.field("withQuery").problem("only a path is followed by a query", "remove it");
            }
            regex::regex(&scope.field("regex"), regex, form).map(|regex| StringMatch::Regex(Box::new(regex)))
        }
    }
}

/// `abc`, `abc*`, `*abc` or `*`.
pub(super) fn string(scope: &Scope<'_>, text: &str) -> Option<StringMatch> {
    if text.is_empty() {
        scope.problem("the text is empty", "expected `abc`, `abc*`, `*abc` or `*`");
        return None;
    }
    let parsed = match (text.strip_prefix('*'), text.strip_suffix('*')) {
        _ if text == "*" => StringMatch::Present,
        (Some(rest), _) if !rest.contains('*') => StringMatch::Suffix(rest.to_owned()),
        (_, Some(rest)) if !rest.contains('*') => StringMatch::Prefix(rest.to_owned()),
        (None, None) if !text.contains('*') => StringMatch::Exact(text.to_owned()),
        _ => {
            let message = format!("`{}` has a `*` that is not its first or last character", text.escape_debug());
            scope.problem(message, "expected `abc`, `abc*`, `*abc` or `*`");
            return None;
        }
    };
    Some(parsed)
}

/// The text of a match without its `*`.
fn literal(matched: &StringMatch) -> &str {
    match matched {
        StringMatch::Exact(text) | StringMatch::Prefix(text) | StringMatch::Suffix(text) => text,
        StringMatch::Present | StringMatch::Any | StringMatch::Regex(_) => "",
    }
}

/// A calling function.
pub(super) fn identity(context: &Context<'_>, scope: &Scope<'_>, namespace: &str, text: &str) -> Option<StringMatch> {
    if text == "*" {
        return Some(StringMatch::Present);
    }
    if text.contains("://") {
        return spiffe(scope, text);
    }
    if let Some(wanted) = text.strip_suffix("/*") {
        if !is_label(wanted) {
            scope.problem(format!("`{}` is not a namespace", wanted.escape_debug()), "expected `namespace/*`");
            return None;
        }
        return Some(StringMatch::Prefix(format!("spiffe://{}/ns/{wanted}/sa/", context.trust_domain)));
    }
    if text.contains('*') {
        scope.problem(
            format!("`{}` has a `*` in a wrong place", text.escape_debug()),
            "expected `namespace/name`, `namespace/*`, `spiffe://…` or `*`",
        );
        return None;
    }
    // As other meshes and Kubernetes write them.
    let foreign = text.split_once("/ns/").and_then(|(_, rest)| rest.split_once("/sa/"));
    let account = || text.strip_prefix("system:serviceaccount:")?.split_once(':');
    if let Some((namespace, name)) = foreign.or_else(account) {
        return service_account(context, scope, text, (namespace, name));
    }
    let id = fields::function(context, scope, namespace, text)?;
    if context.externals.contains_key(&id) && !context.asking.contains(&id) {
        let (message, fix) = (format!("`{id}` is outside of the mesh, and calls nobody here"), "name who calls");
        if fields::is_of_another_tenant(scope, namespace, &id) {
            scope.doubt(context.doubts, message, fix);
        } else {
            scope.problem(message, fix);
        }
    }
    if context.kubernetes && !context.has(&id) {
        // The account of that name may be another function's.
        return Some(StringMatch::Exact(pods::identity_of_none(context, &id)));
    }
    Some(StringMatch::Exact(context.identity(&id).to_string()))
}

/// A service account, as other meshes and Kubernetes write it. Only where functions are pods, it is an
/// identity.
fn service_account(
    context: &Context<'_>,
    scope: &Scope<'_>,
    text: &str,
    (namespace, name): (&str, &str),
) -> Option<StringMatch> {
    let message = format!("`{}` is not how an identity is written here", text.escape_debug());
    if !context.kubernetes {
        scope.problem(message, format!("write {namespace}/{name}"));
        return None;
    }
    let domain = text.split_once("/ns/").map_or("cluster.local", |(domain, _)| domain);
    let identity = SpiffeId::function(context.trust_domain, namespace, name);
    match identity.ok().filter(|_| [context.trust_domain.as_str(), "cluster.local"].contains(&domain)) {
        Some(identity) => Some(StringMatch::Exact(identity.to_string())),
        None => {
            let domain = context.trust_domain;
            scope.problem(message, format!("write spiffe://{domain}/ns/NAMESPACE/sa/NAME for a service account"));
            None
        }
    }
}

/// A user. A text is only split into issuer and subject if it is clear which part is the issuer.
pub(super) fn principal(
    context: &Context<'_>,
    scope: &Scope<'_>,
    namespace: &str,
    principal: &RequestPrincipal,
) -> Option<PrincipalMatch> {
    let text = match principal {
        RequestPrincipal::Parts { issuer, subject } => {
            let issuer = string(&scope.field("issuer"), issuer);
            let subject = string(&scope.field("subject"), subject);
            return Some(PrincipalMatch { issuer: issuer?, subject: subject? });
        }
        RequestPrincipal::Text(text) if text == "*" => {
            return Some(PrincipalMatch { issuer: StringMatch::Present, subject: StringMatch::Present });
        }
        RequestPrincipal::Text(text) => text,
    };
    let subject_of = |issuer: &str| text.strip_prefix(issuer)?.strip_prefix('/').filter(|subject| !subject.is_empty());
    let known = context.known_issuers(namespace, scope.origin());
    let mut readings = known.filter_map(|issuer| Some((issuer, subject_of(issuer)?)));
    match (readings.next(), readings.next()) {
        (Some((issuer, subject)), None) => {
            let issuer = StringMatch::Exact(issuer.to_owned());
            Some(PrincipalMatch { issuer, subject: string(scope, subject)? })
        }
        (Some((one, subject)), Some((other, _))) => {
            let message = format!("`{}` may mean the issuer {one} or the issuer {other}", text.escape_debug());
            scope.problem(message, format!("write {{issuer: \"{one}\", subject: \"{subject}\"}} or the like"));
            None
        }
        (None, _) if context.incomplete => None,
        (None, _) => {
            let message = format!("`{}` begins with no issuer of an authentication section", text.escape_debug());
            scope.problem(message, "name an issuer that is configured, or write {issuer: \"…\", subject: \"…\"}");
            None
        }
    }
}

/// `spiffe://trust-domain/path`, possibly with a `*` at the end.
fn spiffe(scope: &Scope<'_>, text: &str) -> Option<StringMatch> {
    let (body, open) = text.strip_suffix('*').map_or((text, false), |body| (body, true));
    let rest = body.strip_prefix("spiffe://");
    let (domain, path) = rest.and_then(|rest| rest.split_once('/')).unwrap_or((rest.unwrap_or_default(), ""));
    let segment = |segment: &str| {
        !matches!(segment, "" | "." | "..")
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    // An open end may be within a segment, but not within the trust domain: `spiffe://shop*` would
    // match `spiffe://shop.evil`.
    let (whole, last) = path.rsplit_once('/').map_or(("", path), |(whole, last)| (whole, last));
    let path_good = (whole.is_empty() || whole.split('/').all(segment)) && (segment(last) || (open && last.is_empty()));
    if rest.is_none()
        || domain.parse::<TrustDomain>().is_err()
        || !body[9..].contains('/')
        || !path_good
        || text.len() > 2048
    {
        let fix = "expected spiffe://trust-domain/ns/namespace/sa/name, at the end possibly `*`";
        scope.problem(format!("`{}` is not a SPIFFE ID", text.escape_debug()), fix);
        return None;
    }
    Some(if open { StringMatch::Prefix(body.to_owned()) } else { StringMatch::Exact(body.to_owned()) })
}

/// A namespace.
pub(super) fn namespace(scope: &Scope<'_>, text: &str) -> Option<StringMatch> {
    let matched = string(scope, text)?;
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let good = match &matched {
        StringMatch::Exact(name) => is_label(name),
        other => literal(other).len() <= 63 && literal(other).bytes().all(allowed),
    };
    if !good {
        scope.problem(
            format!("`{}` cannot match a namespace", text.escape_debug()),
            "expected a DNS label, `abc*`, `*abc` or `*`",
        );
    }
    good.then_some(matched)
}

/// An address or a block of them.
pub(crate) fn cidr(scope: &Scope<'_>, text: &str) -> Option<Cidr> {
    let report = |error: CidrError| {
        let message = format!("`{}` is not an address or a block of addresses", text.escape_debug());
        scope.problem(message, error.to_string());
    };
    parse_cidr(text).map_err(report).ok()
}

/// A text is not a block of addresses. The message is the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CidrError {
    #[error("expected for example 10.0.0.0/8, 2001:db8::/32 or 192.0.2.7")]
    Address,
    #[error("expected a prefix length from 0 to {0}")]
    Prefix(u8),
    #[error("write the IPv4 address: {0}{prefix}", prefix = .1.map(|length| format!("/{length}")).unwrap_or_default())]
    Mapped(Ipv4Addr, Option<u8>),
    #[error("{text} has bits set after its prefix; write {first}/{length}")]
    HostBits { text: String, first: IpAddr, length: u8 },
}

/// The same, without a report.
pub(crate) fn parse_cidr(text: &str) -> Result<Cidr, CidrError> {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let address: IpAddr = address.parse().map_err(|_| CidrError::Address)?;
    let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
    let length = match prefix {
        None => bits,
        Some(digits) => match digits.parse::<u8>() {
            Ok(length) if length <= bits && (digits == "0" || !digits.starts_with(['0', '+'])) => length,
            _ => return Err(CidrError::Prefix(bits)),
        },
    };
    if let IpAddr::V6(v6) = address
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        return Err(CidrError::Mapped(v4, length.checked_sub(96)));
    }
    let first = first(address, length);
    if first != address {
        return Err(CidrError::HostBits { text: text.to_owned(), first, length });
    }
    Ok(Cidr { address, prefix: length })
}

/// The first address of the block that an address is in.
fn first(address: IpAddr, length: u8) -> IpAddr {
    let length = u32::from(length);
    match address {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(32 - length).unwrap_or(0)).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(128 - length).unwrap_or(0)).into()),
    }
}

/// A host as part of a condition, in the form in which hosts are compared.
pub(crate) fn host(scope: &Scope<'_>, text: &str) -> Option<StringMatch> {
    let matched = string(scope, text)?;
    if has_port(literal(&matched)) {
        scope.problem(format!("`{}` has a port", text.escape_debug()), "hosts are compared without port; use `ports`");
        return None;
    }
    let normal = match &matched {
        StringMatch::Exact(text) => host::normal(text).map(StringMatch::Exact),
        StringMatch::Prefix(text) => host::prefix(text).map(StringMatch::Prefix),
        StringMatch::Suffix(text) => host::suffix(text).map(StringMatch::Suffix),
        StringMatch::Present | StringMatch::Any | StringMatch::Regex(_) => Some(matched.clone()),
    };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    let allowed = |text: &str| text.bytes().all(allowed) && text.len() <= 253;
    let normal = normal.filter(|matched| allowed(literal(matched)));
    if normal.is_none() {
        scope.problem(
            format!("`{}` cannot match a host", text.escape_debug()),
            "expected for example shop.example or *.shop.example; labels beyond ASCII have to be whole",
        );
    }
    normal
}

/// `host:80`, but not an IPv6 address.
fn has_port(host: &str) -> bool {
    let colons = host.bytes().filter(|byte| *byte == b':').count();
    colons == 1 || host.contains("]:")
}

/// A host that the gateway listens for: exact, `*.suffix` or `*`, in the form in which hosts are compared.
pub(super) fn exposed_host(scope: &Scope<'_>, text: &str) -> Option<String> {
    let normal = host::pattern(text).filter(|_| text.parse::<std::net::Ipv6Addr>().is_err());
    let host = normal.unwrap_or_else(|| text.to_ascii_lowercase());
    let body = host.strip_prefix("*.").unwrap_or(&host);
    let name = body.len() <= 253 && body.split('.').all(is_label);
    let address = body.parse::<std::net::Ipv4Addr>().is_ok()
        || body
            .strip_prefix('[')
            .and_then(|v6| v6.strip_suffix(']'))
            .is_some_and(|v6| v6.parse::<std::net::Ipv6Addr>().is_ok());
    if host == "*" || name || (address && body == host) {
        return Some(host);
    }
    let fix = match text.split_once("://").map(|(_, rest)| rest.split(['/', ':', '?']).next().unwrap_or_default()) {
        Some(host) if !host.is_empty() => format!("write {host}"),
        _ if text.contains('/') => {
            format!("write {}, and the path in `path`", text.split('/').next().unwrap_or_default())
        }
        _ if has_port(body) => "leave out the port".to_owned(),
        _ => "expected for example shop.example, *.shop.example or *".to_owned(),
    };
    scope.problem(format!("`{}` is not a host", text.escape_debug()), fix);
    None
}

/// A method.
pub(crate) fn method(scope: &Scope<'_>, text: &str) -> Option<StringMatch> {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    let matched = string(scope, text)?;
    let upper = text.to_ascii_uppercase();
    if text != upper && KNOWN.contains(&upper.as_str()) {
        scope.problem(format!("methods are case-sensitive; no client sends `{text}`"), format!("write {upper}"));
        return None;
    }
    if !literal(&matched).bytes().all(super::header::is_token_byte) {
        scope.problem(format!("`{}` is not a method", text.escape_debug()), "expected for example GET");
        return None;
    }
    // Other methods are allowed, but not one that differs from a usual one by a slip of the keyboard.
    let slip = |known: &&&str| strsim::osa_distance(known, text) == 1;
    if let Some(meant) = KNOWN.iter().find(slip).filter(|_| !text.contains('*')) {
        scope.problem(format!("`{}` is a method that no client sends", text.escape_debug()), format!("write {meant}"));
        return None;
    }
    Some(matched)
}
