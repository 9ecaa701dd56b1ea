//! Calls that resume a stream, send a local answer, and log.

use crate::extension::headers::Headers;
use crate::extension::host::{CallResult, Host, Stage, Status, parts, piece, put, refuse};
use crate::extension::run::Local;
use crate::fault::printable;
use wasmtime::{Caller, Linker};

/// The limit of bytes of the body of a module's own answer.
const LARGEST_BODY: usize = 64 * 1024;
/// The log level that modules see: information and worse.
const LEVEL: u32 = 2;

pub(super) fn link(linker: &mut Linker<Host>) -> Result<(), wasmtime::Error> {
    linker.func_wrap(super::ENV, "proxy_log", log)?;
    linker.func_wrap(super::ENV, "proxy_get_log_level", |mut caller: Caller<'_, Host>, at: u32| {
        put(&mut caller, at, LEVEL)
    })?;
    linker.func_wrap(super::ENV, "proxy_send_local_response", answer)?;
    linker.func_wrap(
        super::ENV,
        "proxy_continue_stream",
        |mut caller: Caller<'_, Host>, _stream: u32| -> CallResult {
            caller.data_mut().resumed = true;
            Ok(Status::Ok as u32)
        },
    )?;
    // A route is chosen before policies judge, and by the head as it was received.
    linker.func_wrap(super::ENV, "proxy_clear_route_cache", || Status::Ok as u32)?;
    linker.func_wrap(super::ENV, "proxy_set_effective_context", |context: u32| match context {
        1 | 2 => Status::Ok as u32,
        _ => Status::BadArgument as u32,
    })?;
    linker.func_wrap(super::ENV, "proxy_done", || Status::Ok as u32)?;
    linker.func_wrap(super::ENV, "abort", abort)?;
    Ok(())
}

fn log(mut caller: Caller<'_, Host>, level: u32, text: u32, length: u32) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    host.log(level, piece(memory, text, length)?);
    Ok(Status::Ok as u32)
}

#[expect(clippy::too_many_arguments, reason = "the ABI's")]
fn answer(
    mut caller: Caller<'_, Host>,
    status: u32,
    details: u32,
    details_length: u32,
    body: u32,
    body_length: u32,
    fields: u32,
    fields_length: u32,
    grpc_status: i32,
) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    let details = printable(piece(memory, details, details_length)?);
    let body = piece(memory, body, body_length)?;
    let Ok(fields) = Headers::decode(piece(memory, fields, fields_length)?) else {
        return Ok(Status::SerializationFailure as u32);
    };
    if !matches!(host.stage, Stage::Request | Stage::Response) {
        return refuse("an answer while there is no request");
    }
    if body.len() > LARGEST_BODY {
        return refuse(format!("an answer of {} bytes, of which {LARGEST_BODY} are taken", body.len()));
    }
    // The first local answer counts; it cannot be taken back.
    if host.local.is_none() {
        host.local = Some(Local { status, fields, body: body.to_vec(), grpc_status, details });
    }
    Ok(Status::Ok as u32)
}

/// The function by which AssemblyScript aborts. Its texts are UTF-16; the word before a text is its
/// length in bytes.
fn abort(
    mut caller: Caller<'_, Host>,
    message: u32,
    file: u32,
    line: u32,
    _column: u32,
) -> Result<(), wasmtime::Error> {
    let (memory, host) = parts(&mut caller)?;
    let text = |address: u32| {
        let length = piece(memory, address.checked_sub(4)?, 4).ok()?.try_into().ok().map(u32::from_le_bytes)?;
        let units = piece(memory, address, length.min(600)).ok()?.chunks_exact(2);
        Some(units.map(|unit| if unit[1] == 0 { unit[0] } else { b'?' }).collect::<Vec<u8>>())
    };
    let message = text(message).unwrap_or_default();
    let place = text(file).unwrap_or_default();
    let said = format!("{}:{line}: {}", printable(&place), printable(&message));
    host.log(5, said.as_bytes());
    Err(wasmtime::Trap::UnreachableCodeReached.into())
}
