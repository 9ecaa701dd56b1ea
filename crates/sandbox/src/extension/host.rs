//! The host's side of one instance: its inputs, its outputs, and the access to its memory. Nothing
//! that comes from a module is trusted: every address is checked, every length bounded.

use super::failure::Failure;
use super::head::{Request, Response, RunInputs};
use super::headers::{Field, Headers};
use super::logging::MOST_LINES;
use super::plugin::Settings;
use super::run::Local;
use crate::cpu_time::Limit;
use crate::fault::printable;
use leno_policy::outcome::RawEdit;
use std::sync::Arc;
use wasmtime::{Caller, Memory, PoolConcurrencyLimitError, ResourceLimiter, TypedFunc};

/// The limit of elements of a module's table of functions.
pub(super) const MOST_TABLE: usize = 20_000;
/// The limit of header edits of one phase.
pub(super) const MOST_CHANGES: usize = 256;
/// The limit of bytes of one log line that are read.
const LONGEST_LINE: usize = 1024;

/// The status that a call returns to the module. The numbers are the ABI's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok = 0,
    NotFound = 1,
    BadArgument = 2,
    SerializationFailure = 3,
    CasMismatch = 8,
    InternalFailure = 10,
}

/// The reason of a call that ends the run.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Violation(pub String);

pub(super) type CallResult = Result<u32, wasmtime::Error>;

/// Ends the run.
pub(super) fn refuse<T>(what: impl Into<String>) -> Result<T, wasmtime::Error> {
    Err(wasmtime::Error::new(Violation(what.into())))
}

/// The state on which the calls of one instance work.
pub(super) struct Host {
    pub settings: Arc<Settings>,
    /// The time at which the instance is ended.
    pub limit: Limit,
    /// Set once the instance exists.
    pub memory: Option<Memory>,
    pub allocate: Option<TypedFunc<u32, u32>>,
    allocating: bool,
    pub request: Option<Request>,
    pub response: Option<Response>,
    /// The request's fields as the module has edited them.
    pub request_list: Headers,
    pub response_list: Headers,
    pub stage: Stage,
    pub changes: Vec<RawEdit>,
    pub local: Option<Local>,
    pub resumed: bool,
    pub given: Option<RunInputs>,
    pub random: u64,
    pub properties: Vec<Field>,
    /// The module asked for a value that differs from instance to instance.
    pub impure: bool,
    /// The module was refused memory.
    pub starved: bool,
    lines: u32,
    /// The last line that the module logged as an error.
    complaint: Option<Box<[u8]>>,
}

/// The stage of an instance's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Start,
    Request,
    Response,
    End,
}

impl Host {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Self {
            settings,
            limit: Limit::NONE,
            memory: None,
            allocate: None,
            allocating: false,
            request: None,
            response: None,
            request_list: Headers::default(),
            response_list: Headers::default(),
            stage: Stage::Start,
            changes: Vec::new(),
            local: None,
            resumed: false,
            given: None,
            random: 0,
            properties: Vec::new(),
            impure: false,
            starved: false,
            lines: 0,
            complaint: None,
        }
    }

    /// Takes the inputs of the run.
    pub(super) fn take(&mut self, given: RunInputs) {
        self.random = given.random;
        self.given = Some(given);
    }

    /// Nanoseconds since the Unix epoch; the time is zero before there is a request.
    pub(super) fn now(&mut self) -> u64 {
        self.impure = true;
        self.given.as_ref().map_or(0, |given| given.now_ms.saturating_mul(1_000_000))
    }

    /// The next random number (SplitMix64).
    pub(super) fn random(&mut self) -> u64 {
        self.impure = true;
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The list that the module may edit now.
    pub(super) fn list(&mut self) -> &mut Headers {
        match self.stage {
            Stage::Response => &mut self.response_list,
            _ => &mut self.request_list,
        }
    }

    /// Logs a line of the module for the operator.
    pub(super) fn log(&mut self, level: u32, text: &[u8]) {
        let text = text.get(..LONGEST_LINE).unwrap_or(text);
        if level >= 4 {
            self.complaint = Some(text.into());
        }
        if self.lines < MOST_LINES {
            self.lines += 1;
            let settings = &self.settings;
            settings.logged.log(level, &settings.function, &settings.name, text);
        }
    }

    /// The reason that a trapped module itself has logged, if any.
    pub(super) fn complaint(&self) -> Option<String> {
        self.complaint.as_deref().map(printable)
    }

    /// Records an edit.
    pub(super) fn change(&mut self, change: RawEdit) -> Result<(), wasmtime::Error> {
        if self.changes.len() >= MOST_CHANGES {
            return refuse(format!("more than {MOST_CHANGES} header edits"));
        }
        self.changes.push(change);
        Ok(())
    }
}

impl ResourceLimiter for Host {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let granted = desired <= self.settings.memory;
        self.starved |= !granted;
        Ok(granted)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= MOST_TABLE)
    }
}

/// The module's memory, and the host's side of the instance.
pub(super) fn parts<'a>(caller: &'a mut Caller<'_, Host>) -> Result<(&'a mut [u8], &'a mut Host), wasmtime::Error> {
    match caller.data().memory {
        Some(memory) => Ok(memory.data_and_store_mut(caller)),
        None => refuse("a call before its instance exists"),
    }
}

/// A piece of the module's memory.
pub(super) fn piece(memory: &[u8], address: u32, length: u32) -> Result<&[u8], wasmtime::Error> {
    let (start, length) = (address as usize, length as usize);
    match start.checked_add(length).and_then(|end| memory.get(start..end)) {
        Some(bytes) => Ok(bytes),
        None => refuse(format!("{length} bytes at {address:#x} are outside its memory")),
    }
}

/// Writes into the module's memory.
pub(super) fn write(memory: &mut [u8], address: u32, bytes: &[u8]) -> Result<(), wasmtime::Error> {
    let start = address as usize;
    match start.checked_add(bytes.len()).and_then(|end| memory.get_mut(start..end)) {
        Some(place) => {
            place.copy_from_slice(bytes);
            Ok(())
        }
        None => refuse(format!("{} bytes at {address:#x} are outside its memory", bytes.len())),
    }
}

/// Writes a word into the module's memory.
pub(super) fn put(caller: &mut Caller<'_, Host>, address: u32, word: u32) -> CallResult {
    let (memory, _) = parts(caller)?;
    write(memory, address, &word.to_le_bytes())?;
    Ok(Status::Ok as u32)
}

/// Passes bytes to the module, in memory from its own allocator, and writes their address and
/// length to the given places.
pub(super) fn give(caller: &mut Caller<'_, Host>, bytes: &[u8], at: u32, length_at: u32) -> CallResult {
    let length = u32::try_from(bytes.len()).map_err(|_| wasmtime::Error::new(Violation("too much to give".into())))?;
    let address = match length {
        0 => 0,
        length => allocate(caller, length)?,
    };
    let (memory, _) = parts(caller)?;
    write(memory, address, bytes)?;
    write(memory, at, &address.to_le_bytes())?;
    write(memory, length_at, &length.to_le_bytes())?;
    Ok(Status::Ok as u32)
}

fn allocate(caller: &mut Caller<'_, Host>, length: u32) -> Result<u32, wasmtime::Error> {
    let Some(allocate) = caller.data().allocate.clone() else { return refuse("a call before its instance exists") };
    // An allocator that calls a host function which needs the allocator would never end.
    if std::mem::replace(&mut caller.data_mut().allocating, true) {
        return refuse("a call from within its own allocator");
    }
    let address = allocate.call(&mut *caller, length);
    caller.data_mut().allocating = false;
    match address? {
        0 => {
            caller.data_mut().starved = true;
            refuse(format!("its allocator has no capacity for {length} bytes"))
        }
        address => Ok(address),
    }
}

/// The failure of an instance that ended with this error.
pub(super) fn failure(error: &wasmtime::Error, host: &Host) -> Failure {
    use crate::fault::Fault;
    use wasmtime::Trap;
    if let Some(Violation(what)) = error.downcast_ref::<Violation>() {
        return match host.complaint() {
            Some(complaint) if what.starts_with("`proc_exit`") => Failure::Fault(Fault::Panicked(complaint)),
            _ if host.starved && what.starts_with("its allocator") => Failure::Fault(Fault::OutOfMemory),
            _ => Failure::Call(what.clone()),
        };
    }
    if error.is::<PoolConcurrencyLimitError>() {
        return Failure::Crowded;
    }
    let unreachable = error.downcast_ref::<Trap>() == Some(&Trap::UnreachableCodeReached);
    Failure::Fault(match host.complaint() {
        _ if unreachable && host.starved => Fault::OutOfMemory,
        Some(complaint) if unreachable => Fault::Panicked(complaint),
        _ => crate::wasm::trapped(error),
    })
}
