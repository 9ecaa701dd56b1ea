//! `leno ca`: the authority of a mesh, as an intermediate under the operator's own root, and its replacement.

use crate::remote;
use anyhow::{Context, Result, bail, ensure};
use leno_identity::{AuthorityFile, TrustDomain};
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

/// The authority of a control plane.
#[derive(clap::Args)]
pub(crate) struct OfControl {
    #[command(flatten)]
    file: File,
    /// Lead with this authority although the mesh has another one, whose key is lost. All nodes have to join again.
    #[arg(long)]
    replace_authority: bool,
}

/// What is done with the file.
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
        #[arg(long, value_name = "FILE")]
        chain: PathBuf,
        #[command(flatten)]
        file: File,
    },
    /// Replace the authority of a running mesh, without a failed request: nodes are given both roots, then renew what they have, then the first root
    /// is withdrawn. The other authority is the one of `leno ca install --successor`, or else a new root.
    Rotate {
        #[command(flatten)]
        rotate: remote::Rotate,
        #[command(flatten)]
        server: remote::Server,
    },
    /// Show the authority of a mesh, its roots and when they expire, and how far a rotation is.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        server: remote::Server,
    },
}

impl OfControl {
    /// The file with the authority, which may have to be made; `None`: its key is to be in memory only.
    pub(crate) fn file(&self, trust_domain: &TrustDomain) -> Result<Option<AuthorityFile>> {
        let Some((path, passphrase)) = self.file.given()? else { return Ok(None) };
        Ok(Some(AuthorityFile::new(path, passphrase.as_bytes(), trust_domain)?))
    }

    /// Whether the mesh's authority is replaced, whatever it was.
    pub(crate) fn replaces(&self) -> bool {
        self.replace_authority
    }
}

impl File {
    fn required(&self, trust_domain: &TrustDomain) -> Result<AuthorityFile> {
        let Some((path, passphrase)) = self.given()? else { bail!("give --ca FILE and --ca-passphrase FILE") };
        Ok(AuthorityFile::new(path, passphrase.as_bytes(), trust_domain)?)
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
        Command::Status { json, server } => return remote::authority_status(&server, json),
    }
    Ok(ExitCode::SUCCESS)
}
