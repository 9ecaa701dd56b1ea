//! `ExternalAuth` filters: authorizers that a route asks (GEP-1494).

use super::backends::{Reference, References};
use super::filters::refused;
use crate::compile::authorizer::{is_prefix, reached};
use crate::compile::header::{self, Use};
use crate::problem::{Problem, Scope};
use leno_gateway_api::{BackendObjectReference, HTTPExternalAuthFilter, HTTPRouteExternalAuthProtocol};
use leno_model::{Authorizer, AuthorizerProtocol, BackendTarget, RouteAuthorizer};
use std::cell::RefCell;
use std::time::Duration;

/// How long an answer may take, also if an instance of the authorizer has to start for it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The status of requests without an answer, as for authorizers of policies.
const STATUS_ON_ERROR: u16 = 503;
/// Header fields of an answer that refuses, for clients that have to log in.
const FOR_CLIENTS: [&str; 3] = ["location", "set-cookie", "www-authenticate"];

/// The authorizer of a filter.
///
/// # Errors
/// The reason for which requests of the rule get an error: no authorizer can be asked as the filter says.
pub(super) fn compiled(
    references: &References<'_>,
    scope: &Scope<'_>,
    written: &HTTPExternalAuthFilter,
    index: usize,
) -> Result<RouteAuthorizer, String> {
    let HTTPExternalAuthFilter { backend_ref, forward_body, grpc, http, protocol } = written;
    let BackendObjectReference { group, kind, name, namespace, port } = backend_ref;
    let place = scope.field("backendRef");
    let reference = Reference { group, kind, namespace: namespace.as_deref(), name, port: *port };
    let target = references.target(&place, reference);
    let protocol = match protocol {
        HTTPRouteExternalAuthProtocol::HTTP => AuthorizerProtocol::Http,
        HTTPRouteExternalAuthProtocol::GRPC => AuthorizerProtocol::Grpc,
    };
    let (id, at) = match &target {
        BackendTarget::Invalid(reason) => return Err(reason.clone()),
        BackendTarget::External(id, port) => (id, Some(*port)),
        BackendTarget::Function(id) => (id, None),
        BackendTarget::Revision(id, _) => {
            let message = format!("a question goes to no revision of `{id}`");
            return Err(refused(references, &place, message, "name the function"));
        }
    };
    let authority = match references.functions.get(id).map(|called| reached(id, called, protocol, at)) {
        // A function gets the host of the request.
        Some(Ok(_)) if at.is_none() => String::new(),
        Some(Ok(authority)) => authority,
        Some(Err((message, fix))) => return Err(refused(references, &place, message, fix)),
        None => return Err(refused(references, &place, format!("there is no `{id}`"), "")),
    };
    if forward_body.as_ref().and_then(|body| body.max_size).is_some_and(|size| size != 0) {
        let message = "an authorizer gets no bodies".to_owned();
        return Err(refused(references, &scope.field("forwardBody"), message, "remove it, or use `maxSize: 0`"));
    }
    let path = http.as_ref().and_then(|http| http.path.as_deref()).unwrap_or_default().trim_end_matches('/');
    let of_http = scope.field("http");
    if !path.is_empty() && !is_prefix(path) {
        let message = format!("`{}` cannot stand before a path", path.escape_debug());
        let fix = "expected a path such as /check: letters, digits, `-`, `.`, `_` and `~`";
        return Err(refused(references, &of_http.field("path"), message, fix));
    }
    let of_grpc = scope.field("grpc");
    let wrong = RefCell::default();
    let names = |list: &Scope<'_>, written: &[String], purpose| names(&list.reporting(&wrong), written, purpose);
    let shown = match (protocol, http, grpc) {
        (AuthorizerProtocol::Http, Some(http), _) => {
            let mut shown = names(&of_http.field("allowedHeaders"), &http.allowed_headers, Use::Read);
            shown.push("authorization".to_owned());
            Some(shown)
        }
        (AuthorizerProtocol::Http, None, _) => Some(vec!["authorization".to_owned()]),
        (AuthorizerProtocol::Grpc, _, Some(grpc)) if !grpc.allowed_headers.is_empty() => {
            Some(names(&of_grpc.field("allowedHeaders"), &grpc.allowed_headers, Use::Read))
        }
        (AuthorizerProtocol::Grpc, ..) => None,
    };
    let set = http.as_ref().map(|http| &http.allowed_response_headers[..]).unwrap_or_default();
    let set_in_request = names(&of_http.field("allowedResponseHeaders"), set, Use::Edit);
    // The rule stays in force, and its requests get an error: none passes without an answer.
    if let Some(Problem { message, fix, .. }) = wrong.into_inner().into_iter().next() {
        return Err(refused(references, scope, message, &fix));
    }
    Ok(RouteAuthorizer {
        target,
        authorizer: Authorizer {
            name: format!("{}/externalAuth/{index}", references.route),
            authority,
            protocol,
            path_prefix: path.to_owned(),
            timeout: TIMEOUT,
            status_on_error: STATUS_ON_ERROR,
            shown,
            raw_headers: false,
            upstream_headers: set_in_request,
            client_headers: FOR_CLIENTS.map(str::to_owned).to_vec(),
            cache: None,
            audit: false,
        },
        sets_all: set.is_empty(),
    })
}

/// Header fields, but `host`, which an authorizer gets in any case.
fn names(list: &Scope<'_>, written: &[String], purpose: Use) -> Vec<String> {
    let always = |name: &str| {
        purpose == Use::Read && ["host", "content-length"].iter().any(|own| own.eq_ignore_ascii_case(name))
    };
    let checked = |(index, name): (usize, &String)| header::name(&list.element(index), name, purpose);
    written.iter().enumerate().filter(|(_, name)| !always(name)).filter_map(checked).collect()
}
