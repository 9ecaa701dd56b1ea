//! Header edits of a sandbox, applied to a head with all fields that they must not touch. Edits of such
//! fields are refused.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue};
use leno_http::edits;
use leno_policy::outcome::{HeaderEdit, RawEdit};
use libfuzzer_sys::fuzz_target;

/// Fields that programs must not edit, in upper or lower case. For those after [`SPOKEN`], underscores
/// count as hyphens.
const THEIRS: [&str; 20] = [
    "connection",
    "content-length",
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
    "proxy",
    "x-forwarded-client-cert",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-leno-caller",
    "x-request-id",
];
/// The first field for which underscores count as hyphens.
const SPOKEN: usize = 12;
const OURS: [&str; 5] = ["authorization", "cookie", "X-User", "x_user", "x-forwarded-user"];

/// The kind of edit, the name (one of the known ones, or the text), and the value.
type Sketch<'a> = (u8, u8, &'a [u8], &'a [u8]);

fuzz_target!(|input: (Vec<Sketch<'_>>, &str, u16)| {
    let (sketches, path, status) = input;
    let named: Vec<(u8, Vec<u8>, &[u8])> =
        sketches.iter().map(|(kind, index, text, value)| (*kind, name(*index, text), *value)).collect();

    let changes: Vec<RawEdit> = named.iter().map(|(kind, name, value)| change(*kind, name, value)).collect();
    attempt(edits::check_changes(&changes), named.len());

    let texts: Option<Vec<HeaderEdit>> = named.iter().map(|(kind, name, value)| edit(*kind, name, value)).collect();
    if let Some(texts) = texts {
        // Both functions apply the same rules.
        let (one, other) = (edits::check(texts), edits::check_changes(&changes));
        assert_eq!(one, other);
    }

    let fields = named.iter().filter_map(|(_, name, value)| Some((text(name)?, text(value)?))).collect();
    for (name, value) in edits::check_fields(fields).unwrap_or_default() {
        assert!(!is_theirs(name.as_str()) && value.len() <= 8192);
    }
    if let Ok(checked) = edits::check_path(path.to_owned()) {
        assert_eq!(checked.as_str(), path, "a path is forwarded as it was checked");
        assert!(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()));
    }
    assert_eq!(edits::check_status(status).is_ok(), (400..600).contains(&status));
});

fn attempt(checked: Result<Vec<edits::Edit>, edits::BadOutput>, count: usize) {
    let Ok(checked) = checked else { return };
    assert!(checked.len() == count && count <= 256);
    let mut head = HeaderMap::new();
    for name in THEIRS.iter().chain(&OURS) {
        head.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_static("before"));
    }
    edits::apply(checked, &mut head);
    for name in THEIRS {
        assert!(head.get_all(name).iter().eq(["before"]), "{name} was edited");
    }
    for (name, value) in &head {
        assert!(THEIRS.contains(&name.as_str()) || !is_theirs(name.as_str()), "{name} was added");
        assert!(value.len() <= 8192 && !value.as_bytes().iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
    }
}

/// A second, slow implementation, so that it does not share the faults of the tested one.
fn is_theirs(name: &str) -> bool {
    let folded = name.to_ascii_lowercase().replace('_', "-");
    THEIRS[..SPOKEN].contains(&&*name.to_ascii_lowercase())
        || THEIRS[SPOKEN..].contains(&&*folded)
        || folded.starts_with("x-leno-")
}

fn name(index: u8, text: &[u8]) -> Vec<u8> {
    let known = THEIRS.iter().chain(&OURS).nth(usize::from(index & 0x3f));
    let Some(known) = known else { return text.to_owned() };
    let known = if index & 0x40 == 0 { (*known).to_owned() } else { known.to_uppercase() };
    if index & 0x80 == 0 { known.into_bytes() } else { known.replace('-', "_").into_bytes() }
}

fn change(kind: u8, name: &[u8], value: &[u8]) -> RawEdit {
    match kind % 3 {
        0 => RawEdit::Set(name.into(), value.into()),
        1 => RawEdit::Append(name.into(), value.into()),
        _ => RawEdit::Remove(name.into()),
    }
}

fn edit(kind: u8, name: &[u8], value: &[u8]) -> Option<HeaderEdit> {
    let (name, value) = (text(name)?, text(value)?);
    Some(match kind % 3 {
        0 => HeaderEdit::Set(name, value),
        1 => HeaderEdit::Append(name, value),
        _ => HeaderEdit::Remove(name),
    })
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_owned()).ok()
}
