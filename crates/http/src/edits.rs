//! Checks the output of sandboxes. It is untrusted, so it touches a message only after these
//! checks.
//!
//! A program cannot smuggle: the `http` crate parses names and values (no CR, LF or NUL, no
//! pseudo-headers), and fields that frame or route a message, or identify its sender, belong to the
//! runtime.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderMap, StatusCode};
use leno_policy::outcome::{HeaderEdit, RawEdit};
use leno_policy::reserved::{is_reserved, is_same};
use leno_policy::spec::Issuer;

/// Limit on the edits of one message.
const MOST_EDITS: usize = 256;
/// Limit on the bytes of a field name.
const LONGEST_NAME: usize = 256;
/// Limit on the bytes of a field value.
const LONGEST_VALUE: usize = 8 * 1024;
/// Limit on the bytes of a path with its query.
const LONGEST_PATH: usize = 32 * 1024;

/// A header edit that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Replace all values with this one.
    Set(HeaderName, HeaderValue),
    /// Add a value.
    Append(HeaderName, HeaderValue),
    /// Remove all values.
    Remove(HeaderName),
}

impl Edit {
    /// The name of its field.
    pub fn name(&self) -> &HeaderName {
        match self {
            Self::Set(name, _) | Self::Append(name, _) | Self::Remove(name) => name,
        }
    }

    /// Bytes of its name and value.
    #[inline]
    pub fn size(&self) -> usize {
        match self {
            Self::Set(name, value) | Self::Append(name, value) => name.as_str().len() + value.len(),
            Self::Remove(name) => name.as_str().len(),
        }
    }
}

/// The fault of a program's output. It contains names and numbers, never values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOutput {
    /// There are too many edits, takes from counters, or other items.
    #[error("{count} {what} are more than {most}")]
    TooMany {
        /// The kind of item.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many are allowed.
        most: usize,
    },
    /// Not a field name (RFC 9110, 5.1).
    #[error("not a header name")]
    HeaderName,
    /// Not a field value (RFC 9110, 5.5), or too long.
    #[error("the value for header `{0}` is not a header value")]
    HeaderValue(HeaderName),
    /// Framing, routing, identity and hop-by-hop fields belong to the runtime.
    #[error("header `{0}` is not for policies to edit")]
    ForbiddenHeader(HeaderName),
    /// The field identifies the user, and only the token's claims may set it.
    #[error("header `{0}` is made of a claim, and not for extensions to edit")]
    Claim(Box<str>),
    /// Not a path in origin form.
    #[error("not a path to forward")]
    Path,
    /// The status of a refusal is not 4xx or 5xx.
    #[error("{0} is not the status of a refusal")]
    Status(u16),
    /// The program asks to verify a signature, but no token is there.
    #[error("wants the signature of a token that is not there")]
    NoToken,
    /// The program refers to a rate limit or target that does not exist.
    #[error("refers to {what} {index}, of which there are {count}")]
    Index {
        /// The kind of item.
        what: &'static str,
        /// The index.
        index: usize,
        /// How many there are.
        count: usize,
    },
}

/// Checks the header edits of a program.
pub fn check(edits: Vec<HeaderEdit>) -> Result<Vec<Edit>, BadOutput> {
    at_most("header edits", edits.len(), MOST_EDITS)?;
    edits
        .into_iter()
        .map(|edit| match edit {
            HeaderEdit::Set(name, value) => {
                field(name.as_bytes(), value.into()).map(|(name, value)| Edit::Set(name, value))
            }
            HeaderEdit::Append(name, value) => {
                field(name.as_bytes(), value.into()).map(|(name, value)| Edit::Append(name, value))
            }
            HeaderEdit::Remove(name) => field_name(name.as_bytes()).map(Edit::Remove),
        })
        .collect()
}

/// Checks the header edits of an extension, which are bytes.
pub fn check_changes(changes: &[RawEdit]) -> Result<Vec<Edit>, BadOutput> {
    at_most("header edits", changes.len(), MOST_EDITS)?;
    changes
        .iter()
        .map(|change| match change {
            RawEdit::Set(name, value) => {
                field(name, Bytes::copy_from_slice(value)).map(|(name, value)| Edit::Set(name, value))
            }
            RawEdit::Append(name, value) => {
                field(name, Bytes::copy_from_slice(value)).map(|(name, value)| Edit::Append(name, value))
            }
            RawEdit::Remove(name) => field_name(name).map(Edit::Remove),
        })
        .collect()
}

/// Checks that an extension does not edit the fields to which the claims of these issuers are
/// copied.
pub fn check_claims(changes: &[RawEdit], issuers: &[Issuer]) -> Result<(), BadOutput> {
    let mut claimed = issuers.iter().flat_map(|issuer| &issuer.claims_to_headers).map(|(_, name)| name);
    let is_changed = |claimed: &&String| {
        changes.iter().any(|change| match change {
            RawEdit::Set(name, _) | RawEdit::Append(name, _) | RawEdit::Remove(name) => {
                is_same(name, claimed.as_bytes())
            }
        })
    };
    claimed.find(is_changed).map_or(Ok(()), |name| Err(BadOutput::Claim(name.as_str().into())))
}

/// Checks the header fields of a refusal.
pub fn check_fields(fields: Vec<(String, String)>) -> Result<Vec<(HeaderName, HeaderValue)>, BadOutput> {
    at_most("header fields", fields.len(), MOST_EDITS)?;
    fields.into_iter().map(|(name, value)| field(name.as_bytes(), value.into())).collect()
}

/// Checks a path and query to forward.
pub fn check_path(path: String) -> Result<PathAndQuery, BadOutput> {
    // The parser is laxer: it accepts bytes beyond ASCII and silently drops a fragment.
    let plain = path.bytes().all(|byte| (0x21..=0x7e).contains(&byte) && byte != b'#');
    if !plain || !path.starts_with('/') || path.len() > LONGEST_PATH {
        return Err(BadOutput::Path);
    }
    PathAndQuery::try_from(path).map_err(|_| BadOutput::Path)
}

/// Checks the status of a refusal.
pub fn check_status(status: u16) -> Result<StatusCode, BadOutput> {
    match StatusCode::from_u16(status) {
        Ok(code) if (400..=599).contains(&status) => Ok(code),
        _ => Err(BadOutput::Status(status)),
    }
}

/// Fails if `count` exceeds `most`.
pub fn at_most(what: &'static str, count: usize, most: usize) -> Result<(), BadOutput> {
    if count <= most { Ok(()) } else { Err(BadOutput::TooMany { what, count, most }) }
}

/// Applies edits, in order.
pub fn apply(edits: Vec<Edit>, headers: &mut HeaderMap) {
    for edit in edits {
        match edit {
            Edit::Set(name, value) => drop(headers.insert(name, value)),
            Edit::Append(name, value) => drop(headers.append(name, value)),
            Edit::Remove(name) => drop(headers.remove(name)),
        }
    }
}

fn field(name: &[u8], value: Bytes) -> Result<(HeaderName, HeaderValue), BadOutput> {
    let name = field_name(name)?;
    if value.len() > LONGEST_VALUE {
        return Err(BadOutput::HeaderValue(name));
    }
    match HeaderValue::from_maybe_shared(value) {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(BadOutput::HeaderValue(name)),
    }
}

fn field_name(name: &[u8]) -> Result<HeaderName, BadOutput> {
    if name.len() > LONGEST_NAME {
        return Err(BadOutput::HeaderName);
    }
    let name = HeaderName::from_bytes(name).map_err(|_| BadOutput::HeaderName)?;
    if is_framing(&name) || is_reserved(name.as_str()) { Err(BadOutput::ForbiddenHeader(name)) } else { Ok(name) }
}

/// Whether a field is for framing or routing, or is a hop-by-hop field of RFC 9110, 7.6.1, or one
/// of their older relatives.
fn is_framing(name: &HeaderName) -> bool {
    const FRAMING: [HeaderName; 9] = [
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::HOST,
        header::CONNECTION,
        header::TE,
        header::TRAILER,
        header::UPGRADE,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
    ];
    FRAMING.contains(name) || matches!(name.as_str(), "keep-alive" | "proxy-connection" | "http2-settings")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> HeaderEdit {
        HeaderEdit::Set(name.into(), value.into())
    }

    #[test]
    fn edits_are_applied_in_order() {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("1"));
        headers.append("x-a", HeaderValue::from_static("2"));
        headers.append("x-gone", HeaderValue::from_static("1"));
        let edits = vec![
            set("X-A", "3"),
            HeaderEdit::Append("x-a".into(), "4".into()),
            HeaderEdit::Remove("x-gone".into()),
            set("x-gone-and-back", "1"),
        ];
        apply(check(edits).unwrap(), &mut headers);
        assert_eq!(headers.get_all("x-a").iter().collect::<Vec<_>>(), ["3", "4"]);
        assert!(!headers.contains_key("x-gone"));
        assert_eq!(headers.len(), 3);
    }

    #[test]
    fn nothing_can_be_smuggled() {
        for name in ["", ":path", "x y", "x\r\ny", "x:y", "é", &"x".repeat(257)] {
            assert_eq!(check(vec![set(name, "v")]), Err(BadOutput::HeaderName), "{name:?}");
            assert_eq!(check(vec![HeaderEdit::Remove(name.into())]), Err(BadOutput::HeaderName), "{name:?}");
        }
        let name = HeaderName::from_static("x-a");
        for value in ["a\r\nset-cookie: b", "a\nb", "a\rb", "\0", "\u{7f}", &"v".repeat(8193)] {
            let expected = BadOutput::HeaderValue(name.clone());
            assert_eq!(check(vec![set("x-a", value)]), Err(expected.clone()), "{value:?}");
            assert_eq!(check_fields(vec![("x-a".into(), value.into())]), Err(expected));
        }
    }

    #[test]
    fn framing_routing_and_hop_by_hop_fields_are_the_runtimes() {
        for name in [
            "Content-Length",
            "transfer-encoding",
            "host",
            "connection",
            "keep-alive",
            "proxy-connection",
            "te",
            "trailer",
            "upgrade",
            "proxy-authenticate",
            "proxy-authorization",
            "http2-settings",
        ] {
            let forbidden = Err(BadOutput::ForbiddenHeader(HeaderName::try_from(name).unwrap()));
            assert_eq!(check(vec![set(name, "1")]), forbidden, "{name}");
            assert_eq!(check(vec![HeaderEdit::Append(name.into(), "1".into())]), forbidden, "{name}");
            assert_eq!(check(vec![HeaderEdit::Remove(name.into())]), forbidden, "{name}");
        }
        assert!(check(vec![HeaderEdit::Remove("authorization".into()), set("cookie", "a=b")]).is_ok());
    }

    #[test]
    fn what_the_mesh_says_is_not_for_programs_to_say() {
        for name in [
            "x-forwarded-client-cert",
            "X_Forwarded_Client_Cert",
            "x-leno-caller",
            "x_leno_caller",
            "x-request-id",
            "x-forwarded-for",
            "proxy",
        ] {
            let forbidden = BadOutput::ForbiddenHeader(HeaderName::try_from(name).unwrap());
            assert_eq!(check(vec![set(name, "1")]), Err(forbidden.clone()), "{name}");
            let change = RawEdit::Append(name.as_bytes().into(), b"1"[..].into());
            assert_eq!(check_changes(&[change]), Err(forbidden), "{name}");
        }
        assert!(check(vec![set("x-forwarded-user", "ann")]).is_ok());
    }

    #[test]
    fn claims_are_not_for_modules_to_write() {
        let issuer = Issuer {
            name: String::new(),
            issuer: String::new(),
            audiences: vec![],
            keys: vec![],
            sources: vec![],
            clock_skew_ms: 0,
            forward: false,
            required: false,
            require_expiration: false,
            keys_pending: false,
            preflight: false,
            space_delimited_claims: vec![],
            claims_to_headers: vec![(vec!["sub".into()], "x-user".into())],
        };
        let set = |name: &[u8]| [RawEdit::Set(name.into(), b"root"[..].into())];
        for name in ["x-user", "X-User", "x_user"] {
            let claimed = Err(BadOutput::Claim("x-user".into()));
            assert_eq!(check_claims(&set(name.as_bytes()), std::slice::from_ref(&issuer)), claimed, "{name}");
        }
        assert_eq!(check_claims(&set(b"x-users"), &[issuer]), Ok(()));
    }

    #[test]
    fn modules_are_held_to_the_same_rules() {
        let bytes = |text: &[u8]| -> Box<[u8]> { text.into() };
        for (name, value) in
            [(&b":path"[..], &b"/"[..]), (b"x y", b"v"), (b"", b"v"), (b"x-a", b"a\r\nb"), (b"x-a", b"\0")]
        {
            assert!(check_changes(&[RawEdit::Set(bytes(name), bytes(value))]).is_err(), "{name:?}");
            assert!(check_changes(&[RawEdit::Append(bytes(name), bytes(value))]).is_err(), "{name:?}");
        }
        for name in ["Host", "content-length", "Transfer-Encoding", "connection", "te", "upgrade"] {
            let changes = [RawEdit::Remove(bytes(name.as_bytes()))];
            assert!(matches!(check_changes(&changes), Err(BadOutput::ForbiddenHeader(_))), "{name}");
        }
        assert!(check_changes(&vec![RawEdit::Remove(bytes(b"x-a")); MOST_EDITS + 1]).is_err());
        // Values need not be text.
        let edits = check_changes(&[RawEdit::Set(bytes(b"X-A"), bytes(b"\xe4\xf6"))]).unwrap();
        let mut headers = HeaderMap::new();
        apply(edits, &mut headers);
        assert_eq!(headers["x-a"].as_bytes(), b"\xe4\xf6");
    }

    #[test]
    fn counts_are_bounded() {
        let edits = |count| vec![set("x-a", "1"); count];
        assert!(check(edits(MOST_EDITS)).is_ok());
        assert!(matches!(check(edits(MOST_EDITS + 1)), Err(BadOutput::TooMany { count: 257, .. })));
    }

    #[test]
    fn paths_are_in_origin_form() {
        for good in ["/", "/a/b?c=d&e=%20", "/a;b=c", "/?"] {
            assert_eq!(check_path(good.into()).unwrap().as_str(), good);
        }
        for bad in
            ["", "a", "*", "http://x/", "/a b", "/a\r\nb", "/a#b", "/ä", "/\u{7f}", &"/".repeat(LONGEST_PATH + 1)]
        {
            assert_eq!(check_path(bad.into()), Err(BadOutput::Path), "{bad:?}");
        }
    }

    #[test]
    fn refusals_have_error_statuses() {
        for good in [400, 401, 403, 429, 500, 503, 599] {
            assert_eq!(check_status(good).unwrap().as_u16(), good);
        }
        for bad in [0, 99, 100, 200, 302, 399, 600, 999, 1000] {
            assert_eq!(check_status(bad), Err(BadOutput::Status(bad)));
        }
    }
}
