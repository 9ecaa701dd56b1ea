//! Values of documents, as a parser has them.

/// A value of a document.
pub trait DocumentValue: Sized {
    /// Its content.
    fn content(&self) -> Content<'_, Self>;
}

/// The content of a value.
pub enum Content<'v, V> {
    /// `null`, or nothing.
    Null,
    /// A text, number or boolean.
    Scalar {
        /// As it is written, without quotes.
        text: &'v str,
        /// Without quotes: it may be a number or a boolean.
        plain: bool,
    },
    /// A list.
    List(&'v [V]),
    /// A mapping without two fields of one name.
    Map(Vec<(&'v str, &'v V)>),
}

impl<V> Content<'_, V> {
    /// The kind of the value, for messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Scalar { text, .. } => quoted(text),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// The first characters of a text, for messages.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("\"{}…\"", text[..end].escape_debug()),
        None => format!("\"{}\"", text.escape_debug()),
    }
}
