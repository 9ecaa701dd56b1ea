//! Calls on header fields. A module edits its own copy; the edits are recorded, and the runtime
//! checks them before it applies them to a message.

use crate::extension::headers::{Headers, LONGEST_NAME, LONGEST_VALUE};
use crate::extension::host::{CallResult, Host, Stage, Status, give, parts, piece, put, refuse};
use leno_policy::outcome::RawEdit;
use wasmtime::{Caller, Linker};

// The ABI's numbers of lists.
const REQUEST_HEADERS: u32 = 0;
const REQUEST_TRAILERS: u32 = 1;
const RESPONSE_HEADERS: u32 = 2;
const RESPONSE_TRAILERS: u32 = 3;

pub(super) fn link(linker: &mut Linker<Host>) -> Result<(), wasmtime::Error> {
    linker.func_wrap(super::ENV, "proxy_get_header_map_size", size)?;
    linker.func_wrap(super::ENV, "proxy_get_header_map_pairs", get_all)?;
    linker.func_wrap(super::ENV, "proxy_set_header_map_pairs", set_all)?;
    linker.func_wrap(super::ENV, "proxy_get_header_map_value", get)?;
    linker.func_wrap(super::ENV, "proxy_add_header_map_value", add)?;
    linker.func_wrap(super::ENV, "proxy_replace_header_map_value", replace)?;
    linker.func_wrap(super::ENV, "proxy_remove_header_map_value", remove)?;
    Ok(())
}

/// A list that may be read. Trailers are not passed to modules, and are empty.
fn readable(host: &Host, list: u32) -> Result<Option<&Headers>, wasmtime::Error> {
    match list {
        REQUEST_HEADERS => Ok(Some(&host.request_list)),
        RESPONSE_HEADERS => Ok(Some(&host.response_list)),
        REQUEST_TRAILERS | RESPONSE_TRAILERS => Ok(None),
        other => refuse(format!("list {other} of header fields, which no module sees here")),
    }
}

/// Fails unless this list may be edited now.
fn editable(host: &Host, list: u32) -> Result<(), wasmtime::Error> {
    match (host.stage, list) {
        (Stage::Request, REQUEST_HEADERS) | (Stage::Response, RESPONSE_HEADERS) => Ok(()),
        _ => refuse(format!("editing list {list} of header fields while there is no such message")),
    }
}

/// The runtime makes the final check of names and values; errors of these checks are reported to
/// the module at once.
fn is_for_modules(name: &[u8], value: &[u8]) -> Result<(), wasmtime::Error> {
    let shown = || crate::fault::printable(name);
    if name.starts_with(b":") {
        return refuse(format!("editing `{}`: the request line and the status are not for modules to edit", shown()));
    }
    if name.is_empty() || name.len() > LONGEST_NAME || value.len() > LONGEST_VALUE {
        return refuse(format!("header `{}` has no name, or one that is too long, or too long a value", shown()));
    }
    Ok(())
}

fn size(mut caller: Caller<'_, Host>, list: u32, at: u32) -> CallResult {
    let bytes = readable(caller.data(), list)?.map_or(4, |headers| headers.encode().len());
    put(&mut caller, at, u32::try_from(bytes).unwrap_or(u32::MAX))
}

fn get_all(mut caller: Caller<'_, Host>, list: u32, at: u32, length_at: u32) -> CallResult {
    let flat = readable(caller.data(), list)?.map_or_else(|| Headers::default().encode(), Headers::encode);
    give(&mut caller, &flat, at, length_at)
}

fn get(mut caller: Caller<'_, Host>, list: u32, name: u32, length: u32, at: u32, length_at: u32) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    let name = piece(memory, name, length)?;
    match readable(host, list)?.and_then(|headers| headers.joined(name)) {
        Some(value) => give(&mut caller, &value, at, length_at),
        None => Ok(Status::NotFound as u32),
    }
}

fn add(
    mut caller: Caller<'_, Host>,
    list: u32,
    name: u32,
    name_length: u32,
    value: u32,
    value_length: u32,
) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    let (name, value) = (piece(memory, name, name_length)?, piece(memory, value, value_length)?);
    editable(host, list)?;
    append(host, name, value)
}

fn append(host: &mut Host, name: &[u8], value: &[u8]) -> CallResult {
    is_for_modules(name, value)?;
    if !host.list().has_capacity(name, value) {
        return refuse("more header fields than a message has");
    }
    host.list().push(name, value);
    host.change(RawEdit::Append(name.to_ascii_lowercase().into(), value.into()))?;
    Ok(Status::Ok as u32)
}

fn replace(
    mut caller: Caller<'_, Host>,
    list: u32,
    name: u32,
    name_length: u32,
    value: u32,
    value_length: u32,
) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    let (name, value) = (piece(memory, name, name_length)?, piece(memory, value, value_length)?);
    editable(host, list)?;
    set(host, name, value)
}

fn set(host: &mut Host, name: &[u8], value: &[u8]) -> CallResult {
    is_for_modules(name, value)?;
    host.list().remove(name);
    if !host.list().has_capacity(name, value) {
        return refuse("more header fields than a message has");
    }
    host.list().push(name, value);
    host.change(RawEdit::Set(name.to_ascii_lowercase().into(), value.into()))?;
    Ok(Status::Ok as u32)
}

fn remove(mut caller: Caller<'_, Host>, list: u32, name: u32, length: u32) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    let name = piece(memory, name, length)?;
    editable(host, list)?;
    drop_all(host, name)
}

fn drop_all(host: &mut Host, name: &[u8]) -> CallResult {
    is_for_modules(name, b"")?;
    if host.list().values(name).next().is_some() {
        host.list().remove(name);
        host.change(RawEdit::Remove(name.to_ascii_lowercase().into()))?;
    }
    Ok(Status::Ok as u32)
}

/// Sets the whole list at once. Only fields that differ are edited, so that a module may pass back
/// fields that it cannot change.
fn set_all(mut caller: Caller<'_, Host>, list: u32, address: u32, length: u32) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    let Ok(new) = Headers::decode(piece(memory, address, length)?) else {
        return Ok(Status::SerializationFailure as u32);
    };
    editable(host, list)?;
    let old = host.list().clone();
    for name in old.names() {
        if new.values(name).next().is_none() {
            drop_all(host, name)?;
        }
    }
    for name in new.names() {
        if !old.values(name).eq(new.values(name)) {
            let mut values = new.values(name);
            set(host, name, values.next().unwrap_or_default())?;
            for value in values {
                append(host, name, value)?;
            }
        }
    }
    Ok(Status::Ok as u32)
}
