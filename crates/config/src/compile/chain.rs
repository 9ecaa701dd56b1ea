//! Chain documents.

use super::{Context, Documents, TypedDocument};
use super::{external, fields};
use crate::document;
use crate::nearest::did_you_mean;
use crate::problem::{Problem, Scope};
use crate::snapshot::{Function, Policy};
use leno_model::AppProtocol;
use leno_model::ChainLink;
use leno_model::FunctionId;
use leno_model::size::Size;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SMALLEST_MEMORY: Size = Size(64 << 10);
const LARGEST_MEMORY: Size = Size(1 << 30);
const PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;

/// The fix where a chain of another namespace takes calls at its entry only.
const INSIDE: &str = "it takes calls from its chain only: call the chain's entry, or remove it";

/// A chain's function, while chains are compiled.
struct Member {
    chain: FunctionId,
    /// `None`: the entry is not a function of the chain, which was reported.
    entry: Option<FunctionId>,
    /// The place where the chain names it, for messages about another place.
    line: String,
}

/// Puts functions into their chains. Each is in one chain at most, and functions outside a chain
/// can only call its entry.
pub(super) fn chains(
    context: &Context<'_>,
    documents: &Documents,
    policies: &mut [Arc<Policy>],
    functions: &mut BTreeMap<FunctionId, Function>,
    problems: &RefCell<Vec<Problem>>,
) {
    names(&documents.chains, problems);
    let mut members = BTreeMap::new();
    for placed in &documents.chains {
        let root = placed.scope(problems);
        let Some(chain) = fields::id(&root.field("metadata"), &placed.document.metadata) else { continue };
        let spec = root.field("spec");
        for (id, link) in links(context, documents, &spec, &chain, &placed.document.spec, &mut members) {
            if let Some(function) = functions.get_mut(&id) {
                function.chain = Some(link);
            }
        }
    }
    unchained(context, documents, problems);
    let called = EntryCheck { context, documents, members: &members, problems };
    called.by_the_gateway();
    external::sever(functions, called.by_callers());
    for (index, number) in called.by_policies(policies, functions) {
        Arc::make_mut(&mut policies[index]).authorizers[number].service = None;
    }
}

/// Reports the second of two chains of one name.
fn names(chains: &[Arc<TypedDocument<document::Chain>>], problems: &RefCell<Vec<Problem>>) {
    let mut seen: BTreeMap<(&str, &str), String> = BTreeMap::new();
    for placed in chains {
        let document::Metadata { name, namespace, .. } = &placed.document.metadata;
        let root = placed.scope(problems);
        if let Some(first) = seen.get(&(namespace.as_str(), name.as_str())) {
            let metadata = root.field("metadata");
            let message = format!("there is another chain `{namespace}/{name}`, in {first}");
            metadata.field("name").problem(message, "give each its own name");
            continue;
        }
        seen.insert((namespace, name), root.line());
    }
}

/// The links of a chain's functions.
fn links(
    context: &Context<'_>,
    documents: &Documents,
    scope: &Scope<'_>,
    chain: &FunctionId,
    spec: &document::ChainSpec,
    members: &mut BTreeMap<FunctionId, Member>,
) -> Vec<(FunctionId, ChainLink)> {
    let memory = memory(&scope.field("memory"), spec);
    let list = scope.field("functions");
    if spec.functions.is_empty() {
        list.problem("the chain has no function", "name one, such as `{name: frontend}`");
    }
    let parsed = |name: &str| fields::parsed(&chain.namespace, name);
    let own: BTreeSet<FunctionId> = spec.functions.iter().filter_map(|member| parsed(&member.name)).collect();
    let is_own = |id: &FunctionId| own.contains(id);
    let unknown = |scope: &Scope<'_>, written: &str| {
        let known = spec.functions.iter().map(|member| member.name.as_str());
        // A reader does not need the hundredth hint.
        let hint = if scope.problem_count() > 100 { String::new() } else { did_you_mean(written, known) };
        scope.problem(format!("`{}` is not among the `functions` of the chain", written.escape_debug()), hint);
    };
    let entry = parsed(&spec.entry).filter(is_own);
    if entry.is_none() && !spec.functions.is_empty() {
        unknown(&scope.field("entry"), &spec.entry);
    }
    let mut links = Vec::new();
    for (index, member) in spec.functions.iter().enumerate() {
        let element = list.element(index);
        let name = element.field("name");
        if let Some(id) = parsed(&member.name).filter(|id| id.namespace != chain.namespace) {
            let fix = format!("remove it: functions share memory within a namespace, here `{}`", chain.namespace);
            name.problem(format!("`{id}` is of another namespace than the chain"), fix);
            continue;
        }
        let Some(id) = fields::function(context, &name, &chain.namespace, &member.name) else { continue };
        if let Some(first) = members.get(&id) {
            let (message, fix) = match first.chain == *chain {
                true => (format!("`{id}` is named twice"), "remove one of the two"),
                false => (
                    format!("`{id}` is in the chain `{}` too, in {}", first.chain, first.line),
                    "name it in one of them: what it writes must not be read in two",
                ),
            };
            name.problem(message, fix);
            continue;
        }
        if !eligible(context, documents, &name, &id) {
            continue;
        }
        let list = element.field("to");
        let callees = callees(context, documents, &id);
        let mut to: Vec<FunctionId> = Vec::new();
        for (index, written) in member.to.iter().enumerate() {
            let scope = list.element(index);
            let Some(callee) = parsed(written).filter(is_own) else {
                unknown(&scope, written);
                continue;
            };
            if callee == id {
                scope.problem("a function hands itself nothing", "remove it");
            } else if to.contains(&callee) {
                scope.problem(format!("`{callee}` is named twice"), "remove one of the two");
            } else if !callees.contains(&callee) {
                let fix = format!("a chain grants no permission: add it to the `callees` of `{id}`, or remove it here");
                scope.problem(format!("`{callee}` is no callee of `{id}`"), fix);
            }
            to.push(callee);
        }
        members.insert(id.clone(), Member { chain: chain.clone(), entry: entry.clone(), line: name.line() });
        let chain = chain.to_string();
        links.push((id, ChainLink { chain, memory, large_pages: spec.large_pages, to, direct: spec.direct }));
    }
    links
}

fn memory(scope: &Scope<'_>, spec: &document::ChainSpec) -> u64 {
    let memory = spec.memory;
    if memory < SMALLEST_MEMORY || memory > LARGEST_MEMORY {
        let message = format!("{memory} is too {}", if memory < SMALLEST_MEMORY { "little" } else { "much" });
        scope.problem(message, format!("expected {SMALLEST_MEMORY} to {LARGEST_MEMORY}"));
    } else if !memory.0.is_multiple_of(PAGE) {
        let pages = Size(memory.0.next_multiple_of(PAGE));
        scope.problem(format!("{memory} are no whole pages"), format!("expected a multiple of 4Ki, such as {pages}"));
    } else if spec.large_pages && !memory.0.is_multiple_of(LARGE_PAGE) {
        let pages = Size(memory.0.next_multiple_of(LARGE_PAGE));
        let fix = format!("expected a multiple of 2Mi, such as {pages}, or no `largePages`");
        scope.problem(format!("{memory} are no whole large pages"), fix);
    }
    memory.0
}

/// Whether this function can be in the chain. Reports why not.
fn eligible(context: &Context<'_>, documents: &Documents, scope: &Scope<'_>, id: &FunctionId) -> bool {
    let what = match context.functions.get(id).map(|index| &documents.functions[*index].document.spec) {
        None if context.jobs.contains_key(id) => "is a job",
        None => "is outside of the mesh",
        Some(spec) if spec.wasm.is_some() => "is a component",
        Some(spec) if spec.external.is_some() => "is run by somebody else",
        Some(_) => "",
    };
    if !what.is_empty() {
        let fix = "name a function with a `command` or an `image`, or remove it";
        scope.problem(format!("`{id}` {what}, and shares no memory"), fix);
    }
    what.is_empty()
}

/// The callees of a function as its document lists them, whether they exist or not.
fn callees(context: &Context<'_>, documents: &Documents, id: &FunctionId) -> BTreeSet<FunctionId> {
    let document = context.functions.get(id).map(|index| &documents.functions[*index].document);
    let written = document.into_iter().flat_map(|document| &document.spec.callees);
    written.filter_map(|name| fields::parsed(&id.namespace, name)).collect()
}

/// Reports functions that are called through memory and are in no chain.
fn unchained(context: &Context<'_>, documents: &Documents, problems: &RefCell<Vec<Problem>>) {
    // This includes functions that the chain may not name: one problem is enough.
    let of = |placed: &Arc<TypedDocument<document::Chain>>| {
        let document::Chain { metadata, spec, .. } = &placed.document;
        let parsed = |member: &document::ChainMember| fields::parsed(&metadata.namespace, &member.name);
        spec.functions.iter().filter_map(parsed).collect::<Vec<_>>()
    };
    let named: BTreeSet<FunctionId> = documents.chains.iter().flat_map(of).collect();
    for (id, index) in context.functions {
        let placed = &documents.functions[*index];
        if placed.document.spec.protocol == AppProtocol::Chain && !named.contains(id) && !context.incomplete {
            let root = placed.scope(problems);
            let fix = "add it to the `functions` of a Chain document, or give it another protocol";
            root.field("spec").field("protocol").problem(format!("no chain names `{id}`"), fix);
        }
    }
}

/// Looks for calls from outside a chain to a function that is not its entry.
struct EntryCheck<'a> {
    context: &'a Context<'a>,
    documents: &'a Documents,
    members: &'a BTreeMap<FunctionId, Member>,
    problems: &'a RefCell<Vec<Problem>>,
}

impl EntryCheck<'_> {
    /// The member and its chain's entry, if this caller is not in the chain and the callee is not
    /// the entry.
    fn inside(&self, caller: Option<&FunctionId>, callee: &FunctionId) -> Option<(&Member, &FunctionId)> {
        let member = self.members.get(callee)?;
        let entry = member.entry.as_ref().filter(|entry| *entry != callee)?;
        let same = caller.and_then(|caller| self.members.get(caller)).is_some_and(|other| other.chain == member.chain);
        (!same).then_some((member, entry))
    }

    fn by_the_gateway(&self) {
        for id in self.members.keys() {
            let Some(((member, entry), index)) = self.inside(None, id).zip(self.context.functions.get(id)) else {
                continue;
            };
            let placed = &self.documents.functions[*index];
            if !placed.document.spec.expose.is_empty() {
                let root = placed.scope(self.problems);
                let message = format!("`{id}` is inside of the chain `{}`, and not its entry", member.chain);
                root.field("spec").field("expose").problem(message, format!("expose `{entry}` instead"));
            }
        }
    }

    /// Returns calls from other namespaces, which are refused as long as the chain is as it is.
    fn by_callers(&self) -> Vec<(FunctionId, FunctionId)> {
        let mut severed = Vec::new();
        for (id, index) in self.context.functions {
            let placed = &self.documents.functions[*index];
            self.by(id, &placed.scope(self.problems), &placed.document.spec.callees, &mut severed);
        }
        for (id, index) in self.context.jobs {
            let placed = &self.documents.jobs[*index];
            self.by(id, &placed.scope(self.problems), &placed.document.spec.callees, &mut severed);
        }
        severed
    }

    fn by(
        &self,
        caller: &FunctionId,
        root: &Scope<'_>,
        callees: &[String],
        severed: &mut Vec<(FunctionId, FunctionId)>,
    ) {
        let spec = root.field("spec");
        let list = spec.field("callees");
        for (index, name) in callees.iter().enumerate() {
            let Some(callee) = fields::parsed(&caller.namespace, name) else { continue };
            let Some((member, entry)) = self.inside(Some(caller), &callee) else { continue };
            let element = list.element(index);
            if fields::is_of_another_tenant(&element, &caller.namespace, &callee) {
                fields::not_callable(self.context, &element, &callee, INSIDE);
                severed.push((caller.clone(), callee));
            } else {
                self.refuse(&element, caller, &callee, member, entry);
            }
        }
    }

    /// Authorizers are called in the name of the function that is asked about. Returns authorizers
    /// of other namespaces, which are not asked as long as the chain is as it is.
    fn by_policies(&self, policies: &[Arc<Policy>], functions: &BTreeMap<FunctionId, Function>) -> Vec<(usize, usize)> {
        let mut severed = Vec::new();
        for (index, (placed, policy)) in self.documents.policies.iter().zip(policies).enumerate() {
            let root = placed.scope(self.problems);
            let spec = root.field("spec");
            let list = spec.field("externalAuthorization");
            if self.context.effort.is_over() {
                return severed;
            }
            for (number, authorizer) in policy.authorizers.iter().enumerate() {
                let inside = |service: &&FunctionId| self.inside(None, service).is_some();
                let Some(service) = authorizer.service.as_ref().filter(inside) else { continue };
                let asks = |(id, function): &(&FunctionId, &Function)| {
                    function.policies.contains(&index) && !self.context.jobs.contains_key(*id)
                };
                let asking = functions.iter().filter(asks);
                let mut refused = asking.filter_map(|(id, _)| Some((id, self.inside(Some(id), service)?)));
                let Some((id, (member, entry))) = refused.next() else { continue };
                let element = list.element(number);
                if fields::is_of_another_tenant(&element, &policy.namespace, service) {
                    fields::not_callable(self.context, &element.field("service"), service, INSIDE);
                    severed.push((index, number));
                } else {
                    self.refuse(&element.field("service"), id, service, member, entry);
                }
            }
        }
        severed
    }

    fn refuse(&self, scope: &Scope<'_>, caller: &FunctionId, callee: &FunctionId, member: &Member, entry: &FunctionId) {
        let message =
            format!("`{callee}` is inside of the chain `{}` ({}), and `{caller}` is not", member.chain, member.line);
        scope.problem(message, format!("call its entry `{entry}`, or take `{callee}` out of the chain"));
    }
}
