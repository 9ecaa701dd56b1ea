//! The quota use of the functions of a namespace, computed before any configuration is built: each
//! function gets its own copy of the rules that apply to it.

use super::{Function, Policy};
use crate::namespace::NamespaceUse;
use crate::secrets::SecretSet;
use leno_model::FunctionId;
use std::collections::BTreeMap;

/// Bytes of a rule, on average.
const BYTES_OF_RULE: u64 = 512;

/// Counts bytes.
struct ByteCounter(u64);

impl std::io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Bytes of a value in JSON.
fn serialized(value: &impl serde::Serialize) -> u64 {
    let mut counted = ByteCounter(0);
    // Counting does not fail; a value that cannot be serialised counts as very large.
    serde_json::to_writer(&mut counted, value).map_or(u64::MAX / 16, |()| counted.0)
}

/// The quota use of the functions and stored secrets of each namespace.
pub(crate) fn uses<'a>(
    functions: &'a BTreeMap<FunctionId, Function>,
    policies: &[Policy],
    secrets: &'a SecretSet,
) -> BTreeMap<&'a str, NamespaceUse> {
    let rules: Vec<u64> = policies.iter().map(Policy::rules).collect();
    let mut uses: BTreeMap<&str, NamespaceUse> = BTreeMap::new();
    for (id, function) in functions {
        let applied = function.policies.iter().filter_map(|index| Some((policies.get(*index)?, rules.get(*index)?)));
        // Rules about callees name each callee.
        let named = |policy: &Policy| {
            let allowed = policy.callee_rules.as_ref().map_or(0, |rules| rules.allow.len());
            (allowed as u64).saturating_mul(function.callees.len() as u64)
        };
        let rules = applied.map(|(policy, rules)| rules.saturating_add(named(policy)));
        let rules = rules.fold(0, u64::saturating_add);
        let used = uses.entry(&id.namespace).or_default();
        let declared = &function.plan.declared;
        if declared.is_empty() {
            used.add(&function.run, function.scale.min, rules);
        }
        for (index, one) in declared.iter().enumerate() {
            // Instances of a revision without requests do not run.
            let runs = function.plan.traffic.iter().any(|target| target.name.as_ref() == Some(&one.name));
            let min = if runs { one.template.scale.min } else { 0 };
            used.add(&one.template.run, min, if index == 0 { rules } else { 0 });
        }
    }
    for (namespace, values, bytes) in secrets.uses() {
        let used = uses.entry(namespace).or_default();
        (used.secrets, used.secret_bytes) = (values, bytes);
    }
    uses
}

impl Policy {
    /// The number of rules that it adds to each function that it applies to.
    fn rules(&self) -> u64 {
        let callees = self.callee_rules.as_ref().map_or(0, |rules| rules.allow.len());
        let counts = [
            self.authentication.len(),
            self.authorization.len(),
            self.rate_limits.len(),
            self.authorizers.len(),
            self.extensions.len(),
            callees,
        ];
        let rules: u64 = counts.into_iter().map(|count| count as u64).sum();
        // A rule with many values counts like many rules.
        rules.max(self.size() / BYTES_OF_RULE)
    }

    /// Bytes of the policy's part in the configuration of each function that it applies to.
    fn size(&self) -> u64 {
        let programs = (&self.authentication, &self.keys, &self.jwks, &self.authorization, &self.rate_limits);
        let sidecar = self.sidecar.as_ref().map(|sidecar| &sidecar.rules);
        let rest = (&self.retry, &self.breaker, &self.access_log, sidecar);
        let authorizers = self.authorizers.iter().map(|one| serialized(&one.only) + serialized(&one.config));
        let extensions = self.extensions.iter().map(|extension| serialized(&extension.spec));
        serialized(&programs) + serialized(&rest) + authorizers.chain(extensions).sum::<u64>()
    }
}
