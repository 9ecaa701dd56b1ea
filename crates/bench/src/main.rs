//! `leno-bench`: measurements of Leno, one subcommand each. Every one prints a table and, with `--json FILE`, writes its
//! figures as `{"figures": {name: number, ...}, "machine": {...}}`.
#![forbid(unsafe_code)]

mod machine;
mod report;
mod sample;
mod sandbox;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "leno-bench", about = "Measures Leno on this machine")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// One sidecar: a fresh sandbox started, run and reset, on every engine; and what a program costs.
    Sandbox(sandbox::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().what {
        What::Sandbox(arguments) => sandbox::run(&arguments),
    }
}
