//! The quota use of the documents of a namespace, computed before any configuration is built: each
//! function gets its own copy of the rules that apply to it.

use super::{Function, Policy};
use crate::document_id::DocumentId;
use crate::namespace::{NamespaceUse, UseShare};
use crate::secrets::SecretSet;
use leno_model::{FunctionId, Run};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

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

/// All that counts for the quotas of namespaces.
pub(crate) struct QuotaUses<'a> {
    pub functions: &'a BTreeMap<FunctionId, Function>,
    pub policies: &'a [Arc<Policy>],
    pub secrets: &'a SecretSet,
    /// Documents of the Gateway API.
    pub routes: &'a BTreeMap<DocumentId, NamespaceUse>,
}

impl<'a> QuotaUses<'a> {
    /// The quota use of each namespace.
    pub(crate) fn of_namespaces(&self) -> BTreeMap<&'a str, NamespaceUse> {
        let rules: Vec<u64> = self.policies.iter().map(|policy| policy.rules()).collect();
        let mut uses: BTreeMap<&str, NamespaceUse> = BTreeMap::new();
        for (id, function) in self.functions {
            let used = uses.entry(&id.namespace).or_default();
            used.add(&function.own_use());
            used.rules =
                function.rules(self.policies, &rules).map(|(_, rules)| rules).fold(used.rules, u64::saturating_add);
        }
        for (namespace, values, bytes) in self.secrets.uses() {
            let used = uses.entry(namespace).or_default();
            (used.secrets, used.secret_bytes) = (values, bytes);
        }
        for (id, used) in self.routes {
            uses.entry(&id.namespace).or_default().add(used);
        }
        uses
    }

    /// The shares of the documents of one namespace in its use.
    pub(crate) fn shares(&self, namespace: &str) -> Vec<UseShare> {
        let rules: Vec<u64> = self.policies.iter().map(|policy| policy.rules()).collect();
        let mut shares = Vec::new();
        for (FunctionId { name, .. }, function) in self.functions.iter().filter(|(id, _)| id.namespace == namespace) {
            let kind = match function.run {
                Run::Job(_) => "Job",
                Run::Egress(_) => "External",
                Run::Command(_) | Run::External(_) | Run::Wasm(_) | Run::Pods(_) => "Function",
            };
            let document = DocumentId::new(kind, namespace, name);
            shares.push(UseShare { documents: vec![document.clone()], used: function.own_use() });
            for (policy, rules) in function.rules(self.policies, &rules) {
                let documents = vec![document.clone(), DocumentId::new("Policy", &policy.namespace, &policy.name)];
                shares.push(UseShare { documents, used: NamespaceUse { rules, ..NamespaceUse::default() } });
            }
        }
        for (name, secret) in self.secrets.of(namespace) {
            let (secrets, secret_bytes) = secret.size();
            let used = NamespaceUse { secrets, secret_bytes, ..NamespaceUse::default() };
            shares.push(UseShare { documents: vec![DocumentId::new("StoredSecret", namespace, name)], used });
        }
        let routes = self.routes.iter().filter(|(id, _)| id.namespace == namespace);
        shares.extend(routes.map(|(id, used)| UseShare { documents: vec![id.clone()], used: *used }));
        shares
    }
}

impl Function {
    /// Its use without the rules of policies.
    fn own_use(&self) -> NamespaceUse {
        let declared = &self.plan.declared;
        if declared.is_empty() {
            return NamespaceUse::of_run(&self.run, self.scale.min);
        }
        let mut used = NamespaceUse::default();
        for one in declared {
            // Instances of a revision without requests do not run.
            let runs = self.plan.traffic.iter().any(|target| target.name.as_ref() == Some(&one.name));
            used.add(&NamespaceUse::of_run(&one.template.run, if runs { one.template.scale.min } else { 0 }));
        }
        used
    }

    /// The policies that apply to it, and the number of rules that each adds. `rules`: those of each
    /// policy for a function without callees.
    fn rules<'a>(&self, policies: &'a [Arc<Policy>], rules: &[u64]) -> impl Iterator<Item = (&'a Policy, u64)> {
        self.policies.iter().filter_map(|index| {
            let policy: &Policy = policies.get(*index)?;
            // Rules about callees name each callee.
            let allowed = policy.callee_rules.as_ref().map_or(0, |rules| rules.allow.len());
            let named = (allowed as u64).saturating_mul(self.callees.len() as u64);
            Some((policy, rules.get(*index)?.saturating_add(named)))
        })
    }
}

/// The number of rules that a policy adds to each function, once it was counted. A copy of the policy
/// may change, and is counted anew.
#[derive(Debug, Default)]
pub(crate) struct PolicyWeight(OnceLock<u64>);

impl Clone for PolicyWeight {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for PolicyWeight {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Policy {
    /// The number of rules that it adds to each function that it applies to.
    fn rules(&self) -> u64 {
        *self.weight.0.get_or_init(|| self.count_rules())
    }

    fn count_rules(&self) -> u64 {
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
