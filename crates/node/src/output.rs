//! The output of this node's instances, in the control plane's format.

use leno_supervisor::{LogLine, Mark, Read, Reading, Stream, Supervisor};
use leno_wire::{Output, OutputLine, OutputMark, ReadOutput};
use std::time::SystemTime;

/// Reads further output of a function or a job; `None`: this node does not host it.
pub fn read(supervisor: &Supervisor, asked: &ReadOutput) -> Option<Output> {
    let reading = Reading {
        instance: asked.instance,
        previous: asked.previous,
        tail: asked.tail.map(|tail| usize::try_from(tail).unwrap_or(usize::MAX)),
        after: asked.after.iter().map(taken).collect(),
        limit: usize::try_from(asked.limit).unwrap_or(usize::MAX),
    };
    let Read { lines, marks, dropped, more } = supervisor.read_output(&asked.function, &reading)?;
    Some(Output {
        lines: lines.into_iter().map(line).collect(),
        marks: marks.into_iter().map(mark).collect(),
        dropped,
        more,
    })
}

fn taken(&OutputMark { instance, began_ms, next }: &OutputMark) -> Mark {
    Mark { instance, began_ms, next }
}

fn mark(Mark { instance, began_ms, next }: Mark) -> OutputMark {
    OutputMark { instance, began_ms, next }
}

fn line(LogLine { instance, at, stream, text, .. }: LogLine) -> OutputLine {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let at_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    OutputLine { instance: instance.number, at_ms, stderr: stream == Stream::Stderr, text }
}
