//! `leno ca`: the authority of a mesh as an intermediate under the operator's own root.

use anyhow::{Context, Result, bail, ensure};
use leno_identity::{Authority, TrustDomain};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use zeroize::Zeroizing;

/// Where the authority's key is.
#[derive(clap::Args)]
pub(crate) struct File {
    /// PEM file with the authority's key, encrypted, and its certificates.
    #[arg(long, value_name = "FILE", requires = "ca_passphrase")]
    ca: Option<PathBuf>,
    /// File with the passphrase of the key.
    #[arg(long, value_name = "FILE", requires = "ca")]
    ca_passphrase: Option<PathBuf>,
}

/// What is done with the file.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Print a request (PKCS #10) for the authority's certificate, to be signed by your own root. Makes the key if there is none.
    Request {
        /// The trust domain of the mesh.
        #[arg(long, value_name = "NAME")]
        trust_domain: TrustDomain,
        #[command(flatten)]
        file: File,
    },
    /// Take the certificate that your root has signed: PEM, the authority's own first, your root last.
    Install {
        /// The trust domain of the mesh.
        #[arg(long, value_name = "NAME")]
        trust_domain: TrustDomain,
        /// File with the certificates; `-`: standard input.
        #[arg(long, value_name = "FILE")]
        chain: PathBuf,
        #[command(flatten)]
        file: File,
    },
}

impl File {
    /// The authority in the file, or a new one if there is no file. `None`: its key is to be in memory only.
    pub(crate) fn open(&self, trust_domain: &TrustDomain) -> Result<Option<Authority>> {
        let Some((path, passphrase)) = self.given()? else { return Ok(None) };
        Ok(Some(Authority::open(path, passphrase.as_bytes(), trust_domain)?))
    }

    fn given(&self) -> Result<Option<(&Path, Zeroizing<String>)>> {
        let (Some(path), Some(passphrase)) = (&self.ca, &self.ca_passphrase) else { return Ok(None) };
        let read = || format!("the passphrase of the authority's key: {}", passphrase.display());
        let text = Zeroizing::new(fs::read_to_string(passphrase).with_context(read)?);
        let line = Zeroizing::new(text.trim_end_matches(['\n', '\r']).to_owned());
        ensure!(!line.is_empty(), "{}: there is no passphrase in it", passphrase.display());
        Ok(Some((path, line)))
    }
}

/// Carries out `leno ca …`.
pub(crate) fn run(command: &Command) -> Result<ExitCode> {
    let (Command::Request { file, .. } | Command::Install { file, .. }) = command;
    let Some((path, passphrase)) = file.given()? else { bail!("give --ca FILE and --ca-passphrase FILE") };
    match command {
        Command::Request { trust_domain, .. } => {
            print!("{}", Authority::request(path, passphrase.as_bytes(), trust_domain)?);
        }
        Command::Install { trust_domain, chain, .. } => {
            let text = if chain.as_os_str() == "-" {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text)?;
                text
            } else {
                fs::read_to_string(chain).with_context(|| chain.display().to_string())?
            };
            Authority::install(path, passphrase.as_bytes(), trust_domain, &text)?;
            println!(
                "{}: the authority's certificate is in place; it counts from the next start of leno control",
                path.display()
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}
