//! Variables in command lines.

use leno_model::variables;
use std::collections::BTreeMap;

/// The variables of an instance that its arguments may refer to (`$(PORT)`): those that its
/// document or the node sets. Secrets are none of them, because other processes can read command
/// lines.
pub(crate) struct Variables(pub BTreeMap<String, String>);

impl Variables {
    pub(crate) fn expand(&self, arguments: &[String]) -> Vec<String> {
        let value = |name: &str| self.0.get(name).map(String::as_str);
        arguments.iter().map(|argument| variables::expand(argument, value)).collect()
    }
}
