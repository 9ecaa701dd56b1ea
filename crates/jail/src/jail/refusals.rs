//! Refused system calls, as the node hears of them.

/// A system call that no jail allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyscallRefusal {
    /// Its name.
    pub call: String,
    /// Name of the program that made it.
    pub program: String,
    /// The process was killed for it. Otherwise the call failed.
    pub killed: bool,
}

/// A callback for refused system calls. Each kind of call is reported once.
pub struct Refusals(Box<dyn Fn(SyscallRefusal) + Send + Sync>);

impl Refusals {
    /// Reports refused system calls to this function, which must not block.
    pub fn to(report: impl Fn(SyscallRefusal) + Send + Sync + 'static) -> Self {
        Self(Box::new(report))
    }

    pub(super) fn report(&self, refusal: SyscallRefusal) {
        (self.0)(refusal);
    }
}

impl std::fmt::Debug for Refusals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Refusals")
    }
}
