//! An External document.

use super::fields::{self, DAY, MILLISECOND};
use super::header::{self, Use};
use super::{Context, TypedDocument, metadata, stored_secret, text};
use crate::document::{self, EgressNodes, ExternalCredential, ExternalPort, ExternalSpec, ExternalTls};
use crate::duration::Duration;
use crate::host;
use crate::problem::{Problem, Scope};
use crate::snapshot::Function;
use leno_model::FunctionId;
use leno_model::Run;
use leno_model::egress::{Credential, CredentialForm, Egress, EgressPort, EgressProtocol, EgressTls};
use leno_model::function_id::is_label;
use leno_model::revision::Plan;
use leno_policy::spec::Cidr;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest useful wait for a connection.
const LONGEST_CONNECT: Duration = Duration::from_secs(60);

/// To its callers, it is a function; it calls no function, and has no instances.
pub(super) fn external(
    context: &Context<'_>,
    root: &Scope<'_>,
    document: &document::External,
    mesh: &leno_model::MeshConfig,
) -> Function {
    let spec = &document.spec;
    let namespace = &document.metadata.namespace;
    let scope = root.field("spec");
    let timeouts = scope.field("timeouts");
    let timeout = spec.timeouts.request.map(|timeout| {
        fields::millis(&timeouts.field("request"), timeout, Duration::default(), DAY);
        timeout.0
    });
    let connect = fields::within(&timeouts.field("connect"), spec.timeouts.connect, MILLISECOND, LONGEST_CONNECT);
    if spec.hosts.is_empty() && spec.addresses.is_empty() {
        scope.problem("it is nowhere", "add `hosts: [api.example.com]` or `addresses: [192.0.2.7]`");
    }
    if spec.hosts.is_empty() && !spec.resolves_to.is_empty() {
        scope.field("resolvesTo").problem("there are no `hosts` that could be looked up", "remove it");
    }
    let has_requests = |port: &ExternalPort| matches!(port.protocol, EgressProtocol::Http | EgressProtocol::Https);
    if spec.paths.as_received() && !spec.ports.iter().any(has_requests) {
        let fix = "remove it, or give it a port with `http` or `https`";
        scope.field("paths").problem("it has no port for requests, so nothing is sent with a path", fix);
    }
    for (index, port) in spec.ports.iter().enumerate() {
        let usual = match (port.port, port.protocol) {
            (443, EgressProtocol::Http) => "https",
            (80, EgressProtocol::Https | EgressProtocol::Tls) => "http",
            _ => continue,
        };
        let message = format!("port {} is usually for `{usual}`", port.port);
        scope.field("ports").element(index).field("protocol").doubt(context.doubts, message, format!("write {usual}"));
    }
    fields::not_written_empty(&scope, "resolvesTo", &spec.resolves_to, "all addresses but special ones");
    let egress = Egress {
        hosts: hosts(&scope.field("hosts"), &spec.hosts),
        addresses: cidrs(context, &scope.field("addresses"), namespace, &spec.addresses),
        resolves_to: cidrs(context, &scope.field("resolvesTo"), namespace, &spec.resolves_to),
        ports: ports(&scope.field("ports"), spec),
        tls: tls(context, &scope, namespace, spec),
        credentials: credentials(context, &scope, namespace, spec),
        connect_timeout: connect,
        trace_context: spec.trace_context,
        by_egress_nodes: context.egress_nodes == EgressNodes::Egress,
    };
    Function {
        origin: root.origin(),
        labels: document.metadata.labels.clone(),
        protocol: leno_model::AppProtocol::default(),
        run: Run::Egress(egress),
        place: scope.here(),
        declared_places: Vec::new(),
        expose: Vec::new(),
        callees: Vec::new(),
        concurrency: 0,
        queue: 0,
        scale: leno_model::Scale::default(),
        timeout: timeout.unwrap_or(mesh.limits.request_timeout),
        as_received: spec.paths.as_received(),
        plan: Plan::default(),
        chain: None,
        policies: Vec::new(),
    }
}

fn hosts(list: &Scope<'_>, written: &[String]) -> Vec<String> {
    let mut hosts: Vec<String> = Vec::new();
    for (index, written) in written.iter().enumerate() {
        let scope = list.element(index);
        let Some(host) = host(&scope, written) else { continue };
        if hosts.contains(&host) {
            scope.problem(format!("`{host}` is named twice"), "remove one of the two");
        }
        hosts.push(host);
    }
    hosts
}

fn host(scope: &Scope<'_>, written: &str) -> Option<String> {
    let host = host::pattern(written).unwrap_or_else(|| written.to_ascii_lowercase());
    check_host(&host).map_err(|error| scope.problem(error.to_string(), error.fix())).ok()?;
    Some(host)
}

/// A name cannot be a host of an External document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// It is an address.
    #[error("`{0}` is an address")]
    Address(String),
    /// It is no name, or has no dot.
    #[error("`{}` is not the name of a host outside", .0.escape_debug())]
    Name(String),
    /// It is a name of functions.
    #[error("`{0}` is a name of the mesh's own")]
    Internal(String),
}

impl HostError {
    fn fix(&self) -> &'static str {
        match self {
            Self::Address(_) => "name it in `addresses`",
            Self::Name(_) => "expected a name with a dot, such as api.example.com, or *.example.com for one label more",
            Self::Internal(_) => "name a host outside of the mesh",
        }
    }
}

/// Whether this can be a host of an External document. It must have the form in which hosts are
/// compared.
pub(crate) fn check_host(host: &str) -> Result<(), HostError> {
    let body = host.strip_prefix("*.").unwrap_or(host);
    if body.parse::<std::net::IpAddr>().is_ok() {
        return Err(HostError::Address(body.to_owned()));
    }
    let labels: Vec<&str> = body.split('.').collect();
    if body.len() > 253 || labels.len() < 2 || !labels.iter().all(|label| is_label(label)) {
        return Err(HostError::Name(host.to_owned()));
    }
    let inside = ["svc", "svc.cluster.local", "localhost"];
    if inside.iter().any(|end| body.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))) {
        return Err(HostError::Internal(host.to_owned()));
    }
    Ok(())
}

fn cidrs(context: &Context<'_>, list: &Scope<'_>, namespace: &str, written: &[String]) -> Vec<Cidr> {
    let cidr = |(index, written): (usize, &String)| {
        let scope = list.element(index);
        let block = text::cidr(&scope, written)?;
        metadata::refuse(context, &scope, namespace, block);
        Some(block)
    };
    written.iter().enumerate().filter_map(cidr).collect()
}

fn ports(list: &Scope<'_>, spec: &ExternalSpec) -> Vec<EgressPort> {
    if spec.ports.is_empty() {
        list.problem("it has no port", "add one, such as `{port: 443, protocol: https}`");
    }
    let mut ports: Vec<EgressPort> = Vec::new();
    for (index, ExternalPort { port: number, protocol, http2 }) in spec.ports.iter().copied().enumerate() {
        let scope = list.element(index);
        let port = EgressPort { number: fields::port(&scope.field("port"), number), protocol, http2 };
        let is_http = |protocol| matches!(protocol, EgressProtocol::Http | EgressProtocol::Https);
        for other in ports.iter().filter(|other| other.number == number) {
            // Clients that start TLS themselves and clients that leave it to the node can be
            // distinguished by the port that they name: 443 or 80.
            let apart = [other.protocol, protocol]
                .into_iter()
                .all(|one| matches!(one, EgressProtocol::Https | EgressProtocol::Tls))
                && other.protocol != protocol;
            if !apart {
                scope.field("port").problem(format!("port {number} is there twice"), "remove one of the two");
            }
        }
        if http2 && !is_http(protocol) {
            scope.field("http2").problem("it says something about HTTP, which this port is not", "remove it");
        }
        if protocol == EgressProtocol::Https && ports.iter().any(|other| other.protocol == EgressProtocol::Https) {
            let fix = "give each an External document of its own: `http://HOST/` could mean either";
            scope.problem("there is another port with `https`", fix);
        }
        if protocol == EgressProtocol::Tls && spec.hosts.is_empty() {
            scope.problem("nothing says which name its clients have to ask for", "add `hosts`, or use `tcp`");
        }
        if protocol == EgressProtocol::Tcp && (spec.hosts.len() > 1 || spec.hosts.iter().any(|host| host.contains('*')))
        {
            let fix = "give it an External document with one host, or with `addresses`";
            scope.problem("a connection does not tell which of the hosts is meant", fix);
        }
        ports.push(port);
    }
    ports
}

fn tls(context: &Context<'_>, scope: &Scope<'_>, namespace: &str, spec: &ExternalSpec) -> EgressTls {
    let Some(ExternalTls { ca_file, certificate, key, server_name }) = &spec.tls else { return EgressTls::default() };
    let scope = scope.field("tls");
    if !spec.ports.iter().any(|port| port.protocol == EgressProtocol::Https) {
        scope.problem("no port has `protocol: https`, so the node begins no TLS", "remove it, or change the port");
    }
    let file = |field: &str, source| stored_secret::existing(context, &scope.field(field), namespace, source);
    let pair = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((file("certificate", certificate), file("key", key))),
        (None, None) => None,
        (Some(_), None) => {
            scope.field("certificate").problem("there is no key for it", "add `key: FILE`");
            None
        }
        (None, Some(_)) => {
            scope.field("key").problem("there is no certificate for it", "add `certificate: FILE`");
            None
        }
    };
    let normal = |written: &String| {
        let name = host::normal(written).filter(|name| name.len() <= 253 && name.split('.').all(is_label));
        if name.is_none() {
            let message = format!("`{}` is not a host's name", written.escape_debug());
            scope.field("serverName").problem(message, "expected a name, such as api.example.com");
        }
        name
    };
    EgressTls {
        ca_file: ca_file.as_ref().map(|source| file("caFile", source)),
        certificate: pair,
        server_name: server_name.as_ref().and_then(normal),
        ..EgressTls::default()
    }
}

fn credentials(context: &Context<'_>, scope: &Scope<'_>, namespace: &str, spec: &ExternalSpec) -> Vec<Credential> {
    let list = scope.field("credentials");
    let mut credentials: Vec<Credential> = Vec::new();
    if !spec.credentials.is_empty() {
        let has = |wanted| spec.ports.iter().any(|port| port.protocol == wanted);
        if has(EgressProtocol::Http) || !has(EgressProtocol::Https) {
            let fix = "use `protocol: https` for its ports with HTTP";
            list.problem("secrets are not sent without TLS", fix);
        }
    }
    for (index, ExternalCredential { header, scheme, username, from }) in spec.credentials.iter().enumerate() {
        let scope = list.element(index);
        let form = match (scheme, username) {
            (None, None) => CredentialForm::Plain,
            (Some(scheme), None) => {
                if scheme.is_empty() || !scheme.bytes().all(header::is_token_byte) {
                    let message = format!("`{}` is not a scheme", scheme.escape_debug());
                    list.element(index).field("scheme").problem(message, "expected a word, such as Bearer");
                }
                CredentialForm::Scheme(scheme.clone())
            }
            (None, Some(user)) => {
                if user.contains(':') || user.chars().any(char::is_control) {
                    let fix = "expected characters other than `:` (RFC 7617)";
                    scope.field("username").problem("this cannot be a user of basic authentication", fix);
                }
                CredentialForm::Basic(user.clone())
            }
            (Some(_), Some(_)) => {
                let fix = "keep `username` for basic authentication, or `scheme` for another one";
                scope.field("scheme").problem("there is a `username` too", fix);
                CredentialForm::Plain
            }
        };
        let Some(name) = header::name(&scope.field("header"), header, Use::Edit) else { continue };
        if credentials.iter().any(|other| other.header == name) {
            scope.field("header").problem(format!("`{name}` is set twice"), "remove one of the two");
        }
        let from = stored_secret::source(context, &scope.field("from"), namespace, from);
        credentials.push(Credential { header: name, form, from });
    }
    credentials
}

/// Refuses callees of one function that cannot be distinguished: the node finds the callee of a
/// call by host or address.
pub(super) fn distinct_callees(
    context: &Context<'_>,
    functions: &mut BTreeMap<FunctionId, Function>,
    scope_of: impl Fn(&FunctionId, &dyn Fn(&Scope<'_>)),
) {
    let mut severed = Vec::new();
    let egress = |id: &FunctionId| match functions.get(id).map(|function| &function.run) {
        Some(Run::Egress(egress)) => Some(egress.clone()),
        _ => None,
    };
    for (caller, function) in functions.iter().take_while(|_| !context.effort.is_over()) {
        let mut refuse = |callee: &FunctionId, other: &FunctionId, index: usize, message: &str, fix: &str| {
            let foreign = Cell::new(false);
            scope_of(caller, &|root| {
                let spec = root.field("spec");
                let list = spec.field("callees");
                let place = list.element(index);
                foreign.set([callee, other].iter().any(|id| fields::is_of_another_tenant(root, &caller.namespace, id)));
                match foreign.get() {
                    true => fields::not_callable(context, &place, callee, fix),
                    false => place.problem(message, fix),
                }
            });
            if foreign.get() {
                severed.push((caller.clone(), callee.clone()));
            }
        };
        let externals: Vec<(usize, &FunctionId, Egress)> = function
            .callees
            .iter()
            .enumerate()
            .filter_map(|(index, callee)| Some((index, callee, egress(callee)?)))
            .collect();
        for (index, callee, egress) in &externals {
            let named = |function: &&FunctionId| {
                let name = format!("{}.{}", function.name, function.namespace);
                !externals.iter().any(|(_, other, _)| other == function) && egress.hosts.contains(&name)
            };
            let Some(inside) = function.callees.iter().find(named) else { continue };
            let message = format!("`{callee}` has the name of the function `{inside}`");
            refuse(callee, inside, *index, &message, "call one of them");
        }
        for (place, (index, callee, second)) in externals.iter().enumerate() {
            if context.effort.is_over() {
                break;
            }
            for (_, other, first) in &externals[..place] {
                let host = second.hosts.iter().find(|host| first.hosts.contains(host)).cloned();
                let block = second.addresses.iter().find(|block| first.addresses.contains(block));
                let block = block.map(|block| format!("{}/{}", block.address, block.prefix));
                let Some(both) = host.or(block) else { continue };
                let fix = "call one of them, or make one External document of the two, with all ports";
                refuse(callee, other, *index, &format!("`{callee}` and `{other}` are both {both}"), fix);
            }
        }
    }
    sever(functions, severed);
}

/// Removes callees from callers: their calls are refused.
pub(super) fn sever(functions: &mut BTreeMap<FunctionId, Function>, calls: Vec<(FunctionId, FunctionId)>) {
    for (caller, callee) in calls {
        functions.entry(caller).and_modify(|function| function.callees.retain(|other| *other != callee));
    }
}

/// External documents by name. Names are identities, so each may appear once among functions, jobs and these.
pub(super) fn names(
    externals: &[Arc<TypedDocument<document::External>>],
    taken: impl Fn(&FunctionId) -> Option<(&'static str, String)>,
    problems: &RefCell<Vec<Problem>>,
) -> BTreeMap<FunctionId, usize> {
    let mut names = BTreeMap::new();
    for (index, placed) in externals.iter().enumerate() {
        let root = placed.scope(problems);
        let metadata = root.field("metadata");
        let Some(id) = fields::id(&metadata, &placed.document.metadata) else { continue };
        let other = names.get(&id).map(|first: &usize| ("External document", externals[*first].scope(problems).line()));
        if let Some((what, line)) = taken(&id).or(other) {
            let message = format!("there is a {what} `{id}` too, in {line}, and policies could not tell them apart");
            metadata.field("name").problem(message, "give each its own name");
            continue;
        }
        names.insert(id, index);
    }
    names
}
