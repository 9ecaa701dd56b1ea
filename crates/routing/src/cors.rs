//! Cross-origin resource sharing, by the Gateway API's `HTTPCORSFilter`: the gateway alone decides
//! which pages may read responses. Back ends see no preflight request, and their own fields do not
//! count.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, COOKIE, ORIGIN, SET_COOKIE, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use leno_model::Cors;
use std::collections::BTreeSet;

/// Whether a request is a preflight request (Fetch, 4.8).
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS && headers.contains_key(ORIGIN) && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Status and header fields of the answer to a preflight request. Pages of other origins get status
/// 403, and none of the fields.
pub fn preflight(cors: &Cors, request: &HeaderMap) -> (StatusCode, HeaderMap) {
    let mut answer = HeaderMap::new();
    if depends_on_request(cors) {
        for name in [ORIGIN, ACCESS_CONTROL_REQUEST_METHOD, ACCESS_CONTROL_REQUEST_HEADERS] {
            answer.append(VARY, HeaderValue::from(name));
        }
    }
    let Some(origin) = allowed_origin(cors, request) else { return (StatusCode::FORBIDDEN, answer) };
    allow(cors, origin, &mut answer);
    let lists = [
        (ACCESS_CONTROL_ALLOW_METHODS, &cors.allow_methods, ACCESS_CONTROL_REQUEST_METHOD),
        (ACCESS_CONTROL_ALLOW_HEADERS, &cors.allow_headers, ACCESS_CONTROL_REQUEST_HEADERS),
    ];
    for (name, allowed, asked) in lists {
        // With credentials, browsers take `*` for a name.
        let value = match is_any(allowed) && cors.allow_credentials {
            true => request.get(asked).cloned(),
            false => list(allowed),
        };
        put(&mut answer, name, value);
    }
    if !is_any(&cors.expose_headers) || !cors.allow_credentials {
        put(&mut answer, ACCESS_CONTROL_EXPOSE_HEADERS, list(&cors.expose_headers));
    }
    answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(cors.max_age.as_secs()));
    (StatusCode::NO_CONTENT, answer)
}

/// Changes the header fields of the response to any other request. `request` has those of the
/// request.
pub fn response(cors: &Cors, request: &HeaderMap, response: &mut HeaderMap) {
    for name in [
        ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_ALLOW_CREDENTIALS,
        ACCESS_CONTROL_ALLOW_METHODS,
        ACCESS_CONTROL_ALLOW_HEADERS,
        ACCESS_CONTROL_EXPOSE_HEADERS,
        ACCESS_CONTROL_MAX_AGE,
    ] {
        response.remove(name);
    }
    if depends_on_request(cors) && !varies_by_origin(response) {
        response.append(VARY, HeaderValue::from(ORIGIN));
    }
    let Some(origin) = allowed_origin(cors, request) else { return };
    if !cors.allow_credentials && has_credentials(request) {
        return;
    }
    let exposed = match is_any(&cors.expose_headers) && cors.allow_credentials {
        true => {
            let names: BTreeSet<_> =
                response.keys().filter(|name| **name != SET_COOKIE).map(HeaderName::as_str).collect();
            list(names)
        }
        false => list(&cors.expose_headers),
    };
    allow(cors, origin, response);
    put(response, ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
}

fn allow(cors: &Cors, origin: &HeaderValue, headers: &mut HeaderMap) {
    let all = is_any(&cors.allow_origins) && !cors.allow_credentials;
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, if all { HeaderValue::from_static("*") } else { origin.clone() });
    if cors.allow_credentials {
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
    if let Some(value) = value {
        headers.insert(name, value);
    }
}

/// Whether the answers to two origins can differ.
fn depends_on_request(cors: &Cors) -> bool {
    !is_any(&cors.allow_origins) || cors.allow_credentials
}

fn varies_by_origin(headers: &HeaderMap) -> bool {
    let values = headers.get_all(VARY).iter().filter_map(|value| value.to_str().ok());
    let mut names = values.flat_map(|value| value.split(',')).map(str::trim);
    names.any(|name| name == "*" || name.eq_ignore_ascii_case(ORIGIN.as_str()))
}

fn is_any(list: &[String]) -> bool {
    list.iter().any(|item| item == "*")
}

/// A list in a header field; `None`: it is empty.
fn list(items: impl IntoIterator<Item: AsRef<str>>) -> Option<HeaderValue> {
    let mut text = String::new();
    for item in items {
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(item.as_ref());
    }
    if text.is_empty() { None } else { HeaderValue::try_from(text).ok() }
}

/// Whether a request has credentials. Preflight requests never have any.
fn has_credentials(request: &HeaderMap) -> bool {
    request.contains_key(COOKIE) || request.contains_key(AUTHORIZATION)
}

/// The request's origin, if its pages are allowed.
fn allowed_origin<'r>(cors: &Cors, request: &'r HeaderMap) -> Option<&'r HeaderValue> {
    let mut origins = request.get_all(ORIGIN).iter();
    let (origin, None) = (origins.next()?, origins.next()) else { return None };
    let text = origin.to_str().ok()?;
    cors.allow_origins.iter().any(|pattern| pattern == "*" || is_origin(pattern, text)).then_some(origin)
}

/// Whether an origin is the one of a pattern, `scheme://host[:port]`.
fn is_origin(pattern: &str, origin: &str) -> bool {
    let (Some((scheme, host, port)), Some(asked)) = (parts(pattern), parts(origin)) else { return false };
    let is_host = match host.strip_prefix('*') {
        Some(suffix) => ends_with(asked.1, suffix),
        None => host.eq_ignore_ascii_case(asked.1),
    };
    is_host && scheme.eq_ignore_ascii_case(asked.0) && port == asked.2
}

/// Scheme, host and port of an origin.
fn parts(origin: &str) -> Option<(&str, &str, u16)> {
    let (scheme, authority) = origin.split_once("://")?;
    // The colons of an IPv6 address are inside its brackets.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ if scheme.eq_ignore_ascii_case("http") => (authority, 80),
        _ if scheme.eq_ignore_ascii_case("https") => (authority, 443),
        _ => return None,
    };
    let is_host = !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ']);
    is_host.then_some((scheme, host, port))
}

/// Whether a host ends in this, with something before it.
fn ends_with(host: &str, suffix: &str) -> bool {
    let (host, suffix) = (host.as_bytes(), suffix.as_bytes());
    host.len() > suffix.len() && host[host.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
}

#[cfg(test)]
mod tests;
