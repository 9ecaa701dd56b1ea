//! The boundary between C and Rust: return codes, checks of pointers from C, and panics, which do
//! not unwind into C.

use leno_sdk::Error;
use std::cell::RefCell;
use std::ffi::{CString, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

pub(crate) const OK: c_int = 0;
pub(crate) const ENDED: c_int = 1;
pub(crate) const FULL: c_int = 2;
pub(crate) const FAILED: c_int = 3;
pub(crate) const INVALID: c_int = 4;

/// Why a function failed: its return code, and a message.
pub(crate) struct Failure(pub(crate) c_int, pub(crate) String);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Ended => ENDED,
            Error::Full(_) => FULL,
            // No answer is awaited here, so the second error never occurs.
            Error::Failed | Error::NotServed => FAILED,
            Error::Head(_) | Error::TooLong(..) | Error::OtherLink => INVALID,
        };
        Self(code, error.to_string())
    }
}

pub(crate) fn invalid(what: impl ToString) -> Failure {
    Failure(INVALID, what.to_string())
}

thread_local! {
    pub(crate) static LATEST: RefCell<CString> = RefCell::default();
}

/// Calls a function, and returns its result as a code.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => OK,
        Ok(Err(Failure(code, text))) => {
            LATEST.set(CString::new(text).unwrap_or_default());
            code
        }
        Err(_) => {
            LATEST.set(c"this library has panicked".to_owned());
            INVALID
        }
    }
}

/// Makes a value; null if that fails.
pub(crate) fn make<T>(work: impl FnOnce() -> Result<T, Failure>) -> *mut T {
    let mut made = ptr::null_mut();
    guard(|| {
        made = Box::into_raw(Box::new(work()?));
        Ok(())
    });
    made
}

/// Frees a value that `make` has made.
pub(crate) unsafe fn free<T>(made: *mut T) {
    guard(|| {
        // SAFETY: the caller passes a pointer from `make`, or null.
        drop(unsafe { take(made) });
        Ok(())
    });
}

/// Takes back a value that `make` has made.
pub(crate) unsafe fn take<T>(made: *mut T) -> Result<Box<T>, Failure> {
    if made.is_null() {
        return Err(invalid("a pointer is null"));
    }
    // SAFETY: it is from `Box::into_raw`, and the caller does not use it any more.
    Ok(unsafe { Box::from_raw(made) })
}

/// The value behind a pointer of the caller, for as long as the call takes.
pub(crate) unsafe fn given<'a, T>(pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the caller's pointer is valid, or null.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid("a pointer is null"))
}

/// Writes a value to the caller's place.
pub(crate) unsafe fn put<T>(into: *mut T, value: T) -> Result<(), Failure> {
    if into.is_null() {
        return Err(invalid("a pointer is null"));
    }
    // SAFETY: the caller's pointer is valid.
    unsafe { into.write(value) };
    Ok(())
}

pub(crate) unsafe fn array<'a, T>(data: *const T, length: usize) -> Result<&'a [T], Failure> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid("a pointer is null")),
        // SAFETY: the caller guarantees that there are so many elements.
        (false, _) => Ok(unsafe { slice::from_raw_parts(data, length) }),
    }
}
