//! Functions that are pods of Kubernetes, and the service accounts that they share.

use super::cache::{Results, repeat};
use super::function::INSTANCE_FIELDS;
use super::{Context, Documents, fields};
use crate::document::LabelSelector;
use crate::document_id::DocumentId;
use crate::problem::{Problem, Scope};
use crate::snapshot::{Function, Policy};
use leno_model::{FunctionId, PodMode, Pods, Run, SpiffeId, TrustDomain};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Longest name of a service account in Kubernetes.
const MAX_ACCOUNT: usize = 253;

/// The service accounts of a function that has pods.
pub(super) struct Accounts<'a> {
    /// The identity of its account; `None`: the account cannot be one.
    pub identity: Option<SpiffeId>,
    /// The other accounts of its pods.
    pub others: &'a [String],
}

/// The service accounts of functions that have pods.
pub(super) fn accounts<'a>(
    documents: &'a Documents,
    names: &'a BTreeMap<FunctionId, usize>,
    trust_domain: &TrustDomain,
    cache: &mut Results,
) -> BTreeMap<&'a FunctionId, Accounts<'a>> {
    let account = |(id, index): (&'a FunctionId, &usize)| {
        let placed = &documents.functions[*index];
        let pods = placed.document.spec.pods.as_ref();
        let identity = cache.identity(placed, || pods?.identity(trust_domain, &id.namespace).ok());
        pods.map(|pods| (id, Accounts { identity, others: &pods.other_accounts }))
    };
    names.iter().filter_map(account).collect()
}

/// `spec.pods` of a function.
pub(super) fn pods(context: &Context<'_>, spec: &Scope<'_>, id: &FunctionId, pods: &Pods) -> Pods {
    let scope = spec.field("pods");
    if !context.kubernetes {
        let fix =
            "remove it; the control plane for Kubernetes makes functions of the pods with `leno.dev/mesh: enabled`";
        scope.problem("`pods` is not for documents that are written by hand", fix);
        return pods.clone();
    }
    let others = ["command", "image", "args", "wasm", "external", "callees", "revisions", "traffic", "rollout"];
    for field in INSTANCE_FIELDS.into_iter().chain(others) {
        if spec.has(field) {
            let message = format!("`{field}` is not for pods, which Kubernetes runs");
            spec.field(field).problem(message, "remove it");
        }
    }
    let account = &pods.service_account;
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    let is_name = account.len() <= MAX_ACCOUNT && account.bytes().all(allowed);
    let identity = pods.identity(context.trust_domain, &id.namespace).ok().filter(|_| is_name);
    match identity {
        Some(identity) if identity.is_reserved() => {
            let message = format!("the namespace `{}` is the mesh's own", id.namespace);
            scope.problem(message, "run the function in another namespace");
        }
        Some(_) => {}
        None => {
            let message = format!("`{}` is not a service account", account.escape_debug());
            scope.field("serviceAccount").problem(message, "expected a-z, 0-9, `-` and `.`, at most 253 characters");
        }
    }
    let ports = scope.field("ports");
    for (index, port) in pods.ports.iter().enumerate() {
        fields::port(&ports.element(index).field("number"), port.number);
    }
    pods.clone()
}

/// An identity that no function and no service account has. It stands for a function that does not
/// exist.
pub(super) fn identity_of_none(context: &Context<'_>, id: &FunctionId) -> String {
    format!("spiffe://{}/ns/{}/function/{}", context.trust_domain, id.namespace, id.name)
}

/// Reports rules that name callers whose service account other functions have too: a rule means all
/// functions of the account. If the callee's pods enforce their policies, the rule is refused,
/// unless its policy is in force: the start of another workload must not end calls.
pub(super) fn shared_accounts(
    context: &Context<'_>,
    (documents, policies): (&Documents, &[Arc<Policy>]),
    functions: &BTreeMap<FunctionId, Function>,
    cache: &mut Results,
    problems: &RefCell<Vec<Problem>>,
) {
    if context.accounts.is_empty() {
        return;
    }
    let mut of_identity: BTreeMap<Cow<'_, SpiffeId>, Vec<&FunctionId>> = BTreeMap::new();
    for (id, _) in functions.iter().filter(|(_, function)| !matches!(function.run, Run::Egress(_))) {
        let account = context.accounts.get(id).and_then(|accounts| accounts.identity.as_ref());
        let identity = account.map_or_else(|| Cow::Owned(context.identity(id)), Cow::Borrowed);
        of_identity.entry(identity).or_default().push(id);
        for identity in other_identities(context, id) {
            of_identity.entry(Cow::Owned(identity)).or_default().push(id);
        }
    }
    of_identity.retain(|_, ids| ids.len() > 1 && ids.iter().any(|id| context.accounts.contains_key(id)));
    let of_identity: BTreeMap<SpiffeId, Vec<&FunctionId>> =
        of_identity.into_iter().map(|(identity, ids)| (identity.into_owned(), ids)).collect();
    cache.set_sharers(&of_identity);
    if of_identity.is_empty() && context.accounts.values().all(|accounts| accounts.others.is_empty()) {
        return;
    }
    let enforced = |function: &Function| matches!(&function.run, Run::Pods(pods) if pods.mode == PodMode::Enforced);
    let strict: BTreeSet<usize> =
        functions.values().filter(|function| enforced(function)).flat_map(|it| it.policies.iter().copied()).collect();
    let going_on = |_: &_| !context.effort.is_over();
    for (index, (placed, policy)) in documents.policies.iter().zip(policies).enumerate().take_while(going_on) {
        let root = placed.scope(problems);
        let namespace = placed.document.metadata.namespace.as_str();
        let id = DocumentId::new("Policy", namespace, &placed.document.metadata.name);
        let is_refused = strict.contains(&index) && !documents.in_force.contains(&id);
        if let Some(doubts) = cache.sharing(placed, is_refused) {
            repeat(context.doubts, doubts);
            continue;
        }
        let before = context.doubts.borrow().len();
        let report = |scope: &Scope<'_>, caller: &FunctionId, others: &[&FunctionId]| {
            let (message, fix) = sharing(context, namespace, caller, others);
            match is_refused {
                true => scope.problem(message, fix),
                false => scope.doubt(context.doubts, message, fix),
            }
        };
        let doubt = |scope: &Scope<'_>, caller: &FunctionId| {
            if let Some((message, fix)) = unmeant(context, namespace, caller) {
                scope.doubt(context.doubts, message, fix);
            }
        };
        let sharers = |caller: &FunctionId| -> Vec<&FunctionId> {
            let all = of_identity.get(&context.identity(caller)).into_iter().flatten().copied();
            all.filter(|other| *other != caller).collect()
        };
        let spec = root.field("spec");
        let section = spec.field("authorization");
        let rules = section.field("rules");
        for (number, rule) in placed.document.spec.authorization.iter().flat_map(|it| &it.rules).enumerate() {
            let element = rules.element(number);
            let from = element.field("from");
            for (position, source) in rule.from.iter().flatten().enumerate() {
                let scope = from.element(position);
                let named =
                    [("identities", source.identities.as_deref()), ("notIdentities", Some(&*source.not_identities))];
                for (field, texts) in named {
                    let list = scope.field(field);
                    for (place, text) in texts.into_iter().flatten().enumerate() {
                        let Some(caller) = fields::parsed(namespace, text) else { continue };
                        let others = sharers(&caller);
                        if !others.is_empty() {
                            report(&list.element(place), &caller, &others);
                        }
                        doubt(&list.element(place), &caller);
                    }
                }
                let compiled = policy.authorization.get(number).and_then(|rule| rule.from.get(position));
                let Some(labelled) = compiled.and_then(|source| source.labels.as_ref()) else { continue };
                let expressions = source.label_expressions.as_deref().unwrap_or_default();
                let selector = LabelSelector { labels: source.labels.as_ref(), expressions };
                let holds = |id: &FunctionId| context.labels.get(id).is_some_and(|labels| selector.holds(labels));
                let unselected = |caller: &&FunctionId| {
                    let mut others = sharers(caller);
                    others.retain(|other| !holds(other));
                    (!others.is_empty()).then(|| ((*caller).clone(), others))
                };
                let is_meant =
                    |id: &FunctionId| labelled.identities.binary_search(&context.identity(id).to_string()).is_ok();
                let written = if source.labels.is_some() { "labels" } else { "labelExpressions" };
                let mut selected = context.accounts.keys().filter(|id| holds(id) && is_meant(id));
                selected.clone().for_each(|caller| doubt(&scope.field(written), caller));
                if let Some((caller, others)) = selected.find_map(unselected) {
                    report(&scope.field(written), &caller, &others);
                }
            }
        }
        if problems.borrow().is_empty() {
            cache.keep_sharing(placed, is_refused, &context.doubts.borrow()[before..]);
        }
    }
}

/// The identities of pods of a function that rules do not mean which name it.
fn other_identities(context: &Context<'_>, id: &FunctionId) -> impl Iterator<Item = SpiffeId> {
    let accounts = context.accounts.get(id).map(|accounts| accounts.others).unwrap_or_default();
    accounts.iter().filter_map(|account| SpiffeId::function(context.trust_domain, &id.namespace, account).ok())
}

/// The message about a caller some of whose pods have another service account than the function, and
/// the fix. A label makes a pod one of a function; it must not give it the function's rights.
fn unmeant(context: &Context<'_>, namespace: &str, caller: &FunctionId) -> Option<(String, String)> {
    let other = other_identities(context, caller).next()?;
    let (own, account) = (context.identity(caller), other.name().unwrap_or_default());
    let message = match caller.namespace == namespace {
        true => format!("`{caller}` also has pods with the service account `{account}`"),
        false => format!("`{caller}` also has pods with another service account"),
    };
    let fix = match caller.namespace == namespace {
        true => format!("give them that account, or write `{other}` to mean this one, too"),
        false => "give them that account".to_owned(),
    };
    Some((format!("{message}: the rule means `{own}` only"), fix))
}

/// The message about a caller that shares its service account, and the fix.
fn sharing(context: &Context<'_>, namespace: &str, caller: &FunctionId, others: &[&FunctionId]) -> (String, String) {
    // A policy may be of a tenant, who must not learn the names of other namespaces.
    let names = match others {
        [other, ..] if other.namespace == namespace => match others.len() {
            1 => format!("`{other}`"),
            count => format!("`{other}` and {} more", count - 1),
        },
        _ => "other functions".to_owned(),
    };
    let identity = context.identity(caller);
    (
        format!("`{caller}` has the service account of {names}: the rule means all of them"),
        format!("give its pods another service account, or write `{identity}` to mean all that have this one"),
    )
}
