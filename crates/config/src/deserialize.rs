//! A tree -> a typed document, by serde.
//!
//! Serde stops at the first error. To report all errors, the wrong value is left out and the
//! document is tried again; unknown fields are left out on the way.

use crate::compile::words;
use crate::document::NamedRevision;
use crate::nearest::did_you_mean;
use crate::problem::Scope;
use crate::yaml::{Key, Mark, Node, Value};
use leno_model::TEXT_OR_MORE;
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};
use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

/// More wrong values than a reader needs at once.
const MAX_TRIES: usize = 32;

/// The typed document; `None`: problems were reported.
pub(crate) fn deserialize<T: DeserializeOwned>(root: &Scope<'_>) -> Option<T> {
    let skipped = InvalidNodes::default();
    for _ in 0..MAX_TRIES {
        let before = skipped.count();
        let here = De { scope: *root, skipped: &skipped };
        match here.settle(T::deserialize(here)) {
            Ok(document) => return (skipped.count() == 0).then_some(document),
            Err(_) if skipped.count() == before => return None,
            Err(_) => {}
        }
    }
    None
}

/// Wrong values, by their address in the tree.
#[derive(Default)]
struct InvalidNodes(RefCell<HashSet<*const Node>>);

impl InvalidNodes {
    fn has(&self, node: &Node) -> bool {
        self.0.borrow().contains(&std::ptr::from_ref(node))
    }

    fn add(&self, node: &Node) {
        self.0.borrow_mut().insert(std::ptr::from_ref(node));
    }

    fn count(&self) -> usize {
        self.0.borrow().len()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Error {
    message: String,
    fix: String,
    /// Already in the list of problems.
    reported: bool,
    /// This field is missing.
    missing: Option<&'static str>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    /// A message may carry its fix after a `;`.
    fn custom<T: fmt::Display>(message: T) -> Self {
        let text = message.to_string();
        let (message, fix) = text.split_once("; ").unwrap_or((&text, ""));
        Self { message: message.to_owned(), fix: fix.to_owned(), ..Self::default() }
    }

    fn invalid_type(unexpected: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format!("unexpected {unexpected}; expected {expected}"))
    }

    fn missing_field(field: &'static str) -> Self {
        Self { missing: Some(field), ..Self::custom(format!("the field `{field}` is missing; add it")) }
    }
}

/// Deserialises the value at a place.
#[derive(Clone, Copy)]
struct De<'a> {
    scope: Scope<'a>,
    skipped: &'a InvalidNodes,
}

impl<'a> De<'a> {
    fn node(&self) -> &'a Node {
        static NOTHING: Node =
            Node { mark: Mark { line: 0, column: 0 }, value: Value::Scalar { text: String::new(), plain: true } };
        self.scope.node().unwrap_or(&NOTHING)
    }

    fn at<'s>(&'s self, scope: Scope<'s>) -> De<'s> {
        De { scope, skipped: self.skipped }
    }

    fn unexpected(&self, expected: &str) -> Error {
        let found = self.node().describe();
        Error { message: format!("expected {expected}, found {found}"), ..Error::default() }
    }

    /// A text where a boolean is expected: `yes` and `off` are booleans for YAML 1.1.
    fn no_boolean(&self) -> Error {
        let text = self.node().text().unwrap_or_default().to_lowercase();
        let fix = match text.as_str() {
            "true" | "yes" | "on" | "y" | "1" | "enabled" => "write true",
            "false" | "no" | "off" | "n" | "0" | "disabled" => "write false",
            _ => "",
        };
        Error { fix: fix.to_owned(), ..self.unexpected("true or false") }
    }

    /// A text where a list is expected, most often of one element.
    fn no_list(&self) -> Error {
        let Some(text) = self.node().text() else { return self.unexpected("a list") };
        let line = [text.to_owned()];
        let words = words(&line).filter(|_| matches!(self.scope.name(), Some("command" | "args")));
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
        let element = || if plain { format!("write [{text}]") } else { format!("write [\"{}\"]", text.escape_debug()) };
        Error { fix: words.unwrap_or_else(element), ..self.unexpected("a list") }
    }

    /// The innermost wrong value is reported and left out at the next try.
    fn settle<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| {
            if !error.reported {
                // If a field is missing because its value was left out, the wrong value has been
                // reported.
                if !error.missing.is_some_and(|field| self.scope.has(field)) {
                    self.scope.problem(error.message, error.fix);
                }
                self.skipped.add(self.node());
            }
            Error { reported: true, ..Error::default() }
        })
    }

    fn integer<T: TryFrom<i128> + Copy>(&self, low: i128, high: i128) -> Result<T, Error> {
        let text = match &self.node().value {
            Value::Scalar { text, plain: true } if !self.node().is_null() => text.as_str(),
            _ => return Err(self.unexpected("a whole number")),
        };
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(self.unexpected("a whole number"));
        }
        if digits.len() > 1 && digits.starts_with('0') {
            let fix = format!("write {}", digits.trim_start_matches('0'));
            return Err(Error { message: format!("{text} begins with a zero"), fix, ..Error::default() });
        }
        let number: Option<i128> = text.parse().ok().filter(|number| (low..=high).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| Error {
            message: format!("{text} is out of range"),
            fix: format!("expected {low} to {high}"),
            ..Error::default()
        })
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty),*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.settle(self.integer::<$type>(<$type>::MIN.into(), <$type>::MAX.into()).and_then(|number| visitor.$visit(number)))
        }
    )*};
}

impl<'de> de::Deserializer<'de> for De<'_> {
    type Error = Error;

    /// For values of no declared type (JSON Web Keys): YAML's core schema.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node().value {
            Value::List(_) => self.deserialize_seq(visitor),
            Value::Map(_) => self.deserialize_map(visitor),
            Value::Scalar { text, plain } => self.settle(match text.as_str() {
                _ if self.node().is_null() => visitor.visit_unit(),
                "true" if *plain => visitor.visit_bool(true),
                "false" if *plain => visitor.visit_bool(false),
                text if *plain => match text.parse::<i64>() {
                    Ok(number) => visitor.visit_i64(number),
                    Err(_) => visitor.visit_str(text),
                },
                text => visitor.visit_str(text),
            }),
        }
    }

    integers! {
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64,
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.settle(match &self.node().value {
            Value::Scalar { text, plain: true } if text == "true" => visitor.visit_bool(true),
            Value::Scalar { text, plain: true } if text == "false" => visitor.visit_bool(false),
            _ => Err(self.no_boolean()),
        })
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let number = match &self.node().value {
            Value::Scalar { text, plain: true }
                if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.')) =>
            {
                text.parse::<f64>().ok()
            }
            _ => None,
        };
        self.settle(match number.filter(|number| number.is_finite()) {
            Some(number) => visitor.visit_f64(number),
            None => Err(self.unexpected("a number")),
        })
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.settle(match self.node().text() {
            Some(text) => visitor.visit_str(text),
            None => Err(self.unexpected("text")),
        })
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.node().is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Error> {
        if name == TEXT_OR_MORE && self.node().text().is_some() {
            return self.deserialize_str(visitor);
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node().value {
            Value::List(nodes) => self.settle(visitor.visit_seq(Elements { de: self, nodes, next: 0 })),
            _ => self.settle(Err(self.no_list())),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node().value {
            Value::Map(_) => self.settle(visitor.visit_map(Fields { de: self, known: None, of: "", next: 0 })),
            _ => self.settle(Err(self.unexpected("a mapping"))),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match &self.node().value {
            Value::Map(_) => self.settle(visitor.visit_map(Fields { de: self, known: Some(known), of: name, next: 0 })),
            _ => self.settle(Err(self.unexpected(&format!("a mapping with {}", fields(known))))),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let name = match &self.node().value {
            Value::Map(entries) if entries.len() == 1 => entries[0].0.text.as_str(),
            Value::Map(_) => return self.settle(Err(self.unexpected(&format!("one of {}", fields(known))))),
            _ => self.node().text().unwrap_or_default(),
        };
        // Tools for YAML 1.1 read and write these as booleans.
        let name = match name {
            "false" if known.contains(&"off") => "off",
            "true" if known.contains(&"on") => "on",
            name => name,
        };
        if !known.contains(&name) {
            let error = self.unexpected(&format!("one of {}", fields(known)));
            let fix = if name.is_empty() { String::new() } else { did_you_mean(name, known.iter().copied()) };
            let fix = if fix.starts_with("did") { fix } else { String::new() };
            return self.settle(Err(Error { fix, ..error }));
        }
        self.settle(visitor.visit_enum(Choice { de: self, name }))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! { u128 i128 bytes byte_buf unit unit_struct tuple tuple_struct }
}

/// Names of fields or variants, for messages.
fn fields(known: &[&str]) -> String {
    crate::nearest::list(known)
}

struct Elements<'a> {
    de: De<'a>,
    nodes: &'a [Node],
    next: usize,
}

impl<'de> de::SeqAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        while self.nodes.get(self.next).is_some_and(|node| self.de.skipped.has(node)) {
            self.next += 1;
        }
        if self.next == self.nodes.len() {
            return Ok(None);
        }
        let scope = self.de.scope.element(self.next);
        self.next += 1;
        let element = self.de.at(scope);
        element.settle(seed.deserialize(element)).map(Some)
    }
}

struct Fields<'a> {
    de: De<'a>,
    /// `None`: any name.
    known: Option<&'static [&'static str]>,
    /// The name of the type.
    of: &'static str,
    next: usize,
}

impl<'a> Fields<'a> {
    fn entries(&self) -> &'a [(Key, Node)] {
        match &self.de.node().value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }
}

impl<'de> de::MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        while let Some((key, node)) = self.entries().get(self.next) {
            if !self.de.skipped.has(node) {
                if self.known.is_none_or(|known| known.contains(&key.text.as_str())) {
                    let name: StrDeserializer<'_, Error> = key.text.as_str().into_deserializer();
                    return seed.deserialize(name).map(Some);
                }
                let known = self.known.unwrap_or_default();
                let fix = match key.text.as_str() {
                    "true" if known.contains(&"on") => {
                        "a tool for YAML 1.1 has read `on` as `true`: write `retryOn`".to_owned()
                    }
                    text if self.of == "NamedRevision" && NamedRevision::OF_THE_FUNCTION.contains(&text) => {
                        format!("`{text}` holds for all revisions of a function: write it in its `spec`")
                    }
                    text => did_you_mean(text, known.iter().copied()),
                };
                self.de.scope.field(&key.text).problem_at(key.mark, "there is no such field", fix);
                self.de.skipped.add(node);
            }
            self.next += 1;
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (key, _) = &self.entries()[self.next];
        self.next += 1;
        let scope = self.de.scope.field(&key.text);
        let value = self.de.at(scope);
        value.settle(seed.deserialize(value))
    }
}

/// `name`, or `name: content`.
struct Choice<'a> {
    de: De<'a>,
    name: &'a str,
}

impl<'de> de::EnumAccess<'de> for Choice<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let name: StrDeserializer<'_, Error> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Choice<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        if self.de.node().is_scalar() {
            return Ok(());
        }
        Err(Error {
            message: format!("`{}` stands alone", self.name),
            fix: format!("write {}", self.name),
            ..Error::default()
        })
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        if self.de.node().is_scalar() {
            let message = format!("`{}` needs a value", self.name);
            return Err(Error { message, fix: format!("write {{{}: …}}", self.name), ..Error::default() });
        }
        let scope = self.de.scope.field(self.name);
        let content = self.de.at(scope);
        content.settle(seed.deserialize(content))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(self.de.unexpected("text"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, Error> {
        Err(self.de.unexpected("text"))
    }
}
