//! One request's instance: it is started, sees the request's head, is kept if it wants to see the
//! response's, and is dropped.

use super::engine::Inner;
use super::failure::{Failure, StartError};
use super::head::{Request, Response, RunInputs};
use super::headers::Headers;
use super::host::{self, Host, Stage};
use super::module::Module;
use super::plugin::Plugin;
use leno_policy::outcome::RawEdit;
use std::time::Duration;
use wasmtime::{Memory, ModuleExport, Store, TypedFunc, Val, WasmParams, WasmResults};

/// The numbers of the plugin's context, and of the request's.
const ROOT: u32 = 1;
const STREAM: u32 = 2;

/// An answer of the module itself, unchecked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Its status.
    pub status: u32,
    /// Its header fields.
    pub fields: Headers,
    /// Its body.
    pub body: Vec<u8>,
    /// The status of a gRPC call; negative: none.
    pub grpc_status: i32,
    /// The reason in the module's words, printable.
    pub details: String,
}

/// The module's decision about a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It continues, with these edits.
    Continue(Vec<RawEdit>),
    /// It is answered by the module.
    Local(Box<Local>),
}

/// An instance, for one request.
pub struct Run {
    plugin: Plugin,
    store: Store<Host>,
    instance: Instance,
    deadline: Duration,
}

impl Run {
    /// Starts a fresh instance, with `deadline` of processor time for a request, and the same again
    /// for its response.
    pub fn start(plugin: &Plugin, given: RunInputs, deadline: Duration) -> Result<Self, Failure> {
        let _counting = plugin.module.0.engine.clock.count();
        let (mut store, mut instance) = plugin.instance(given, deadline)?;
        store.data_mut().stage = Stage::Request;
        let entries = &plugin.module.0.entries;
        instance.call::<_, ()>(&mut store, entries.context_create.as_ref(), (STREAM, ROOT))?;
        Ok(Self { plugin: plugin.clone(), store, instance, deadline })
    }

    /// Gives the module access to the request without a callback: for an instance that is started
    /// for the response only.
    pub fn remember(&mut self, request: Request) {
        let host = self.store.data_mut();
        host.request_list = request.list();
        host.request = Some(request);
    }

    /// Passes the request to the module.
    pub fn request(&mut self, request: Request) -> Result<Outcome, Failure> {
        let host = self.store.data_mut();
        host.stage = Stage::Request;
        host.request_list = request.list();
        let (count, end) = (count(&host.request_list), u32::from(request.bodiless));
        host.request = Some(request);
        let plugin = self.plugin.clone();
        let _counting = plugin.module.0.engine.clock.count();
        let entry = plugin.module.0.entries.request_headers.as_ref();
        let action = self.instance.call(&mut self.store, entry, (STREAM, count, end))?;
        self.outcome(action, "request")
    }

    /// Passes the response to the module. The deadline starts again.
    pub fn response(&mut self, response: Response) -> Result<Outcome, Failure> {
        Inner::extend(&mut self.store, self.deadline);
        let host = self.store.data_mut();
        host.stage = Stage::Response;
        host.response_list = response.list();
        let (count, end) = (count(&host.response_list), u32::from(response.bodiless));
        host.response = Some(response);
        let plugin = self.plugin.clone();
        let _counting = plugin.module.0.engine.clock.count();
        let entry = plugin.module.0.entries.response_headers.as_ref();
        let action = self.instance.call(&mut self.store, entry, (STREAM, count, end))?;
        self.outcome(action, "response")
    }

    /// Notifies the module that its request is over. Its results are ignored.
    pub fn end(mut self) -> Result<(), Failure> {
        let entries = &self.plugin.module.0.entries;
        let _counting = self.plugin.module.0.engine.clock.count();
        self.store.data_mut().stage = Stage::End;
        self.instance.call::<_, u32>(&mut self.store, entries.done.as_ref(), STREAM)?;
        self.instance.call::<_, ()>(&mut self.store, entries.log.as_ref(), STREAM)?;
        self.instance.call::<_, ()>(&mut self.store, entries.delete.as_ref(), STREAM)?;
        Ok(())
    }

    /// Collects the outcome: most of it has already been recorded in the host's side.
    fn outcome(&mut self, action: Option<u32>, what: &'static str) -> Result<Outcome, Failure> {
        let host = self.store.data_mut();
        if let Some(local) = host.local.take() {
            return Ok(Outcome::Local(Box::new(local)));
        }
        let resumed = std::mem::take(&mut host.resumed);
        match action {
            None | Some(0) => Ok(Outcome::Continue(std::mem::take(&mut host.changes))),
            Some(1) if resumed => Ok(Outcome::Continue(std::mem::take(&mut host.changes))),
            Some(1) => Err(Failure::Paused(what)),
            Some(other) => Err(Failure::Action(other)),
        }
    }
}

fn count(list: &Headers) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

impl std::fmt::Debug for Run {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Run").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

/// The module's side of an instance.
pub(super) struct Instance {
    instance: wasmtime::Instance,
    pub memory: Memory,
}

impl Instance {
    /// Makes an instance. None of its code has run except its start function.
    pub(super) fn new(module: &Module, store: &mut Store<Host>) -> Result<Self, Failure> {
        let compiled = &module.0;
        let failed = |error: wasmtime::Error, store: &Store<Host>| host::failure(&error, store.data());
        let instance = compiled.ready.instantiate(&mut *store).map_err(|error| failed(error, store))?;
        let memory = instance.get_module_export(&mut *store, &compiled.memory).and_then(wasmtime::Extern::into_memory);
        let memory = memory.ok_or_else(|| Failure::Call("its `memory` is none".to_owned()))?;
        let allocate = function(&instance, store, &compiled.allocate).map_err(|error| failed(error, store))?;
        store.data_mut().memory = Some(memory);
        store.data_mut().allocate = Some(allocate);
        Ok(Self { instance, memory })
    }

    /// Starts it as the ABI prescribes: its own initialisation, the plugin's context, the virtual
    /// machine, the configuration.
    pub(super) fn start(&mut self, module: &Module, store: &mut Store<Host>) -> Result<(), StartError> {
        let entries = &module.0.entries;
        let failed = StartError::Failed;
        let first = entries.initialize.as_ref().or(entries.start.as_ref());
        self.call::<_, ()>(store, first, ()).map_err(failed)?;
        self.call::<_, ()>(store, entries.context_create.as_ref(), (ROOT, 0)).map_err(failed)?;
        let length = u32::try_from(store.data().settings.configuration.len()).unwrap_or(u32::MAX);
        for (entry, length) in [(&entries.vm_start, 0), (&entries.configure, length)] {
            if self.call::<_, u32>(store, entry.as_ref(), (ROOT, length)).map_err(failed)? == Some(0) {
                let said = store.data().complaint().map_or_else(String::new, |said| format!(": {said}"));
                return Err(StartError::Refused(said));
            }
        }
        Ok(())
    }

    /// Values of the mutable globals; `None`: they are not accessible.
    pub(super) fn globals(&self, module: &Module, store: &mut Store<Host>) -> Option<Vec<Val>> {
        let exports = module.0.globals.as_ref()?;
        let value = |export| {
            let global = self.instance.get_module_export(&mut *store, export)?.into_global()?;
            Some(global.get(&mut *store))
        };
        exports.iter().map(value).collect()
    }

    pub(super) fn set_globals(
        &self,
        module: &Module,
        store: &mut Store<Host>,
        values: &[(usize, Val)],
    ) -> Result<(), wasmtime::Error> {
        let exports = module.0.globals.as_deref().unwrap_or_default();
        for (index, value) in values {
            let global = exports.get(*index).and_then(|export| self.instance.get_module_export(&mut *store, export));
            match global.and_then(wasmtime::Extern::into_global) {
                Some(global) => global.set(&mut *store, *value)?,
                None => return Err(wasmtime::Error::msg("a global is missing")),
            }
        }
        Ok(())
    }

    /// Calls an entry point, if the module has it.
    fn call<P: WasmParams, R: WasmResults>(
        &mut self,
        store: &mut Store<Host>,
        entry: Option<&ModuleExport>,
        parameters: P,
    ) -> Result<Option<R>, Failure> {
        let Some(entry) = entry else { return Ok(None) };
        let called = function(&self.instance, store, entry)
            .and_then(|function: TypedFunc<P, R>| function.call(&mut *store, parameters));
        called.map(Some).map_err(|error| host::failure(&error, store.data()))
    }
}

fn function<P: WasmParams, R: WasmResults>(
    instance: &wasmtime::Instance,
    store: &mut Store<Host>,
    export: &ModuleExport,
) -> Result<TypedFunc<P, R>, wasmtime::Error> {
    let found = instance.get_module_export(&mut *store, export).and_then(wasmtime::Extern::into_func);
    found.ok_or_else(|| wasmtime::Error::msg("an entry is no function"))?.typed(&*store)
}
