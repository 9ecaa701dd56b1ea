//! A recorded request head, with the parts that were kept and that a program reads.

use super::{DecodedRecord, ReplayError};
use leno_policy::input::Header;
use leno_policy::needs::{Needs, Reads};
use leno_policy::spec::TokenSource;
use leno_telemetry::inputs::{Inputs, Query, Token};

/// Stands in for a signature that was verified when the request was made.
const SIGNATURE: &str = "AA";

/// The head that the program reads.
pub(super) struct Head {
    /// Path and query.
    pub path: String,
    fields: Vec<(String, Vec<u8>)>,
}

impl Head {
    /// Rebuilds the head from the recorded parts. Fails if the program would read a part that was
    /// not recorded.
    pub(super) fn rebuild(
        recorded: &DecodedRecord,
        inputs: &Inputs,
        needs: &Needs,
        reads: &Reads,
    ) -> Result<Self, ReplayError> {
        if recorded.request_line.is_cut() {
            return Err(ReplayError::CutRequestLine);
        }
        if let Some(name) = reads.headers.iter().find(|name| !inputs.knows(name)) {
            return Err(ReplayError::NoHeader(name.to_string()));
        }
        // A request with an ambiguous query was refused whatever the rules say.
        let refused_by_query =
            || recorded.judged.as_ref().is_some_and(|judged| judged.verdict.rule_and_clause().0 == "leno/request");
        if inputs.query == Query::Dropped && (reads.query || refused_by_query()) {
            return Err(ReplayError::NoQuery);
        }
        tokens_are_known(inputs, needs)?;
        // The absence of certain fields decides whether a request is a preflight.
        if inputs.more_names && recorded.request_line.method() == "OPTIONS" && !needs.tokens.is_empty() {
            return Err(ReplayError::TooManyHeaders);
        }
        let mut head = Self { path: recorded.judged_place().1.to_owned(), fields: Vec::new() };
        let mut query = match &inputs.query {
            Query::Kept(query) => Some(query.to_string()),
            Query::None | Query::Dropped => None,
        };
        head.fields.extend(inputs.values.iter().map(|(name, value)| (name.to_string(), value.to_vec())));
        let mut cookies = Vec::new();
        if let Token::Kept { found, unsigned } = &inputs.token
            && !needs.tokens.is_empty()
        {
            let token = format!("{unsigned}.{SIGNATURE}");
            for source in found.iter().filter_map(|&index| inputs.sources.get(usize::from(index))) {
                match source {
                    TokenSource::Header { name, prefix } => {
                        head.fields.push((name.clone(), format!("{prefix}{token}").into_bytes()));
                    }
                    TokenSource::Query(name) => query = Some(format!("{}={token}", encoded(name))),
                    TokenSource::Cookie(name) => cookies.push(format!("{name}={token}")),
                }
            }
        }
        if !cookies.is_empty() {
            head.fields.push(("cookie".to_owned(), cookies.join("; ").into_bytes()));
        }
        if let Some(query) = query {
            head.path.push('?');
            head.path.push_str(&query);
        }
        // The program only asks whether each of the other fields is there.
        for name in inputs.names.split(',').filter(|name| !name.is_empty()) {
            let is_there = head.fields.iter().any(|(known, _)| known == name);
            if !is_there {
                head.fields.push((name.to_owned(), Vec::new()));
            }
        }
        Ok(head)
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = Header<'_>> {
        self.fields.iter().map(|(name, value)| Header { name, value })
    }
}

/// Fails unless the record shows which token the program would find at each of its sources.
fn tokens_are_known(inputs: &Inputs, needs: &Needs) -> Result<(), ReplayError> {
    if needs.tokens.is_empty() {
        return Ok(());
    }
    if inputs.token == Token::Dropped {
        return Err(ReplayError::NoToken);
    }
    let is_known = |source: &&TokenSource| {
        inputs.sources.contains(source)
            || match source {
                // A header or query that a rule reads may also hold a token, and is recorded whole.
                TokenSource::Header { name, .. } => inputs.knows(name),
                TokenSource::Query(_) => inputs.query != Query::Dropped,
                TokenSource::Cookie(_) => inputs.had("cookie") == Some(false),
            }
    };
    match needs.tokens.iter().find(|source| !is_known(source)) {
        None => Ok(()),
        Some(TokenSource::Header { name, .. }) => Err(ReplayError::NoTokenHeader(name.clone())),
        Some(TokenSource::Query(_)) => Err(ReplayError::NoTokenQuery),
        Some(TokenSource::Cookie(_)) => Err(ReplayError::NoTokenCookie),
    }
}

/// Percent-encodes a name for a query.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let byte = |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(byte).collect()
}
