//! Checks how HTTP/1.1 requests are framed. It follows RFC 9112 strictly where the parser behind it
//! is lenient: a `#` in a request's target, blanks in a chunk's size, malformed chunk extensions,
//! lines of a chunked body that do not end with CR LF. Another server in front of the node may have
//! read these differently.
//!
//! It percent-encodes characters of a target that every server accepts, but that the parser's URIs
//! do not have.
//!
//! It never overrides the parser: if it loses track, it only checks less.

/// Bytes that are kept of a head's line. The fields that frame a message are shorter.
const LINE: usize = 64;
/// Bytes that are kept of a request line.
const REQUEST_LINE: usize = 1024;
/// Maximum number of digits of a chunk's size.
const DIGITS: u8 = 16;
/// Maximum number of bytes of one chunk's extensions.
const EXTENSIONS: u16 = 1024;

/// Tracks where a connection is in its stream of requests.
#[derive(Debug)]
pub struct Framing {
    state: State,
    /// The beginning of an incomplete line of a head.
    line: Vec<u8>,
    /// How the body is framed, according to the part of the head read so far.
    body: Body,
    /// The beginning of the request line. If the parser refuses the head, the record has it.
    request_line: Vec<u8>,
    /// The request line is complete.
    is_line_over: bool,
    /// The next byte has to be percent-encoded.
    is_unescaped: bool,
    /// The request is a CONNECT. After it, the connection may carry another protocol, and the
    /// client need not wait for the response.
    is_connect: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    None,
    Length(u64),
    Chunked,
    /// The parser refuses the length.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    RequestLine,
    Fields,
    Body(u64),
    SizeStart,
    Size(u64, u8),
    Extension(Part, u64, u16),
    SizeEnd(u64),
    Data(u64),
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    /// No longer checked.
    Unchecked,
    /// The framing is wrong.
    Broken,
}

/// A part of a chunk's extension (RFC 9112, 7.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    NameStart,
    Name,
    ValueStart,
    Value,
    Quoted,
    Escaped,
    Unquoted,
}

impl Default for Framing {
    /// The beginning of a connection.
    fn default() -> Self {
        Self {
            state: State::RequestLine,
            line: Vec::new(),
            body: Body::None,
            request_line: Vec::new(),
            is_line_over: true,
            is_unescaped: false,
            is_connect: false,
        }
    }
}

impl Framing {
    /// Checks the next bytes. Returns how many of them may be passed on; if fewer than all, the
    /// rest is framed wrongly. A `#` in a request line is replaced by a byte that no parser
    /// accepts, so that the request is answered like any other malformed one. If the byte after
    /// those has to be percent-encoded, [`Framing::is_unescaped`] returns true.
    pub fn watch(&mut self, bytes: &mut [u8]) -> usize {
        let mut index = 0;
        self.is_unescaped = false;
        while index < bytes.len() {
            match self.state {
                State::Unchecked => return bytes.len(),
                State::Broken => return index,
                State::RequestLine | State::Fields => {
                    index += self.head(&mut bytes[index..]);
                    if self.is_unescaped {
                        return index;
                    }
                }
                State::Body(left) | State::Data(left) => {
                    let count = left.min((bytes.len() - index) as u64);
                    index += usize::try_from(count).unwrap_or(usize::MAX);
                    self.state = match self.state {
                        State::Body(_) if count == left => self.next(),
                        State::Body(_) => State::Body(left - count),
                        _ if count == left => State::DataCr,
                        _ => State::Data(left - count),
                    };
                }
                State::EndLf if bytes[index] == b'\n' => {
                    self.state = self.next();
                    index += 1;
                }
                state => match chunked(state, bytes[index]) {
                    Some(next) => {
                        self.state = next;
                        index += 1;
                    }
                    None => self.state = State::Broken,
                },
            }
        }
        index
    }

    /// Whether the framing was wrong. Nothing that arrives afterwards can be relied on.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// Whether the first byte that was not passed on has to be percent-encoded.
    #[inline]
    pub fn is_unescaped(&self) -> bool {
        self.is_unescaped
    }

    /// The beginning of the latest request line.
    #[inline]
    pub fn request_line(&self) -> &[u8] {
        &self.request_line
    }

    /// Whether the latest head has a `Transfer-Encoding`.
    #[inline]
    pub fn has_coding(&self) -> bool {
        self.body == Body::Chunked
    }

    /// Reads one line of a head, or the part of it that has arrived. Returns its length.
    fn head(&mut self, bytes: &mut [u8]) -> usize {
        let mut end = memchr::memchr(b'\n', bytes);
        let mut length = end.map_or(bytes.len(), |end| end + 1);
        if self.state == State::RequestLine {
            if std::mem::take(&mut self.is_line_over) {
                self.request_line.clear();
            }
            if let Some(at) = self.unescaped(&bytes[..length]) {
                (end, length, self.is_unescaped) = (None, at, true);
            }
            let kept = length.min(REQUEST_LINE.saturating_sub(self.request_line.len()));
            self.request_line.extend_from_slice(&bytes[..kept]);
        }
        let part = &mut bytes[..length];
        if self.state == State::RequestLine {
            while let Some(hash) = memchr::memchr(b'#', part) {
                part[hash] = 0;
            }
        }
        if end.is_some() && self.line.is_empty() {
            self.line_end(part);
            return length;
        }
        self.keep(part);
        if end.is_some() {
            let line = std::mem::take(&mut self.line);
            self.line_end(&line);
        }
        length
    }

    /// The first byte of a target that [`escape`] replaces.
    fn unescaped(&self, part: &[u8]) -> Option<usize> {
        // A method is not escaped: it would become a token.
        let begin = if self.request_line.contains(&b' ') { 0 } else { memchr::memchr(b' ', part)? };
        let target = &part[begin..];
        let found = [memchr::memchr3(b'"', b'<', b'>', target), memchr::memchr(b'`', target)];
        found.into_iter().flatten().min().map(|at| begin + at)
    }

    /// Keeps a part of a line, as far as it says how the message is framed. Skips blanks and zeros
    /// before a length: they say nothing, and there may be more of them than fit.
    fn keep(&mut self, part: &[u8]) {
        for byte in part {
            if self.line.len() == LINE {
                return;
            }
            let before = match byte {
                b' ' | b'\t' => &b"content-length:"[..],
                b'0' => b"content-length:0",
                _ => b"",
            };
            if before.is_empty() || !self.line.eq_ignore_ascii_case(before) {
                self.line.push(*byte);
            }
        }
    }

    fn line_end(&mut self, line: &[u8]) {
        self.is_line_over |= self.state == State::RequestLine;
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match (self.state, line.is_empty()) {
            // Empty lines before a request are skipped (RFC 9112, 2.2).
            (State::RequestLine, true) => {}
            (State::RequestLine, false) => {
                (self.body, self.is_connect) = (Body::None, line.starts_with(b"CONNECT "));
                self.state = State::Fields;
            }
            (_, false) => self.field(line),
            (_, true) => {
                self.state = match self.body {
                    Body::None | Body::Length(0) => self.next(),
                    Body::Length(length) => State::Body(length),
                    Body::Chunked => State::SizeStart,
                    Body::Unknown => State::Unchecked,
                };
            }
        }
    }

    fn field(&mut self, line: &[u8]) {
        // Only fields with these first letters can be about the body.
        if !matches!(line[0] | 0x20, b'c' | b't') {
            return;
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, mut words) = (&line[..colon], line[colon + 1..].split(|byte| matches!(byte, b' ' | b'\t')));
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.body = Body::Chunked;
        } else if name.eq_ignore_ascii_case(b"content-length") && self.body != Body::Chunked {
            // The parser refuses a value that is not a length.
            let length =
                words.find(|word| !word.is_empty()).and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
            let length = length.map_or(Body::Unknown, Body::Length);
            self.body = if self.body == Body::None { length } else { self.joined(length) };
        }
    }

    /// The body's framing by several lengths.
    fn joined(&self, length: Body) -> Body {
        if self.body == length { length } else { Body::Unknown }
    }

    /// The state after a whole request.
    fn next(&self) -> State {
        if self.is_connect { State::Unchecked } else { State::RequestLine }
    }
}

/// Percent-encodes the characters of a target that clients send and servers accept, but that no URI
/// has (RFC 3986, 2), as browsers do. `bytes` begin within a request line.
pub fn escape(bytes: &[u8]) -> Vec<u8> {
    let end = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
    let mut escaped = Vec::with_capacity(bytes.len() + 32);
    for byte in &bytes[..end] {
        match byte {
            b'"' => escaped.extend(b"%22"),
            b'<' => escaped.extend(b"%3C"),
            b'>' => escaped.extend(b"%3E"),
            b'`' => escaped.extend(b"%60"),
            byte => escaped.push(*byte),
        }
    }
    escaped.extend_from_slice(&bytes[end..]);
    escaped
}

/// The next state of a chunked body; `None`: this byte is not allowed here.
fn chunked(state: State, byte: u8) -> Option<State> {
    let size = |size: u64| {
        let digit = char::from(byte).to_digit(16)?;
        size.checked_mul(16)?.checked_add(u64::from(digit))
    };
    Some(match (state, byte) {
        (State::SizeStart, _) => State::Size(size(0)?, 1),
        (State::Size(known, _), b'\r') => State::SizeEnd(known),
        (State::Size(known, _), b';') => State::Extension(Part::NameStart, known, 0),
        (State::Size(known, digits), _) if digits < DIGITS => State::Size(size(known)?, digits + 1),
        (State::Extension(Part::Name | Part::Value | Part::Unquoted, known, _), b'\r') => State::SizeEnd(known),
        (State::Extension(part, known, count), _) if count < EXTENSIONS => {
            State::Extension(extension(part, byte)?, known, count + 1)
        }
        (State::SizeEnd(0), b'\n') => State::TrailerStart,
        (State::SizeEnd(known), b'\n') => State::Data(known),
        (State::DataCr, b'\r') => State::DataLf,
        (State::DataLf, b'\n') => State::SizeStart,
        (State::TrailerStart, b'\r') => State::EndLf,
        (State::Trailer, b'\r') => State::TrailerLf,
        (State::TrailerStart | State::Trailer, byte) if byte != b'\n' => State::Trailer,
        (State::TrailerLf, b'\n') => State::TrailerStart,
        _ => return None,
    })
}

fn extension(part: Part, byte: u8) -> Option<Part> {
    let token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    Some(match (part, byte) {
        (Part::NameStart | Part::Name, _) if token => Part::Name,
        (Part::ValueStart | Part::Value, _) if token => Part::Value,
        (Part::Name, b'=') => Part::ValueStart,
        (Part::ValueStart, b'"') => Part::Quoted,
        (Part::Name | Part::Value | Part::Unquoted, b';') => Part::NameStart,
        (Part::Quoted, b'"') => Part::Unquoted,
        (Part::Quoted, b'\\') => Part::Escaped,
        (Part::Quoted | Part::Escaped, b'\t' | b' '..=b'~' | 0x80..) => Part::Quoted,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes passed on when the input arrives in pieces of this size.
    fn passed(bytes: &[u8], piece: usize) -> Vec<u8> {
        let (mut framing, mut passed, mut left) = (Framing::default(), Vec::new(), bytes.to_vec());
        while !left.is_empty() {
            let mut now = left[..piece.clamp(1, left.len())].to_vec();
            let good = framing.watch(&mut now);
            passed.extend_from_slice(&now[..good]);
            left.drain(..good);
            if framing.is_unescaped() {
                left = escape(&left);
            } else if good < now.len() {
                break;
            }
        }
        passed
    }

    fn post(body: &str) -> String {
        format!("POST / HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
    }

    #[test]
    fn sound_requests_pass_as_they_are() {
        let sound = [
            "GET / HTTP/1.1\r\nhost: a\r\nx: 1 # 2\r\n\r\nGET /b HTTP/1.1\nhost: a\n\n".to_owned(),
            "\r\nPOST / HTTP/1.1\r\nhost: a\r\nContent-Length: 5 \r\n\r\n#\n#\r#GET / HTTP/1.1\r\n\r\n".to_owned(),
            post("5\r\nhel#o\r\n00a;n;m=v;q=\"a \\\" b\";z\r\n0123456789\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
            post("0\r\nx-a: 1\r\nx-b: 2\r\n\r\n"),
            "CONNECT a:80 HTTP/1.1\r\n\r\n\x16\x03#\n".to_owned(),
        ];
        for text in &sound {
            for piece in [1, 2, 3, 7, 1000] {
                assert_eq!(String::from_utf8_lossy(&passed(text.as_bytes(), piece)), *text);
            }
        }
    }

    #[test]
    fn what_is_not_to_the_letter_goes_no_further() {
        for (body, good) in [
            ("5 \r\nhello\r\n0\r\n\r\n", 1),
            (" 5\r\n", 0),
            ("5;\r\n", 2),
            ("5; a\r\n", 2),
            ("5;a=\r\n", 4),
            ("5;a=\"b\r\n", 6),
            ("5;a\0b\r\n", 3),
            ("5;a\nhello", 3),
            ("5\nhello", 1),
            ("5\r\r\n", 2),
            ("00000000000000005\r\n", 16),
            ("+5\r\n", 0),
            ("0x5\r\n", 1),
            ("5\r\nhello\n0\r\n\r\n", 8),
            ("0\n\n", 1),
            ("0\r\n\n", 3),
            ("0\r\nx: 1\n\r\n", 7),
            ("0\r\nx: 1\r\r\n", 8),
            ("0\r\n\rx", 4),
        ] {
            let text = post(body);
            let head = text.len() - body.len();
            for piece in [1, 5, 1000] {
                assert_eq!(passed(text.as_bytes(), piece).len() - head, good, "{body:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn an_upgrade_that_was_only_asked_for_changes_nothing() {
        let asked = "GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        let text = asked.to_owned() + &post("5 \r\nhello");
        assert_eq!(passed(text.as_bytes(), 1000).len(), text.len() - " \r\nhello".len());
    }

    #[test]
    fn a_length_counts_however_far_it_is_padded() {
        for padding in [" ".repeat(100), "\t".repeat(46), "0".repeat(100), " ".repeat(45) + "00"] {
            let head = format!("POST / HTTP/1.1\r\nContent-Length:{padding}12\r\n\r\n");
            let text = head + "hello #orld!GET /#b HTTP/1.1\r\n\r\n";
            for piece in [1, 7, 60, 1000] {
                let passed = passed(text.as_bytes(), piece);
                assert_eq!(String::from_utf8_lossy(&passed), text.replace("/#b", "/\0b"), "in pieces of {piece}");
            }
        }
    }

    #[test]
    fn a_target_with_a_fragment_is_made_unmistakably_wrong() {
        assert_eq!(passed(b"GET /a#b HTTP/1.1\r\nx: #\r\n\r\n", 4), b"GET /a\0b HTTP/1.1\r\nx: #\r\n\r\n");
    }

    #[test]
    fn characters_that_no_uri_has_are_escaped_in_targets_only() {
        let escaped = |text: &str, piece| String::from_utf8(passed(text.as_bytes(), piece)).unwrap();
        for piece in [1, 2, 5, 9, 1000] {
            let text = "GET /<a>`?q=\"b\" HTTP/1.1\r\nx: \"<>`\r\n\r\nGET /> HTTP/1.1\r\n\r\n";
            let wanted = "GET /%3Ca%3E%60?q=%22b%22 HTTP/1.1\r\nx: \"<>`\r\n\r\nGET /%3E HTTP/1.1\r\n\r\n";
            assert_eq!(escaped(text, piece), wanted, "in pieces of {piece}");
            let method = "G\"T / HTTP/1.1\r\n\r\n";
            assert_eq!(escaped(method, piece), method, "in pieces of {piece}");
        }
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            bytes in "(POST / HTTP/1.1\r\n(transfer-encoding: chunked|content-length: 3)\r\n\r\n)?[0-5;= \r\n\"a:#]{0,40}",
            piece in 1..20_usize,
        ) {
            prop_assert_eq!(passed(bytes.as_bytes(), piece), passed(bytes.as_bytes(), usize::MAX));
        }
    }
}
