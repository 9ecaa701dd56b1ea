//! `spec.authentication`.

use super::header::{self, Use};
use super::{Context, fields};
use crate::document::{Authentication, ClaimPath, ClaimToHeader, Issuer, Jwks, TokenLocation};
use crate::duration::Duration;
use crate::jwks::{self, KeySet};
use crate::problem::Scope;
use crate::snapshot::Policy;
use leno_files::FileAccess;
use leno_model::JwksFetch;
use leno_policy::reserved::{is_reserved, is_same};
use leno_policy::spec::{self, TokenSource};

/// A larger tolerance makes expiry meaningless.
const LONGEST_SKEW: Duration = Duration::from_secs(600);
/// A key set file is a few kilobytes.
const LARGEST_KEY_SET: u64 = 1 << 20;

pub(super) fn authentication(context: &Context<'_>, scope: &Scope<'_>, section: &Authentication, policy: &mut Policy) {
    let list = scope.field("issuers");
    fields::not_empty(&list, &section.issuers, "nothing: it is required");
    fields::unique_names(&list, section.issuers.iter().map(|issuer| issuer.name.as_deref()));
    for (index, one) in section.issuers.iter().enumerate() {
        let scope = list.element(index);
        if section.issuers[..index].iter().any(|other| other.issuer == one.issuer) {
            scope.field("issuer").problem(format!("issuer `{}` appears twice", one.issuer), "keep one of the two");
        }
        let compiled = issuer(context, &scope, one, index, policy);
        policy.authentication.push(spec::Issuer { preflight: section.allow_cors_preflight, ..compiled });
    }
}

fn issuer(
    context: &Context<'_>,
    scope: &Scope<'_>,
    issuer: &Issuer,
    index: usize,
    policy: &mut Policy,
) -> spec::Issuer {
    if issuer.issuer.is_empty() {
        scope.field("issuer").problem("the issuer is empty", "expected the value of `iss` in its tokens");
    }
    fields::not_written_empty(scope, "audiences", &issuer.audiences, "that `aud` is not checked");
    if issuer.audiences.is_empty() {
        let fix = "add `audiences: [NAME]` with the value of `aud` in its tokens for this function";
        scope.doubt(
            context.doubts,
            "tokens that the issuer made for other services are accepted: `aud` is not checked",
            fix,
        );
    }
    let audiences = scope.field("audiences");
    for (index, audience) in issuer.audiences.iter().enumerate() {
        if audience.is_empty() {
            audiences.element(index).problem("the audience is empty", "remove it");
        }
    }
    let keys = jwks(context, &scope.field("jwks"), &issuer.jwks, index, policy);
    let sources = match &issuer.from {
        None => vec![TokenSource::Header { name: "authorization".to_owned(), prefix: "Bearer ".to_owned() }],
        Some(locations) => sources(&scope.field("from"), locations),
    };
    spec::Issuer {
        name: fields::rule_name(scope, &policy.name, "authentication", issuer.name.as_deref(), index),
        issuer: issuer.issuer.clone(),
        audiences: issuer.audiences.clone(),
        keys,
        keys_pending: issuer.jwks.url.is_some(),
        sources,
        clock_skew_ms: fields::millis(&scope.field("clockSkew"), issuer.clock_skew, Duration::default(), LONGEST_SKEW),
        forward: issuer.forward,
        required: issuer.required,
        preflight: false,
        require_expiration: issuer.require_expiration,
        space_delimited_claims: spaced(&scope.field("spaceDelimitedClaims"), &issuer.space_delimited_claims),
        claims_to_headers: claims_to_headers(&scope.field("claimsToHeaders"), &issuer.claims_to_headers),
    }
}

fn sources(list: &Scope<'_>, locations: &[TokenLocation]) -> Vec<TokenSource> {
    fields::not_empty(list, locations, "the header `authorization`");
    let mut sources = Vec::new();
    for (index, location) in locations.iter().enumerate() {
        let scope = list.element(index);
        let source = match location {
            TokenLocation { header: Some(text), prefix, query: None, cookie: None } => {
                let Some(name) = header::name(&scope.field("header"), text, Use::Read) else { continue };
                if is_reserved(&name) {
                    let fix = "the mesh itself writes this header; tokens come in another one";
                    scope.field("header").problem(format!("`{name}` never holds a token"), fix);
                }
                let usual = if name == "authorization" { "Bearer " } else { "" };
                TokenSource::Header { prefix: prefix.clone().unwrap_or_else(|| usual.to_owned()), name }
            }
            TokenLocation { header: None, prefix: None, query: Some(name), cookie: None } => {
                named(&scope.field("query"), name);
                TokenSource::Query(name.clone())
            }
            TokenLocation { header: None, prefix: None, query: None, cookie: Some(name) } => {
                named(&scope.field("cookie"), name);
                TokenSource::Cookie(name.clone())
            }
            _ => {
                let fix = "expected `header` (possibly with `prefix`), `query` or `cookie`";
                scope.problem("a token is in one place", fix);
                continue;
            }
        };
        if sources.contains(&source) {
            scope.problem("this place appears twice", "remove it");
        }
        sources.push(source);
    }
    sources
}

/// Name of a query parameter or a cookie (RFC 6265: a token).
fn named(scope: &Scope<'_>, name: &str) {
    if name.is_empty() || !name.bytes().all(header::is_token_byte) {
        scope.problem(format!("`{}` cannot be its name", name.escape_debug()), "expected letters, digits, `-` and `_`");
    }
}

fn spaced(list: &Scope<'_>, claims: &[ClaimPath]) -> Vec<spec::ClaimPath> {
    for (index, claim) in claims.iter().enumerate() {
        if claims[..index].contains(claim) {
            list.element(index).problem("this claim appears twice", "remove it");
        }
    }
    claims.iter().map(|claim| claim.0.clone()).collect()
}

fn claims_to_headers(list: &Scope<'_>, copies: &[ClaimToHeader]) -> Vec<(spec::ClaimPath, String)> {
    let mut compiled: Vec<(spec::ClaimPath, String)> = Vec::new();
    for (index, copy) in copies.iter().enumerate() {
        let element = list.element(index);
        let scope = element.field("header");
        let Some(name) = header::name(&scope, &copy.header, Use::Edit) else { continue };
        if compiled.iter().any(|(_, other)| is_same(other.as_bytes(), name.as_bytes())) {
            let fix = "give each its own header; to many functions `-` and `_` are the same";
            scope.problem(format!("two claims are copied to `{name}`"), fix);
        }
        compiled.push((copy.claim.0.clone(), name));
    }
    compiled
}

/// Keys that are known now; nodes fetch the keys of a `url`.
fn jwks(context: &Context<'_>, scope: &Scope<'_>, jwks: &Jwks, issuer: usize, policy: &mut Policy) -> Vec<spec::Key> {
    if jwks.url.is_none() {
        for field in ["caFile", "refresh", "timeout"] {
            if scope.has(field) {
                scope
                    .field(field)
                    .problem(format!("`{field}` is for key sets that are fetched"), "remove it, or give a `url`");
            }
        }
    }
    match (&jwks.inline, &jwks.file, &jwks.url) {
        (Some(value), None, None) => keys(&scope.field("inline"), jwks::from_json(value), policy),
        (None, Some(file), None) => {
            let scope = scope.field("file");
            if !fields::is_read(&scope, "expected `inline` or `url`") {
                return Vec::new();
            }
            let path = fields::file(context.inputs, &scope, file);
            // A missing file has been reported.
            if !path.is_file() {
                return Vec::new();
            }
            match read(&path) {
                Ok(value) => keys(&scope, jwks::from_json(&value), policy),
                Err(error) => {
                    scope.problem(
                        format!("{}: {error}", path.display()),
                        "expected a JSON Web Key set: {\"keys\": [...]}",
                    );
                    Vec::new()
                }
            }
        }
        (None, None, Some(url)) => {
            let (ca_file, ca) = fields::roots(context.inputs, scope, (jwks.ca_file.as_deref(), jwks.ca.as_deref()));
            let refresh = fields::within(&scope.field("refresh"), jwks.refresh, Duration::from_secs(1), fields::DAY);
            let timeout =
                fields::within(&scope.field("timeout"), jwks.timeout, fields::MILLISECOND, Duration::from_secs(60));
            check_url(&scope.field("url"), url);
            if url.split('?').next().is_some_and(|url| url.ends_with("/.well-known/openid-configuration")) {
                let fix = "write the value of `jwks_uri` in it, such as https://id.example/jwks";
                scope.field("url").problem("this is the description of the issuer, which has no keys", fix);
            }
            policy.jwks.push(JwksFetch { issuer, url: url.clone(), ca_file, ca, refresh, timeout });
            Vec::new()
        }
        (None, None, None) => {
            scope.problem("there are no keys", "expected one of `inline`, `file` and `url`");
            Vec::new()
        }
        _ => {
            scope.problem("the keys come from several places", "keep one of `inline`, `file` and `url`");
            Vec::new()
        }
    }
}

/// Why a file has no key set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

pub(crate) fn read(path: &std::path::Path) -> Result<serde_json::Value, FileError> {
    let text = leno_files::read(path, &FileAccess::Any, LARGEST_KEY_SET)?;
    Ok(serde_json::from_slice(&text)?)
}

/// A key set in a document may hold no wrong key: its author can correct it.
fn keys(scope: &Scope<'_>, set: KeySet, policy: &mut Policy) -> Vec<spec::Key> {
    let list = scope.field("keys");
    for refused in &set.refused {
        let place = refused.index.map(|index| list.element(index));
        place.as_ref().unwrap_or(scope).problem(refused.message.clone(), refused.fix);
    }
    if set.keys.is_empty() && set.refused.is_empty() {
        let fix = "expected a public RSA (2048 bits or more), EC P-256, P-384 or P-521, or Ed25519 key for signatures";
        scope.problem(format!("none of the keys can verify signatures{}", set.skipped_in_words()), fix);
    }
    policy.keys.extend(set.keys.iter().map(|(_, key)| key.clone()));
    set.keys.into_iter().map(|(key, _)| key).collect()
}

/// An attacker who can change a key set in transit can log in as any user, so it must come by TLS
/// or from this machine. The same holds for modules: their hash protects them from changes in
/// transit, but not from being read.
pub(super) fn check_url(scope: &Scope<'_>, url: &str) {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let authority = rest.and_then(|rest| rest.split(['/', '?']).next()).unwrap_or_default();
    let printable = url.bytes().all(|byte| byte.is_ascii_graphic());
    if authority.is_empty() || authority.contains('@') || url.contains('#') || !printable || url.len() > 2048 {
        scope.problem(format!("`{}` is not an address", url.escape_debug()), "expected https://host/path");
        return;
    }
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    if url.starts_with("http://") && !here {
        scope.problem(
            "what comes without TLS can be replaced on its way",
            format!("write https://{}", rest.unwrap_or_default()),
        );
    }
}
