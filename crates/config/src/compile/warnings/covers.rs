//! Whether one rule matches wherever another does. Only certain results count: a rule may cover
//! another one although this returns false.

use leno_policy::matching;
use leno_policy::spec::{
    AuthorizationRule, Cidr, Condition, LabelMatch, Matches, Operation, PathMatch, PrincipalMatch, Segment, Source,
    StringMatch,
};

/// The number of values that may have to be compared to decide whether one of these rules covers
/// the other.
pub(super) fn cost(one: &AuthorizationRule, other: &AuthorizationRule) -> u64 {
    values(one).saturating_mul(values(other))
}

fn values(rule: &AuthorizationRule) -> u64 {
    fn count<T>(matches: &Matches<T>) -> usize {
        matches.any.len() + matches.none.len()
    }
    let from = rule.from.iter().map(|source| {
        count(&source.identities)
            + count(&source.namespaces)
            + count(&source.request_principals)
            + count(&source.addresses)
            + source.labels.as_ref().map_or(0, |labelled| labelled.identities.len())
    });
    let to = rule.to.iter().map(|operation| {
        count(&operation.methods) + count(&operation.hosts) + count(&operation.ports) + count(&operation.paths)
    });
    let when = rule.when.iter().map(|condition| count(&condition.values));
    from.chain(to).chain(when).map(|values| values as u64).sum::<u64>() + 1
}

/// Whether the wide rule matches every request that the narrow rule matches.
pub(super) fn rule(wide: &AuthorizationRule, narrow: &AuthorizationRule) -> bool {
    alternatives(&wide.from, &narrow.from, source) && requests(wide, narrow)
}

/// The same for one caller, which both rules select.
pub(super) fn requests(wide: &AuthorizationRule, narrow: &AuthorizationRule) -> bool {
    alternatives(&wide.to, &narrow.to, operation)
        && wide.when.iter().all(|wide| narrow.when.iter().any(|narrow| condition(wide, narrow)))
}

/// Compares lists of alternatives; an empty list matches everything.
fn alternatives<T>(wide: &[T], narrow: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    let covered = |narrow: &T| wide.iter().any(|wide| covers(wide, narrow));
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(covered))
}

fn source(wide: &Source, narrow: &Source) -> bool {
    matches(&wide.identities, &narrow.identities, text)
        && matches(&wide.namespaces, &narrow.namespaces, text)
        && matches(&wide.request_principals, &narrow.request_principals, principal)
        && matches(&wide.addresses, &narrow.addresses, cidr)
        && wide.labels.as_ref().is_none_or(|wide| narrow.labels.as_ref().is_some_and(|narrow| labelled(wide, narrow)))
}

fn labelled(wide: &LabelMatch, narrow: &LabelMatch) -> bool {
    // A selector that matches no function has its own warning.
    !narrow.identities.is_empty()
        && narrow.identities.iter().all(|identity| wide.identities.binary_search(identity).is_ok())
}

fn operation(wide: &Operation, narrow: &Operation) -> bool {
    matches(&wide.methods, &narrow.methods, text)
        && matches(&wide.hosts, &narrow.hosts, text)
        && matches(&wide.ports, &narrow.ports, |wide, narrow| wide == narrow)
        && matches(&wide.paths, &narrow.paths, path)
}

fn condition(wide: &Condition, narrow: &Condition) -> bool {
    wide.key == narrow.key && matches(&wide.values, &narrow.values, text)
}

/// The narrow rule requires all that the wide one requires, and excludes all that the wide one
/// excludes.
fn matches<T>(wide: &Matches<T>, narrow: &Matches<T>, covers: impl Fn(&T, &T) -> bool) -> bool {
    let excluded = |value: &T| narrow.none.iter().any(|excluded| covers(excluded, value));
    alternatives(&wide.any, &narrow.any, &covers) && wide.none.iter().all(excluded)
}

fn text(wide: &StringMatch, narrow: &StringMatch) -> bool {
    match (wide, narrow) {
        (StringMatch::Any, _) => true,
        (wide, StringMatch::Exact(narrow)) => matching::text(wide, narrow),
        (StringMatch::Prefix(wide), StringMatch::Prefix(narrow)) => narrow.starts_with(wide.as_str()),
        (StringMatch::Suffix(wide), StringMatch::Suffix(narrow)) => narrow.ends_with(wide.as_str()),
        (StringMatch::Present, StringMatch::Prefix(narrow) | StringMatch::Suffix(narrow)) => !narrow.is_empty(),
        (StringMatch::Present, StringMatch::Present) => true,
        (StringMatch::Regex(wide), StringMatch::Regex(narrow)) => wide == narrow,
        _ => false,
    }
}

fn principal(wide: &PrincipalMatch, narrow: &PrincipalMatch) -> bool {
    text(&wide.issuer, &narrow.issuer) && text(&wide.subject, &narrow.subject)
}

fn cidr(wide: &Cidr, narrow: &Cidr) -> bool {
    let same_width = wide.address.is_ipv4() == narrow.address.is_ipv4();
    same_width && wide.prefix <= narrow.prefix && wide.contains(narrow.address)
}

fn path(wide: &PathMatch, narrow: &PathMatch) -> bool {
    match (wide, narrow) {
        (PathMatch::WithQuery(wide), PathMatch::WithQuery(narrow)) => wide == narrow,
        (PathMatch::WithQuery(_), _) => false,
        (wide, PathMatch::Text(StringMatch::Exact(narrow))) => matching::path(wide, narrow, None),
        (PathMatch::Text(wide), PathMatch::Text(narrow)) => text(wide, narrow),
        (PathMatch::Text(StringMatch::Present), PathMatch::Template(_)) => true,
        (PathMatch::Text(StringMatch::Prefix(wide)), PathMatch::Template(narrow)) => {
            literal(narrow).starts_with(wide.as_str())
        }
        (PathMatch::Template(wide), PathMatch::Text(StringMatch::Prefix(narrow))) => {
            let literals = wide.iter().filter(|segment| matches!(segment, Segment::Literal(_))).count();
            wide.last() == Some(&Segment::Rest) && literals + 1 == wide.len() && narrow.starts_with(&literal(wide))
        }
        (PathMatch::Template(wide), PathMatch::Template(narrow)) => segments(wide, narrow),
        _ => false,
    }
}

/// The text with which all paths of a template begin.
fn literal(template: &[Segment]) -> String {
    let mut literal = String::new();
    for segment in template {
        literal.push('/');
        match segment {
            Segment::Literal(text) => literal.push_str(text),
            Segment::One(_) | Segment::Rest => break,
        }
    }
    literal
}

fn segments(wide: &[Segment], narrow: &[Segment]) -> bool {
    match (wide.split_first(), narrow.split_first()) {
        (None, None) | (Some((Segment::Rest, _)), Some(_)) => true,
        (Some((Segment::One(_), wide)), Some((Segment::One(_), narrow))) => segments(wide, narrow),
        (Some((Segment::One(_), wide)), Some((Segment::Literal(text), narrow))) => {
            !text.is_empty() && segments(wide, narrow)
        }
        (Some((Segment::Literal(one), wide)), Some((Segment::Literal(other), narrow))) => {
            one == other && segments(wide, narrow)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn string() -> impl Strategy<Value = StringMatch> {
        prop_oneof![
            "[ab]{0,3}".prop_map(StringMatch::Exact),
            "[ab]{1,2}".prop_map(StringMatch::Prefix),
            "[ab]{1,2}".prop_map(StringMatch::Suffix),
            Just(StringMatch::Present),
            Just(StringMatch::Any),
        ]
    }

    fn template() -> impl Strategy<Value = PathMatch> {
        let segment = prop_oneof!["[ab]{1,2}".prop_map(Segment::Literal), Just(Segment::One("*".to_owned()))];
        (prop::collection::vec(segment, 0..3), any::<bool>()).prop_map(|(mut segments, rest)| {
            if rest || segments.is_empty() {
                segments.push(Segment::Rest);
            }
            PathMatch::Template(segments)
        })
    }

    fn path_match() -> impl Strategy<Value = PathMatch> {
        let slashed = |text: String| format!("/{text}");
        prop_oneof![
            "[ab/]{0,4}".prop_map(move |text| PathMatch::Text(StringMatch::Exact(slashed(text)))),
            "[ab/]{0,3}".prop_map(move |text| PathMatch::Text(StringMatch::Prefix(slashed(text)))),
            "[ab/]{1,2}".prop_map(|text| PathMatch::Text(StringMatch::Suffix(text))),
            Just(PathMatch::Text(StringMatch::Present)),
            template(),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn a_text_that_is_covered_matches_nothing_else(wide in string(), narrow in string(), value in "[ab]{0,4}") {
            prop_assert!(!(text(&wide, &narrow) && matching::text(&narrow, &value)) || matching::text(&wide, &value));
        }

        #[test]
        fn nor_does_a_path(wide in path_match(), narrow in path_match(), value in "/[ab/]{0,6}") {
            prop_assert!(!(path(&wide, &narrow) && matching::path(&narrow, &value, None)) || matching::path(&wide, &value, None));
        }

        #[test]
        fn everything_covers_itself(one in string(), other in path_match()) {
            prop_assert!(text(&one, &one) && path(&other, &other));
        }
    }

    #[test]
    fn paths_of_templates_and_prefixes() {
        let template = |text: &str| {
            let segment = |part: &str| match part {
                "{}" => Segment::One("*".to_owned()),
                "{**}" => Segment::Rest,
                text => Segment::Literal(text.to_owned()),
            };
            PathMatch::Template(text.split('/').skip(1).map(segment).collect())
        };
        let prefix = |text: &str| PathMatch::Text(StringMatch::Prefix(text.to_owned()));
        for (wide, narrow, covered) in [
            (template("/a/{**}"), template("/a/{}/b"), true),
            (template("/a/{}"), template("/a/b"), true),
            (template("/a/{}"), template("/a/{**}"), false),
            (template("/a/{**}"), prefix("/a/b"), true),
            (template("/a/{**}"), prefix("/a"), false),
            (prefix("/a/"), template("/a/{}"), true),
            (prefix("/a/b"), template("/a/{}"), false),
        ] {
            assert_eq!(path(&wide, &narrow), covered, "{wide:?} {narrow:?}");
        }
    }
}
