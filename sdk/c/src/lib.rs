//! The C interface of `leno-sdk`. It is described in `include/leno.h`; names and layouts here are those of that file.
//!
//! Each function returns an error rather than unwind into its caller.
#![allow(clippy::missing_safety_doc)] // the header states the caller's obligations

mod boundary;

use boundary::{FAILED, Failure, LATEST, array, free, given, guard, invalid, make, put, take};
use leno_sdk::{
    Answer, Buffer, Call, Chain, Error, HeaderMap, HeaderName, HeaderValue, OnFull, Payload, Pending, ReceivedBody,
    RequestHead, ResponseHead, SharedBody, StatusCode,
};
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::{ptr, slice};

const NONE: c_int = 0;
const COPY: c_int = 1;
const BUFFER: c_int = 2;
const OF_CALL: c_int = 3;
const OF_ANSWER: c_int = 4;

/// `leno_bytes`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    data: *const u8,
    length: usize,
}

/// `leno_field`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Field {
    name: Bytes,
    value: Bytes,
}

/// `leno_head`
#[repr(C)]
pub struct Head {
    method: Bytes,
    authority: Bytes,
    path: Bytes,
    fields: *const Field,
    field_count: usize,
}

/// `leno_body`
#[repr(C)]
pub struct Body {
    kind: c_int,
    of: *const c_void,
    start: usize,
    length: usize,
}

/// `leno_buffer`
pub struct Memory(Mutex<State>);

enum State {
    Writable(Buffer),
    Sent(SharedBody),
    /// A state between the two.
    Neither,
}

impl Bytes {
    fn of(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), length: bytes.len() }
    }

    unsafe fn bytes<'a>(&self) -> Result<&'a [u8], Failure> {
        // SAFETY: the caller guarantees it.
        unsafe { array(self.data, self.length) }
    }

    unsafe fn parse<T: for<'a> TryFrom<&'a [u8], Error: ToString>>(&self) -> Result<T, Failure> {
        // SAFETY: the caller guarantees it.
        T::try_from(unsafe { self.bytes() }?).map_err(invalid)
    }
}

unsafe fn headers(fields: *const Field, count: usize) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    // SAFETY: the caller guarantees that there are so many fields.
    for field in unsafe { array(fields, count) }? {
        // SAFETY: as above.
        let (name, value): (HeaderName, HeaderValue) = unsafe { (field.name.parse()?, field.value.parse()?) };
        headers.try_append(name, value).map_err(invalid)?;
    }
    Ok(headers)
}

unsafe fn request(head: *const Head) -> Result<RequestHead, Failure> {
    // SAFETY: the caller's pointers are valid.
    unsafe {
        let head = given(head)?;
        let (method, authority, path) = (head.method.parse()?, head.authority.parse()?, head.path.parse()?);
        let headers = headers(head.fields, head.field_count)?;
        Ok(RequestHead { method, authority, path, headers })
    }
}

fn part<'a>(received: ReceivedBody<'a>, body: &Body) -> Result<ReceivedBody<'a>, Failure> {
    let end = body.start.checked_add(body.length).filter(|end| *end <= received.len());
    let end = end.ok_or_else(|| invalid("this is no part of the body"))?;
    Ok(received.part(body.start..end))
}

/// The body to send, of any message but one that answers the call with the call's own body.
unsafe fn payload<'a>(chain: &Chain, body: &Body) -> Result<Payload<'a>, Failure> {
    match body.kind {
        NONE => Ok(Payload::none()),
        COPY => {
            let start = body.of.cast::<u8>().wrapping_add(body.start);
            // SAFETY: the caller guarantees that there are so many bytes.
            Ok(chain.copy(unsafe { array(start, body.length) }?)?.into())
        }
        BUFFER => {
            // SAFETY: the caller's pointer is one to a buffer.
            let memory = unsafe { given(body.of.cast::<Memory>()) }?;
            let mut state = memory.0.lock().unwrap_or_else(PoisonError::into_inner);
            let shared = match std::mem::replace(&mut *state, State::Neither) {
                State::Writable(buffer) => buffer.share(),
                State::Sent(shared) => shared,
                State::Neither => return Err(invalid("the buffer is broken")),
            };
            *state = State::Sent(shared.clone());
            let end = body.start.checked_add(body.length).filter(|end| *end <= shared.len());
            let end = end.ok_or_else(|| invalid("this is no part of the buffer"))?;
            Ok(shared.part(body.start..end).into())
        }
        // SAFETY: the caller's pointer is one to a call.
        OF_CALL => Ok(part(unsafe { given(body.of.cast::<Call>()) }?.body(), body)?.into()),
        // SAFETY: the caller's pointer is one to an answer.
        OF_ANSWER => Ok(part(unsafe { given(body.of.cast::<Answer>()) }?.body(), body)?.into()),
        kind => Err(invalid(format!("there is no body of the kind {kind}"))),
    }
}

/// Closes a call. The body that is sent may be the call's own.
unsafe fn close(
    chain: *const Chain,
    call: *mut Call,
    body: *const Body,
    with: impl FnOnce(Call, Payload<'_>) -> Result<(), Error>,
    with_own: impl FnOnce(Call, std::ops::Range<usize>) -> Result<(), Error>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's pointers are valid, and the call is ours from here on.
        let (call, chain, none) = unsafe { (take(call)?, given(chain)?, Body::none()) };
        // SAFETY: as above.
        let body = if body.is_null() { &none } else { unsafe { given(body) }? };
        if body.kind == OF_CALL && ptr::eq(body.of.cast(), &raw const *call) {
            part(call.body(), body)?;
            return Ok(with_own(*call, body.start..body.start + body.length)?);
        }
        // SAFETY: as above.
        let payload = unsafe { payload(chain, body) }?;
        Ok(with(*call, payload)?)
    })
}

impl Body {
    fn none() -> Self {
        Self { kind: NONE, of: ptr::null(), start: 0, length: 0 }
    }
}

unsafe fn list(headers: &HeaderMap, into: *mut Field, most: usize) -> usize {
    for (place, (name, value)) in headers.iter().enumerate().take(if into.is_null() { 0 } else { most }) {
        let field = Field { name: Bytes::of(name.as_str().as_bytes()), value: Bytes::of(value.as_bytes()) };
        // SAFETY: the caller guarantees that there is space for so many fields.
        unsafe { into.add(place).write(field) };
    }
    headers.len()
}

/// Reads a property of a value of the caller.
unsafe fn ask<T, R>(of: *const T, otherwise: R, read: impl FnOnce(&T) -> R) -> R {
    // SAFETY: the caller's pointer is valid, or null.
    let Ok(of) = (unsafe { given(of) }) else { return otherwise };
    catch_unwind(AssertUnwindSafe(|| read(of))).unwrap_or(otherwise)
}

const NO_BYTES: Bytes = Bytes { data: ptr::null(), length: 0 };

/// See `leno.h`, also for all functions below.
#[unsafe(no_mangle)]
pub extern "C" fn leno_open() -> *mut Chain {
    make(|| Chain::from_environment().map_err(|error| Failure(FAILED, error.to_string())))
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_open_socket(socket: c_int) -> *mut Chain {
    if socket < 0 {
        return ptr::null_mut();
    }
    // SAFETY: the caller gives up ownership of its socket.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    make(|| Chain::over(socket).map_err(|error| Failure(FAILED, error.to_string())))
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_wait_when_full(chain: *const Chain, wait: bool) {
    // SAFETY: the caller's pointer is valid.
    unsafe { ask(chain, (), |chain| chain.set_on_full(if wait { OnFull::Wait } else { OnFull::Fail })) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_close(chain: *mut Chain) {
    // SAFETY: the caller's pointer is valid.
    unsafe { free(chain) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub extern "C" fn leno_error() -> *const c_char {
    LATEST.with_borrow(|latest| latest.as_ptr())
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_next(chain: *const Chain, call: *mut *mut Call) -> c_int {
    guard(|| {
        // SAFETY: the caller's pointers are valid.
        let next = unsafe { given(chain) }?.next().ok_or(Error::Ended)?;
        // SAFETY: as above.
        unsafe { put(call, Box::into_raw(Box::new(next))) }
    })
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_call_method(call: *const Call) -> Bytes {
    // SAFETY: the caller's pointer is valid.
    unsafe { ask(call, NO_BYTES, |call| Bytes::of(call.method().as_str().as_bytes())) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_call_authority(call: *const Call) -> Bytes {
    // SAFETY: the caller's pointer is valid.
    unsafe { ask(call, NO_BYTES, |call| Bytes::of(call.authority().as_bytes())) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_call_path(call: *const Call) -> Bytes {
    // SAFETY: the caller's pointer is valid.
    unsafe { ask(call, NO_BYTES, |call| Bytes::of(call.path().as_bytes())) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_call_body(call: *const Call) -> Bytes {
    // SAFETY: the caller's pointer is valid.
    unsafe { ask(call, NO_BYTES, |call| Bytes::of(&call.body())) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_call_fields(call: *const Call, into: *mut Field, most: usize) -> usize {
    // SAFETY: the caller's pointers are valid.
    unsafe { ask(call, 0, |call| list(call.headers(), into, most)) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_call_is_cancelled(call: *const Call) -> bool {
    // SAFETY: the caller's pointer is valid.
    unsafe { ask(call, true, Call::is_cancelled) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_call_free(call: *mut Call) {
    // SAFETY: the caller's pointer is valid.
    unsafe { free(call) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_answer_call(
    chain: *const Chain,
    call: *mut Call,
    status: c_int,
    fields: *const Field,
    field_count: usize,
    body: *const Body,
) -> c_int {
    let head = || -> Result<ResponseHead, Failure> {
        let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
        let status = status.ok_or_else(|| invalid("this is no status"))?;
        // SAFETY: the caller's pointers are valid.
        Ok(ResponseHead { status, headers: unsafe { headers(fields, field_count) }? })
    };
    match head() {
        Ok(head) => {
            let other = head.clone();
            // SAFETY: the caller's pointers are valid.
            unsafe {
                close(
                    chain,
                    call,
                    body,
                    |call, payload| call.answer(head, payload),
                    |call, range| call.answer_with(other, |body| body.part(range).into()),
                )
            }
        }
        Err(failure) => {
            // SAFETY: as above.
            unsafe { free(call) };
            guard(|| Err(failure))
        }
    }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_forward_call(
    chain: *const Chain,
    call: *mut Call,
    head: *const Head,
    body: *const Body,
) -> c_int {
    // SAFETY: the caller's pointers are valid.
    match unsafe { request(head) } {
        // SAFETY: as above.
        Ok(head) => unsafe {
            close(
                chain,
                call,
                body,
                |call, payload| call.forward(&head, payload),
                |call, range| call.forward_with(&head, |body| body.part(range).into()),
            )
        },
        Err(failure) => {
            // SAFETY: as above.
            unsafe { free(call) };
            guard(|| Err(failure))
        }
    }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_ask(
    chain: *const Chain,
    parent: *const Call,
    head: *const Head,
    body: *const Body,
    pending: *mut *mut Pending,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's pointers are valid, or null where they may be.
        unsafe {
            let (chain, none) = (given(chain)?, Body::none());
            let body = if body.is_null() { &none } else { given(body)? };
            let asked = chain.call(parent.as_ref(), &request(head)?, payload(chain, body)?)?;
            put(pending, Box::into_raw(Box::new(asked)))
        }
    })
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_wait(pending: *mut Pending, answer: *mut *mut Answer) -> c_int {
    guard(|| {
        // SAFETY: the caller's pointers are valid, and the first one is ours from here on.
        unsafe { put(answer, Box::into_raw(Box::new(take(pending)?.wait()?))) }
    })
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_wait_any(
    pending: *mut *mut Pending,
    count: usize,
    which: *mut usize,
    answer: *mut *mut Answer,
) -> c_int {
    guard(|| {
        if pending.is_null() || count == 0 {
            return Err(invalid("there is nothing to wait for"));
        }
        // SAFETY: the caller guarantees that there are so many.
        let places = unsafe { slice::from_raw_parts_mut(pending, count) };
        let full: Vec<usize> = (0..count).filter(|place| !places[*place].is_null()).collect();
        // SAFETY: they are ours while this function waits; those without an answer are put back.
        let taken: Result<Vec<_>, _> = full.iter().map(|place| unsafe { take(places[*place]) }).collect();
        let mut taken: Vec<Pending> = taken?.into_iter().map(|pending| *pending).collect();
        let (first, result) = Pending::wait_any(&mut taken).ok_or_else(|| invalid("there is nothing to wait for"))?;
        let mut rest = taken.into_iter();
        for (place, at) in full.iter().enumerate() {
            let left = if place == first { None } else { rest.next() };
            places[*at] = left.map_or(ptr::null_mut(), |pending| Box::into_raw(Box::new(pending)));
        }
        // SAFETY: the caller's pointers are valid.
        unsafe {
            put(which, full[first])?;
            put(answer, Box::into_raw(Box::new(result?)))
        }
    })
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_pending_free(pending: *mut Pending) {
    // SAFETY: the caller's pointer is valid.
    unsafe { free(pending) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_answer_status(answer: *const Answer) -> c_int {
    // SAFETY: the caller's pointer is valid.
    unsafe { ask(answer, 0, |answer| answer.status().as_u16().into()) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_answer_body(answer: *const Answer) -> Bytes {
    // SAFETY: the caller's pointer is valid.
    unsafe { ask(answer, NO_BYTES, |answer| Bytes::of(&answer.body())) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_answer_fields(answer: *const Answer, into: *mut Field, most: usize) -> usize {
    // SAFETY: the caller's pointers are valid.
    unsafe { ask(answer, 0, |answer| list(answer.headers(), into, most)) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_answer_free(answer: *mut Answer) {
    // SAFETY: the caller's pointer is valid.
    unsafe { free(answer) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_buffer_new(chain: *const Chain, length: usize) -> *mut Memory {
    make(|| {
        // SAFETY: the caller's pointer is valid.
        let buffer = unsafe { given(chain) }?.buffer(length)?;
        Ok(Memory(Mutex::new(State::Writable(buffer))))
    })
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_buffer_data(buffer: *const Memory) -> *mut u8 {
    let data = |memory: &Memory| match &mut *memory.0.lock().unwrap_or_else(PoisonError::into_inner) {
        State::Writable(buffer) => buffer.as_mut_ptr(),
        // The buffer is read-only from here on.
        State::Sent(shared) => shared.as_ptr().cast_mut(),
        State::Neither => ptr::null_mut(),
    };
    // SAFETY: the caller's pointer is valid.
    unsafe { ask(buffer, ptr::null_mut(), data) }
}

/// See `leno.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leno_buffer_free(buffer: *mut Memory) {
    // SAFETY: the caller's pointer is valid.
    unsafe { free(buffer) }
}
