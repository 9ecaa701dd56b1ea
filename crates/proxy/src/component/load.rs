//! Makes a function's component ready: its environment is put together once, not for each request.

use crate::extension::Modules;
use leno_config::slice::{Run, Secret, Wasm};
use leno_sandbox::component::{Program, Settings};
use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

/// More is not a secret but a mistake.
const LARGEST_SECRET: u64 = 1 << 20;

/// A revision that is a component.
#[derive(Debug)]
pub struct Component {
    /// Ready to be run, or why it cannot be.
    pub program: Result<Program, String>,
    /// What an instance may still do after its answer's last byte.
    pub grace: Duration,
    /// The node fetches it, so it may come later, or never.
    pub fetched: bool,
}

/// The component of a revision that is one.
pub(crate) fn load(modules: &Modules, function: &str, run: &Run) -> Option<Component> {
    match run {
        Run::Wasm(wasm) => {
            let program = program(modules, function, wasm);
            Some(Component { program, grace: wasm.grace, fetched: wasm.url.is_some() })
        }
        Run::Command(_) | Run::External(_) | Run::Job(_) => None,
    }
}

fn program(modules: &Modules, function: &str, wasm: &Wasm) -> Result<Program, String> {
    let component = modules.component(&wasm.module)?;
    let mut env: Vec<(String, String)> = wasm.env.clone().into_iter().collect();
    for secret in &wasm.secrets {
        let value = read(secret)
            .map_err(|error| format!("secret `{}` from {}: {error}", secret.name, secret.from.display()))?;
        env.push((secret.name.clone(), value));
    }
    env.push(("LENO_FUNCTION".to_owned(), function.to_owned()));
    let memory = usize::try_from(wasm.memory).unwrap_or(usize::MAX);
    Ok(Program::new(component, Settings::new(function, env, memory)))
}

/// Errors never hold any of it.
fn read(secret: &Secret) -> io::Result<String> {
    let mut value = Vec::new();
    File::open(&secret.from)?.take(LARGEST_SECRET + 1).read_to_end(&mut value)?;
    if value.len() as u64 > LARGEST_SECRET {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    let text = String::from_utf8(value).map_err(|_| io::Error::other("it is not UTF-8"))?;
    // Editors end files with a line end, which is hardly ever part of a password.
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}
