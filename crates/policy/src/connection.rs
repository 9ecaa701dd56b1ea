//! Judges connections that carry no requests: by who connects, and to which port.

use crate::authorization::{self, RuleInput, Rules};
use crate::fields::Fields;
use crate::host as hosts;
use crate::input::Peer;
use crate::outcome::Denial;
use crate::program::AUDIT;
use crate::sidecar;
use crate::spec::{Action, AuthorizationRule, Matches, Operation, ProgramSpec, Source};
use alloc::vec::Vec;

/// The name of the authorization rule that allows a connection to `port`, or the denial. The
/// connection is judged as a request without method, path, header fields and user would be. `host`
/// is the name that its TLS asks for, and empty until that is known. Of the other policies, only
/// the sidecar's list of ports applies.
///
/// Audited rules are not in force here either. The node reports their refusals for requests only.
///
/// # Errors
/// Returns the denial.
pub fn judge<'r>(inbound: &'r ProgramSpec, peer: Peer<'_>, port: u16, host: &str) -> Result<&'r str, Denial> {
    sidecar::check_port(&inbound.sidecar, port)?;
    judge_by(&inbound.authorization, inbound.audit_default, peer, port, host)
}

/// Whether a request on a connection of this peer to `port` may be allowed, as far as the peer and
/// the port decide. Rules may look at the request, too.
pub fn may_carry_requests(inbound: &ProgramSpec, peer: Peer<'_>, port: u16) -> bool {
    let rules: Vec<_> = inbound.authorization.iter().filter_map(without_request).collect();
    sidecar::check_port(&inbound.sidecar, port).is_ok()
        && judge_by(&rules, inbound.audit_default, peer, port, "").is_ok()
}

/// The part of a rule that concerns no request. A deny rule that looks at requests may let others
/// pass.
fn without_request(rule: &AuthorizationRule) -> Option<AuthorizationRule> {
    let source = |source: &Source| Source { request_principals: Matches::default(), ..source.clone() };
    let operation = |to: &Operation| Operation { ports: to.ports.clone(), ..Operation::default() };
    let part = AuthorizationRule {
        from: rule.from.iter().map(source).collect(),
        to: rule.to.iter().map(operation).collect(),
        when: Vec::new(),
        ..rule.clone()
    };
    (rule.action == Action::Allow || part == *rule).then_some(part)
}

fn judge_by<'r>(
    rules: &'r [AuthorizationRule],
    audit_default: bool,
    peer: Peer<'_>,
    port: u16,
    host: &str,
) -> Result<&'r str, Denial> {
    let asked = RuleInput {
        peer,
        namespace: peer.identity.and_then(hosts::namespace_of_identity),
        principal: None,
        claims: None,
        method: "",
        host,
        port,
        path: "",
        other_paths: &[],
        decoded_paths: &[],
        sent_query: None,
        fields: &Fields::new(&[], Vec::new()),
        query: None,
    };
    match authorization::judge(Rules::in_force(rules), &asked) {
        Err(denial) if denial.default && audit_default => Ok(AUDIT),
        verdict => verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Action, AuthorizationRule, Condition, ConditionKey, Matches, Operation, Source, StringMatch};
    use alloc::string::ToString;
    use alloc::vec;
    use core::net::{IpAddr, Ipv4Addr};

    fn any<T>(values: Vec<T>) -> Matches<T> {
        Matches { any: values, none: Vec::new() }
    }

    fn none<T>(values: Vec<T>) -> Matches<T> {
        Matches { any: Vec::new(), none: values }
    }

    fn from(name: &str) -> Vec<Source> {
        vec![Source { identities: any(vec![StringMatch::Exact(identity(name))]), ..Source::default() }]
    }

    fn identity(name: &str) -> alloc::string::String {
        alloc::format!("spiffe://mesh.example/ns/shop/sa/{name}")
    }

    fn rule(name: &str, action: Action, from: Vec<Source>, to: Vec<Operation>) -> AuthorizationRule {
        AuthorizationRule { name: name.to_string(), action, from, to, when: Vec::new(), audit: false }
    }

    fn ports(ports: &[u16]) -> Operation {
        Operation { ports: any(ports.to_vec()), ..Operation::default() }
    }

    /// The rule that allows, or the rule that refuses.
    fn verdict(rules: Vec<AuthorizationRule>, caller: &str, port: u16) -> Result<alloc::string::String, Denial> {
        let program = ProgramSpec { authorization: rules, ..crate::testing::inbound() };
        let identity = identity(caller);
        let peer = Peer { identity: Some(&identity), address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)) };
        judge(&program, peer, port, "").map(ToString::to_string)
    }

    #[test]
    fn a_caller_and_a_port_decide() {
        let rules = || vec![rule("cache", Action::Allow, from("cart"), vec![ports(&[6379])])];
        assert_eq!(verdict(rules(), "cart", 6379).unwrap(), "cache");
        let denial = verdict(rules(), "cart", 5432).unwrap_err();
        assert_eq!((&*denial.rule, &*denial.clause), ("cache", "to.ports: 5432 matches none of [6379]"));
        assert!(verdict(rules(), "stock", 6379).is_err());
        assert!(verdict(Vec::new(), "cart", 6379).is_err());
        // Everything is also this.
        assert_eq!(verdict(vec![rule("all", Action::Allow, from("cart"), vec![])], "cart", 5432).unwrap(), "all");
    }

    #[test]
    fn a_connection_may_carry_requests_that_some_rule_may_allow() {
        let get = Operation { methods: any(vec![StringMatch::Exact("GET".to_string())]), ..ports(&[80]) };
        let may = |rules: Vec<AuthorizationRule>, caller: &str, port| {
            let program = ProgramSpec { authorization: rules, ..crate::testing::inbound() };
            let identity = identity(caller);
            may_carry_requests(&program, Peer { identity: Some(&identity), address: None }, port)
        };
        let allow = || rule("get", Action::Allow, from("cart"), vec![get.clone()]);
        assert!(may(vec![allow()], "cart", 80));
        assert!(!may(vec![allow()], "stock", 80) && !may(vec![allow()], "cart", 81) && !may(vec![], "cart", 80));
        // A deny rule for some requests leaves others.
        let deny = |to| vec![allow(), rule("deny", Action::Deny, from("cart"), to)];
        assert!(may(deny(vec![get.clone()]), "cart", 80) && !may(deny(vec![]), "cart", 80));
    }

    #[test]
    fn what_only_a_request_has_is_missing() {
        let methods = Operation { methods: any(vec![StringMatch::Exact("GET".to_string())]), ..ports(&[6379]) };
        let refused = verdict(vec![rule("get", Action::Allow, vec![], vec![methods.clone()])], "cart", 6379);
        assert_eq!(refused.unwrap_err().clause, "to.methods: it was not sent; expected one of [\"GET\"]");
        // A deny rule for GET does not match a connection either; a rule for all methods but GET
        // does.
        let open = rule("all", Action::Allow, vec![], vec![]);
        let deny = |to| vec![open.clone(), rule("deny", Action::Deny, vec![], vec![to])];
        assert!(verdict(deny(methods), "cart", 6379).is_ok());
        let but = Operation { methods: none(vec![StringMatch::Exact("GET".to_string())]), ..Operation::default() };
        let denial = verdict(deny(but), "cart", 6379).unwrap_err();
        assert_eq!((&*denial.rule, &*denial.clause), ("deny", "the deny rule matches connections to port 6379"));
        let mut user = rule("user", Action::Allow, vec![], vec![]);
        user.when.push(Condition {
            key: ConditionKey::Header("x-team".into()),
            values: any(vec![StringMatch::Exact("red".to_string())]),
        });
        assert!(verdict(vec![user], "cart", 6379).is_err());
    }
}
