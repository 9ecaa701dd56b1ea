//! Writes a JSON object, one field at a time.

use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::SocketAddr;

/// An object that is being written to the end of a buffer. Keys are constants and need no escaping.
pub(super) struct Object<'a>(&'a mut Vec<u8>);

impl<'a> Object<'a> {
    /// Begins an object.
    pub(super) fn begin(buffer: &'a mut Vec<u8>) -> Self {
        buffer.push(b'{');
        Self(buffer)
    }

    /// Adds a text that a client may have chosen.
    pub(super) fn text(&mut self, key: &'static str, value: &str) -> io::Result<()> {
        self.key(key);
        // RFC 8259, 7. Hardly any text needs escaping, and this check is cheaper than serde_json's.
        let escapes = value.bytes().any(|byte| byte < 0x20 || byte == b'"' || byte == b'\\');
        if escapes {
            return self.serialize(&value);
        }
        self.quoted(value.as_bytes());
        Ok(())
    }

    /// Adds a text of the proxy's own that needs no escaping.
    pub(super) fn plain(&mut self, key: &'static str, value: impl Display) -> io::Result<()> {
        self.key(key);
        write!(self.0, "\"{value}\"")
    }

    /// Adds an address in the form of its `Display`. Most lines have two addresses, and `Display`
    /// is slow.
    pub(super) fn address(&mut self, key: &'static str, address: SocketAddr) -> io::Result<()> {
        let SocketAddr::V4(address) = address else { return self.plain(key, address) };
        self.key(key);
        self.0.push(b'"');
        let mut digits = itoa::Buffer::new();
        for (octet, end) in address.ip().octets().into_iter().zip(*b"...:") {
            self.0.extend_from_slice(digits.format(octet).as_bytes());
            self.0.push(end);
        }
        self.0.extend_from_slice(digits.format(address.port()).as_bytes());
        self.0.push(b'"');
        Ok(())
    }

    /// Adds a number, or anything else that is not text.
    pub(super) fn value(&mut self, key: &'static str, value: impl Serialize) -> io::Result<()> {
        self.key(key);
        self.serialize(&value)
    }

    /// Ends the object.
    pub(super) fn end(self) {
        self.0.push(b'}');
    }

    fn key(&mut self, key: &'static str) {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        self.quoted(key.as_bytes());
        self.0.push(b':');
    }

    fn quoted(&mut self, text: &[u8]) {
        self.0.push(b'"');
        self.0.extend_from_slice(text);
        self.0.push(b'"');
    }

    fn serialize(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut *self.0, value).map_err(io::Error::from)
    }
}
