//! Encoded spans in a queue of bytes, each behind the name of its service: three lengths in 32
//! bits, then namespace, name and span.

use super::attributes::Span;

/// A span in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedSpan<'a> {
    /// Namespace and name.
    pub service: (&'a str, &'a str),
    /// A `Span` message.
    pub span: &'a [u8],
}

/// Adds a span to the end.
pub(super) fn append(queue: &mut Vec<u8>, span: &Span<'_>) {
    let (namespace, name) = span.service();
    for text in [namespace, name] {
        queue.extend_from_slice(&length(text.len()));
    }
    let place = queue.len();
    queue.extend_from_slice(&length(0));
    queue.extend_from_slice(namespace.as_bytes());
    queue.extend_from_slice(name.as_bytes());
    let start = queue.len();
    span.write(queue);
    let written = length(queue.len() - start);
    queue[place..place + written.len()].copy_from_slice(&written);
}

/// The spans of a queue.
pub(super) fn read(mut queue: &[u8]) -> impl Iterator<Item = QueuedSpan<'_>> {
    std::iter::from_fn(move || {
        let mut lengths = [0; 3];
        for length in &mut lengths {
            let (bytes, rest) = queue.split_first_chunk()?;
            *length = u32::from_le_bytes(*bytes) as usize;
            queue = rest;
        }
        let [namespace, name, span] = lengths.map(|length| {
            let (part, rest) = queue.split_at_checked(length)?;
            queue = rest;
            Some(part)
        });
        let [namespace, name] = [namespace?, name?].map(|bytes| std::str::from_utf8(bytes).ok());
        Some(QueuedSpan { service: (namespace?, name?), span: span? })
    })
}

/// No record is that long.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes()
}
