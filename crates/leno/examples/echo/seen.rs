//! The requests of cases: each has a name in its header field `x-case`.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Uri};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The field with the name of the case.
const CASE: &str = "x-case";

static SEEN: Mutex<BTreeMap<String, Vec<Value>>> = Mutex::new(BTreeMap::new());

/// The host that a request asks for, as the client sent it.
pub(crate) fn host<B>(request: &Request<B>) -> Option<&str> {
    let field = || request.headers().get("host").and_then(|host| host.to_str().ok());
    request.uri().authority().map(|authority| authority.as_str()).or_else(field)
}

/// Remembers a request. Returns the number of requests of its case so far.
pub(crate) fn remember<B>(request: &Request<B>) -> usize {
    let Some(case) = request.headers().get(CASE).and_then(|case| case.to_str().ok()) else { return 0 };
    let path = request.uri().path_and_query().map(ToString::to_string);
    let seen = json!({"method": request.method().as_str(), "path": path, "host": host(request)});
    let Ok(mut all) = SEEN.lock() else { return 0 };
    let of = all.entry(case.to_owned()).or_default();
    of.push(seen);
    of.len()
}

/// The requests of a case, as a list.
pub(crate) fn of(case: &str) -> Value {
    SEEN.lock().ok().and_then(|all| all.get(case).cloned()).unwrap_or_default().into()
}

/// The fields of a response that its request asks for: `x-answer: NAME: VALUE`, and over gRPC the
/// status.
pub(crate) fn fields<B>(request: &Request<B>) -> HeaderMap {
    let (asked, mut fields) = (request.headers(), HeaderMap::new());
    if !asked.contains_key(CASE) {
        return fields;
    }
    let answer = asked.get("x-answer").and_then(|value| value.to_str().ok()?.split_once(": "));
    let answer = answer.and_then(|(name, value)| Some((name.parse::<HeaderName>().ok()?, value.parse().ok()?)));
    fields.extend(answer);
    if asked.get("content-type").is_some_and(|kind| kind == "application/grpc") {
        fields.insert("content-type", HeaderValue::from_static("application/grpc"));
        fields.insert("grpc-status", HeaderValue::from_static("0"));
    }
    fields
}

/// The case that a request asks for: `/seen/CASE`.
pub(crate) fn asked(uri: &Uri) -> Option<&str> {
    uri.path().strip_prefix("/seen/")
}
