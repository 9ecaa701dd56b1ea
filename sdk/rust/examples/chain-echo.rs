//! Answers each call with its own body. Start it as a function with `protocol: chain`.

use leno_sdk::{Chain, StatusCode};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let chain = Chain::from_environment()?;
    while let Some(call) = chain.next() {
        call.answer_with(StatusCode::OK, |body| body.into())?;
    }
    Ok(())
}
