//! Encodes OTLP messages (opentelemetry-proto 1.x: `trace.proto`, `resource.proto`, `common.proto`)
//! field by field, with prost's primitives. Texts go from the record straight into the message.

use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

/// The value of an attribute.
pub(super) enum Value<'a> {
    Text(&'a str),
    Number(i64),
    Decimal(f64),
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

/// Appends a text field that is given in pieces.
pub(super) fn text(out: &mut Vec<u8>, tag: u32, pieces: &[&str]) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(pieces.iter().map(|piece| piece.len() as u64).sum(), out);
    pieces.iter().for_each(|piece| out.extend_from_slice(piece.as_bytes()));
}

pub(super) fn bytes(out: &mut Vec<u8>, tag: u32, bytes: &[u8]) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

pub(super) fn number(out: &mut Vec<u8>, tag: u32, number: u64) {
    encode_key(tag, WireType::Varint, out);
    encode_varint(number, out);
}

pub(super) fn fixed64(out: &mut Vec<u8>, tag: u32, number: u64) {
    encode_key(tag, WireType::SixtyFourBit, out);
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn fixed32(out: &mut Vec<u8>, tag: u32, number: u32) {
    encode_key(tag, WireType::ThirtyTwoBit, out);
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a message within a message. Its length comes first but is known last, so the written
/// bytes move up to make room.
pub(super) fn nested(out: &mut Vec<u8>, tag: u32, write: impl FnOnce(&mut Vec<u8>)) {
    encode_key(tag, WireType::LengthDelimited, out);
    let start = out.len();
    write(out);
    let length = out.len() - start;
    let room = encoded_len_varint(length as u64);
    out.resize(out.len() + room, 0);
    out.copy_within(start..start + length, start + room);
    encode_varint(length as u64, &mut &mut out[start..start + room]);
}

/// Appends a `KeyValue`.
pub(super) fn attribute(out: &mut Vec<u8>, tag: u32, key: &str, value: Value<'_>) {
    nested(out, tag, |out| {
        text(out, 1, &[key]);
        nested(out, 2, |out| match value {
            Value::Text(value) => text(out, 1, &[value]),
            Value::Number(value) => number(out, 3, value as u64),
            Value::Decimal(value) => fixed64(out, 4, value.to_bits()),
        });
    });
}
