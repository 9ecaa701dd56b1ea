//! The claims of a token: a JSON object (RFC 7519, 4) of which nothing may be read in two ways.

use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Objects and lists may be nested this deep.
const MAX_DEPTH: u32 = 16;

/// A JSON object without duplicate members, strings borrowed where they hold no escapes.
#[derive(Debug, Default)]
pub struct Claims<'a> {
    members: Vec<(Cow<'a, str>, Value<'a>)>,
}

/// A JSON value.
#[derive(Debug)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(Cow<'a, str>),
    List(Vec<Value<'a>>),
    Object(Claims<'a>),
}

impl<'a> Claims<'a> {
    /// Reads an object; `None` if it is none, has a member twice, or is nested too deep.
    pub fn parse(json: &'a [u8]) -> Option<Self> {
        if too_deep(json) {
            return None;
        }
        serde_json::from_slice(json).ok()
    }

    /// A member of the top level.
    pub fn member(&self, name: &str) -> Option<&Value<'a>> {
        self.members.iter().find(|(member, _)| member == name).map(|(_, value)| value)
    }

    /// A string of the top level.
    pub fn string(&self, name: &str) -> Option<&str> {
        match self.member(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value at a path of member names.
    pub fn at(&self, path: &[String]) -> Option<&Value<'a>> {
        let (first, rest) = path.split_first()?;
        match (self.member(first)?, rest.is_empty()) {
            (value, true) => Some(value),
            (Value::Object(inner), false) => inner.at(rest),
            _ => None,
        }
    }

    /// The text of a string, number or boolean at a path.
    pub fn text(&self, path: &[String]) -> Option<Cow<'_, str>> {
        self.at(path)?.text()
    }

    /// Whether the value at a path, or one element of the list there, meets something. `scope` and `scp` are lists separated by
    /// spaces (RFC 8693, 4.2).
    pub fn any(&self, path: &[String], meets: impl Fn(&str) -> bool) -> bool {
        match self.at(path) {
            None => false,
            Some(Value::List(items)) => items.iter().any(|item| item.text().is_some_and(|text| meets(&text))),
            Some(value) => value.text().is_some_and(|text| {
                let spaced = matches!(path, [only] if only == "scope" || only == "scp");
                meets(&text) || (spaced && text.split(' ').any(&meets))
            }),
        }
    }

    /// `aud`, a string or a list of strings.
    pub fn audience(&self) -> impl Iterator<Item = &str> {
        let items: &[Value<'a>] = match self.member("aud") {
            Some(Value::List(items)) => items,
            Some(value) => core::slice::from_ref(value),
            None => &[],
        };
        items.iter().filter_map(|item| if let Value::Text(text) = item { Some(&**text) } else { None })
    }
}

impl Value<'_> {
    fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Bool(value) => Some(Cow::Borrowed(if *value { "true" } else { "false" })),
            Self::Unsigned(number) => Some(Cow::Owned(number.to_string())),
            Self::Signed(number) => Some(Cow::Owned(number.to_string())),
            Self::Float(number) => Some(Cow::Owned(number.to_string())),
            Self::Null | Self::List(_) | Self::Object(_) => None,
        }
    }
}

/// Counts brackets outside of strings, so that the parser's recursion is bounded.
fn too_deep(json: &[u8]) -> bool {
    let (mut depth, mut inside, mut escaped) = (0u32, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            b'{' | b'[' if !inside => depth += 1,
            b'}' | b']' if !inside => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return true;
        }
    }
    false
}

impl<'de: 'a, 'a> Deserialize<'de> for Claims<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<'a>(PhantomData<&'a ()>);

impl<'de: 'a, 'a> Visitor<'de> for ObjectVisitor<'a> {
    type Value = Claims<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members: Vec<(Cow<'a, str>, Value<'a>)> = Vec::with_capacity(8);
        while let Some(Text(name)) = map.next_key()? {
            if members.iter().any(|(other, _)| *other == name) {
                return Err(A::Error::custom("duplicate member"));
            }
            let value = map.next_value()?;
            members.push((name, value));
        }
        Ok(Claims { members })
    }
}

/// A string, borrowed if it can be.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Text(text) => Ok(Self(text)),
            _ => Err(D::Error::custom("not a string")),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor(PhantomData))
    }
}

struct ValueVisitor<'a>(PhantomData<&'a ()>);

impl<'de: 'a, 'a> Visitor<'de> for ValueVisitor<'a> {
    type Value = Value<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Value::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Value::Signed(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Value::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Value::Text(Cow::Owned(value.to_string())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        const MOST: usize = 1024;
        let mut items = Vec::new();
        while items.len() < MOST {
            match seq.next_element()? {
                Some(item) => items.push(item),
                None => return Ok(Value::List(items)),
            }
        }
        match seq.next_element::<IgnoredAny>()? {
            Some(_) => Err(A::Error::custom("list too long")),
            None => Ok(Value::List(items)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        ObjectVisitor(PhantomData).visit_map(map).map(Value::Object)
    }
}
