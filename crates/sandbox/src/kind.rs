//! The names of engines.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A way to run a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// A virtual machine under KVM: isolated by hardware.
    Microvm,
    /// A WebAssembly instance: isolated by its compiler.
    Wasm,
    /// A function call: not isolated. For tests and as the floor in benchmarks; configuration cannot select it.
    Inline,
    /// No engine: the program gives every request the same verdict, so that there is nothing to isolate. Configuration cannot select it.
    Constant,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Microvm => "microvm",
            Self::Wasm => "wasm",
            Self::Inline => "inline",
            Self::Constant => "constant",
        })
    }
}

/// A name that is no engine's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an engine; expected `microvm`, `wasm` or `inline`")]
pub struct UnknownEngine(String);

impl FromStr for EngineKind {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        match name {
            "microvm" => Ok(Self::Microvm),
            "wasm" => Ok(Self::Wasm),
            "inline" => Ok(Self::Inline),
            _ => Err(UnknownEngine(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for kind in [EngineKind::Microvm, EngineKind::Wasm, EngineKind::Inline] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!(
            "docker".parse::<EngineKind>().unwrap_err().to_string(),
            "`docker` is not an engine; expected `microvm`, `wasm` or `inline`"
        );
    }
}
