//! Bearer tokens and their permissions.

use super::admission::LARGEST_BODY;
use super::error::ApiError;
use super::types::{Role, TokenInfo};
use anyhow::{Context, Result};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use leno_config::{DocumentId, Reach};
use leno_model::FunctionId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The stored form of a token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// SHA-256 of the secret, in hexadecimal digits. The secret has 256 random bits, so no guess
    /// succeeds.
    pub hash: String,
    pub role: Role,
    /// Empty: everywhere.
    pub namespaces: BTreeSet<String>,
    pub note: String,
    pub by: String,
    /// In seconds since 1970.
    pub created: u64,
    /// In seconds since 1970; `None`: the token does not expire.
    pub expires: Option<u64>,
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Name for the audit log: `token 8c1f02aa`, and the token's note.
    pub name: String,
    /// The client's address.
    pub from: String,
    pub role: Role,
    /// Empty: everywhere.
    pub namespaces: BTreeSet<String>,
}

/// Generates a token's public part and secret.
pub(super) fn generate() -> Result<(String, String)> {
    let mut bytes = [0; 36];
    rand::fill(&mut bytes).context("no random bytes for a token")?;
    let (id, secret) = bytes.split_at(4);
    Ok((hexadecimal(id), hexadecimal(secret)))
}

/// The token's text, for its holder.
pub(super) fn text(id: &str, secret: &str) -> String {
    format!("leno.{id}.{secret}")
}

/// The stored hash of a secret.
pub(super) fn hash(secret: &str) -> String {
    hexadecimal(digest(&SHA256, secret.as_bytes()).as_ref())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The caller with this token, if it is valid.
pub(super) fn caller(tokens: &BTreeMap<String, Token>, bearer: &str, from: &str, now: u64) -> Result<Caller, ApiError> {
    let mut parts = bearer.split('.');
    let (Some("leno"), Some(id), Some(secret), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(ApiError::Unauthenticated);
    };
    let token = tokens.get(id).ok_or(ApiError::Unauthenticated)?;
    let same = verify_slices_are_equal(hash(secret).as_bytes(), token.hash.as_bytes()).is_ok();
    if !same || token.expires.is_some_and(|expires| now >= expires) {
        return Err(ApiError::Unauthenticated);
    }
    let note = if token.note.is_empty() { String::new() } else { format!(" ({})", token.note) };
    let name = format!("token {id}{note}");
    Ok(Caller { name, from: from.to_owned(), role: token.role, namespaces: token.namespaces.clone() })
}

impl Token {
    pub fn info(&self, id: &str) -> TokenInfo {
        TokenInfo {
            id: id.to_owned(),
            role: self.role,
            namespaces: self.namespaces.clone(),
            note: self.note.clone(),
            by: self.by.clone(),
            created: self.created as f64,
            expires: self.expires.map(|expires| expires as f64),
        }
    }
}

impl Caller {
    /// The tenant of the caller, for fair shares: the tokens of a namespace that can change
    /// documents, those that only read, or one token of the whole mesh. A token for several
    /// namespaces can create one for each, and each of these shares that namespace's part.
    pub fn tenant(&self) -> String {
        let name = self.namespaces.first().unwrap_or(&self.name);
        let readers = if self.role == Role::Reader { " (readers)" } else { "" };
        format!("{name}{readers}")
    }

    /// Largest request body. Callers for the whole mesh can apply more at once.
    pub fn largest_request(&self) -> usize {
        if self.is_everywhere() && self.role >= Role::Editor { LARGEST_BODY } else { LARGEST_BODY / 4 }
    }

    /// Refuses a caller with a lesser role.
    pub fn needs(&self, role: Role) -> Result<(), ApiError> {
        if self.role >= role {
            return Ok(());
        }
        let name = |role: Role| format!("{role:?}").to_lowercase();
        Err(ApiError::Forbidden(format!("this needs the role {}, and the token has {}", name(role), name(self.role))))
    }

    /// Whether the token is for all namespaces.
    pub fn is_everywhere(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// Whether the caller may read a document.
    pub fn may_read(&self, id: &DocumentId) -> bool {
        self.may_know_namespace(&id.namespace)
    }

    /// Whether the caller may know a function's name.
    pub fn may_know(&self, id: &FunctionId) -> bool {
        self.may_know_namespace(&id.namespace)
    }

    /// Whether the caller may know a namespace.
    pub fn may_know_namespace(&self, namespace: &str) -> bool {
        self.is_everywhere() || self.namespaces.contains(namespace)
    }

    /// Refuses a document that belongs to, or affects, a namespace outside of the token's.
    pub fn may_write(&self, id: &DocumentId, reach: &Reach) -> Result<(), ApiError> {
        if self.is_everywhere() {
            return Ok(());
        }
        let beyond = match reach {
            Reach::Mesh => Some("the whole mesh".to_owned()),
            Reach::Namespaces(namespaces) => {
                let beyond = namespaces.iter().find(|namespace| !self.namespaces.contains(*namespace));
                beyond.map(|namespace| format!("the namespace {namespace}"))
            }
        };
        match beyond {
            Some(beyond) => Err(ApiError::Forbidden(format!("{id} is about {beyond}, and the token is not"))),
            None => Ok(()),
        }
    }

    /// Refuses to create or revoke a token with more permissions than the caller's.
    pub fn may_give(&self, role: Role, namespaces: &BTreeSet<String>) -> Result<(), ApiError> {
        self.needs(Role::Admin)?;
        let within = self.is_everywhere() || !namespaces.is_empty() && namespaces.is_subset(&self.namespaces);
        if within && role <= self.role {
            return Ok(());
        }
        Err(ApiError::Forbidden("this token is only for its own namespaces".to_owned()))
    }
}

/// Writes a token to a file with mode 0600.
pub(super) fn write(path: &Path, token: &str) -> Result<()> {
    let failed = || format!("the first token cannot be written to {}", path.display());
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).with_context(failed)?;
    // The file may have existed.
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).with_context(failed)?;
    writeln!(file, "{token}").with_context(failed)?;
    file.sync_all().with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(role: Role, namespaces: &[&str], expires: Option<u64>) -> (BTreeMap<String, Token>, String) {
        let (id, secret) = generate().unwrap();
        let namespaces = namespaces.iter().map(|&name| name.to_owned()).collect();
        let (note, by) = (String::new(), String::new());
        let token = Token { hash: hash(&secret), role, namespaces, note, by, created: 0, expires };
        (BTreeMap::from([(id.clone(), token)]), text(&id, &secret))
    }

    #[test]
    fn a_token_is_taken_as_a_whole_and_until_it_ends() {
        let (tokens, bearer) = token(Role::Editor, &[], Some(10));
        assert_eq!(caller(&tokens, &bearer, "here", 9).unwrap().role, Role::Editor);
        assert!(caller(&tokens, &bearer, "here", 10).is_err());
        let (id, secret) = bearer.strip_prefix("leno.").unwrap().split_once('.').unwrap();
        for wrong in
            ["", "leno", &text(id, ""), &text("", secret), &text(id, &secret[1..]), &format!("{bearer}."), secret]
        {
            assert!(caller(&tokens, wrong, "here", 0).is_err(), "{wrong}");
        }
        assert!(!format!("{tokens:?}").contains(secret));
    }

    #[test]
    fn roles_and_namespaces_allow_no_more_than_they_say() {
        let (tokens, bearer) = token(Role::Admin, &["a"], None);
        let admin_of_a = caller(&tokens, &bearer, "here", 0).unwrap();
        let id = |kind: &str, namespace: &str| DocumentId {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: "x".to_owned(),
        };
        let of = |names: &[&str]| Reach::Namespaces(names.iter().map(|&name| name.to_owned()).collect());
        assert!(admin_of_a.may_write(&id("Policy", "a"), &of(&["a"])).is_ok());
        assert!(admin_of_a.may_write(&id("Policy", "a"), &of(&["a", "b"])).is_err());
        assert!(admin_of_a.may_write(&id("Policy", "a"), &Reach::Mesh).is_err());
        assert!(admin_of_a.may_read(&id("Function", "a")) && !admin_of_a.may_read(&id("Mesh", "")));
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        assert!(admin_of_a.may_give(Role::Admin, &names(&["a"])).is_ok());
        assert!(admin_of_a.may_give(Role::Reader, &names(&["a", "b"])).is_err());
        assert!(admin_of_a.may_give(Role::Reader, &names(&[])).is_err(), "no namespace is every namespace");
        let (tokens, bearer) = token(Role::Editor, &[], None);
        let editor = caller(&tokens, &bearer, "here", 0).unwrap();
        assert!(editor.needs(Role::Editor).is_ok() && editor.needs(Role::Admin).is_err());
        assert!(editor.may_give(Role::Reader, &names(&["a"])).is_err());
    }
}
