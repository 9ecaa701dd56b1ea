//! Writes to standard output and standard error, without a panic when that fails.
//!
//! These macros replace those of the standard library in the whole crate. `leno get … | head -1`
//! closes the pipe early: the command then ends without a message, with the status that shells
//! show for SIGPIPE. Any other failure (a full disk) is an error of the command.

use crate::progress;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::exit;

/// The format of an answer that is no listing.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Format {
    /// Format of the output.
    #[arg(short, long, value_enum, default_value_t = Form::Text)]
    output: Form,
    #[arg(long, conflicts_with = "output", hide = true)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// Text for people.
    Text,
    /// JSON: one value, or one object on each line.
    Json,
}

impl Format {
    pub(crate) fn is_json(self) -> bool {
        self.json || self.output == Form::Json
    }
}

/// The status of a program that SIGPIPE has ended, as shells show it.
const SIGPIPE_STATUS: i32 = 128 + 13;

macro_rules! print {
    ($($argument:tt)*) => { $crate::output::write(format_args!($($argument)*)) };
}

macro_rules! println {
    () => { $crate::output::write(format_args!("\n")) };
    ($($argument:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($argument)*))) };
}

macro_rules! eprintln {
    ($($argument:tt)*) => { $crate::output::write_error(format_args!($($argument)*)) };
}

/// Writes to standard output, or ends the process if that fails.
pub(crate) fn write(text: Arguments<'_>) {
    progress::above(|| {
        let mut out = io::stdout().lock();
        check(out.write_fmt(text).and_then(|()| out.flush()));
    });
}

/// Ends the process if standard output could not be written.
pub(crate) fn check(written: io::Result<()>) {
    let Err(error) = written else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        exit(SIGPIPE_STATUS);
    }
    write_error(format_args!("leno: standard output cannot be written: {error}"));
    exit(1);
}

/// Writes a line to standard error. There is no place left to report a failure.
pub(crate) fn write_error(line: Arguments<'_>) {
    let _ = progress::above(|| writeln!(io::stderr().lock(), "{line}"));
}
