//! Inputs of a verdict that the record does not already have, so that another program can judge the
//! request again.
//!
//! It stays in the memory of the node, and is bounded: names of header fields, values of those that
//! rules of the program read, the query if they read it, and a token without its signature, which
//! cannot be used. Values that are credentials are never kept.

use super::record_encoding;
use super::request_line::VALUE;
use http::HeaderMap;
use leno_policy::needs::{Needs, Reads};
use leno_policy::spec::{ProgramSpec, TokenSource};
use leno_policy::token::{self, RequestToken};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Limit on the bytes of the names of all header fields.
const NAMES: usize = 512;
/// Limit on the bytes of all values.
const VALUES: usize = 1024;
/// Limit on the bytes of a query.
const QUERY: usize = 512;
/// Limit on the bytes of a token without its signature.
const TOKEN: usize = 2048;

/// Fields whose values are credentials.
const SECRET: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-api-key"];

/// The parts of each request that the records of a program keep.
#[derive(Clone, Debug)]
pub struct InputSelection {
    headers: Box<[String]>,
    query: bool,
    sources: Arc<[TokenSource]>,
}

impl InputSelection {
    /// The selection for this program.
    pub fn of(spec: &ProgramSpec, needs: &Needs) -> Self {
        let Reads { mut headers, query } = Reads::of(spec);
        headers.retain(|name| !SECRET.contains(&name.as_str()));
        Self { headers: headers.into(), query, sources: needs.tokens.as_slice().into() }
    }
}

/// The inputs of one verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inputs {
    /// The called port.
    pub port: u16,
    /// Names of the header fields, in lower case, separated by commas.
    pub names: Box<str>,
    /// There were more names than are kept.
    pub more_names: bool,
    /// Values of fields that the program's rules look at: of each field all, or none.
    pub values: Vec<(Box<str>, Box<[u8]>)>,
    /// The query.
    pub query: Query,
    /// Where the program looked for tokens.
    #[serde(with = "record_encoding::sources")]
    pub sources: Arc<[TokenSource]>,
    /// The tokens that it found there.
    pub token: Token,
}

/// A query as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Query {
    /// There was none.
    None,
    /// As it was sent.
    Kept(Box<str>),
    /// There was one. The program's rules do not look at it, it held a token, or it was too long.
    Dropped,
}

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Token {
    /// There was none.
    None,
    /// There was one.
    Kept {
        /// The sources that had it: indices into [`Inputs::sources`].
        found: Vec<u8>,
        /// Header and claims, still encoded.
        unsigned: Box<str>,
    },
    /// There were several, or one that is too long or no JWT.
    Dropped,
}

impl Inputs {
    /// Copies the selected inputs. `located` are the tokens that were found at the program's
    /// sources.
    pub fn new(
        keeps: &InputSelection,
        port: u16,
        path_and_query: &str,
        headers: &HeaderMap,
        located: &[RequestToken<'_>],
    ) -> Box<Self> {
        let (names, more_names) = names(headers);
        Box::new(Self {
            port,
            names,
            more_names,
            values: values(keeps, headers),
            query: query(keeps, path_and_query, located),
            sources: keeps.sources.clone(),
            token: unsigned(keeps, located),
        })
    }

    /// Whether a header field of this name was sent; `None`: unknown.
    pub fn had(&self, name: &str) -> Option<bool> {
        let had = self.names.split(',').any(|known| known == name);
        (had || !self.more_names).then_some(had)
    }

    /// Whether the values of this field are known: they are kept, or there were none.
    pub fn knows(&self, name: &str) -> bool {
        self.values.iter().any(|(kept, _)| **kept == *name) || self.had(name) == Some(false)
    }
}

fn names(headers: &HeaderMap) -> (Box<str>, bool) {
    // Measured first: this is on the path of every request, and a text that fits is not copied
    // again.
    let (mut length, mut count) = (0, 0);
    for name in headers.keys() {
        let longer = length + usize::from(count > 0) + name.as_str().len();
        if longer > NAMES {
            break;
        }
        (length, count) = (longer, count + 1);
    }
    let mut names = String::with_capacity(length);
    for name in headers.keys().take(count) {
        if !names.is_empty() {
            names.push(',');
        }
        names.push_str(name.as_str());
    }
    (names.into_boxed_str(), count < headers.keys_len())
}

fn values(keeps: &InputSelection, headers: &HeaderMap) -> Vec<(Box<str>, Box<[u8]>)> {
    let (mut kept, mut left) = (Vec::new(), VALUES);
    for name in &keeps.headers {
        let values = || headers.get_all(name.as_str()).iter().map(|value| value.as_bytes());
        // An empty value takes room too.
        let size: usize = values().map(|value| name.len() + value.len()).sum();
        if size > left || values().any(|value| value.len() > VALUE) {
            continue;
        }
        left -= size;
        kept.extend(values().map(|value| (name.as_str().into(), value.into())));
    }
    kept
}

fn query(keeps: &InputSelection, path_and_query: &str, located: &[RequestToken<'_>]) -> Query {
    let has_token = || {
        let sources = located.iter().filter_map(|found| keeps.sources.get(found.source));
        sources.into_iter().any(|source| matches!(source, TokenSource::Query(_)))
    };
    match leno_policy::path::split(path_and_query).1 {
        None => Query::None,
        Some(query) if keeps.query && query.len() <= QUERY && !has_token() => Query::Kept(query.into()),
        Some(_) => Query::Dropped,
    }
}

fn unsigned(keeps: &InputSelection, located: &[RequestToken<'_>]) -> Token {
    let Some(first) = located.first() else { return Token::None };
    let unsigned = match first.token.rsplit_once('.') {
        // A token with other parts may be a credential without a signature.
        Some((unsigned, _)) if unsigned.len() <= TOKEN && unsigned.matches('.').count() == 1 => unsigned,
        _ => return Token::Dropped,
    };
    let found: Option<Vec<u8>> = located.iter().map(|found| u8::try_from(found.source).ok()).collect();
    match found {
        Some(found) if token::contradicting(located).is_none() && found.len() <= keeps.sources.len() => {
            Token::Kept { found, unsigned: unsigned.into() }
        }
        _ => Token::Dropped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use leno_policy::input::Header;
    use leno_policy::spec::{Action, AuthorizationRule, Condition, ConditionKey, Matches};

    fn keeps(headers: &[&str], query: bool) -> InputSelection {
        let header = TokenSource::Header { name: "authorization".to_owned(), prefix: "Bearer ".to_owned() };
        let sources: Arc<[TokenSource]> = Arc::new([header, TokenSource::Query("token".to_owned())]);
        InputSelection { headers: headers.iter().map(|&name| name.to_owned()).collect(), query, sources }
    }

    fn inputs(keeps: &InputSelection, path: &str, sent: &[(&'static str, &str)]) -> Inputs {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let fields: Vec<Header<'_>> =
            sent.iter().map(|&(name, value)| Header { name, value: value.as_bytes() }).collect();
        *Inputs::new(keeps, 80, path, &headers, &token::locate(&keeps.sources, &fields, path))
    }

    #[test]
    fn values_are_kept_of_what_rules_look_at_and_names_of_all() {
        let sent = [("x-team", "blue"), ("x-team", "red"), ("x-other", "secret")];
        let found = inputs(&keeps(&["x-team"], false), "/a?b=c", &sent);
        assert_eq!(found.values.iter().map(|(_, value)| &**value).collect::<Vec<_>>(), [&b"blue"[..], b"red"]);
        assert!(found.knows("x-team") && !found.knows("x-other") && found.knows("x-none"));
        assert_eq!((found.had("x-other"), found.had("x-none")), (Some(true), Some(false)));
        assert_eq!(found.query, Query::Dropped);
        let found = inputs(&keeps(&[], true), "/a?b=c", &[]);
        assert_eq!(found.query, Query::Kept("b=c".into()));
    }

    #[test]
    fn a_token_is_kept_without_its_signature_and_nothing_else_of_it() {
        let sent = [("authorization", "Bearer head.claims.signature")];
        let found = inputs(&keeps(&["x-team"], true), "/", &sent);
        assert_eq!(found.token, Token::Kept { found: vec![0], unsigned: "head.claims".into() });
        assert!(!postcard::to_allocvec(&found).unwrap().windows(9).any(|bytes| bytes == b"signature"));
        let found = inputs(&keeps(&[], true), "/a?token=head.claims.signature", &[]);
        assert_eq!(found.query, Query::Dropped, "the signature is in it");
        for bad in ["Bearer opaque", "Bearer a.b.c.d.e", "Bearer a.b"] {
            let found = inputs(&keeps(&[], true), "/", &[("authorization", bad)]);
            assert_eq!(found.token, Token::Dropped, "{bad}");
        }
        let sent = [("authorization", "Bearer a.b.c"), ("authorization", "Bearer a.b.d")];
        assert_eq!(inputs(&keeps(&[], true), "/", &sent).token, Token::Dropped);
    }

    #[test]
    fn what_a_client_can_make_it_keep_is_bounded() {
        let long = "v".repeat(10_000);
        let names: Vec<String> = (0..100).map(|number| format!("x-a-rather-long-name-{number}")).collect();
        let mut headers = HeaderMap::new();
        for name in &names {
            headers.insert(http::HeaderName::try_from(name).unwrap(), HeaderValue::from_str(&long).unwrap());
        }
        let path = format!("/?{long}");
        let found = *Inputs::new(&keeps(&[names[99].as_str()], true), 80, &path, &headers, &[]);
        assert!(postcard::to_allocvec(&found).unwrap().len() < NAMES + VALUES + QUERY + 200);
        assert_eq!((found.had(&names[0]).is_some(), found.had("x-none"), found.knows("x-none")), (true, None, false));
    }

    #[test]
    fn credentials_are_not_kept_even_if_a_rule_looks_at_them() {
        let mut spec = crate::testing::program("shop/orders");
        let condition =
            |name: &str| Condition { key: ConditionKey::Header(name.to_owned()), values: Matches::default() };
        spec.authorization.push(AuthorizationRule {
            name: "p/authorization/team".to_owned(),
            action: Action::Allow,
            from: Vec::new(),
            to: Vec::new(),
            when: vec![condition("authorization"), condition("x-team"), condition("cookie")],
            audit: false,
        });
        let keeps = InputSelection::of(&spec, &Needs::of(&spec));
        let found = inputs(&keeps, "/", &[("authorization", "secret"), ("cookie", "secret"), ("x-team", "blue")]);
        assert_eq!(found.values, [("x-team".into(), b"blue"[..].into())]);
        assert!(!found.knows("authorization"));
    }
}
