//! `encode MODULE COMPONENT`: converts a module to a component. A Rust toolchain with wasm32-wasip2
//! does this by itself.

use std::error::Error;
use std::{env, fs};
use wit_component::ComponentEncoder;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(module), Some(component), None) = (arguments.next(), arguments.next(), arguments.next()) else {
        return Err("usage: encode MODULE COMPONENT".into());
    };
    let encoded = ComponentEncoder::default().module(&fs::read(module)?)?.validate(true).encode()?;
    fs::write(component, encoded)?;
    Ok(())
}
