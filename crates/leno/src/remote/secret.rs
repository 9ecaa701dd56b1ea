//! Stored secrets: their listing, and `leno create-secret`.

use super::{Server, change, connection, print_changes};
use crate::names::NamespaceOptions;
use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use connection::Connection;
use jiff::Timestamp;
use leno_api::control::types::{ChangeRequest, ExpectedVersion, File, Name, SecretStatus};
use leno_config::{KeySummary, SecretSet};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use zeroize::Zeroizing;

/// `leno create-secret`
#[derive(clap::Args)]
pub(crate) struct CreateSecret {
    /// Name of the document: `name`, or `namespace/name`.
    secret: String,
    /// A key with the content of a file: `KEY=PATH`, or PATH, whose file name is the key. `KEY=-`
    /// reads standard input.
    #[arg(long, value_name = "KEY=PATH")]
    from_file: Vec<String>,
    /// A key and its value, which the shell keeps in its history and other accounts see in the list
    /// of processes: `--from-file KEY=-` is safer.
    #[arg(long, value_name = "KEY=VALUE")]
    from_literal: Vec<String>,
    /// Replace a stored secret of this name, with all its keys.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    namespace: NamespaceOptions,
    #[command(flatten)]
    server: Server,
}

/// Stores a secret from files, standard input and literals.
pub(crate) fn create(options: &CreateSecret) -> Result<ExitCode> {
    let CreateSecret { namespace, server, .. } = options;
    let mut values: BTreeMap<String, Zeroizing<Vec<u8>>> = BTreeMap::new();
    let mut add = |key: &str, value: Zeroizing<Vec<u8>>| {
        ensure!(values.insert(key.to_owned(), value).is_none(), "the key `{}` is there twice", key.escape_debug());
        Ok(())
    };
    for literal in &options.from_literal {
        let (key, value) = literal.split_once('=').context("--from-literal: expected KEY=VALUE")?;
        add(key, Zeroizing::new(value.as_bytes().to_vec()))?;
    }
    ensure!(
        options.from_file.iter().filter(|file| file.ends_with("=-")).count() <= 1,
        "standard input can be read for one key only"
    );
    for file in &options.from_file {
        let (key, path) = match file.split_once('=') {
            Some((key, path)) => (key, path),
            None => (Path::new(file).file_name().and_then(|name| name.to_str()).unwrap_or_default(), &**file),
        };
        let value = match path {
            "-" => {
                let mut value = Zeroizing::new(Vec::new());
                std::io::stdin().read_to_end(&mut value).context("standard input cannot be read")?;
                value
            }
            path => Zeroizing::new(fs::read(path).with_context(|| format!("{path} cannot be read"))?),
        };
        add(key, value)?;
    }
    if values.is_empty() {
        bail!("give --from-file KEY=PATH or --from-literal KEY=VALUE");
    }
    let target = server.required()?;
    let Name { kind, namespace, name } =
        super::named("StoredSecret", &options.secret, namespace, target.namespace.as_deref())?;
    let data: BTreeMap<&String, String> = values.iter().map(|(key, value)| (key, STANDARD.encode(&**value))).collect();
    let document = json!({
        "apiVersion": "leno.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"data": data},
    });
    let mut request = ChangeRequest {
        apply: vec![File { name: "create-secret".to_owned(), text: document.to_string() }],
        ..ChangeRequest::default()
    };
    if !options.replace {
        let document = Name { kind, namespace, name };
        request.expect = vec![ExpectedVersion { document, version: 0 }];
    }
    let connection = Connection::to(server)?;
    match change(&connection, &request) {
        Ok(answer) => Ok(answer.map_or_else(ExitCode::from, |answer| print_changes(&answer))),
        Err(error) if !options.replace && is_conflict(&error) => {
            bail!(
                "the stored secret {} exists; --replace replaces it, with all its keys",
                options.secret.escape_debug()
            )
        }
        Err(error) => Err(error),
    }
}

fn is_conflict(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<connection::Failure>(),
        Some(connection::Failure::Refused { status, .. }) if status.as_u16() == 409
    )
}

/// The stored secrets of the control plane, without their values; `None`: none is named.
pub(crate) fn stored(server: &Server) -> Result<Option<SecretSet>> {
    let Some(target) = server.target()? else { return Ok(None) };
    let secrets: Vec<SecretStatus> = Connection::of(target)?.get("/v1/secrets")?;
    let mut set = SecretSet::default();
    for secret in secrets {
        let keys = secret.keys.into_iter();
        let keys = keys.map(|key| (key.key, KeySummary { bytes: key.bytes, changed: key.changed as u64 }));
        set.insert(&secret.namespace, &secret.name, keys.collect());
    }
    Ok(Some(set))
}

/// The rows of `leno get secrets`.
pub(super) fn rows(connection: &Connection) -> Result<Vec<Value>> {
    let secrets: Vec<SecretStatus> = connection.get("/v1/secrets")?;
    let row = |secret: &SecretStatus| {
        let time = |seconds: f64| Timestamp::from_second(seconds as i64).unwrap_or_default().to_string();
        json!({
            "namespace": secret.namespace,
            "name": secret.name,
            "keys": secret.keys.iter().map(|key| &key.key).collect::<Vec<_>>(),
            "bytes": secret.keys.iter().map(|key| u64::from(key.bytes)).sum::<u64>(),
            "changed": secret.changed,
            "used_by": secret.used_by,
            "by": secret.by,
            "version": secret.version,
            "sizes": secret.keys.iter().map(|key| (key.key.clone(), key.bytes)).collect::<BTreeMap<_, _>>(),
            "keys_changed":
                secret.keys.iter().map(|key| format!("{}: {}", key.key, time(key.changed))).collect::<Vec<_>>(),
        })
    };
    Ok(secrets.iter().map(row).collect())
}
