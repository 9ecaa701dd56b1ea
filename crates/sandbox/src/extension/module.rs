//! A module: checked before it is compiled, and compiled once for all its instances.

use super::calls::{self, Import};
use super::engine::{Extensions, Inner};
use super::failure::CompileError;
use super::host::{Host, refuse};
use super::portable;
use std::fmt;
use std::sync::Arc;
use wasmtime::{ExternType, FuncType, InstancePre, ModuleExport, ValType};

/// The largest size of a module, in bytes.
pub const LARGEST_MODULE: usize = 8 * 1024 * 1024;

/// A compiled module. Cloning is cheap.
#[derive(Clone)]
pub struct Module(pub(super) Arc<CompiledModule>);

pub(super) struct CompiledModule {
    pub engine: Arc<Inner>,
    pub ready: InstancePre<Host>,
    pub memory: ModuleExport,
    /// Bytes of the memory of a new instance.
    pub first_memory: u64,
    pub allocate: ModuleExport,
    pub entries: Entries,
    /// The mutable globals; `None`: instances cannot be copied.
    pub globals: Option<Vec<ModuleExport>>,
}

/// The functions by which the host notifies a module of events. All of them may be absent.
pub(super) struct Entries {
    pub initialize: Option<ModuleExport>,
    pub start: Option<ModuleExport>,
    pub vm_start: Option<ModuleExport>,
    pub configure: Option<ModuleExport>,
    pub context_create: Option<ModuleExport>,
    pub request_headers: Option<ModuleExport>,
    pub response_headers: Option<ModuleExport>,
    pub done: Option<ModuleExport>,
    pub log: Option<ModuleExport>,
    pub delete: Option<ModuleExport>,
}

impl Module {
    pub(super) fn compile(engine: &Extensions, bytes: &[u8]) -> Result<Self, CompileError> {
        if bytes.len() > LARGEST_MODULE {
            return Err(CompileError::TooLarge { bytes: bytes.len(), limit: LARGEST_MODULE });
        }
        let inner = engine.0.clone();
        let invalid = |error: wasmtime::Error| CompileError::Invalid(format!("{error:#}"));
        // The module is validated first, because the parser below relies on a valid one.
        wasmtime::Module::validate(&inner.engine, bytes).map_err(invalid)?;
        let portable = portable::portable(bytes).map_err(|error| CompileError::Invalid(error.to_string()))?;
        let module = wasmtime::Module::new(&inner.engine, &portable.bytes).map_err(invalid)?;
        let linker = imports(&inner, &module)?;
        is_of_this_abi(&module)?;
        let first_memory = match module.get_export("memory") {
            Some(ExternType::Memory(memory)) => memory.minimum().saturating_mul(memory.page_size()),
            _ => return Err(CompileError::Export("it exports no `memory`".to_owned())),
        };
        let memory = module.get_export_index("memory").ok_or_else(|| missing("memory"))?;
        let allocate = match function(&module, "proxy_on_memory_allocate", 1, 1)? {
            Some(allocate) => allocate,
            None => function(&module, "malloc", 1, 1)?.ok_or_else(|| missing("proxy_on_memory_allocate"))?,
        };
        let entries = Entries {
            initialize: function(&module, "_initialize", 0, 0)?,
            start: function(&module, "_start", 0, 0)?,
            vm_start: function(&module, "proxy_on_vm_start", 2, 1)?,
            configure: function(&module, "proxy_on_configure", 2, 1)?,
            context_create: function(&module, "proxy_on_context_create", 2, 0)?,
            request_headers: function(&module, "proxy_on_request_headers", 3, 1)?,
            response_headers: function(&module, "proxy_on_response_headers", 3, 1)?,
            done: function(&module, "proxy_on_done", 1, 1)?,
            log: function(&module, "proxy_on_log", 1, 0)?,
            delete: function(&module, "proxy_on_delete", 1, 0)?,
        };
        let globals = portable.globals.map(|names| names.iter().map(|name| module.get_export_index(name)).collect());
        let ready = linker.instantiate_pre(&module).map_err(invalid)?;
        let globals = globals.flatten();
        Ok(Self(Arc::new(CompiledModule { engine: inner, ready, memory, first_memory, allocate, entries, globals })))
    }

    /// Whether it has callbacks for requests.
    pub fn sees_requests(&self) -> bool {
        self.0.entries.request_headers.is_some()
    }

    /// Whether it has callbacks for responses.
    pub fn sees_responses(&self) -> bool {
        self.0.entries.response_headers.is_some()
    }
}

/// Links the module's imports, or returns which of them are not allowed.
fn imports(inner: &Arc<Inner>, module: &wasmtime::Module) -> Result<wasmtime::Linker<Host>, CompileError> {
    let mut linker = inner.linker.clone();
    for import in module.imports() {
        let name = format!("{}.{}", import.module(), import.name());
        let ExternType::Func(ty) = import.ty() else {
            return Err(CompileError::Import(name, ": only functions can be imported"));
        };
        match calls::of(import.module(), import.name()) {
            Import::Here => {
                let mut store = wasmtime::Store::new(&inner.engine, Host::new(Arc::default()));
                let here = linker.get(&mut store, import.module(), import.name());
                let fits =
                    here.ok().and_then(wasmtime::Extern::into_func).is_some_and(|here| same(&here.ty(&store), &ty));
                if !fits {
                    return Err(CompileError::Import(name, " with these parameters and results"));
                }
            }
            // SDKs import calls that their modules never make. A module that makes one fails with
            // an error that names it.
            Import::NotHere(why) => {
                let call = import.name().to_owned();
                let refused = linker.func_new(import.module(), import.name(), ty, move |_, _, _| {
                    refuse(format!("`{call}` is not implemented here: {why}"))
                });
                refused.map_err(|error| CompileError::Invalid(format!("{error:#}")))?;
            }
            Import::Unknown => return Err(CompileError::Import(name, "")),
        }
    }
    Ok(linker)
}

/// The versions differ only in the names of things that modules do not see.
fn is_of_this_abi(module: &wasmtime::Module) -> Result<(), CompileError> {
    const KNOWN: [&str; 2] = ["proxy_abi_version_0_2_1", "proxy_abi_version_0_2_0"];
    if KNOWN.iter().any(|name| module.get_export(name).is_some()) {
        return Ok(());
    }
    let other = module.exports().find(|export| export.name().starts_with("proxy_abi_version_"));
    Err(CompileError::Export(match other {
        Some(other) => format!("it is one of another version: it exports `{}`", other.name()),
        None => "it exports no `proxy_abi_version_0_2_1`".to_owned(),
    }))
}

/// An exported function of 32-bit numbers with this name, if there is one.
fn function(
    module: &wasmtime::Module,
    name: &str,
    parameters: usize,
    results: usize,
) -> Result<Option<ModuleExport>, CompileError> {
    let Some(export) = module.get_export(name) else { return Ok(None) };
    let words = |ty: &FuncType| {
        let plain = ty.params().chain(ty.results()).all(|ty| matches!(ty, ValType::I32));
        plain && ty.params().len() == parameters && ty.results().len() == results
    };
    match export {
        ExternType::Func(ty) if words(&ty) => Ok(module.get_export_index(name)),
        _ => Err(CompileError::Export(format!("its `{name}` has not the parameters and results that it should have"))),
    }
}

fn missing(name: &str) -> CompileError {
    CompileError::Export(format!("it exports no `{name}`"))
}

fn same(one: &FuncType, other: &FuncType) -> bool {
    let plain = |ty: ValType| match ty {
        ValType::I32 => Some(0),
        ValType::I64 => Some(1),
        _ => None,
    };
    let list = |ty: &FuncType| {
        let parameters: Vec<_> = ty.params().map(plain).collect();
        let results: Vec<_> = ty.results().map(plain).collect();
        (parameters, results)
    };
    list(one) == list(other)
}

impl fmt::Debug for Module {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Module").field("copied", &self.0.globals.is_some()).finish_non_exhaustive()
    }
}
