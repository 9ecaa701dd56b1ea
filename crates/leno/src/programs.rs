//! Programs of functions and jobs, as this machine would start them in jails.

use leno_config::{Problem, Snapshot};
use leno_jail::{DEFAULT_WRITABLE, Volume};
use leno_model::{FunctionId, Isolation, Run, variables};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A port for the check.
const PORT: &str = "10240";

/// What programs would lack in jails on this machine. Nodes may be other machines, so these are
/// warnings.
pub(crate) fn doubts(snapshot: &Snapshot) -> Vec<Problem> {
    let each = snapshot.programs().filter_map(|(id, run, place)| Some((program(id, run)?, place)));
    each.flat_map(|(program, place)| {
        let doubt = |lack| Problem { message: format!("in a jail on this machine: {lack}"), ..place.clone() };
        leno_jail::examine(program).into_iter().map(doubt).collect::<Vec<_>>()
    })
    .collect()
}

/// The program of a function or job; `None`: it does not run in a jail, or is none of the machine.
fn program(id: &FunctionId, run: &Run) -> Option<leno_jail::Program> {
    let mut written: Vec<&Path> = Vec::new();
    let (argv, directory, env, visible, isolation, container): (_, &Path, _, &[PathBuf], _, _) = match run {
        Run::Command(of) => {
            written.extend(of.volumes.iter().map(|volume| &*volume.path));
            written.extend(of.persistent.iter().map(|volume| &*volume.path));
            (&of.argv, &of.directory, &of.env, &of.read_only_paths, of.isolation, &of.container)
        }
        Run::Job(job) => {
            let of = &job.process;
            written.extend(of.volumes.iter().map(|volume| &*volume.path));
            (&of.argv, &of.directory, &of.env, &of.read_only_paths, of.isolation, &of.container)
        }
        Run::External(_) | Run::Wasm(_) | Run::Egress(_) | Run::Pods(_) => return None,
    };
    if isolation == Isolation::Process || container.is_some() {
        return None;
    }
    let value = |name: &str| if name == "PORT" { Some(PORT) } else { env.get(name).map(String::as_str) };
    let path = std::env::var("PATH").ok().map(|path| ("PATH".to_owned(), path));
    let environment: BTreeMap<String, String> = path.into_iter().chain(env.clone()).collect();
    Some(leno_jail::Program {
        namespace: id.namespace.clone(),
        argv: argv.iter().map(|argument| variables::expand(argument, value)).collect(),
        directory: directory.to_owned(),
        environment,
        visible: visible.to_vec(),
        // Only their paths matter here.
        volumes: written.into_iter().map(|path| Volume { path: path.to_owned(), size: DEFAULT_WRITABLE }).collect(),
        ..leno_jail::Program::default()
    })
}
