//! Prepares a function's component. Its environment is built once, not for each request.

use crate::state::function::Share;
use crate::state::modules::Modules;
use leno_config::slice::{Run, Wasm};
use leno_namespaces::{Importance, Source};
use leno_sandbox::component::{Program, Settings};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A revision that is a component.
#[derive(Debug)]
pub struct Component {
    /// The component, ready to run, or why it cannot run.
    pub program: Result<Program, String>,
    /// How long an instance may go on after the last byte of its response.
    pub grace: Duration,
    /// The node fetches the module, so it may arrive later, or never.
    pub fetched: bool,
}

/// The component of a revision; `None`: the revision is not a component.
pub(crate) fn load(modules: &Modules, function: (&Arc<str>, &Share), run: &Run) -> Option<Component> {
    match run {
        Run::Wasm(wasm) => {
            let program = program(modules, function, wasm);
            Some(Component { program, grace: wasm.grace, fetched: wasm.url.is_some() })
        }
        Run::Command(_) | Run::External(_) | Run::Job(_) | Run::Egress(_) => None,
    }
}

fn program(modules: &Modules, (function, share): (&Arc<str>, &Share), wasm: &Wasm) -> Result<Program, String> {
    let component = modules.component(&wasm.module)?;
    let mut env: Vec<(String, String)> = wasm.env.clone().into_iter().collect();
    for secret in &wasm.secrets {
        let value = secret
            .text()
            .map_err(|error| format!("secret `{}` from {}: {error}", secret.name, secret.from.display()))?;
        env.push((secret.name.clone(), value));
    }
    env.push(("LENO_FUNCTION".to_owned(), function.to_string()));
    let memory = usize::try_from(wasm.memory).unwrap_or(usize::MAX);
    let (name, share) = (function.clone(), share.clone());
    let admits = move |bytes| {
        share.get().is_none_or(|namespace| {
            namespace.log.admits(Source::Output, Importance::Output, &name, bytes, Instant::now())
        })
    };
    Ok(Program::new(component, Settings::new(function, env, memory).with_log(admits)))
}
