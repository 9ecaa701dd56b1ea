//! Back ends: the functions, Externals and revisions to which references lead.

use super::backend_tls::BackendTls;
use crate::problem::{Problem, Scope};
use crate::route_status::kind_name;
use crate::snapshot::Function;
use leno_gateway_api::GROUP;
use leno_model::revision::number;
use leno_model::{BackendTarget, Egress, FunctionId, HttpRouteKind, Run};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The API group of the mesh's own kinds.
pub(super) const LENO: &str = "leno.dev";

/// A reference to a back end, with the defaults filled in.
#[derive(Clone, Copy)]
pub(super) struct Reference<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    /// `None`: that of the route.
    pub namespace: Option<&'a str>,
    pub name: &'a str,
    pub port: Option<u16>,
}

/// A reference that leads nowhere: a reason for `ResolvedRefs`, and the problem in the document.
pub(super) struct BadReference {
    pub reason: &'static str,
    pub problem: Problem,
}

/// The ReferenceGrant documents.
#[derive(Default)]
pub(super) struct Grants<'a> {
    /// By the namespace that grants.
    by_namespace: BTreeMap<&'a str, Vec<&'a leno_gateway_api::ReferenceGrantSpec>>,
}

impl<'a> Grants<'a> {
    pub(super) fn add(&mut self, namespace: &'a str, spec: &'a leno_gateway_api::ReferenceGrantSpec) {
        self.by_namespace.entry(namespace).or_default().push(spec);
    }

    /// Whether documents of a kind and namespace may refer to an object of another namespace, which
    /// has one of these groups and kinds.
    pub(super) fn permit(&self, from: (&str, &str), to: (&str, &str), kinds: &[(&str, &str)]) -> bool {
        let all = self.by_namespace.get(to.0).into_iter().flatten();
        let mut fitting = all.filter(|grant| {
            let mut sources = grant.from.iter();
            sources.any(|it| it.group == GROUP && it.kind == from.0 && it.namespace == from.1)
        });
        fitting.any(|grant| {
            grant.to.iter().any(|it| {
                kinds.contains(&(&*it.group, &*it.kind)) && it.name.as_deref().is_none_or(|name| name == to.1)
            })
        })
    }
}

/// The objects to which references of a route can lead.
pub(super) struct References<'a> {
    pub functions: &'a BTreeMap<FunctionId, Function>,
    pub backend_tls: &'a BackendTls,
    /// `None`: calls need no grant, because policies decide which function may call which.
    pub grants: Option<&'a Grants<'a>>,
    /// `namespace/name` of the route.
    pub route: &'a str,
    /// Namespace and kind of the route.
    pub namespace: &'a str,
    pub kind: HttpRouteKind,
    pub unresolved: RefCell<Vec<BadReference>>,
    /// Back ends that have a policy for TLS.
    pub secured: RefCell<BTreeSet<FunctionId>>,
}

impl References<'_> {
    /// Where a reference leads. If it leads nowhere, this is noted.
    pub(super) fn target(&self, scope: &Scope<'_>, reference: Reference<'_>) -> BackendTarget {
        self.resolved(reference).unwrap_or_else(|(reason, message, fix)| self.invalid(scope, reason, message, fix))
    }

    /// A back end that leads nowhere.
    pub(super) fn invalid(&self, scope: &Scope<'_>, reason: &'static str, message: String, fix: &str) -> BackendTarget {
        let problem = Problem { message: message.clone(), fix: fix.to_owned(), ..scope.here() };
        self.unresolved.borrow_mut().push(BadReference { reason, problem });
        BackendTarget::Invalid(message)
    }

    fn resolved(&self, reference: Reference<'_>) -> Result<BackendTarget, (&'static str, String, &'static str)> {
        let Reference { group, kind, namespace, name, port } = reference;
        let namespace = namespace.unwrap_or(self.namespace);
        let (written, revision) = match (group, kind) {
            ("", "Service") | (LENO, "Function" | "External") => (name, None),
            (LENO, "Revision") => match name.split_once('.') {
                Some((function, revision)) => (function, Some(revision)),
                None => {
                    let message = format!("`{}` names no revision", name.escape_debug());
                    return Err(("BackendNotFound", message, "expected FUNCTION.REVISION"));
                }
            },
            _ => {
                let group = if group.is_empty() { String::new() } else { format!("{}/", group.escape_debug()) };
                let message = format!("`{group}{}` cannot be a back end", kind.escape_debug());
                let fix = "expected a `Service`, or a `Function`, `External` or `Revision` of the group `leno.dev`";
                return Err(("InvalidKind", message, fix));
            }
        };
        let shown = format!("{}/{}", namespace.escape_debug(), written.escape_debug());
        let missing = |what: &str| {
            let fix = "name a function or an External, in `namespace` if it is in another one";
            ("BackendNotFound", format!("there is no {what} `{shown}`"), fix)
        };
        let found = FunctionId::new(namespace, written).ok().and_then(|id| self.functions.get_key_value(&id));
        // A route of a gateway must not learn whether another namespace has a function of this name.
        if let Some(grants) = self.grants.filter(|_| namespace != self.namespace) {
            let mut kinds = vec![("", "Service")];
            match found {
                Some((_, function)) if matches!(function.run, Run::Egress(_)) => kinds.push((LENO, "External")),
                _ => kinds.extend([(LENO, "Function"), (LENO, "Revision")]),
            }
            if !grants.permit((kind_name(self.kind), self.namespace), (namespace, written), &kinds) {
                let message = format!("no ReferenceGrant of the namespace lets routes refer to `{shown}`");
                let fix = "add one there, with this route's namespace and kind in `from`";
                return Err(("RefNotPermitted", message, fix));
            }
        }
        let Some((id, function)) = found else { return Err(missing("function or External")) };
        if self.backend_tls.has(id) {
            self.secured.borrow_mut().insert(id.clone());
        }
        if let Some(reason) = self.backend_tls.refusal(id) {
            return Err(("UnsupportedProtocol", format!("`{shown}`: {reason}"), "correct the policy, or remove it"));
        }
        match (&function.run, kind) {
            (Run::Job(_), _) => {
                return Err(("InvalidKind", format!("`{shown}` is a job, which gets no requests"), "name a function"));
            }
            (Run::Egress(_), "Function" | "Revision") => return Err(missing("function")),
            (Run::Egress(egress), _) => return at(id, egress, port),
            (_, "External") => return Err(missing("External")),
            _ => {}
        }
        if let Some(port) = port.filter(|port| function.run.other_ports().iter().any(|other| other.number == *port)) {
            let message = format!("`{shown}` does not serve HTTP at its port {port}");
            return Err(("UnsupportedProtocol", message, "name another port, such as 80"));
        }
        match revision {
            None => Ok(BackendTarget::Function(id.clone())),
            Some(revision) if has_revision(id, function, revision) => {
                Ok(BackendTarget::Revision(id.clone(), revision.to_owned()))
            }
            Some(revision) => {
                let message = format!("`{shown}` has no revision `{}`", revision.escape_debug());
                Err(("BackendNotFound", message, "expected a name of `revisions`, or a tag of `traffic`"))
            }
        }
    }
}

/// A port of an External that serves HTTP.
fn at(
    id: &FunctionId,
    egress: &Egress,
    port: Option<u16>,
) -> Result<BackendTarget, (&'static str, String, &'static str)> {
    let Some(port) = egress.http_port(port.unwrap_or(80)) else {
        let message = match port {
            Some(port) => format!("`{id}` does not serve HTTP at its port {port}"),
            None => format!("`{id}` does not serve HTTP at port 80"),
        };
        return Err(("UnsupportedProtocol", message, "name one of its ports with `http` or `https`"));
    };
    Ok(BackendTarget::External(id.clone(), port.number))
}

/// Whether a document declares a revision, names it by a tag, or could have had it.
fn has_revision(id: &FunctionId, function: &Function, revision: &str) -> bool {
    let plan = &function.plan;
    plan.declared.iter().any(|declared| declared.name == revision)
        || plan.traffic.iter().any(|target| target.tag.as_deref() == Some(revision))
        || number(id, revision).is_some()
}
