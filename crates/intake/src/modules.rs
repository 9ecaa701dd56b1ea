//! Modules of extensions and components.

use leno_config::{Problem, Snapshot};
use leno_proxy::extension::{self, ExtensionError};
use leno_proxy::modules::Modules;

/// Compiles extensions and components that are files, into `modules`. Returns their problems. Nodes
/// fetch and check modules that have an address.
pub(crate) fn problems(snapshot: &Snapshot, modules: &Modules) -> Vec<Problem> {
    let mut problems = Vec::new();
    for extension in snapshot.extensions() {
        let spec = &extension.spec;
        let Some(bytes) = snapshot.modules().get(&spec.module) else { continue };
        let added = modules.add(spec.module, bytes).map_err(ExtensionError::from);
        if let Err(error) = added.and_then(|()| extension::check(modules, spec)) {
            problems.push(Problem { message: error.to_string(), ..extension.place.clone() });
        }
    }
    for (component, place) in snapshot.components() {
        let Some(bytes) = snapshot.modules().get(&component.module) else { continue };
        if let Err(error) = modules.add(component.module, bytes) {
            problems.push(Problem { message: error.to_string(), ..place.clone() });
        }
    }
    problems
}
