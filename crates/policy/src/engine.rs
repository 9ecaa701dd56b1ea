//! The names of the sandbox engines, for configuration, metrics and records.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// An engine that runs sidecar programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// A virtual machine under KVM: isolated by hardware.
    Microvm,
    /// A WebAssembly instance: isolated by its compiler.
    Wasm,
    /// A function call: not isolated. For tests and as the floor in benchmarks; configuration
    /// cannot select it.
    Inline,
    /// No engine: the program gives every request the same verdict, so there is nothing to isolate.
    /// Configuration cannot select it.
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

/// The error for a name that no engine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownEngine(String);

impl fmt::Display for UnknownEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}` is not an engine; expected `microvm`, `wasm` or `inline`", self.0)
    }
}

impl core::error::Error for UnknownEngine {}

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
    use alloc::string::ToString;

    #[test]
    fn parsing_a_name_reverses_display() {
        for kind in [EngineKind::Microvm, EngineKind::Wasm, EngineKind::Inline] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!(
            "docker".parse::<EngineKind>().unwrap_err().to_string(),
            "`docker` is not an engine; expected `microvm`, `wasm` or `inline`"
        );
    }
}
