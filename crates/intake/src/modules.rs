//! Modules of extensions and components.

use leno_config::{Problem, Snapshot};
use leno_proxy::extension;
use leno_proxy::modules::Modules;

/// Compiles extensions and components that are files, into `modules`. Returns their problems. Nodes
/// fetch and check modules that have an address.
pub(crate) fn problems(snapshot: &Snapshot, modules: &Modules) -> Vec<Problem> {
    let mut problems = Vec::new();
    for extension in snapshot.extensions() {
        let spec = &extension.spec;
        let Some(bytes) = snapshot.modules().get(&spec.module) else { continue };
        let checked = modules.add(spec.module, bytes).and_then(|()| extension::check(modules, spec));
        if let Err(message) = checked {
            problems.push(Problem { message, ..extension.place.clone() });
        }
    }
    for (component, place) in snapshot.components() {
        let Some(bytes) = snapshot.modules().get(&component.module) else { continue };
        if let Err(message) = modules.add(component.module, bytes) {
            problems.push(Problem { message, ..place.clone() });
        }
    }
    problems
}
