//! Changes of header fields.

use crate::BadRewrite;
use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::HeaderModifier;

/// Changes header fields: first `set`, then `add`, then `remove`.
///
/// # Errors
/// A name or a value is none of HTTP; nothing is changed then.
pub fn modify(modifier: &HeaderModifier, headers: &mut HeaderMap) -> Result<(), BadRewrite> {
    let name = |name: &str| HeaderName::try_from(name).map_err(|_| BadRewrite::Header);
    let field = |(key, value): &(String, String)| {
        Ok((name(key)?, HeaderValue::try_from(value).map_err(|_| BadRewrite::Header)?))
    };
    let set = modifier.set.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    let add = modifier.add.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    let remove = modifier.remove.iter().map(|key| name(key)).collect::<Result<Vec<_>, _>>()?;
    for (name, value) in set {
        headers.insert(name, value);
    }
    for (name, value) in add {
        headers.append(name, value);
    }
    for name in remove {
        headers.remove(name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: &[(&str, &str)]) -> Vec<(String, String)> {
        fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn fields_are_set_added_and_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("a", "1"), ("a", "2"), ("b", "1"), ("c", "1"), ("c", "2")] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let modifier = HeaderModifier {
            set: fields(&[("a", "x"), ("new", "n")]),
            add: fields(&[("b", "y,z"), ("d", "1")]),
            remove: vec!["c".into(), "absent".into()],
        };
        modify(&modifier, &mut headers).unwrap();
        let values = |name| headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(values("a"), ["x"]);
        assert_eq!(values("b"), ["1", "y,z"]);
        assert_eq!((values("c"), values("d"), values("new")), (vec![], vec!["1"], vec!["n"]));
    }

    #[test]
    fn a_bad_field_changes_nothing() {
        for modifier in [
            HeaderModifier { set: fields(&[("a", "x"), ("b", "1\r\nc: 2")]), ..HeaderModifier::default() },
            HeaderModifier { set: fields(&[("a", "x")]), add: fields(&[("b c", "1")]), ..HeaderModifier::default() },
            HeaderModifier { set: fields(&[("a", "x")]), remove: vec![":path".into()], ..HeaderModifier::default() },
        ] {
            let mut headers = HeaderMap::new();
            assert_eq!(modify(&modifier, &mut headers), Err(BadRewrite::Header));
            assert!(headers.is_empty());
        }
    }
}
