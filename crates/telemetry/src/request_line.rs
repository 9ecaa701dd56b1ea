//! Texts of a request as a record keeps them: small copies with limits.
//!
//! Every field of a head is a slice of its connection's read buffer. A record that kept a single
//! slice would keep the whole buffer, with the tokens in it, for as long as `leno explain` can show
//! the record.

use http::{HeaderValue, request};
use serde::{Deserialize, Serialize};

/// Limit on the bytes of a method.
const METHOD: usize = 32;
/// Limit on the bytes of a host with its port.
const AUTHORITY: usize = 256;
/// Limit on the bytes of a path.
const PATH: usize = 1024;
/// Limit on the bytes of one logged header value.
pub(super) const VALUE: usize = 256;
/// Limit on the bytes of all logged header values of one request.
const VALUES: usize = 2048;
/// Limit on the bytes of any other text: a rule, a clause, a principal, a reason.
const TEXT: usize = 512;
/// Limit on the entries of any list: edits, signature checks, runs of extensions.
const LIST: usize = 64;
/// The mark at the end of a text that was cut.
const CUT: &str = "…";

/// Method, authority and path of a request, in one allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLine {
    text: Box<str>,
    method: usize,
    authority: usize,
}

impl RequestLine {
    /// Copies them from a head, without the query.
    pub fn of(head: &request::Parts) -> Self {
        let authority = match head.uri.authority() {
            Some(authority) => authority.as_str(),
            None => head.headers.get(http::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
        };
        Self::new(head.method.as_str(), authority, head.uri.path())
    }

    /// Copies these texts, cut to their limits.
    pub fn new(method: &str, authority: &str, path: &str) -> Self {
        let mut text = String::with_capacity(
            method.len().min(METHOD) + authority.len().min(AUTHORITY) + path.len().min(PATH) + 3 * CUT.len(),
        );
        append(&mut text, method, METHOD);
        let method = text.len();
        append(&mut text, authority, AUTHORITY);
        let authority = text.len();
        append(&mut text, path, PATH);
        Self { text: text.into(), method, authority }
    }

    /// The same with another path.
    pub fn with_path(&self, path: &str) -> Self {
        Self::new(self.method(), self.authority(), path)
    }

    /// The method as sent.
    pub fn method(&self) -> &str {
        &self.text[..self.method]
    }

    /// Host and port as sent.
    pub fn authority(&self) -> &str {
        &self.text[self.method..self.authority]
    }

    /// The path as judged, before edits, without the query.
    pub fn path(&self) -> &str {
        &self.text[self.authority..]
    }

    /// Whether any of them was cut, or looks as if it were.
    pub fn is_cut(&self) -> bool {
        [self.method(), self.authority(), self.path()].iter().any(|text| text.ends_with(CUT))
    }
}

/// Copies the values of header fields, cut to the limits.
pub fn values<'a, N>(fields: impl Iterator<Item = (N, &'a HeaderValue)>) -> Vec<(N, Box<str>)> {
    let mut left = VALUES;
    let mut copies = Vec::new();
    for (name, value) in fields.take(LIST) {
        let bytes = value.as_bytes();
        // Take a character more than the limit. A character that this tears lies beyond the limit
        // and is cut off.
        let text = String::from_utf8_lossy(bytes.get(..VALUE + 4).unwrap_or(bytes));
        let mut copy = String::with_capacity(text.len().min(VALUE.min(left)) + CUT.len());
        append(&mut copy, &text, VALUE.min(left));
        left = left.saturating_sub(text.len());
        copies.push((name, copy.into()));
    }
    copies
}

/// Cuts a text to its limit.
pub(super) fn cut(text: &mut Box<str>) {
    if text.len() > TEXT {
        let mut copy = String::with_capacity(TEXT + CUT.len());
        append(&mut copy, text, TEXT);
        *text = copy.into();
    }
}

/// Cuts a list to its limit.
pub(super) fn cut_list<T>(list: &mut Vec<T>) {
    if list.len() > LIST {
        list.truncate(LIST);
        list.shrink_to_fit();
    }
}

fn append(to: &mut String, text: &str, most: usize) {
    if text.len() <= most {
        return to.push_str(text);
    }
    to.push_str(&text[..text.floor_char_boundary(most)]);
    to.push_str(CUT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn what_was_asked_is_copied_without_its_query() {
        let (head, ()) = Request::get("/a/b?secret").header("host", "shop:80").body(()).unwrap().into_parts();
        let line = RequestLine::of(&head);
        assert_eq!((line.method(), line.authority(), line.path()), ("GET", "shop:80", "/a/b"));
        let (head, ()) = Request::put("http://shop/").header("host", "other").body(()).unwrap().into_parts();
        let line = RequestLine::of(&head);
        assert_eq!((line.method(), line.authority(), line.path()), ("PUT", "shop", "/"));
    }

    #[test]
    fn what_is_too_long_is_cut_and_says_so() {
        let long = "/é".repeat(5_000);
        let line = RequestLine::new(&"M".repeat(99), &"h".repeat(9_999), &long);
        assert_eq!((line.method().len(), line.authority().len()), (METHOD + CUT.len(), AUTHORITY + CUT.len()));
        assert!(line.path().len() <= PATH + CUT.len() && line.path().ends_with('…'), "{}", line.path());
        assert!(line.path().starts_with("/é/é"));
        assert_eq!(RequestLine::new("GET", "", &"/".repeat(PATH)).path().len(), PATH, "just as long as it may be");
    }

    #[test]
    fn values_are_bounded_one_by_one_and_together() {
        let long = HeaderValue::from_bytes(&[b'a'; 20_000]).unwrap();
        let odd = HeaderValue::from_bytes(b"\xff").unwrap();
        let copies = values([("x-a", &odd)].into_iter().chain(std::iter::repeat_n(("x-b", &long), 1_000)));
        assert_eq!(*copies[0].1, *"\u{fffd}");
        assert_eq!(copies[1].1.len(), VALUE + CUT.len());
        assert_eq!(copies.len(), LIST);
        assert!(copies.iter().map(|(_, value)| value.len()).sum::<usize>() < VALUES + LIST * (CUT.len() + 4));
    }
}
