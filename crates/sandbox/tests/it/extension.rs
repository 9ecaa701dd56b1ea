//! User-written policies at the boundary of the sandbox: permitted calls work, and forbidden ones
//! end one run and no other.

mod contained;
mod refused;
mod wild;
mod works;

use leno_policy::outcome::RawEdit;
use leno_sandbox::extension::{
    Extensions, Failure, Headers, Module, Outcome, Plugin, Request, Run, RunInputs, Settings, SharedData,
};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Far longer than any sound run takes, even on a busy machine.
const AMPLE: Duration = Duration::from_secs(10);
/// The deadline of a loop.
const SHORT: Duration = Duration::from_millis(5);
/// The memory limit of an instance.
const MEMORY: usize = 1 << 20;

fn engine() -> &'static Extensions {
    static ENGINE: OnceLock<Extensions> = OnceLock::new();
    ENGINE.get_or_init(|| Extensions::new().unwrap())
}

fn prisoner() -> Module {
    static MODULE: OnceLock<Module> = OnceLock::new();
    MODULE
        .get_or_init(|| engine().compile(&wat::parse_str(include_str!("extension/prisoner.wat")).unwrap()).unwrap())
        .clone()
}

fn plugin(configuration: &str, deadline: Duration) -> Plugin {
    let settings = Settings::new("test/echo", "p/extensions/x", configuration.into(), MEMORY, deadline);
    Plugin::start(&prisoner(), settings).unwrap()
}

fn given(shared: &Arc<SharedData>) -> RunInputs {
    RunInputs { now_ms: 1_800_000_000_000, random: 7, shared: shared.clone() }
}

fn request(path: &str, fields: &[(&str, &str)]) -> Request {
    Request {
        method: "GET".into(),
        scheme: "http",
        authority: "echo.example".into(),
        path: path.into(),
        protocol: "HTTP/1.1",
        fields: fields.iter().copied().collect::<Headers>(),
        bodiless: true,
        id: "id-1".into(),
        source: "127.0.0.1:4000".parse().unwrap(),
        port: 80,
        identity: Some("spiffe://td.example/ns/test/sa/caller".into()),
        target: "test/echo".into(),
    }
}

/// Passes one request to a fresh instance.
fn ask(plugin: &Plugin, shared: &Arc<SharedData>, request: Request) -> Result<Outcome, Failure> {
    let mut run = Run::start(plugin, given(shared), plugin.deadline())?;
    let outcome = run.request(request)?;
    run.end()?;
    Ok(outcome)
}

fn order(plugin: &Plugin, shared: &Arc<SharedData>, order: &str) -> Result<Outcome, Failure> {
    ask(plugin, shared, request("/", &[("order", order)]))
}

fn set(name: &str, value: &str) -> RawEdit {
    RawEdit::Set(name.as_bytes().into(), value.as_bytes().into())
}

fn append(name: &str, value: &str) -> RawEdit {
    RawEdit::Append(name.as_bytes().into(), value.as_bytes().into())
}
