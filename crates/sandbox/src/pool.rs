//! A worker thread's sandboxes.
//!
//! Types express their life cycle: a [`Sandbox`] is clean and can be run once; running it makes it
//! a [`FinishedRun`], which holds the output; only resetting that returns a value that the pool takes
//! back.

use crate::error::EngineError;
use crate::fault::Fault;
use crate::image::{Body, Image};
use crate::output::{self, OutputError};
use crate::{inline, microvm, wasm};
use leno_policy::abi;
use leno_policy::input::{MAX_INPUT, RequestInput};
use leno_policy::outcome::Output;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The default limit of sandboxes that one pool lends at a time.
const CAP: usize = 32;
/// How many WebAssembly instances a pool keeps, each with another size of memory.
const INSTANCES: usize = 4;

/// A thread's sandboxes, made on demand and reused for any program. Not `Send`: each worker has its
/// own.
pub struct Pool {
    shells: Vec<microvm::Shell>,
    /// The last element is the one that was used last.
    instances: Vec<wasm::Instance>,
    buffers: Vec<inline::Buffers>,
    /// The sandbox of the last run. Its output has been read, and no request waits for it to be
    /// erased.
    dirty: Option<FinishedSandbox>,
    lent: Rc<Cell<usize>>,
    cap: usize,
}

/// Why [`Pool::run`] has no output. Each of these errors denies the request.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The sidecar failed.
    #[error("the sidecar {0}")]
    Fault(Fault),
    /// Its output is invalid.
    #[error("the sidecar's output is invalid: {0}")]
    Malformed(#[from] OutputError),
    /// The request head is larger than the input of a sidecar may be.
    #[error("the input is larger than the {MAX_INPUT} bytes that a sidecar takes")]
    InputTooLarge,
    /// There is no sandbox to run it in.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

impl Pool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::with_cap(CAP)
    }

    /// An empty pool that lends at most `cap` sandboxes at a time.
    pub fn with_cap(cap: usize) -> Self {
        Self { shells: Vec::new(), instances: Vec::new(), buffers: Vec::new(), dirty: None, lent: Rc::default(), cap }
    }

    /// Runs the program of `image` on `input` in a fresh sandbox, and checks its output.
    /// [`Pool::tidy`] erases the data of the run, or else the next run does so first.
    pub fn run(&mut self, image: &Image, input: &RequestInput<'_>, deadline: Duration) -> Result<Output, RunError> {
        if let Body::Constant(program) = image.body() {
            return Ok(program.judge(input));
        }
        self.run_written(image, deadline, |area| postcard::to_slice(input, area).map(|bytes| bytes.len()))
    }

    /// As [`Pool::run`], with an input in postcard encoding.
    pub fn run_encoded(&mut self, image: &Image, input: &[u8], deadline: Duration) -> Result<Output, RunError> {
        if let Body::Constant(program) = image.body() {
            return Ok(abi::answer(program, input));
        }
        self.run_written(image, deadline, |area| copy(input, area))
    }

    /// Runs a program once. `write` writes the input.
    fn run_written<E>(
        &mut self,
        image: &Image,
        deadline: Duration,
        write: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Output, RunError> {
        let _permit = Permit::new(&self.lent, self.cap)?;
        match self.vacant(image)?.run(image.body(), deadline, write) {
            Ok(spent) => {
                let result = match spent.output() {
                    Ok(bytes) => output::decode(bytes).map_err(RunError::from),
                    Err(fault) => Err(RunError::Fault(fault)),
                };
                self.dirty = Some(spent);
                result
            }
            Err((vacant, _)) => {
                vacant.into_iter().for_each(|vacant| self.keep(vacant));
                Err(RunError::InputTooLarge)
            }
        }
    }

    /// Erases the data of the last run: for an idle worker.
    pub fn tidy(&mut self) {
        if let Some(vacant) = self.dirty.take().and_then(FinishedSandbox::reset) {
            self.keep(vacant);
        }
    }

    /// A clean sandbox for one run of the program of `image`.
    pub fn take(&mut self, image: &Image) -> Result<Sandbox, EngineError> {
        let permit = Permit::new(&self.lent, self.cap)?;
        Ok(Sandbox { vacant: self.vacant(image)?, image: image.clone(), permit })
    }

    fn vacant(&mut self, image: &Image) -> Result<Vacant, EngineError> {
        self.tidy();
        Ok(match image.body() {
            Body::Microvm(machine, snapshot) => {
                let fits = |shell: &microvm::Shell| Arc::ptr_eq(shell.machine(), machine);
                let found = self.shells.iter().rposition(|shell| fits(shell) && shell.suits(snapshot));
                Vacant::Shell(match found.or_else(|| self.shells.iter().rposition(fits)) {
                    Some(index) => self.shells.swap_remove(index),
                    None => machine.shell()?,
                })
            }
            Body::Wasm(engine, snapshot) => {
                let found = self.instances.iter().rposition(|instance| instance.suits(engine, snapshot));
                Vacant::Instance(match found {
                    Some(index) => self.instances.remove(index),
                    None => wasm::Instance::new(engine, snapshot)?,
                })
            }
            Body::Inline(..) | Body::Constant(_) => {
                Vacant::Buffers(self.buffers.pop().unwrap_or_else(inline::Buffers::new))
            }
        })
    }

    /// Takes back the result of [`FinishedRun::reset`]. `None`, a sandbox that could not be reset, is
    /// replaced when the next one is needed.
    pub fn give_back(&mut self, clean: Option<Clean>) {
        if let Some(clean) = clean {
            self.keep(clean.vacant);
        }
    }

    fn keep(&mut self, vacant: Vacant) {
        match vacant {
            Vacant::Shell(shell) if self.shells.len() < self.cap => self.shells.push(shell),
            Vacant::Instance(instance) => self.keep_instance(instance),
            Vacant::Buffers(buffers) if self.buffers.len() < self.cap => self.buffers.push(buffers),
            Vacant::Shell(_) | Vacant::Buffers(_) => {}
        }
    }

    /// Replaces the instance with as much memory, or else the least recently used one.
    fn keep_instance(&mut self, instance: wasm::Instance) {
        let same = self.instances.iter().position(|kept| kept.size() == instance.size());
        if let Some(index) = same.or((self.instances.len() == INSTANCES).then_some(0)) {
            self.instances.remove(index);
        }
        self.instances.push(instance);
    }
}

/// Counts the sandboxes that are lent.
struct Permit(Rc<Cell<usize>>);

impl Permit {
    fn new(lent: &Rc<Cell<usize>>, cap: usize) -> Result<Self, EngineError> {
        if lent.get() >= cap {
            return Err(EngineError::Exhausted(cap));
        }
        lent.set(lent.get() + 1);
        Ok(Self(Rc::clone(lent)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A clean sandbox with a program to run.
pub struct Sandbox {
    vacant: Vacant,
    image: Image,
    permit: Permit,
}

/// A sandbox while no program is in it.
enum Vacant {
    Shell(microvm::Shell),
    Instance(wasm::Instance),
    Buffers(inline::Buffers),
}

impl Sandbox {
    /// Runs the program once, from the state that its initialisation left.
    pub fn run(self, input: &[u8], deadline: Duration) -> FinishedRun {
        let Self { vacant, image, permit } = self;
        let spent = vacant.run(image.body(), deadline, |area| copy(input, area));
        FinishedRun { spent: spent.unwrap_or_else(|(vacant, fault)| FinishedSandbox::Unused(vacant, fault)), permit }
    }
}

/// Writes an input to the start of the input area.
fn copy(input: &[u8], area: &mut [u8]) -> Result<usize, Fault> {
    let too_long = Fault::InputTooLong { length: input.len(), limit: MAX_INPUT };
    area.get_mut(..input.len()).ok_or(too_long)?.copy_from_slice(input);
    Ok(input.len())
}

impl Vacant {
    /// Runs a program once. `write` is given the input area and returns the length; it may be
    /// called again, with a larger area. If it fails, the program is not run, and a reusable
    /// sandbox, if any, is returned with the error.
    fn run<E>(
        self,
        body: &Body,
        deadline: Duration,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<FinishedSandbox, (Option<Self>, E)> {
        match (self, body) {
            (Self::Shell(shell), Body::Microvm(_, snapshot)) => {
                let spent = shell.run(snapshot, deadline, write);
                spent.map(FinishedSandbox::Microvm).map_err(|(shell, error)| (shell.map(Self::Shell), error))
            }
            (Self::Instance(instance), Body::Wasm(_, snapshot)) => {
                let spent = instance.run(snapshot, deadline, write);
                spent.map(FinishedSandbox::Wasm).map_err(|(instance, error)| (instance.map(Self::Instance), error))
            }
            (Self::Buffers(mut buffers), Body::Inline(program, _) | Body::Constant(program)) => {
                match write(&mut buffers.input) {
                    Ok(length) => {
                        buffers.run(program, length);
                        Ok(FinishedSandbox::Inline(buffers))
                    }
                    Err(error) => Err((Some(Self::Buffers(buffers)), error)),
                }
            }
            _ => unreachable!("`Pool::vacant` pairs them"),
        }
    }
}

/// A sandbox after its run.
pub struct FinishedRun {
    spent: FinishedSandbox,
    permit: Permit,
}

enum FinishedSandbox {
    Microvm(microvm::FinishedShell),
    Wasm(wasm::FinishedInstance),
    Inline(inline::Buffers),
    /// A sandbox that was not run.
    Unused(Option<Vacant>, Fault),
}

impl FinishedRun {
    /// The output, not validated, or the reason why there is none.
    pub fn output(&self) -> Result<&[u8], Fault> {
        self.spent.output()
    }

    /// Erases all data of the run. `None`: it cannot be used again, and has been dropped.
    pub fn reset(self) -> Option<Clean> {
        let Self { spent, permit } = self;
        spent.reset().map(|vacant| Clean { vacant, _permit: permit })
    }
}

impl FinishedSandbox {
    fn output(&self) -> Result<&[u8], Fault> {
        match self {
            Self::Microvm(spent) => spent.output(),
            Self::Wasm(spent) => spent.output(),
            Self::Inline(buffers) => Ok(buffers.output()),
            Self::Unused(_, fault) => Err(fault.clone()),
        }
    }

    fn reset(self) -> Option<Vacant> {
        match self {
            Self::Microvm(spent) => spent.reset().map(Vacant::Shell),
            Self::Wasm(spent) => spent.reset().map(Vacant::Instance),
            Self::Inline(mut buffers) => {
                buffers.erase();
                Some(Vacant::Buffers(buffers))
            }
            Self::Unused(vacant, _) => vacant,
        }
    }
}

/// A sandbox without a program, for [`Pool::give_back`].
pub struct Clean {
    vacant: Vacant,
    _permit: Permit,
}
