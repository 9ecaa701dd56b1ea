//! Constraints of values, as published schemas state them.

use crate::pattern::Pattern;

/// No upper bound.
pub(crate) const ANY: usize = usize::MAX;
/// The largest integer.
pub(crate) const MAX: i64 = i32::MAX as i64;

/// A kind and its served versions.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) is_namespaced: bool,
    /// Versions, the newest first, each with the schema of `spec`.
    pub(crate) versions: &'static [(&'static str, &'static Object)],
}

/// The type of a value and its constraints.
pub(crate) enum Schema {
    Boolean,
    /// A whole number from the first to the second.
    Number(i64, i64),
    /// One of these numbers.
    NumberOf(&'static [i64]),
    Text {
        least: usize,
        most: usize,
        form: Option<&'static Pattern>,
    },
    /// One of these texts.
    Choice(&'static [&'static str]),
    List {
        least: usize,
        most: usize,
        unique: Unique,
        of: &'static Schema,
    },
    /// A mapping with any names.
    Map {
        most: usize,
        of: &'static Schema,
    },
    Object(&'static Object),
}

/// The elements of a list that exclude each other.
#[derive(Clone, Copy)]
pub(crate) enum Unique {
    /// None.
    None,
    /// Equal ones.
    Whole,
    /// Those with the same value of this field.
    By(&'static str),
}

/// A mapping with these fields and no others.
pub(crate) struct Object {
    pub(crate) fields: &'static [Field],
}

/// A field of an object.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) required: bool,
    /// JSON.
    pub(crate) default: Option<&'static str>,
    pub(crate) schema: Schema,
}

impl Field {
    /// The same field with a default.
    pub(crate) const fn or(self, default: &'static str) -> Self {
        let Self { name, required, schema, .. } = self;
        Self { name, required, default: Some(default), schema }
    }
}

pub(crate) const fn required(name: &'static str, schema: Schema) -> Field {
    Field { name, required: true, default: None, schema }
}

pub(crate) const fn optional(name: &'static str, schema: Schema) -> Field {
    Field { name, required: false, default: None, schema }
}

pub(crate) const fn number(low: i64, high: i64) -> Schema {
    Schema::Number(low, high)
}

pub(crate) const fn text(least: usize, most: usize) -> Schema {
    Schema::Text { least, most, form: None }
}

pub(crate) const fn formed(least: usize, most: usize, form: &'static Pattern) -> Schema {
    Schema::Text { least, most, form: Some(form) }
}

pub(crate) const fn list(least: usize, most: usize, unique: Unique, of: &'static Schema) -> Schema {
    Schema::List { least, most, unique, of }
}

pub(crate) const fn map(most: usize, of: &'static Schema) -> Schema {
    Schema::Map { most, of }
}
