//! Readable forms of golden files, made by other decoders than the ones that are tested.

use prost_reflect::text_format::FormatOptions;
use prost_reflect::{DescriptorPool, DynamicMessage};
use rmpv::Value;
use std::fmt::Write;

/// Bytes of a byte string that are shown.
const SHOWN: usize = 32;

pub(super) fn msgpack(encoded: &[u8]) -> String {
    let mut rest = encoded;
    let value = rmpv::decode::read_value(&mut rest).unwrap();
    assert!(rest.is_empty());
    let mut out = String::new();
    write(&mut out, &value, 0);
    out.push('\n');
    out
}

fn write(out: &mut String, value: &Value, depth: usize) {
    let indent = |out: &mut String| write!(out, "\n{:1$}", "", 2 * (depth + 1)).unwrap();
    match value {
        Value::Map(entries) if !entries.is_empty() => entries.iter().for_each(|(key, value)| {
            indent(out);
            write!(out, "{key}:").unwrap();
            write(out, value, depth + 1);
        }),
        Value::Array(elements) if !elements.is_empty() => elements.iter().for_each(|element| {
            indent(out);
            out.push('-');
            write(out, element, depth + 1);
        }),
        Value::Binary(bytes) => {
            write!(out, " {} bytes ", bytes.len()).unwrap();
            bytes.iter().take(SHOWN).for_each(|byte| write!(out, "{byte:02x}").unwrap());
            if bytes.len() > SHOWN {
                out.push('…');
            }
        }
        scalar => write!(out, " {scalar}").unwrap(),
    }
}

/// A message of the protocol, in the text format of Protocol Buffers.
pub(super) fn message(name: &str, encoded: &[u8]) -> String {
    let files =
        protox::compile(["leno/v1/discovery.proto"], [concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/proto")]).unwrap();
    let descriptor = DescriptorPool::from_file_descriptor_set(files).unwrap();
    let descriptor = descriptor.get_message_by_name(&format!("leno.v1.{name}")).unwrap();
    let message = DynamicMessage::decode(descriptor, encoded).unwrap();
    let mut text = message.to_text_format_with_options(&FormatOptions::new().pretty(true));
    text.push('\n');
    text
}
