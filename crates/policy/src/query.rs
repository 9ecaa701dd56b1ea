//! The query of a request as rules see it: split into parameters once, names and values decoded.
//!
//! Servers differ in which of several parameters of one name they take, and a few also split at
//! `;`. So a parameter has *readings*, one for each value that some server may see. A rule that
//! allows must hold in all of them; for a rule that denies, one is enough.

use crate::matching::{self, Clause, compare};
use crate::path::Ambiguous;
use crate::spec::{Action, Matches, StringMatch};
use alloc::borrow::Cow;
use alloc::vec::Vec;

/// A query in the form of HTML forms (`a=1&b=2`; WHATWG URL, 5.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query<'a> {
    parameters: Vec<Parameter<'a>>,
    /// As seen by a server that splits at `;` too; `None`: the same.
    split: Option<Vec<Parameter<'a>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Parameter<'a> {
    name: Cow<'a, [u8]>,
    value: Cow<'a, [u8]>,
}

impl<'a> Query<'a> {
    /// Splits a query into parameters.
    ///
    /// # Errors
    /// An escape is broken, or stands for a null byte, at which some servers end the text.
    pub(crate) fn parse(query: &'a str) -> Result<Self, Ambiguous> {
        let split = if query.contains(';') { Some(parameters(query.split(['&', ';']))?) } else { None };
        Ok(Self { parameters: parameters(query.split('&'))?, split })
    }

    /// Whether a rule of this kind holds for a parameter. A parameter that is absent meets no matcher.
    pub(crate) fn clause(&self, action: Action, name: &str, values: &Matches<StringMatch>) -> Clause {
        let mut first = None;
        for parameters in [Some(&self.parameters), self.split.as_ref()].into_iter().flatten() {
            let mut named = parameters.iter().filter(|parameter| *parameter.name == *name.as_bytes()).peekable();
            let absent = named.peek().is_none().then_some(None);
            for value in named.map(|parameter| Some(&*parameter.value)).chain(absent) {
                let clause = compare(values, value, matching::bytes);
                // One reading decides: it stops a rule that allows, and is enough for a rule that
                // denies.
                if clause.fails() == (action == Action::Allow) {
                    return clause;
                }
                first.get_or_insert(clause);
            }
        }
        first.unwrap_or(Clause::Missed)
    }
}

fn parameters<'a>(pairs: impl Iterator<Item = &'a str>) -> Result<Vec<Parameter<'a>>, Ambiguous> {
    let parameter = |pair: &'a str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok(Parameter { name: decode(name)?, value: decode(value)? })
    };
    pairs.filter(|pair| !pair.is_empty()).map(parameter).collect()
}

fn decode(text: &str) -> Result<Cow<'_, [u8]>, Ambiguous> {
    if !text.contains(['%', '+']) {
        return Ok(Cow::Borrowed(text.as_bytes()));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
                let (Some(high), Some(low)) = (digit(), digit()) else { return Err(Ambiguous::BadQueryEscape) };
                match u8::try_from(high * 16 + low).unwrap_or_default() {
                    0 => return Err(Ambiguous::QueryNull),
                    byte => byte,
                }
            }
            byte => byte,
        });
    }
    Ok(Cow::Owned(decoded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::borrow::ToOwned;
    use alloc::string::String;
    use alloc::vec;
    use proptest::prelude::*;

    fn any(values: &[&str]) -> Matches<StringMatch> {
        Matches { any: values.iter().map(|value| StringMatch::Exact((*value).to_owned())).collect(), none: vec![] }
    }

    /// Whether an allow rule and a deny rule that want `role` to be `user` hold.
    fn holds(query: &str, values: &Matches<StringMatch>) -> (bool, bool) {
        let query = Query::parse(query).unwrap();
        let holds = |action| !query.clause(action, "role", values).fails();
        (holds(Action::Allow), holds(Action::Deny))
    }

    #[test]
    fn every_reading_counts() {
        for (query, allows, denies) in [
            ("role=user", true, true),
            ("role=admin", false, false),
            ("a=1&role=user&b", true, true),
            ("role=user&role=user", true, true),
            ("role=user&role=admin", false, true),
            ("role=admin&role=user", false, true),
            ("role=user;role=admin", false, true),
            ("a=1;role=user", false, true),
            ("role=user&x=1;role=admin", false, true),
            ("role", false, false),
            ("role=", false, false),
            ("", false, false),
            ("ROLE=user", false, false),
            ("%72ole=us%65r", true, true),
            ("role=us+r", false, false),
            ("role=user=", false, false),
        ] {
            assert_eq!(holds(query, &any(&["user"])), (allows, denies), "{query}");
        }
    }

    #[test]
    fn present_and_absent() {
        let there = Matches { any: vec![StringMatch::Any], none: vec![] };
        let absent = Matches { any: vec![], none: vec![StringMatch::Any] };
        let but = Matches { any: vec![], none: any(&["user"]).any };
        for (query, there_holds, absent_holds, but_holds) in [
            ("role", (true, true), (false, false), (true, true)),
            ("role=user", (true, true), (false, false), (false, false)),
            ("role=user&role=x", (true, true), (false, false), (false, true)),
            ("other", (false, false), (true, true), (true, true)),
            ("a;role", (false, true), (false, true), (true, true)),
        ] {
            assert_eq!(holds(query, &there), there_holds, "{query}");
            assert_eq!(holds(query, &absent), absent_holds, "{query}");
            assert_eq!(holds(query, &but), but_holds, "{query}");
        }
    }

    #[test]
    fn what_servers_read_differently_is_refused() {
        for (query, ambiguous) in [
            ("a=%", Ambiguous::BadQueryEscape),
            ("a=%4", Ambiguous::BadQueryEscape),
            ("a=%zz", Ambiguous::BadQueryEscape),
            ("%00", Ambiguous::QueryNull),
            ("a;b=%00", Ambiguous::QueryNull),
        ] {
            assert_eq!(Query::parse(query), Err(ambiguous), "{query}");
        }
    }

    proptest! {
        #[test]
        fn a_rule_that_allows_holds_only_where_one_that_denies_does(query in "[ruole=;&%20+a]{0,24}", value in "[a-u]{0,4}") {
            if let Ok(query) = Query::parse(&query) {
                let values = any(&[&value]);
                let holds = |action| !query.clause(action, "r", &values).fails();
                prop_assert!(!holds(Action::Allow) || holds(Action::Deny));
            }
        }

        #[test]
        fn what_is_encoded_is_read_back(pairs in prop::collection::vec(("[^\0]{1,4}", "[^\0]{0,4}"), 1..5)) {
            let encode = |text: &str| text.bytes().map(|byte| alloc::format!("%{byte:02x}")).collect::<String>();
            let text: Vec<String> =
                pairs.iter().map(|(name, value)| [encode(name), encode(value)].join("=")).collect();
            let text = text.join("&");
            let query = Query::parse(&text).unwrap();
            let read = query.parameters.iter().map(|one| (&*one.name, &*one.value));
            prop_assert!(read.eq(pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()))));
        }
    }
}
