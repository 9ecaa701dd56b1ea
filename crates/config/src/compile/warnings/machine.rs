//! Files, folders and ports of this machine that functions need and that are missing or taken. The
//! nodes may be other machines, so these are warnings; documents of requests name files of the nodes
//! only, and are not looked at.

use super::Mesh;
use crate::compile::{process, revisions};
use crate::problem::{Origin, Scope};
use crate::snapshot::Function;
use leno_model::{AdminListener, FunctionId, Isolation, MeshConfig, Run, Secret};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

const MACHINE: &str = "relative paths begin at the folder of the document; on nodes that are other machines it must \
                       be there";

/// Addresses on which the mesh itself listens, with their fields.
pub(super) fn listeners(config: &MeshConfig) -> Vec<(&'static str, SocketAddr)> {
    let https = config.gateway_https.as_ref().map(|https| https.listen);
    let admin = match &config.admin {
        AdminListener::Address(address, _) => Some(*address),
        AdminListener::Usual | AdminListener::Socket(_) => None,
    };
    let listeners = [
        ("gateway.http", config.gateway_http),
        ("gateway.https", https),
        ("listeners.outbound", Some(config.outbound)),
        ("listeners.inbound", Some(config.inbound)),
        ("listeners.admin", admin),
        ("listeners.control", Some(config.control)),
    ];
    let listens = listeners.into_iter().filter_map(|(name, address)| Some((name, address?)));
    listens.filter(|(_, address)| address.port() != 0).collect()
}

impl Mesh<'_> {
    /// Missing files and folders of a function or job.
    pub(super) fn files(&self, id: &FunctionId, root: &Scope<'_>) {
        let Some(function) = self.functions.get(id).filter(|function| function.origin == Origin::File) else { return };
        let spec = root.field("spec");
        each_run(function, &spec, run_files);
    }

    /// Fixed ports that two programs of a machine would have. In a jail each instance has its own
    /// ports.
    pub(super) fn fixed_ports(&self, listeners: &[(&str, SocketAddr)], names: &BTreeMap<FunctionId, usize>) {
        let mut taken: BTreeMap<u16, &FunctionId> = BTreeMap::new();
        for (id, index) in names {
            let Some(function) = self.functions.get(id) else { continue };
            let root = self.documents.functions[*index].scope(&self.found);
            let spec = root.field("spec");
            each_run(function, &spec, |run, scope| own_addresses(run, scope, listeners));
            let Some((port, field)) = unjailed_port(function).map(|port| (port, spec.field("port"))) else { continue };
            if let Some((name, _)) = listeners.iter().find(|(_, own)| own.port() == port) {
                let message = format!("port {port} is the mesh's own (`{name}` of the Mesh document)");
                field.problem(message, "remove it: every instance gets a free port; or run it in a jail");
            }
            match taken.get(&port).filter(|_| function.origin == Origin::File) {
                Some(other) => {
                    let message = format!("`{other}` has port {port} too, and neither runs in a jail");
                    field.problem(message, "remove it: every instance gets a free port; or run them in jails");
                }
                None => drop(taken.insert(port, id)),
            }
        }
    }
}

/// Looks at the run of each declared revision with its fields, or else at the function's own.
fn each_run(function: &Function, spec: &Scope<'_>, look: impl Fn(&Run, &Scope<'_>)) {
    if function.plan.declared.is_empty() {
        look(&function.run, spec);
    }
    for (index, declared) in function.plan.declared.iter().enumerate() {
        revisions::reported_by_writer(spec, index, |scope| look(&declared.template.run, scope));
    }
}

/// External instances that are the mesh itself.
fn own_addresses(run: &Run, spec: &Scope<'_>, listeners: &[(&str, SocketAddr)]) {
    let Run::External(addresses) = run else { return };
    let external = spec.field("external");
    let list = external.field("addresses");
    for (position, address) in addresses.iter().enumerate() {
        let itself = |(_, own): &&(&str, SocketAddr)| {
            own.port() == address.port()
                && (own.ip() == address.ip() || (own.ip().is_unspecified() && address.ip().is_loopback()))
        };
        if let Some((name, _)) = listeners.iter().find(itself) {
            let message = format!("{address} is the mesh's own `{name}`: requests would come back to it");
            list.element(position).problem(message, "name the address of the program itself");
        }
    }
}

fn run_files(run: &Run, spec: &Scope<'_>) {
    let (argv, directory, shown, secrets, container) = match run {
        Run::Command(command) => (
            &command.argv[..],
            &command.directory,
            &command.read_only_paths[..],
            &command.secrets[..],
            command.container.is_some(),
        ),
        Run::Job(job) => {
            let process = &job.process;
            let (argv, shown, secrets) = (&process.argv[..], &process.read_only_paths[..], &process.secrets[..]);
            (argv, &process.directory, shown, secrets, process.container.is_some())
        }
        Run::Wasm(component) => return secret_files(&spec.field("secrets"), &component.secrets),
        Run::Egress(egress) => {
            let list = spec.field("credentials");
            for (index, credential) in egress.credentials.iter().enumerate() {
                if let Some(path) = credential.from.file() {
                    file(&list.element(index).field("from"), path);
                }
            }
            return;
        }
        Run::External(_) | Run::Pods(_) => return,
    };
    if !container {
        folder(&spec.field("workingDirectory"), directory);
        let missing = |program: &String| program.contains('/') && !directory.join(program).exists();
        if let Some(program) = argv.first().filter(|program| missing(program))
            && let Some(fix) = process::words(argv)
        {
            let message = format!("there is no program `{}`", program.escape_debug());
            spec.field("command").problem(message, fix);
        }
    }
    let list = spec.field("readOnlyPaths");
    for (index, path) in shown.iter().enumerate() {
        if !path.exists() {
            list.element(index).problem(format!("there is no file or folder {}", path.display()), MACHINE);
        }
    }
    let volumes = spec.field("volumes");
    for host in run.volumes().filter_map(|volume| volume.host.as_ref()).filter(|host| !host.path.is_dir()) {
        volumes.problem(format!("there is no folder {}", host.path.display()), MACHINE);
    }
    secret_files(&spec.field("secrets"), secrets);
}

/// The fixed port of a function without jails.
fn unjailed_port(function: &Function) -> Option<u16> {
    let Run::Command(command) = &function.run else { return None };
    command.port.filter(|_| command.isolation == Isolation::Process)
}

fn secret_files(list: &Scope<'_>, secrets: &[Secret]) {
    for (index, secret) in secrets.iter().enumerate() {
        if let Some(path) = secret.from.file() {
            file(&list.element(index).field("from"), path);
        }
    }
}

fn file(scope: &Scope<'_>, path: &Path) {
    if !path.is_file() {
        let what = if path.exists() { "regular file at" } else { "file" };
        scope.problem(format!("there is no {what} {}", path.display()), MACHINE);
    }
}

fn folder(scope: &Scope<'_>, path: &Path) {
    if !path.is_dir() {
        let what = if path.exists() { "folder at" } else { "folder" };
        scope.problem(format!("there is no {what} {}", path.display()), MACHINE);
    }
}
