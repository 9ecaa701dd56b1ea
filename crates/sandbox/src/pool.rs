//! A worker thread's sandboxes.
//!
//! Their life is in the types: a [`Sandbox`] is clean and can be run once; running it makes it a [`Used`], which holds
//! the output; only resetting that gives something that the pool takes back.

use crate::engine::EngineError;
use crate::fault::Fault;
use crate::image::{Body, Image};
use crate::output::{self, Malformed};
use crate::{inline, microvm, wasm};
use leno_policy::input::{Input, MAX_INPUT};
use leno_policy::outcome::Output;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Sandboxes that one pool lends at a time, unless told otherwise.
const CAP: usize = 32;
/// WebAssembly instances that a pool keeps, each with another size of memory.
const INSTANCES: usize = 4;

/// A thread's sandboxes, made on demand and reused for whichever program comes next. Not `Send`: a worker owns its own.
pub struct Pool {
    shells: Vec<microvm::Shell>,
    /// The last one is the one used last.
    instances: Vec<wasm::Instance>,
    buffers: Vec<inline::Buffers>,
    lent: Rc<Cell<usize>>,
    cap: usize,
}

/// Why [`Pool::run`] has no output. All of them deny the request.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The sidecar failed.
    #[error("the sidecar {0}")]
    Fault(Fault),
    /// Its output does not hold water.
    #[error("the sidecar's output is invalid: {0}")]
    Malformed(#[from] Malformed),
    /// The request head is larger than any sidecar takes.
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
        Self { shells: Vec::new(), instances: Vec::new(), buffers: Vec::new(), lent: Rc::default(), cap }
    }

    /// Runs the program of `image` on `input` in a fresh sandbox, and checks what comes out.
    pub fn run(&mut self, image: &Image, input: &Input<'_>, deadline: Duration) -> Result<Output, RunError> {
        let sandbox = self.take(image)?;
        let used = match sandbox.run_with(deadline, |area| postcard::to_slice(input, area).map(|bytes| bytes.len())) {
            Ok(used) => used,
            Err((clean, _)) => {
                self.give_back(clean);
                return Err(RunError::InputTooLarge);
            }
        };
        let result = match used.output() {
            Ok(bytes) => output::decode(bytes).map_err(RunError::from),
            Err(fault) => Err(RunError::Fault(fault)),
        };
        self.give_back(used.reset());
        result
    }

    /// A clean sandbox for one run of the program of `image`.
    pub fn take(&mut self, image: &Image) -> Result<Sandbox, EngineError> {
        let permit = Permit::new(&self.lent, self.cap)?;
        let vacant = match image.body() {
            Body::Microvm(machine, snapshot) => {
                let fits = |shell: &microvm::Shell| Arc::ptr_eq(shell.machine(), machine);
                let found = self.shells.iter().rposition(|shell| fits(shell) && shell.suits(snapshot));
                let shell = match found.or_else(|| self.shells.iter().rposition(fits)) {
                    Some(index) => self.shells.swap_remove(index),
                    None => machine.shell()?,
                };
                Vacant::Shell(shell)
            }
            Body::Wasm(engine, snapshot) => {
                let found = self.instances.iter().rposition(|instance| instance.suits(engine, snapshot));
                let instance = match found {
                    Some(index) => self.instances.remove(index),
                    None => wasm::Instance::new(engine, snapshot)?,
                };
                Vacant::Instance(instance)
            }
            Body::Inline(..) => Vacant::Buffers(self.buffers.pop().unwrap_or_else(inline::Buffers::new)),
        };
        Ok(Sandbox { vacant, image: image.clone(), permit })
    }

    /// Takes back what [`Used::reset`] gave. `None`, a sandbox that could not be reset, is replaced when the next one is needed.
    pub fn give_back(&mut self, clean: Option<Clean>) {
        match clean.map(|clean| clean.vacant) {
            Some(Vacant::Shell(shell)) if self.shells.len() < self.cap => self.shells.push(shell),
            Some(Vacant::Instance(instance)) => self.keep(instance),
            Some(Vacant::Buffers(buffers)) if self.buffers.len() < self.cap => self.buffers.push(buffers),
            _ => {}
        }
    }

    /// In the place of one with as much memory, or else of the one that was not used for longest.
    fn keep(&mut self, instance: wasm::Instance) {
        let same = self.instances.iter().position(|kept| kept.size() == instance.size());
        if let Some(index) = same.or((self.instances.len() == INSTANCES).then_some(0)) {
            self.instances.remove(index);
        }
        self.instances.push(instance);
    }
}

/// Counts what is lent.
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

/// What a sandbox is made of while no program is in it.
enum Vacant {
    Shell(microvm::Shell),
    Instance(wasm::Instance),
    Buffers(inline::Buffers),
}

impl Sandbox {
    /// Runs the program once, from the state that its initialisation left.
    pub fn run(self, input: &[u8], deadline: Duration) -> Used {
        let copied = self.run_with(deadline, |area| match area.get_mut(..input.len()) {
            Some(area) => {
                area.copy_from_slice(input);
                Ok(input.len())
            }
            None => Err(Fault::InputTooLong { length: input.len(), limit: MAX_INPUT }),
        });
        copied.unwrap_or_else(|(clean, fault)| Used { spent: Spent::Unused(clean, fault) })
    }

    /// As [`Sandbox::run`], with the input written in place: `write` is given the input area and returns the length;
    /// it may be asked again, with a larger area.
    /// If it fails, nothing is run, and the sandbox, already reset, comes back with the error.
    fn run_with<E>(
        self,
        deadline: Duration,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Used, (Option<Clean>, E)> {
        let permit = self.permit;
        let spent = match (self.vacant, self.image.body()) {
            (Vacant::Shell(shell), Body::Microvm(_, snapshot)) => match shell.run(snapshot, deadline, write) {
                Ok(spent) => Spent::Microvm(spent, permit),
                Err((shell, error)) => {
                    return Err((shell.map(|shell| Clean { vacant: Vacant::Shell(shell), _permit: permit }), error));
                }
            },
            (Vacant::Instance(instance), Body::Wasm(_, snapshot)) => match instance.run(snapshot, deadline, write) {
                Ok(spent) => Spent::Wasm(spent, permit),
                Err((instance, error)) => {
                    let vacant = instance.map(Vacant::Instance);
                    return Err((vacant.map(|vacant| Clean { vacant, _permit: permit }), error));
                }
            },
            (Vacant::Buffers(mut buffers), Body::Inline(program, _)) => match write(&mut buffers.input) {
                Ok(length) => {
                    buffers.run(program, length);
                    Spent::Inline(buffers, permit)
                }
                Err(error) => return Err((Some(Clean { vacant: Vacant::Buffers(buffers), _permit: permit }), error)),
            },
            _ => unreachable!("`Pool::take` pairs them"),
        };
        Ok(Used { spent })
    }
}

/// A sandbox after its run.
pub struct Used {
    spent: Spent,
}

enum Spent {
    Microvm(microvm::Spent, Permit),
    Wasm(wasm::Spent, Permit),
    Inline(inline::Buffers, Permit),
    /// Was not run.
    Unused(Option<Clean>, Fault),
}

impl Used {
    /// The output, not validated, or the reason why there is none.
    pub fn output(&self) -> Result<&[u8], Fault> {
        match &self.spent {
            Spent::Microvm(spent, _) => spent.output(),
            Spent::Wasm(spent, _) => spent.output(),
            Spent::Inline(buffers, _) => Ok(buffers.output()),
            Spent::Unused(_, fault) => Err(fault.clone()),
        }
    }

    /// Erases all that the run left. `None`: it cannot be used again, and is gone.
    pub fn reset(self) -> Option<Clean> {
        match self.spent {
            Spent::Microvm(spent, permit) => {
                spent.reset().map(|shell| Clean { vacant: Vacant::Shell(shell), _permit: permit })
            }
            Spent::Wasm(spent, permit) => {
                spent.reset().map(|instance| Clean { vacant: Vacant::Instance(instance), _permit: permit })
            }
            Spent::Inline(buffers, permit) => Some(Clean { vacant: Vacant::Buffers(buffers), _permit: permit }),
            Spent::Unused(clean, _) => clean,
        }
    }
}

/// A sandbox with nothing in it, for [`Pool::give_back`].
pub struct Clean {
    vacant: Vacant,
    _permit: Permit,
}
