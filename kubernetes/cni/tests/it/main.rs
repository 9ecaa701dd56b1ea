//! The program as the container runtime and as Kubernetes start it.

mod install;
mod plugin;
mod properties;

const PROGRAM: &str = env!("CARGO_BIN_EXE_leno-cni");
