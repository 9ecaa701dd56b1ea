//! Header fields as rules see them.

use crate::input::Header;
use alloc::borrow::Cow;
use alloc::vec::Vec;

/// The fields of a request, including the fields that policies make of claims. A rule that looks at
/// such a field sees the value that the function will see, not one that a client forged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields<'a> {
    sent: &'a [Header<'a>],
    written: Vec<FieldOverride<'a>>,
}

/// A field that a policy writes, in place of any value that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldOverride<'a> {
    /// Lower case.
    pub name: &'a str,
    /// `None`: the field is removed.
    pub value: Option<Cow<'a, str>>,
}

impl<'a> Fields<'a> {
    /// The fields that were sent, replaced by those that policies write.
    pub(crate) fn new(sent: &'a [Header<'a>], written: Vec<FieldOverride<'a>>) -> Self {
        Self { sent, written }
    }

    /// All values of a field, in order.
    pub(crate) fn values<'f>(&'f self, name: &'f str) -> impl Iterator<Item = &'f [u8]> {
        let written = self.written.iter().find(|written| written.name == name);
        let sent = self.sent.iter().filter(move |header| written.is_none() && header.name == name);
        let own = written.and_then(|written| written.value.as_deref());
        sent.map(|header| header.value).chain(own.map(str::as_bytes))
    }

    /// The first value of a field.
    pub(crate) fn first(&self, name: &str) -> Option<&[u8]> {
        match self.written.iter().find(|written| written.name == name) {
            Some(written) => written.value.as_deref().map(str::as_bytes),
            None => self.sent.iter().find(|header| header.name == name).map(|header| header.value),
        }
    }

    /// The fields that policies write.
    pub(crate) fn into_written(self) -> Vec<FieldOverride<'a>> {
        self.written
    }
}

#[cfg(test)]
mod tests {
    use super::{FieldOverride, Fields};
    use crate::input::Header;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn what_is_written_hides_what_was_sent() {
        let header = |name, value: &'static str| Header { name, value: value.as_bytes() };
        let sent = [header("x-user", "forged"), header("a", "1"), header("a", "2"), header("x-role", "forged")];
        let written = vec![
            FieldOverride { name: "x-user", value: Some("ann".into()) },
            FieldOverride { name: "x-role", value: None },
        ];
        let fields = Fields::new(&sent, written);
        assert_eq!(fields.values("x-user").collect::<Vec<_>>(), [b"ann"]);
        assert_eq!(fields.values("x-role").count(), 0);
        for (name, first) in [("x-user", Some(&b"ann"[..])), ("x-role", None), ("a", Some(b"1")), ("b", None)] {
            assert_eq!(fields.first(name), first, "{name}");
        }
        assert_eq!(fields.values("a").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!(fields.values("b").count(), 0);
    }
}
