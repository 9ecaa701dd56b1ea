//! Rules of one program that can decide no request. Only certain results count.

use super::covers;
use leno_policy::spec::{Action, AuthorizationRule, ConditionKey, ProgramSpec, Source};

/// Limit on compared values of one program's rules: some hundredths of a second.
const MOST_COMPARED: u64 = 1_000_000;

/// For each authorization rule of a program, the reason for which it can decide no request; `None`:
/// it may decide one, or there are too many rules to compare.
pub fn rules_without_effect(program: &ProgramSpec) -> Vec<Option<String>> {
    let rules = &program.authorization;
    let mut budget = MOST_COMPARED;
    let mut reason = |(number, rule): (usize, &AuthorizationRule)| {
        if program.authentication.is_empty() && is_about_users(rule) {
            return Some("it is about users, and no policy of the function authenticates any".to_owned());
        }
        let covering = evaluated_before(rules, number).find(|other| {
            budget = budget.saturating_sub(covers::cost(other, rule));
            budget > 0 && (!other.audit || rule.audit) && covers::rule(other, rule)
        })?;
        let decides = if covering.action == Action::Allow { "allows" } else { "refuses" };
        Some(format!("`{}` comes first, and {decides} every request that it matches", covering.name))
    };
    rules.iter().enumerate().map(&mut reason).collect()
}

/// Deny rules come before allow rules, and each kind is in the order of the documents.
fn evaluated_before(rules: &[AuthorizationRule], number: usize) -> impl Iterator<Item = &AuthorizationRule> {
    let action = rules[number].action;
    let comes_first = move |(other, rule): &(usize, &AuthorizationRule)| match (rule.action, action) {
        (Action::Deny, Action::Allow) => true,
        (Action::Allow, Action::Deny) => false,
        _ => *other < number,
    };
    rules.iter().enumerate().filter(comes_first).map(|(_, rule)| rule)
}

/// Whether a rule matches only requests of verified users.
pub(super) fn is_about_users(rule: &AuthorizationRule) -> bool {
    let wants_user = |source: &Source| !source.request_principals.any.is_empty();
    (!rule.from.is_empty() && rule.from.iter().all(wants_user))
        || rule.when.iter().any(|condition| {
            matches!(condition.key, ConditionKey::Claim(_) | ConditionKey::Audience) && !condition.values.any.is_empty()
        })
}
