//! Rewritten paths, and redirects.

use http::{HeaderValue, StatusCode};
use leno_model::{PathChange, PathPattern, Redirect};
use leno_policy::path;
use std::borrow::Cow;

/// Why a route cannot be applied to a request. The request gets status 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRewrite {
    /// The rewritten path is not a normal one: servers could read it in another way.
    #[error("the rewritten path is not in its normal form")]
    Path,
    /// A prefix is to be replaced, and the rule's match is no prefix.
    #[error("a prefix is to be replaced, and the rule does not match by prefix")]
    Prefix,
    /// A name or value of a header field is none.
    #[error("a header field of the route is not one of HTTP")]
    Header,
    /// The status of a redirect is none.
    #[error("the redirect's status is not 301, 302, 303, 307 or 308")]
    Status,
}

/// Scheme, host and port for which a client asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOrigin<'r> {
    /// `http` or `https`.
    pub scheme: &'r str,
    /// Host, without port.
    pub host: &'r str,
    /// Port of the listener.
    pub port: u16,
}

/// Status and `Location` of a redirect. `path` is normal, and `pattern` is the one of the rule that
/// it matches. The query stays.
///
/// # Errors
/// The redirect cannot be written.
pub fn redirect(
    redirect: &Redirect,
    pattern: &PathPattern,
    path: &str,
    query: Option<&str>,
    asked: RequestOrigin<'_>,
) -> Result<(StatusCode, HeaderValue), BadRewrite> {
    let status = match redirect.status {
        301 | 302 | 303 | 307 | 308 => StatusCode::from_u16(redirect.status).map_err(|_| BadRewrite::Status)?,
        _ => return Err(BadRewrite::Status),
    };
    let path = match &redirect.path {
        Some(change) => Cow::Owned(rewritten_path(change, pattern, path)?),
        None => Cow::Borrowed(path),
    };
    if !path.starts_with('/') {
        return Err(BadRewrite::Path);
    }
    let scheme = redirect.scheme.as_deref().unwrap_or(asked.scheme);
    let known = match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    let by_scheme = redirect.scheme.as_ref().and(known);
    let port = redirect.port.or(by_scheme).unwrap_or(asked.port);
    let port = if Some(port) == known { String::new() } else { format!(":{port}") };
    let host = redirect.host.as_deref().unwrap_or(asked.host);
    let (mark, query) = query.map_or(("", ""), |query| ("?", query));
    let location = format!("{scheme}://{host}{port}{path}{mark}{query}");
    Ok((status, HeaderValue::try_from(location).map_err(|_| BadRewrite::Header)?))
}

/// A changed path. `path` is normal, and `pattern` is the one of the rule that it matches.
///
/// # Errors
/// The result would not be normal, or a prefix is to be replaced where the rule has none.
pub fn rewritten_path(change: &PathChange, pattern: &PathPattern, path: &str) -> Result<String, BadRewrite> {
    let mut rewritten = match (change, pattern) {
        (PathChange::Full(path), _) => path.clone(),
        (PathChange::Prefix(replacement), PathPattern::Prefix(prefix)) => {
            let rest = path.strip_prefix(&**prefix).ok_or(BadRewrite::Prefix)?;
            if !(rest.is_empty() || rest.starts_with('/')) {
                return Err(BadRewrite::Prefix);
            }
            [replacement.trim_end_matches('/'), rest].concat()
        }
        (PathChange::Prefix(_), _) => return Err(BadRewrite::Prefix),
    };
    if rewritten.is_empty() {
        rewritten.push('/');
    }
    let is_normal = rewritten.starts_with('/')
        && !rewritten.contains('?')
        && path::normalise(&rewritten).is_ok_and(|normal| *normal == *rewritten);
    if is_normal { Ok(rewritten) } else { Err(BadRewrite::Path) }
}

#[cfg(test)]
mod tests;
