//! The options about the authority's key.

use crate::private_file;
use anyhow::{Context, Result, anyhow, bail, ensure};
use leno_api::control::SealingKeys;
use leno_identity::{AuthorityFile, TrustDomain};
use std::fs;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The file of the authority.
#[derive(clap::Args)]
pub(crate) struct File {
    /// PEM file with the authority's key, encrypted, and its certificates.
    #[arg(long, alias = "ca", value_name = "FILE", requires = "authority_passphrase")]
    authority: Option<PathBuf>,
    /// File with the passphrase of the key.
    #[arg(long, alias = "ca-passphrase", value_name = "FILE", requires = "authority")]
    authority_passphrase: Option<PathBuf>,
}

/// The authority of a control plane.
#[derive(clap::Args)]
pub(crate) struct OfControl {
    #[command(flatten)]
    file: File,
    /// Lead with this authority although the mesh has another one, whose key is lost. All nodes have to join again.
    #[arg(long)]
    replace_authority: bool,
    /// File with the key that encrypts stored secrets: 32 random bytes in base64, as `openssl rand
    /// -base64 32` writes them. Without it, the passphrase of the authority encrypts them. Further
    /// ones only decrypt; at its start, the leader encrypts with the first key what has another one.
    #[arg(long, value_name = "FILE")]
    secret_key: Vec<PathBuf>,
}

impl OfControl {
    /// The file with the authority, which may not exist yet; `None`: the key stays in memory.
    pub(crate) fn file(&self, trust_domain: &TrustDomain) -> Result<Option<AuthorityFile>> {
        let Some((path, passphrase)) = self.file.given()? else { return Ok(None) };
        Ok(Some(AuthorityFile::new(path, passphrase.as_bytes(), trust_domain)?))
    }

    /// The keys of stored secrets.
    pub(crate) fn sealing_keys(&self) -> Result<SealingKeys> {
        let read = |path: &PathBuf| {
            let text = private_file::read(path);
            text.map(Zeroizing::new).with_context(|| format!("the key of stored secrets: {}", path.display()))
        };
        let files: Vec<_> = self.secret_key.iter().map(read).collect::<Result<_>>()?;
        let passphrase = self.file.given()?.map(|(_, passphrase)| passphrase);
        SealingKeys::new(&files, passphrase)
            .map_err(|(index, error)| anyhow!("{}: {error}", self.secret_key[index].display()))
    }

    /// Whether this authority replaces the one that the mesh has.
    pub(crate) fn replaces(&self) -> bool {
        self.replace_authority
    }
}

impl File {
    pub(crate) fn required(&self, trust_domain: &TrustDomain) -> Result<AuthorityFile> {
        let Some((path, passphrase)) = self.given()? else {
            bail!("give --authority FILE and --authority-passphrase FILE")
        };
        Ok(AuthorityFile::new(path, passphrase.as_bytes(), trust_domain)?)
    }

    fn given(&self) -> Result<Option<(&Path, Zeroizing<String>)>> {
        let (Some(path), Some(passphrase)) = (&self.authority, &self.authority_passphrase) else { return Ok(None) };
        let read = || format!("the passphrase of the authority's key: {}", passphrase.display());
        let text = Zeroizing::new(fs::read_to_string(passphrase).with_context(read)?);
        let line = Zeroizing::new(text.trim_end_matches(['\n', '\r']).to_owned());
        ensure!(!line.is_empty(), "{}: there is no passphrase in it", passphrase.display());
        Ok(Some((path, line)))
    }
}
