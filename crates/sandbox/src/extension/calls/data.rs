//! Calls that read properties, buffers and times, and those on the data that instances share.

use crate::extension::host::{CallResult, Host, Status, give, parts, piece, put, refuse, write};
use crate::extension::shared::NotStored;
use wasmtime::{Caller, Linker};

// The ABI's numbers of buffers.
const VM_CONFIGURATION: u32 = 6;
const PLUGIN_CONFIGURATION: u32 = 7;
/// The limit of bytes of a property's path, and of a value that a module sets.
const LONGEST_PATH: usize = 1024;
const LONGEST_VALUE: usize = 4096;
/// The limit of properties that a module may set.
const MOST_PROPERTIES: usize = 32;

pub(super) fn link(linker: &mut Linker<Host>) -> Result<(), wasmtime::Error> {
    linker.func_wrap(super::ENV, "proxy_get_buffer_bytes", buffer)?;
    linker.func_wrap(super::ENV, "proxy_get_property", property)?;
    linker.func_wrap(super::ENV, "proxy_set_property", set_property)?;
    linker.func_wrap(super::ENV, "proxy_get_shared_data", shared)?;
    linker.func_wrap(super::ENV, "proxy_set_shared_data", set_shared)?;
    linker.func_wrap(super::ENV, "proxy_get_current_time_nanoseconds", now)?;
    Ok(())
}

fn buffer(mut caller: Caller<'_, Host>, buffer: u32, start: u32, most: u32, at: u32, length_at: u32) -> CallResult {
    let settings = caller.data().settings.clone();
    let whole: &[u8] = match buffer {
        VM_CONFIGURATION => &[],
        PLUGIN_CONFIGURATION => &settings.configuration,
        other => return refuse(format!("buffer {other}: modules see heads, not bodies")),
    };
    match whole.get(start as usize..) {
        Some(rest) => give(&mut caller, rest.get(..most as usize).unwrap_or(rest), at, length_at),
        None => Ok(Status::BadArgument as u32),
    }
}

fn property(mut caller: Caller<'_, Host>, path: u32, length: u32, at: u32, length_at: u32) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    let path = piece(memory, path, length)?;
    if path.len() > LONGEST_PATH {
        return Ok(Status::BadArgument as u32);
    }
    match lookup(host, path) {
        Some(value) => give(&mut caller, &value, at, length_at),
        None => Ok(Status::NotFound as u32),
    }
}

/// Properties that the module itself has set come first; the rest is the runtime's.
fn lookup(host: &mut Host, path: &[u8]) -> Option<Vec<u8>> {
    // Some SDKs end the path with a zero byte.
    let path = path.strip_suffix(&[0]).unwrap_or(path);
    if let Some((_, value)) = host.properties.iter().find(|(name, _)| **name == *path) {
        return Some(value.to_vec());
    }
    let segments: Vec<&[u8]> = path.split(|byte| *byte == 0).collect();
    let settings = &host.settings;
    match segments[..] {
        [b"plugin_name"] => return Some(settings.name.as_bytes().to_vec()),
        // From this property, a module with several plugins knows which one is meant.
        [b"plugin_root_id"] => {
            let short = settings.name.rsplit('/').next().unwrap_or_default();
            return Some(short.as_bytes().to_vec());
        }
        [b"plugin_vm_id"] => return Some(settings.function.as_bytes().to_vec()),
        // Envoy's traffic directions.
        [b"listener_direction"] => return Some((1 + u64::from(settings.outbound)).to_le_bytes().to_vec()),
        _ => {}
    }
    let now_ms = host.given.as_ref().map_or(0, |given| given.now_ms);
    let of_request = host.request.as_ref().and_then(|request| request.property(&segments, now_ms));
    of_request.or_else(|| host.response.as_ref()?.property(&segments))
}

fn set_property(
    mut caller: Caller<'_, Host>,
    path: u32,
    path_length: u32,
    value: u32,
    value_length: u32,
) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    let (path, value) = (piece(memory, path, path_length)?, piece(memory, value, value_length)?);
    if path.len() > LONGEST_PATH || value.len() > LONGEST_VALUE {
        return Ok(Status::BadArgument as u32);
    }
    let path = path.strip_suffix(&[0]).unwrap_or(path);
    host.impure = true;
    match host.properties.iter().position(|(name, _)| **name == *path) {
        Some(index) => host.properties[index].1 = value.into(),
        None if host.properties.len() >= MOST_PROPERTIES => return refuse("more properties than a module may set"),
        None => host.properties.push((path.into(), value.into())),
    }
    Ok(Status::Ok as u32)
}

fn shared(mut caller: Caller<'_, Host>, key: u32, length: u32, at: u32, length_at: u32, number_at: u32) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    let key = piece(memory, key, length)?;
    host.impure = true;
    match host.given.as_ref().and_then(|given| given.shared.get(key)) {
        Some((value, number)) => {
            put(&mut caller, number_at, number)?;
            give(&mut caller, &value, at, length_at)
        }
        None => Ok(Status::NotFound as u32),
    }
}

fn set_shared(
    mut caller: Caller<'_, Host>,
    key: u32,
    key_length: u32,
    value: u32,
    value_length: u32,
    number: u32,
) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    let (key, value) = (piece(memory, key, key_length)?, piece(memory, value, value_length)?);
    host.impure = true;
    let stored = host.given.as_ref().map_or(Err(NotStored::Full), |given| given.shared.set(key, value, number));
    Ok(match stored {
        Ok(()) => Status::Ok,
        Err(NotStored::Mismatch) => Status::CasMismatch,
        Err(NotStored::Full) => Status::InternalFailure,
    } as u32)
}

fn now(mut caller: Caller<'_, Host>, at: u32) -> CallResult {
    let (memory, host) = parts(&mut caller)?;
    write(memory, at, &host.now().to_le_bytes())?;
    Ok(Status::Ok as u32)
}
