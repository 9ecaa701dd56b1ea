//! `leno ca`: the authority of a mesh, as an intermediate under the operator's own root, and its replacement.

use crate::authority_file::File;
use crate::output::Format;
use crate::remote;
use anyhow::{Context, Result};
use leno_identity::TrustDomain;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

/// A command on the file of the authority.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Print a request (PKCS #10) for the authority's certificate, to be signed by your own root. Makes the key if there is none.
    Request {
        /// The trust domain of the mesh.
        #[arg(long, value_name = "NAME")]
        trust_domain: TrustDomain,
        /// For the authority that is to replace the one in the file: `leno ca rotate` changes to it.
        #[arg(long)]
        successor: bool,
        #[command(flatten)]
        file: File,
    },
    /// Take the certificate that your root has signed: PEM, the authority's own first, your root last.
    Install {
        /// The trust domain of the mesh.
        #[arg(long, value_name = "NAME")]
        trust_domain: TrustDomain,
        /// For the authority that is to replace the one in the file: `leno ca rotate` changes to it.
        #[arg(long)]
        successor: bool,
        /// File with the certificates; `-`: standard input.
        #[arg(short = 'f', long = "file", alias = "chain", value_name = "FILE")]
        chain: PathBuf,
        #[command(flatten)]
        file: File,
    },
    /// Replace the authority of a running mesh, without a failed request: nodes get both roots,
    /// then renew their certificates, then the control plane withdraws the first root. The new
    /// authority is the one of `leno ca install --successor`, or else a new root.
    Rotate {
        #[command(flatten)]
        rotate: remote::Rotate,
        #[command(flatten)]
        server: remote::Server,
    },
    /// Show the authority of a mesh, its roots and when they expire, and how far a rotation is.
    Status {
        #[command(flatten)]
        format: Format,
        #[command(flatten)]
        server: remote::Server,
    },
}

/// Carries out `leno ca …`.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Request { trust_domain, successor, file } => {
            print!("{}", file.required(&trust_domain)?.request(successor)?);
        }
        Command::Install { trust_domain, successor, chain, file } => {
            let text = if chain.as_os_str() == "-" {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text)?;
                text
            } else {
                fs::read_to_string(&chain).with_context(|| chain.display().to_string())?
            };
            let file = file.required(&trust_domain)?;
            file.install(&text, successor)?;
            let counts = if successor {
                "`leno ca rotate` changes to it"
            } else {
                "it counts from the next start of leno control"
            };
            println!("{}: the authority's certificate is in place; {counts}", file.path().display());
        }
        Command::Rotate { rotate, server } => return remote::rotate(&server, rotate),
        Command::Status { format, server } => return remote::authority_status(&server, format),
    }
    Ok(ExitCode::SUCCESS)
}
