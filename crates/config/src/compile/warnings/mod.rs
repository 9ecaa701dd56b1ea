//! What is allowed, and very likely not meant: rules that decide nothing, and functions that nobody reaches. Said, and never in the way.

mod covers;

use super::{Documents, Placed};
use crate::document;
use crate::id::FunctionId;
use crate::problem::{Problem, Scope};
use crate::snapshot::{self, Function, Policy};
use leno_policy::spec::{Action, AuthorizationRule, ConditionKey, StringMatch};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// A mesh that has no problems.
struct Mesh<'a> {
    trust_domain: &'a str,
    functions: &'a BTreeMap<FunctionId, Function>,
    policies: &'a [Policy],
    /// Functions by the index of each policy.
    of_policy: Vec<Vec<(&'a FunctionId, &'a Function)>>,
    found: RefCell<Vec<Problem>>,
}

/// Looks for all of it. The result is ordered by file and line.
pub(super) fn find(
    trust_domain: &str,
    documents: &Documents,
    policies: &[Policy],
    functions: &BTreeMap<FunctionId, Function>,
    names: &BTreeMap<FunctionId, usize>,
) -> Vec<Problem> {
    let mut of_policy = vec![Vec::new(); policies.len()];
    for (id, function) in functions {
        function.policies.iter().for_each(|index| of_policy[*index].push((id, function)));
    }
    let mesh = Mesh { trust_domain, functions, policies, of_policy, found: RefCell::default() };
    for (index, placed) in documents.policies.iter().enumerate() {
        mesh.policy(index, placed);
    }
    let called: BTreeSet<&FunctionId> = functions.values().flat_map(|function| &function.callees).collect();
    for (id, index) in names {
        mesh.function(id, &documents.functions[*index], called.contains(id));
    }
    let mut found = mesh.found.into_inner();
    found.sort();
    found.dedup();
    found
}

impl Mesh<'_> {
    fn policy(&self, index: usize, placed: &Placed<document::Policy>) {
        let root = placed.scope(&self.found);
        let spec = root.field("spec");
        let section = spec.field("authorization");
        let rules = section.field("rules");
        let authenticated = self.of_policy[index].iter().any(|(_, function)| self.authenticates(function));
        for (number, rule) in self.policies[index].authorization.iter().enumerate() {
            let scope = rules.element(number);
            self.shadowed(&scope, index, number, rule);
            if !authenticated {
                unauthenticated(&scope, rule);
            }
            self.callers(&scope, index, rule);
        }
    }

    fn rules<'s>(&'s self, function: &'s Function) -> impl Iterator<Item = &'s AuthorizationRule> {
        function.policies.iter().flat_map(|index| &self.policies[*index].authorization)
    }

    fn authenticates(&self, function: &Function) -> bool {
        function.policies.iter().any(|index| !self.policies[*index].authentication.is_empty())
    }

    /// A rule that decides nothing because another one of its policy is as wide, or because deny rules are before it wherever it applies.
    fn shadowed(&self, scope: &Scope<'_>, index: usize, number: usize, rule: &AuthorizationRule) {
        let own = &self.policies[index].authorization;
        let same = own.iter().enumerate().find(|(other_number, other)| {
            // Of two that are the same, the first stays.
            *other_number != number
                && other.action == rule.action
                && covers::rule(other, rule)
                && (*other_number < number || !covers::rule(rule, other))
        });
        if let Some((_, wider)) = same {
            let what = if rule.action == Action::Allow { "allows" } else { "refuses" };
            let message = format!("the rule changes nothing: whatever it {what}, `{}` {what} too", wider.name);
            return scope.problem(message, "remove it, or narrow the other one");
        }
        if rule.action == Action::Deny {
            return;
        }
        let denied = |function: &Function| {
            let deny = |other: &&AuthorizationRule| other.action == Action::Deny && covers::rule(other, rule);
            self.rules(function).find(deny).map(|deny| deny.name.clone())
        };
        let denials: Vec<Option<String>> = self.of_policy[index].iter().map(|(_, function)| denied(function)).collect();
        if let Some(Some(deny)) = denials.iter().find(|_| denials.iter().all(Option::is_some)) {
            let message = format!("the rule allows nothing: `{deny}` refuses all of it, and deny rules come first");
            scope.problem(message, "narrow the deny rule, or remove this one");
        }
    }

    /// Callers that cannot call, and identities that nobody has.
    fn callers(&self, scope: &Scope<'_>, index: usize, rule: &AuthorizationRule) {
        let from = scope.field("from");
        for (number, source) in rule.from.iter().enumerate() {
            let element = from.element(number);
            for (field, list) in [("identities", &source.identities.any), ("notIdentities", &source.identities.none)] {
                let field = element.field(field);
                for (position, identity) in list.iter().enumerate() {
                    self.identity(&field.element(position), identity);
                }
            }
            let identities = element.field("identities");
            for (position, identity) in source.identities.any.iter().enumerate() {
                if rule.action == Action::Allow {
                    self.caller(&identities.element(position), index, identity);
                }
            }
        }
    }

    fn identity(&self, scope: &Scope<'_>, identity: &StringMatch) {
        let (StringMatch::Exact(text) | StringMatch::Prefix(text)) = identity else { return };
        let Some((domain, _)) = text.strip_prefix("spiffe://").and_then(|rest| rest.split_once('/')) else { return };
        if domain != self.trust_domain {
            let message = format!("nobody here has an identity of the trust domain `{domain}`");
            scope.problem(
                message,
                format!("the mesh's is `{}` (`trustDomain` of the Mesh document)", self.trust_domain),
            );
        }
    }

    fn caller(&self, scope: &Scope<'_>, index: usize, identity: &StringMatch) {
        let StringMatch::Exact(text) = identity else { return };
        let of = |(id, _): &(&FunctionId, &Function)| snapshot::identity(self.trust_domain, id) == *text;
        let own = || text.strip_prefix("spiffe://")?.strip_prefix(self.trust_domain)?.strip_prefix("/ns/");
        let id = own().and_then(|rest| rest.replacen("/sa/", "/", 1).parse::<FunctionId>().ok());
        let Some((caller, function)) = id.and_then(|id| self.functions.get_key_value(&id)).filter(of) else { return };
        let functions = &self.of_policy[index];
        if functions.iter().all(|(callee, _)| !function.callees.contains(callee)) {
            let callees: Vec<String> = functions.iter().take(3).map(|(id, _)| format!("`{id}`")).collect();
            let message = format!("`{caller}` does not call {}", callees.join(" or "));
            scope.problem(
                message,
                format!("add it to the `callees` of `{caller}`: without that its calls are refused there"),
            );
        }
    }

    /// A function that nobody reaches.
    fn function(&self, id: &FunctionId, placed: &Placed<document::Function>, called: bool) {
        let Some(function) = self.functions.get(id) else { return };
        let root = placed.scope(&self.found);
        let metadata = root.field("metadata");
        let scope = metadata.field("name");
        if !called && function.expose.is_empty() {
            let fix = "add it to the `callees` of a function, or `expose` it";
            scope.problem(format!("nobody can call `{id}`: no function names it, and it is not exposed"), fix);
        } else if self.rules(function).all(|rule| rule.action == Action::Deny) {
            let fix = "add a policy with `authorization: {rules: [...]}` for it";
            scope.problem(format!("every request to `{id}` is refused: no rule allows any"), fix);
        }
    }
}

/// Rules about users where nobody looks for tokens.
fn unauthenticated(scope: &Scope<'_>, rule: &AuthorizationRule) {
    let fix = "add an `authentication` section to a policy of the function";
    let message = "no policy of the function looks for tokens, so nobody is known by one";
    let from = scope.field("from");
    for (number, source) in rule.from.iter().enumerate().filter(|(_, source)| !source.request_principals.is_empty()) {
        let element = from.element(number);
        let written =
            if source.request_principals.any.is_empty() { "notRequestPrincipals" } else { "requestPrincipals" };
        element.field(written).problem(message, fix);
    }
    let when = scope.field("when");
    for (number, condition) in rule.when.iter().enumerate() {
        let element = when.element(number);
        match condition.key {
            ConditionKey::Claim(_) => element.field("claim").problem(message, fix),
            ConditionKey::Audience => element.field("audience").problem(message, fix),
            ConditionKey::Header(_) => {}
        }
    }
}
