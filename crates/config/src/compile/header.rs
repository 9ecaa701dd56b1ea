//! Header names and values (RFC 9110, section 5).

use crate::problem::Scope;
use leno_policy::reserved::is_reserved;

/// The use of a header's name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The header is only read.
    Read,
    /// The header is changed.
    Edit,
    /// The header is written into the access log.
    Log,
}

/// Fields that belong to a connection or to the framing of a message (RFC 9110, 7.6.1; RFC 9112, 6;
/// RFC 9113, 8.2.2): only the runtime sets them.
const FRAMING: [&str; 14] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "alt-svc",
];

/// Fields that hold credentials.
const SECRET: [&str; 5] = ["authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key"];

/// A header's name in lower case.
pub(crate) fn name(scope: &Scope<'_>, text: &str, purpose: Use) -> Option<String> {
    let name = text.to_ascii_lowercase();
    if name.starts_with(':') {
        scope.problem(
            format!("`{}` is a pseudo-header", text.escape_debug()),
            "use the fields for methods, hosts and paths",
        );
        return None;
    }
    if name.is_empty() || name.len() > 256 || !name.bytes().all(is_token_byte) {
        scope.problem(format!("`{}` is not a header's name", text.escape_debug()), "expected letters, digits and `-`");
        return None;
    }
    if purpose == Use::Edit && FRAMING.contains(&name.as_str()) {
        scope.problem(
            format!("`{name}` cannot be changed"),
            "it belongs to the connection or to the framing of the message; remove it",
        );
        return None;
    }
    if purpose == Use::Read && FRAMING.contains(&name.as_str()) {
        let message =
            format!("`{name}` belongs to the connection or to the framing of the message: it differs from hop to hop");
        let fix = if name == "host" { "use `hosts`" } else { "choose another header" };
        scope.problem(message, fix);
        return None;
    }
    if purpose == Use::Edit && is_reserved(&name) {
        scope.problem(
            format!("`{name}` cannot be changed"),
            "the mesh alone says who is calling, for whom and in which request; use another name",
        );
        return None;
    }
    if purpose == Use::Log && SECRET.contains(&name.as_str()) {
        scope.problem(format!("`{name}` holds credentials and cannot be logged"), "remove it");
        return None;
    }
    Some(name)
}

/// A header's value to write: visible ASCII with blanks between.
pub(super) fn value(scope: &Scope<'_>, text: &str) -> Option<String> {
    let good = text.len() <= 4096
        && text.trim_matches([' ', '\t']) == text
        && text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    if !good {
        let fix = "expected visible ASCII characters, with blanks only between them, at most 4096";
        scope.problem("this cannot be a header's value", fix);
    }
    good.then(|| text.to_owned())
}

/// `tchar` of RFC 9110, 5.6.2.
pub(super) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
