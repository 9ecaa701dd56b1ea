//! The claims of a token: a JSON object (RFC 7519, 4) that can be read in one way only.

use crate::json::{self, Json, Members};
use crate::spec::ClaimPath;
use alloc::borrow::Cow;
use alloc::string::String;

/// The year 9999, in milliseconds. A later value is no date: it stands for "never", or attacks the
/// arithmetic.
const LATEST_MS: u64 = 253_402_300_799_999;

/// A JSON object without duplicate members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims<'a> {
    members: Members<'a>,
    /// Claims that hold lists separated by spaces, as the issuer's configuration says.
    spaced: &'a [ClaimPath],
}

/// A claim is not of the kind that its name demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongKind;

impl<'a> Claims<'a> {
    /// Reads an object; `None` if it is none, has a member twice, or is nested too deep.
    pub(crate) fn parse(text: &'a [u8]) -> Option<Self> {
        json::object(core::str::from_utf8(text).ok()?).map(|members| Self { members, spaced: &[] })
    }

    /// With these claims read as lists separated by spaces.
    pub(crate) fn with_spaced(self, spaced: &'a [ClaimPath]) -> Self {
        Self { spaced, ..self }
    }

    /// A member of the top level.
    pub(crate) fn member(&self, name: &str) -> Option<&Json<'a>> {
        member(&self.members, name)
    }

    /// A string of the top level.
    pub(crate) fn string(&self, name: &str) -> Option<&str> {
        match self.member(name)? {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A NumericDate (RFC 7519, 2) of the top level, in milliseconds.
    pub(crate) fn date(&self, name: &str) -> Result<Option<u64>, WrongKind> {
        match self.member(name) {
            None => Ok(None),
            Some(Json::Number(number)) => milliseconds(number).map(Some).ok_or(WrongKind),
            Some(_) => Err(WrongKind),
        }
    }

    /// `aud`, a string or a list of strings (RFC 7519, 4.1.3); not one string if it is neither.
    pub(crate) fn audience(&self) -> impl Iterator<Item = &str> {
        let items: &[Json<'a>] = match self.member("aud") {
            Some(Json::List(items)) => items,
            Some(value) => core::slice::from_ref(value),
            None => &[],
        };
        items.iter().filter_map(|item| if let Json::Text(text) = item { Some(&**text) } else { None })
    }

    /// Whether `aud` is absent, a string, or a list of strings.
    pub(crate) fn audience_is_well_formed(&self) -> bool {
        match self.member("aud") {
            None | Some(Json::Text(_)) => true,
            Some(Json::List(items)) => items.iter().all(|item| matches!(item, Json::Text(_))),
            Some(_) => false,
        }
    }

    /// The value at a path of member names.
    fn at(&self, path: &[String]) -> Option<&Json<'a>> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.member(first)?, |value, name| match value {
            Json::Object(members) => member(members, name),
            _ => None,
        })
    }

    /// The text of a string, number or boolean at a path. Lists and objects have none.
    pub(crate) fn text(&self, path: &[String]) -> Option<&str> {
        text(self.at(path)?)
    }

    /// Whether the value at a path, or one element of the list there, meets a condition. `scope`,
    /// `scp` and `permission` are lists separated by spaces (RFC 8693, 4.2), and so are the claims
    /// that the issuer's configuration lists.
    pub(crate) fn any(&self, path: &[String], meets: impl Fn(&str) -> bool) -> bool {
        match self.at(path) {
            None => false,
            Some(Json::List(items)) => items.iter().filter_map(text).any(meets),
            Some(value) => text(value).is_some_and(|text| {
                let usual = matches!(path, [only] if matches!(only.as_str(), "scope" | "scp" | "permission"));
                let spaced = usual || self.spaced.iter().any(|spaced| spaced == path);
                meets(text) || (spaced && text.split(' ').any(&meets))
            }),
        }
    }
}

fn member<'m, 'a>(members: &'m Members<'a>, name: &str) -> Option<&'m Json<'a>> {
    members.iter().find(|(member, _)| member == name).map(|(_, value)| value)
}

fn text<'v>(value: &'v Json<'_>) -> Option<&'v str> {
    match value {
        Json::Text(Cow::Borrowed(text)) => Some(text),
        Json::Text(Cow::Owned(text)) => Some(text),
        Json::Number(number) => Some(number),
        Json::Bool(true) => Some("true"),
        Json::Bool(false) => Some("false"),
        Json::Null | Json::List(_) | Json::Object(_) => None,
    }
}

/// Seconds as a JSON number, fractions and exponents included, in milliseconds, rounded down. `None`: negative, or later than
/// [`LATEST_MS`].
fn milliseconds(seconds: &str) -> Option<u64> {
    if seconds.starts_with('-') {
        return None;
    }
    let (mantissa, exponent) = match seconds.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (seconds, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = whole.bytes().chain(fraction.bytes()).map(|digit| u64::from(digit.saturating_sub(b'0')));
    // The number of digits before the point when the unit is a millisecond.
    let before_point = i64::try_from(whole.len()).ok()? + i64::from(exponent) + 3;
    let mut value = 0;
    for _ in 0..before_point {
        let digit = digits.next();
        if digit.is_none() && value == 0 {
            break;
        }
        value = value * 10 + digit.unwrap_or(0);
        if value > LATEST_MS {
            return None;
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::{Claims, WrongKind, milliseconds};
    use alloc::borrow::ToOwned;
    use alloc::string::String;
    use alloc::vec::Vec;

    fn path(path: &str) -> Vec<String> {
        path.split('.').map(ToOwned::to_owned).collect()
    }

    #[test]
    fn dates() {
        for (number, expected) in [
            ("0", Some(0)),
            ("1700000000", Some(1_700_000_000_000)),
            ("1700000000.5", Some(1_700_000_000_500)),
            ("1700000000.9999999999", Some(1_700_000_000_999)),
            ("1.7e9", Some(1_700_000_000_000)),
            ("17E+8", Some(1_700_000_000_000)),
            ("17000000000e-1", Some(1_700_000_000_000)),
            ("0.0001", Some(0)),
            ("0e999999999", Some(0)),
            ("0.000e2147483647", Some(0)),
            ("1e-2147483648", Some(0)),
            ("253402300799", Some(253_402_300_799_000)),
            ("253402300800", None),
            ("1e99", None),
            ("1e99999999999", None),
            ("18446744073709551616", None),
            ("-1", None),
            ("-0", None),
        ] {
            assert_eq!(milliseconds(number), expected, "{number}");
        }
    }

    #[test]
    fn a_date_is_a_number() {
        let claims = Claims::parse(br#"{"exp":1.5,"nbf":"1","iat":null,"x":[1]}"#).unwrap();
        assert_eq!(claims.date("exp"), Ok(Some(1500)));
        assert_eq!(claims.date("absent"), Ok(None));
        for name in ["nbf", "iat", "x"] {
            assert_eq!(claims.date(name), Err(WrongKind), "{name}");
        }
    }

    #[test]
    fn texts_of_claims() {
        let claims = Claims::parse(
            br#"{"a":{"b":"c","n":1.0,"big":123456789012345678901,"t":true,"z":null,"l":["x",2,false,{"q":1}]},"a.b":"flat"}"#,
        )
        .unwrap();
        for (at, text) in [
            ("a.b", Some("c")),
            ("a.n", Some("1.0")),
            ("a.big", Some("123456789012345678901")),
            ("a.t", Some("true")),
            ("a.z", None),
            ("a.l", None),
            ("a", None),
            ("a.b.c", None),
            ("x", None),
        ] {
            assert_eq!(claims.text(&path(at)), text, "{at}");
        }
        assert_eq!(claims.text(&["a.b".to_owned()]), Some("flat"));
        assert_eq!(claims.text(&[]), None);
        for (value, found) in [("x", true), ("2", true), ("false", true), ("y", false), ("1", false)] {
            assert_eq!(claims.any(&path("a.l"), |text| text == value), found, "{value}");
        }
    }

    #[test]
    fn scopes_are_separated_by_spaces() {
        let claims =
            Claims::parse(br#"{"scope":"read write","other":"read write","in":{"scope":"read write"}}"#).unwrap();
        assert!(claims.any(&path("scope"), |text| text == "write"));
        assert!(claims.any(&path("scope"), |text| text == "read write"));
        assert!(!claims.any(&path("scope"), |text| text == "rea"));
        assert!(!claims.any(&path("other"), |text| text == "write"));
        assert!(!claims.any(&path("in.scope"), |text| text == "write"));
        let more = [path("other"), path("in.scope")];
        let claims = claims.with_spaced(&more);
        for at in ["other", "in.scope", "scope"] {
            assert!(claims.any(&path(at), |text| text == "write"), "{at}");
        }
    }

    #[test]
    fn audiences() {
        let all = |text: &str| {
            let claims = Claims::parse(text.as_bytes()).unwrap();
            (claims.audience_is_well_formed(), claims.audience().map(ToOwned::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(all(r#"{"aud":"a"}"#), (true, ["a".to_owned()].to_vec()));
        assert_eq!(all(r#"{"aud":["a","b"]}"#), (true, ["a".to_owned(), "b".to_owned()].to_vec()));
        assert_eq!(all(r#"{}"#), (true, [].to_vec()));
        assert_eq!(all(r#"{"aud":["a",1]}"#), (false, ["a".to_owned()].to_vec()));
        assert!(!all(r#"{"aud":{"a":1}}"#).0);
        assert!(!all(r#"{"aud":null}"#).0);
    }
}
