//! Settings of the compiler. The build script has them too: code that it compiles runs only in
//! engines with the same ones.

use wasmtime::{Config, OptLevel};

/// Settings that the compiled code depends on.
pub(crate) fn config() -> Config {
    let mut config = Config::new();
    config.memory_init_cow(true).epoch_interruption(true).cranelift_opt_level(OptLevel::Speed);
    config
}
