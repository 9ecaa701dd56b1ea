//! Reads the answer of an authorizer. It is as untrusted as the output of a sandbox, and the same
//! rules apply: the proxy takes only headers that the policy names, and none that belongs to the
//! mesh. A malformed answer counts as no answer.

use super::envoy::{self, CheckResponse, DeniedHttpResponse, HeaderValueOption, HttpResponse, OkHttpResponse};
use crate::state::authorizer::{Answer, AuthorizerRefusal};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use leno_http::edits::{self, BadOutput};
use leno_policy::outcome::RawEdit;
use leno_policy::spec::Issuer;
use std::time::Duration;

/// Longest text of an authorizer in a record, in characters.
const LONGEST_DETAILS: usize = 200;

/// Why there is no answer to rely on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error("it did not answer within {0:?}")]
    Timeout(Duration),
    /// The question did not arrive.
    #[error("it could not be asked: {0}")]
    NotAsked(String),
    #[error("its answer broke off: {0}")]
    Broken(String),
    #[error("its answer is larger than {0} bytes")]
    TooLarge(usize),
    /// Of an answer over HTTP: it neither allows nor refuses.
    #[error("it answered with status {0}")]
    Status(u16),
    #[error("its gRPC call failed with status {0}")]
    Grpc(u8),
    #[error("its answer is not understood: {0}")]
    Malformed(&'static str),
    #[error("its answer is invalid: {0}")]
    Invalid(#[from] BadOutput),
}

/// The header fields of an answer that allows which are set in the request.
#[derive(Clone, Copy)]
pub(crate) enum Names<'a> {
    /// These.
    Listed(&'a [String]),
    /// All that describe neither the answer itself nor belong to the mesh. They replace the request's.
    All,
}

/// Reads the answer to a gRPC call that succeeded.
pub(crate) fn of_grpc(
    spec: &leno_model::Authorizer,
    names: Names<'_>,
    issuers: &[Issuer],
    body: &[u8],
) -> Result<Answer, NoAnswer> {
    let CheckResponse { status, http_response } = envoy::unframe(body).map_err(NoAnswer::Malformed)?;
    let status = match (status, &http_response) {
        (Some(status), _) => status,
        (None, Some(HttpResponse::Ok(_))) => envoy::Status::default(),
        (None, Some(HttpResponse::Denied(_)) | None) => return Err(NoAnswer::Malformed("it has no status")),
    };
    match (status.code, http_response) {
        (0, Some(HttpResponse::Denied(_))) => Err(NoAnswer::Malformed("it allows and refuses")),
        (_, Some(HttpResponse::Ok(_))) if status.code != 0 => Err(NoAnswer::Malformed("it refuses and allows")),
        (0, None) => allows(names, issuers, &[], &[]),
        (_, Some(HttpResponse::Ok(OkHttpResponse { headers, headers_to_remove }))) => {
            allows(names, issuers, &fields(&headers), &headers_to_remove)
        }
        (_, denied) => {
            let denied = match denied {
                Some(HttpResponse::Denied(denied)) => denied,
                _ => DeniedHttpResponse::default(),
            };
            let code = denied.status.map_or(0, |status| status.code);
            let code = if code == 0 { 403 } else { u16::try_from(code).unwrap_or_default() };
            refuses(spec, code, &fields(&denied.headers), denied.body.into(), &status.message)
        }
    }
}

/// Reads the answer to a request: 200 allows, a status from 300 to 499 refuses.
pub(super) fn of_http(
    spec: &leno_model::Authorizer,
    names: Names<'_>,
    issuers: &[Issuer],
    status: StatusCode,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Answer, NoAnswer> {
    let fields: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    match status.as_u16() {
        200 => allows(names, issuers, &fields, &[]),
        code @ 300..=499 => refuses(spec, code, &fields, body, ""),
        code => Err(NoAnswer::Status(code)),
    }
}

fn fields(options: &[HeaderValueOption]) -> Vec<(&str, &[u8])> {
    let headers = options.iter().filter_map(|option| option.header.as_ref());
    headers.map(|header| (header.key.as_str(), header.bytes())).collect()
}

fn allows(
    names: Names<'_>,
    issuers: &[Issuer],
    fields: &[(&str, &[u8])],
    removed: &[String],
) -> Result<Answer, NoAnswer> {
    let mut changes: Vec<RawEdit> = removed.iter().map(|name| RawEdit::Remove(name.as_bytes().into())).collect();
    match names {
        // Headers that a client must not forge are gone from the request, so that all of an answer's
        // values are added.
        Names::Listed(names) => changes.extend(named(names, fields)),
        Names::All => changes.extend(all(fields)),
    }
    edits::check_claims(&changes, issuers)?;
    Ok(Answer::Allows(edits::check_changes(&changes)?))
}

fn refuses(
    spec: &leno_model::Authorizer,
    status: u16,
    fields: &[(&str, &[u8])],
    body: Bytes,
    details: &str,
) -> Result<Answer, NoAnswer> {
    let code = StatusCode::from_u16(status).ok().filter(|_| (300..=599).contains(&status));
    let mut names = spec.client_headers.clone();
    if !body.is_empty() {
        names.push(header::CONTENT_TYPE.as_str().to_owned());
    }
    let mut headers = HeaderMap::new();
    edits::apply(edits::check_changes(&named(&names, fields))?, &mut headers);
    let details: String = details.chars().take(LONGEST_DETAILS).flat_map(char::escape_debug).collect();
    let status = code.ok_or(BadOutput::Status(status))?;
    Ok(Answer::Refuses(AuthorizerRefusal { status, headers, body, details: details.into() }))
}

/// Those of the fields that a policy names.
fn named(names: &[String], fields: &[(&str, &[u8])]) -> Vec<RawEdit> {
    let is_named = |field: &&(&str, &[u8])| names.iter().any(|name| name.eq_ignore_ascii_case(field.0));
    let append = |(name, value): &(&str, &[u8])| RawEdit::Append(name.as_bytes().into(), (*value).into());
    fields.iter().filter(is_named).map(append).collect()
}

/// The fields that an answer sets if none are listed, each in place of the request's.
fn all(fields: &[(&str, &[u8])]) -> Vec<RawEdit> {
    let is_own = |name: &str| {
        name.get(..8).is_some_and(|begin| begin.eq_ignore_ascii_case("content-"))
            || ["date", "server", "set-cookie"].iter().any(|own| own.eq_ignore_ascii_case(name))
    };
    let is_free = |name: &str| edits::check_changes(&[RawEdit::Remove(name.as_bytes().into())]).is_ok();
    let free: Vec<_> = fields.iter().filter(|(name, _)| !is_own(name) && is_free(name)).collect();
    let removed = free.iter().map(|(name, _)| RawEdit::Remove(name.as_bytes().into()));
    let added = free.iter().map(|(name, value)| RawEdit::Append(name.as_bytes().into(), (*value).into()));
    removed.chain(added).collect()
}

#[cfg(test)]
mod tests;
