//! The part of WASI (preview 1) that the SDKs' runtimes need to start: no files, no arguments, no
//! environment; the clock stands still, random numbers come from a seed of the host, and output is
//! logged.

use crate::extension::host::{CallResult, Host, parts, piece, refuse, write};
use wasmtime::{Caller, Linker};

const SUCCESS: u32 = 0;
const BAD_DESCRIPTOR: u32 = 8;
const NOT_SEEKABLE: u32 = 70;
/// The limit of pieces of one write.
const MOST_PIECES: u32 = 64;
/// The limit of random bytes of one call.
const MOST_RANDOM: u32 = 4096;

pub(super) fn link(linker: &mut Linker<Host>) -> Result<(), wasmtime::Error> {
    // Before the first preview the module had another name; these calls were the same.
    link_as(linker, super::WASI)?;
    link_as(linker, super::OLD_WASI)
}

fn link_as(linker: &mut Linker<Host>, wasi: &str) -> Result<(), wasmtime::Error> {
    linker.func_wrap(wasi, "fd_write", print)?;
    linker.func_wrap(
        wasi,
        "clock_time_get",
        |mut caller: Caller<'_, Host>, _: u32, _: u64, at: u32| -> CallResult {
            let (memory, host) = parts(&mut caller)?;
            write(memory, at, &host.now().to_le_bytes())?;
            Ok(SUCCESS)
        },
    )?;
    linker.func_wrap(wasi, "random_get", random)?;
    linker.func_wrap(wasi, "environ_get", |_: u32, _: u32| SUCCESS)?;
    linker.func_wrap(wasi, "environ_sizes_get", no_strings)?;
    linker.func_wrap(wasi, "args_get", |_: u32, _: u32| SUCCESS)?;
    linker.func_wrap(wasi, "args_sizes_get", no_strings)?;
    linker.func_wrap(wasi, "proc_exit", |_: Caller<'_, Host>, code: u32| -> Result<(), wasmtime::Error> {
        refuse(format!("`proc_exit` with {code}"))
    })?;
    linker.func_wrap(wasi, "fd_close", |_: u32| BAD_DESCRIPTOR)?;
    linker.func_wrap(wasi, "fd_seek", |_: u32, _: u64, _: u32, _: u32| NOT_SEEKABLE)?;
    linker.func_wrap(wasi, "fd_fdstat_get", |_: u32, _: u32| BAD_DESCRIPTOR)?;
    Ok(())
}

/// Logs standard output as information, and standard error as an error.
fn print(mut caller: Caller<'_, Host>, descriptor: u32, pieces: u32, count: u32, written_at: u32) -> CallResult {
    if !matches!(descriptor, 1 | 2) {
        return Ok(BAD_DESCRIPTOR);
    }
    let (memory, host) = parts(&mut caller)?;
    let mut said = Vec::new();
    let mut written = 0u32;
    for index in 0..count.min(MOST_PIECES) {
        let entry = piece(memory, pieces.saturating_add(index * 8), 8)?;
        let (address, length) = entry.split_at(4);
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let text = piece(memory, word(address), word(length))?;
        written = written.saturating_add(word(length));
        if said.len() < 1024 {
            said.extend_from_slice(text.get(..1024).unwrap_or(text));
        }
    }
    write(memory, written_at, &written.to_le_bytes())?;
    host.log(if descriptor == 2 { 4 } else { 2 }, said.trim_ascii_end());
    Ok(SUCCESS)
}

fn random(mut caller: Caller<'_, Host>, address: u32, length: u32) -> CallResult {
    if length > MOST_RANDOM {
        return refuse(format!("{length} random bytes at once"));
    }
    let (memory, host) = parts(&mut caller)?;
    let bytes: Vec<u8> =
        (0..length.div_ceil(8)).flat_map(|_| host.random().to_le_bytes()).take(length as usize).collect();
    write(memory, address, &bytes)?;
    Ok(SUCCESS)
}

fn no_strings(mut caller: Caller<'_, Host>, count_at: u32, size_at: u32) -> CallResult {
    let (memory, _) = parts(&mut caller)?;
    write(memory, count_at, &[0; 4])?;
    write(memory, size_at, &[0; 4])?;
    Ok(SUCCESS)
}
