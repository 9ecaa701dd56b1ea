//! The policies of one function in words, rule by rule, with the requests that each rule decided.

mod sections;

use leno_model::{FunctionConfig, FunctionId, Run};
use leno_telemetry::metrics::RuleHits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The policies of a function, each list in the order of evaluation: the first policy that objects
/// refuses the request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionPolicies {
    /// The function, job or External document: `namespace/name`.
    pub function: String,
    /// Its SPIFFE ID.
    pub identity: String,
    /// Since when rules count requests, in seconds since 1970: the start of the node that counts
    /// longest. Nothing: no node counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Functions and jobs that list it among their callees. A node knows those that it hosts; a
    /// control plane tells those that the token may know.
    #[serde(default)]
    pub callers: Vec<String>,
    /// Further callers, of which the token may not know.
    #[serde(default)]
    pub hidden_callers: usize,
    /// Policies of requests to it.
    pub inbound: Vec<PolicySection>,
    /// Policies of calls that it makes.
    pub outbound: Vec<PolicySection>,
    /// Policies by which a gateway routes to it. The inbound policies judge these requests too.
    pub gateway: Vec<PolicySection>,
    /// Nodes whose counts are missing, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// The rules of one kind of policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicySection {
    /// The section of a Policy document, such as `authorization`; or `routes`, `timeouts`,
    /// `extensions`; or a fault, such as `timeout`.
    pub policy: String,
    /// The rules, in the order of evaluation.
    pub rules: Vec<PolicyRule>,
    /// What happens to a request that none of them decides, where that is a refusal or an audit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub otherwise: String,
}

/// One rule, limit, issuer or the like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyRule {
    /// Its name in verdicts: `shop/authorization/read-only`.
    pub name: String,
    /// `allow`, `deny`, `authenticate`, `limit`, `require`, `ask`, `run`, `edit`, `retry`, `record`,
    /// `route` or `inject`; `decide`: it decided requests, and is none of the rules in force.
    pub action: String,
    /// Its conditions and settings in words; all have to hold. None: it is for every request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clauses: Vec<String>,
    /// The node reports its decisions, and does not enforce them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub audited: bool,
    /// Why it is not in force, or can decide no request. Empty: it can.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub without_effect: String,
    /// Requests that it decided, by verdict: `allow`, `deny`, `error`, `audit_allow`, `audit_deny`.
    /// A denial of an allow rule is one of a request that no rule allowed, and to which this rule
    /// came nearest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hits: BTreeMap<String, u64>,
}

impl FunctionPolicies {
    /// The policies of a configuration, with the hits of its rules. `hits` may have those of other
    /// functions too.
    pub(crate) fn of(config: &FunctionConfig, hits: &[RuleHits]) -> Self {
        let function = config.id.to_string();
        let hits: Vec<&RuleHits> = hits.iter().filter(|hits| hits.function == function).collect();
        let (is_called, calls) = (!matches!(config.run, Run::Job(_)), !matches!(config.run, Run::Egress(_)));
        let mut inbound = if is_called { sections::inbound(config) } else { Vec::new() };
        let mut outbound = if calls { sections::outbound(config) } else { Vec::new() };
        let mut gateway = if is_called { sections::gateway(config) } else { Vec::new() };
        for hits in &hits {
            // The inbound program judges requests of the gateway too, by the circuit breaker of the route.
            let is_route = hits.direction == "inbound" && rule(&mut gateway, &hits.rule).is_some();
            let sections = match &*hits.direction {
                _ if is_route => &mut gateway,
                "inbound" => &mut inbound,
                _ => &mut outbound,
            };
            add(sections, hits);
        }
        Self {
            function,
            identity: config.identity.to_string(),
            callers: Vec::new(),
            hidden_callers: 0,
            since: hits.iter().map(|hits| hits.since).filter(|since| *since > 0).min(),
            inbound,
            outbound,
            gateway,
            missing: Vec::new(),
        }
    }
}

/// The functions and jobs among these that list `id` among their callees, in their order.
pub(crate) fn callers_of<'a>(
    id: &'a FunctionId,
    configs: impl Iterator<Item = &'a FunctionConfig>,
) -> impl Iterator<Item = &'a FunctionId> {
    configs.filter(move |config| config.callees.iter().any(|callee| callee.id == *id)).map(|config| &config.id)
}

/// The rule of this name.
fn rule<'a>(sections: &'a mut [PolicySection], name: &str) -> Option<&'a mut PolicyRule> {
    let mut rules = sections.iter_mut().flat_map(|section| &mut section.rules);
    rules.find(|rule| rule.name == name && !name.is_empty())
}

/// Adds hits to their rule. Rules that are not in force get an entry at the end of their section.
fn add(sections: &mut Vec<PolicySection>, hits: &RuleHits) {
    if let Some(rule) = rule(sections, &hits.rule) {
        *rule.hits.entry(hits.verdict.clone()).or_default() += hits.requests;
        return;
    }
    let at = sections.iter().position(|section| section.policy == hits.policy).unwrap_or_else(|| {
        sections.push(PolicySection { policy: hits.policy.clone(), ..PolicySection::default() });
        sections.len() - 1
    });
    sections[at].rules.push(PolicyRule {
        name: hits.rule.clone(),
        action: "decide".to_owned(),
        hits: BTreeMap::from([(hits.verdict.clone(), hits.requests)]),
        ..PolicyRule::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_config::{Document, Snapshot};
    use leno_model::{Fault, FaultAbort, FieldValues};
    use leno_policy::spec::StringMatch;
    use std::path::Path;
    use std::time::Duration;

    const DOCUMENTS: &str = r#"
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: shop, namespace: demo}
spec:
  command: ["true"]
  expose: [{hosts: ["*"], path: /}]
  callees: [stock]
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: stock, namespace: demo}
spec: {command: ["true"]}
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: shop, namespace: demo}
spec:
  functions: [shop]
  authorization:
    rules:
    - {name: read, to: [{methods: [GET]}]}
    - {name: items, to: [{methods: [GET], paths: [/items]}]}
    - {name: users, when: [{claim: role, values: [admin]}]}
    - {name: no-admin, action: deny, to: [{paths: ["/admin*"]}]}
  rateLimits: [{name: each, requests: 100, per: 1m, key: [address]}]
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: strict, namespace: demo}
spec:
  functions: [shop]
  mode: audit
  authorization: {rules: [{name: post, to: [{methods: [POST]}]}]}
"#;

    fn config() -> FunctionConfig {
        let documents = Document::read(Path::new("x.yaml"), DOCUMENTS).unwrap();
        let snapshot = Snapshot::of_documents(&documents).unwrap();
        snapshot.function_config(&"demo/shop".parse().unwrap()).unwrap()
    }

    fn hit(direction: &str, policy: &str, rule: &str, verdict: &str) -> RuleHits {
        let own = |text: &str| text.to_owned();
        let (function, node) = (own("demo/shop"), String::new());
        let (direction, policy, rule, verdict) = (own(direction), own(policy), own(rule), own(verdict));
        RuleHits { node, since: 1_800_000_000, function, direction, policy, rule, verdict, requests: 3 }
    }

    #[test]
    fn rules_are_told_in_their_order_with_their_hits() {
        let hits = [
            hit("inbound", "authorization", "shop/authorization/read", "allow"),
            hit("inbound", "authorization", "shop/authorization/read", "allow"),
            hit("inbound", "authorization", "shop/authorization/read", "deny"),
            hit("inbound", "authorization", "shop/authorization/former", "allow"),
            hit("outbound", "authorization", "demo/shop/callees", "allow"),
            RuleHits { function: "demo/stock".to_owned(), ..hit("inbound", "authorization", "x", "allow") },
        ];
        let policies = FunctionPolicies::of(&config(), &hits);
        let kinds =
            |sections: &[PolicySection]| sections.iter().map(|section| section.policy.clone()).collect::<Vec<_>>();
        assert_eq!(kinds(&policies.inbound)[..2], ["authorization", "rateLimits"], "{policies:#?}");
        let rules = &policies.inbound[0].rules;
        let told: Vec<_> = rules.iter().map(|rule| (rule.name.rsplit('/').next().unwrap(), &*rule.action)).collect();
        let expected = [
            ("no-admin", "deny"),
            ("read", "allow"),
            ("items", "allow"),
            ("users", "allow"),
            ("post", "allow"),
            ("former", "decide"),
        ];
        assert_eq!(told, expected);
        assert_eq!(rules[1].hits, BTreeMap::from([("allow".to_owned(), 6), ("deny".to_owned(), 3)]));
        assert_eq!(rules[0].clauses, ["to: paths [\"/admin*\"]"]);
        assert!(rules[2].without_effect.contains("`shop/authorization/read` comes first"), "{rules:#?}");
        assert!(rules[3].without_effect.contains("about users"), "{rules:#?}");
        assert!(rules[4].audited && rules[4].without_effect.is_empty(), "{rules:#?}");
        assert!(policies.inbound[0].otherwise.contains("403"));
        let limit = &policies.inbound[1].rules[0];
        assert_eq!(limit.clauses, ["100 requests each 1m, at most 100 at once", "for each: address"]);
        assert_eq!(policies.since, Some(1_800_000_000));

        let callees = &policies.outbound[0];
        assert_eq!(
            (&*callees.rules[0].name, &callees.rules[0].clauses[..]),
            ("demo/shop/callees", &["demo/stock".to_owned()][..])
        );
        assert_eq!(callees.rules[0].hits["allow"], 3);
        assert_eq!(policies.gateway[0].rules[0].clauses, ["hosts *, path /"]);
        let json = serde_json::to_value(&policies).unwrap();
        assert_eq!(serde_json::from_value::<FunctionPolicies>(json).unwrap(), policies);
    }

    #[test]
    fn faults_of_exposed_functions_are_told_with_their_end() {
        let fault = |name: &str, until_ms: u64| Fault {
            name: format!("chaos/faults/{name}"),
            when: vec![FieldValues { name: "x-group".to_owned(), values: vec![StringMatch::Prefix("qa-".to_owned())] }],
            per_10k: 1250,
            delay: Duration::from_secs(2),
            abort: Some(FaultAbort::Grpc(14)),
            until_ms,
        };
        let config =
            FunctionConfig { faults: vec![fault("over", 1_000), fault("slow", 4_102_444_800_000)], ..config() };
        let policies = FunctionPolicies::of(&config, &[]);
        let faults = policies.gateway.iter().find(|section| section.policy == "faults").unwrap();
        let [over, slow] = &faults.rules[..] else { panic!("{faults:#?}") };
        assert_eq!((&*over.without_effect, &*slow.without_effect), ("it has ended", ""));
        assert_eq!((&*slow.name, &*slow.action), ("chaos/faults/slow", "inject"));
        let clauses = [
            "header x-group is \"qa-*\"",
            "12.5 % of requests",
            "delay of 2s",
            "answer with gRPC status 14",
            "until 2100-01-01T00:00:00Z",
        ];
        assert_eq!(slow.clauses, clauses);
    }
}
