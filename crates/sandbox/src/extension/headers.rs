//! Header fields as modules see them: pseudo-header fields and fields in one list, names in lower
//! case, and the flat encoding in which whole lists cross the boundary of the sandbox.

/// The limit of fields of one list.
pub(super) const MOST_FIELDS: usize = 256;
/// The limit of bytes of a name.
pub(super) const LONGEST_NAME: usize = 256;
/// The limit of bytes of a value.
pub(super) const LONGEST_VALUE: usize = 8 * 1024;
/// The limit of bytes of all names and values of one list that a module has edited.
pub(super) const LARGEST_LIST: usize = 128 * 1024;

/// A list of header fields, in order. A name may occur more than once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<Field>);

/// A name and a value.
pub(super) type Field = (Box<[u8]>, Box<[u8]>);

/// Why bytes are no list of header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldListError {
    /// It ends too early, or continues after its end.
    #[error("the list's length is not what its parts add up to")]
    Length,
    /// A name or value does not end with a zero byte.
    #[error("a name or value is not terminated")]
    Terminator,
    /// More fields, or longer ones, than any message has.
    #[error("too many fields, or too long ones")]
    TooLarge,
}

impl Headers {
    /// The number of fields.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All fields.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Adds a field. Names are kept in lower case.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.0.push((name.to_ascii_lowercase().into(), value.into()));
    }

    /// All values of a name, joined by commas (RFC 9110, 5.3).
    pub(super) fn joined(&self, name: &[u8]) -> Option<Vec<u8>> {
        let mut values = self.values(name);
        let mut joined = values.next()?.to_vec();
        for value in values {
            joined.push(b',');
            joined.extend_from_slice(value);
        }
        Some(joined)
    }

    pub(super) fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter(move |(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        self.0.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
    }

    /// The names, each once, in order of their first appearance.
    pub(super) fn names(&self) -> Vec<&[u8]> {
        let mut names: Vec<&[u8]> = Vec::with_capacity(self.len());
        for (name, _) in self.iter() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Whether another field fits.
    pub(super) fn has_capacity(&self, name: &[u8], value: &[u8]) -> bool {
        let bytes: usize = self.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.len() < MOST_FIELDS && bytes + name.len() + value.len() <= LARGEST_LIST
    }

    /// The flat encoding of the ABI: the count, the lengths of each name and value, then all of
    /// them, each followed by a zero byte.
    pub fn encode(&self) -> Vec<u8> {
        let word = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
        let size: usize = self.iter().map(|(name, value)| name.len() + value.len() + 10).sum();
        let mut flat = Vec::with_capacity(4 + size);
        flat.extend(word(self.len()));
        for (name, value) in self.iter() {
            flat.extend(word(name.len()));
            flat.extend(word(value.len()));
        }
        for (name, value) in self.iter() {
            for text in [name, value] {
                flat.extend_from_slice(text);
                flat.push(0);
            }
        }
        flat
    }

    /// Decodes the flat encoding. An empty input is an empty list.
    pub fn decode(flat: &[u8]) -> Result<Self, FieldListError> {
        let mut rest = flat;
        if rest.is_empty() {
            return Ok(Self::default());
        }
        let count = word(&mut rest)?;
        if count > MOST_FIELDS {
            return Err(FieldListError::TooLarge);
        }
        let mut lengths = Vec::with_capacity(count);
        for _ in 0..count {
            let (name, value) = (word(&mut rest)?, word(&mut rest)?);
            if name > LONGEST_NAME || value > LONGEST_VALUE {
                return Err(FieldListError::TooLarge);
            }
            lengths.push((name, value));
        }
        let mut headers = Self(Vec::with_capacity(count));
        for (name, value) in lengths {
            let (name, value) = (text(&mut rest, name)?, text(&mut rest, value)?);
            headers.push(name, value);
        }
        if rest.is_empty() { Ok(headers) } else { Err(FieldListError::Length) }
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        let mut headers = Self::default();
        fields.into_iter().for_each(|(name, value)| headers.push(name.as_ref(), value.as_ref()));
        headers
    }
}

fn word(rest: &mut &[u8]) -> Result<usize, FieldListError> {
    let (word, after) = rest.split_first_chunk().ok_or(FieldListError::Length)?;
    *rest = after;
    usize::try_from(u32::from_le_bytes(*word)).map_err(|_| FieldListError::TooLarge)
}

fn text<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], FieldListError> {
    let (text, after) = rest.split_at_checked(length).ok_or(FieldListError::Length)?;
    match after.split_first() {
        Some((0, after)) => {
            *rest = after;
            Ok(text)
        }
        Some(_) => Err(FieldListError::Terminator),
        None => Err(FieldListError::Length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let headers: Headers = [(":path", "/a"), ("x-a", "1"), ("x-a", ""), ("x-b", "\0")].into_iter().collect();
        assert_eq!(Headers::decode(&headers.encode()), Ok(headers));
        assert_eq!(Headers::decode(&Headers::default().encode()), Ok(Headers::default()));
        assert_eq!(Headers::decode(&[]), Ok(Headers::default()));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let good = Headers::from_iter([("x-a", "1")]).encode();
        for end in 1..good.len() {
            assert_eq!(Headers::decode(&good[..end]), Err(FieldListError::Length), "{end}");
        }
        assert_eq!(Headers::decode(&[&good[..], &[0]].concat()), Err(FieldListError::Length));
        let mut unterminated = good;
        *unterminated.last_mut().unwrap() = 1;
        assert_eq!(Headers::decode(&unterminated), Err(FieldListError::Terminator));
        assert_eq!(Headers::decode(&[0xff; 4]), Err(FieldListError::TooLarge));
        let long = [1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(Headers::decode(&long), Err(FieldListError::TooLarge));
    }

    #[test]
    fn values_of_one_name_are_joined() {
        let headers: Headers = [("X-A", "1"), ("x-b", "2"), ("x-a", "3")].into_iter().collect();
        assert_eq!(headers.joined(b"x-A").as_deref(), Some(&b"1,3"[..]));
        assert_eq!(headers.joined(b"x-c"), None);
        assert_eq!(headers.names(), [&b"x-a"[..], b"x-b"]);
    }
}
