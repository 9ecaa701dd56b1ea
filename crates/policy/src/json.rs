//! JSON (RFC 8259) as tokens carry it, read so that it can be understood in one way only: no member
//! twice, no lone surrogates, no comments, nothing after the end. Numbers keep the text that was
//! sent; strings without escapes are borrowed.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

/// Objects and lists may be nested this deep.
const MAX_DEPTH: u32 = 16;
/// Members of one object.
const MAX_MEMBERS: usize = 256;
/// Up to this many members are compared pairwise; more are sorted first.
const FEW: usize = 16;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Json<'a> {
    Null,
    Bool(bool),
    /// As sent.
    Number(&'a str),
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Object(Members<'a>),
}

/// Members of an object, in the order sent, each name once.
pub(crate) type Members<'a> = Vec<(Cow<'a, str>, Json<'a>)>;

/// Reads an object that is the whole text; `None` if it is anything else.
pub(crate) fn object(text: &str) -> Option<Members<'_>> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    reader.blank();
    reader.expect(b'{')?;
    let members = reader.members()?;
    reader.blank();
    (reader.at == text.len()).then_some(members)
}

struct Reader<'a> {
    text: &'a str,
    /// Index of the next byte; always the start of a character.
    at: usize,
    depth: u32,
}

impl<'a> Reader<'a> {
    fn value(&mut self) -> Option<Json<'a>> {
        match self.peek()? {
            b'"' => {
                self.at += 1;
                self.string().map(Json::Text)
            }
            b'{' => {
                self.at += 1;
                self.members().map(Json::Object)
            }
            b'[' => {
                self.at += 1;
                self.list().map(Json::List)
            }
            b'-' | b'0'..=b'9' => self.number().map(Json::Number),
            _ => {
                let words = [("true", Json::Bool(true)), ("false", Json::Bool(false)), ("null", Json::Null)];
                let (word, value) = words.into_iter().find(|(word, _)| self.rest().starts_with(word))?;
                self.at += word.len();
                Some(value)
            }
        }
    }

    /// After `{`.
    fn members(&mut self) -> Option<Members<'a>> {
        let mut members: Members<'a> = Vec::new();
        self.enter()?;
        self.blank();
        if self.accept(b'}') {
            self.depth -= 1;
            return Some(members);
        }
        members.reserve(8);
        loop {
            self.blank();
            self.expect(b'"')?;
            let name = self.string()?;
            if members.len() == MAX_MEMBERS {
                return None;
            }
            self.blank();
            self.expect(b':')?;
            self.blank();
            let value = self.value()?;
            members.push((name, value));
            self.blank();
            if self.accept(b'}') {
                self.depth -= 1;
                return are_distinct(&members).then_some(members);
            }
            self.expect(b',')?;
        }
    }

    /// After `[`.
    fn list(&mut self) -> Option<Vec<Json<'a>>> {
        let mut items = Vec::new();
        self.enter()?;
        self.blank();
        if self.accept(b']') {
            self.depth -= 1;
            return Some(items);
        }
        loop {
            self.blank();
            items.push(self.value()?);
            self.blank();
            if self.accept(b']') {
                self.depth -= 1;
                return Some(items);
            }
            self.expect(b',')?;
        }
    }

    /// After the opening quote, to behind the closing one.
    fn string(&mut self) -> Option<Cow<'a, str>> {
        let plain = self.run()?;
        if self.accept(b'"') {
            return Some(Cow::Borrowed(plain));
        }
        let mut text = String::from(plain);
        loop {
            self.expect(b'\\')?;
            text.push(self.escape()?);
            text.push_str(self.run()?);
            if self.accept(b'"') {
                return Some(Cow::Owned(text));
            }
        }
    }

    /// Characters up to a quote or a backslash.
    fn run(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let length = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))?;
        self.at += length;
        rest.get(..length)
    }

    /// After a backslash.
    fn escape(&mut self) -> Option<char> {
        let byte = self.peek()?;
        self.at += 1;
        Some(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                if !(0xd800..0xdc00).contains(&first) {
                    return char::from_u32(first);
                }
                self.expect(b'\\')?;
                self.expect(b'u')?;
                let second = self.hex().filter(|second| (0xdc00..0xe000).contains(second))?;
                return char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00));
            }
            _ => return None,
        })
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.rest().get(..4).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }

    fn number(&mut self) -> Option<&'a str> {
        let start = self.at;
        self.accept(b'-');
        if !self.accept(b'0') {
            self.digits()?;
        }
        if self.accept(b'.') {
            self.digits()?;
        }
        if self.accept(b'e') || self.accept(b'E') {
            let _sign = self.accept(b'+') || self.accept(b'-');
            self.digits()?;
        }
        self.text.get(start..self.at)
    }

    /// One or more.
    fn digits(&mut self) -> Option<()> {
        let count = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        self.at += count;
        (count > 0).then_some(())
    }

    fn enter(&mut self) -> Option<()> {
        self.depth += 1;
        (self.depth <= MAX_DEPTH).then_some(())
    }

    fn blank(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn accept(&mut self, byte: u8) -> bool {
        let here = self.peek() == Some(byte);
        self.at += usize::from(here);
        here
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.accept(byte).then_some(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }
}

/// Whether no name is there twice.
fn are_distinct(members: &Members<'_>) -> bool {
    if members.len() > FEW {
        let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        return names.windows(2).all(|pair| pair.first() != pair.last());
    }
    let earlier = |index: usize| members.get(..index).unwrap_or_default();
    !members.iter().enumerate().any(|(index, (name, _))| earlier(index).iter().any(|(other, _)| other == name))
}

#[cfg(test)]
mod tests;
