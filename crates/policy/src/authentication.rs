//! Policy 1: who the user is, by a JSON Web Token (RFC 7519) in compact form (RFC 7515), with the advice of RFC 8725.
//!
//! Cheap checks come first. The signature is not checked here: the program names key and algorithm,
//! the runtime verifies the signature, and a fresh run decides. The flag [`RequestInput::verified`]
//! replaces the signature only; each run checks claims, times and keys. An absent `exp` is accepted
//! unless an issuer requires one, as in Istio and Envoy.
//!
//! Several policies may name one issuer. As in Istio, a token passes if it satisfies one of them,
//! its key and its audience together. The first policy that the token satisfies decides how the
//! token and its claims are forwarded.
//!
//! A request has one token or none: several are refused unless they are the same text. If no issuer
//! requires a token, a request without one goes on without a principal; a request with a bad token
//! never does.

use crate::claims::Claims;
use crate::fields::FieldOverride;
use crate::input::RequestInput;
use crate::json::Json;
use crate::needs::{Needs, PREFLIGHT};
use crate::outcome::{Denial, HeaderEdit, MAX_KEYS, PolicyKind, SignatureWant, Window};
use crate::path;
use crate::spec::{Algorithm, Issuer, Key, ProgramSpec, TokenSource};
use crate::token::{self, MAX_TOKEN};
use crate::words;
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The clause of a token that names a key missing from the issuer's key set. On this clause, the
/// runtime fetches key sets anew.
pub const UNKNOWN_KEY: &str = "kid: the issuer has no key of the token's name";

const NO_ALGORITHM: &str =
    "alg: matches none of [RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA, Ed25519]";
/// One more than [`MAX_KEYS`], at least.
const TOO_MANY_KEYS: &str = "kid: the token names no key, and more than 8 may be used with its algorithm";

/// The clause of a token whose issuer's keys are not fetched yet. On this clause, the runtime
/// fetches key sets anew.
pub const KEYS_PENDING: &str = "jwks: the issuer's key set has not been fetched yet";

/// Longest encoded payload, in bytes, that is read before the header is known to name a key and the
/// signature to have the right length.
const CHEAP: usize = 2048;

/// Longest header field that is made of a claim, in bytes.
const MAX_FIELD: usize = 4096;

/// A token of which everything but the signature has been checked.
pub(crate) struct CheckedToken<'a> {
    issuer: &'a Issuer,
    /// Which of the program's sources held it.
    sources: Vec<usize>,
    /// Its claims.
    pub claims: Claims<'a>,
    /// The signature that the runtime must verify before these claims may allow anything; `None`:
    /// it is verified.
    pub unverified: Option<SignatureWant>,
}

impl CheckedToken<'_> {
    /// Issuer and subject; `None` without a subject.
    pub(crate) fn principal(&self) -> Option<(&str, &str)> {
        self.claims.string("sub").map(|sub| (self.issuer.issuer.as_str(), sub))
    }
}

/// The one token of a request, checked; `None` if the request has no token and none is required.
/// `payload` holds the decoded claims. Narrows `window` to the times at which the answer is the same.
pub(crate) fn judge<'a>(
    spec: &'a ProgramSpec,
    needs: &Needs,
    input: &RequestInput<'_>,
    payload: &'a mut Vec<u8>,
    window: &mut Window,
) -> Result<Option<CheckedToken<'a>>, Denial> {
    let Some(first) = spec.authentication.first() else { return Ok(None) };
    let located = token::locate(&needs.tokens, &input.headers, input.path);
    let Some(found) = located.first() else {
        let preflight = is_preflight(input);
        return match spec.authentication.iter().find(|issuer| issuer.required && !(issuer.preflight && preflight)) {
            Some(issuer) => Err(missing(spec, issuer)),
            None => Ok(None),
        };
    };
    // Issuers that look in the place of the token. If none of them can be chosen, the denial names
    // the first.
    let looks = |issuer: &&Issuer| {
        located.iter().any(|one| needs.tokens.get(one.source).is_some_and(|source| issuer.sources.contains(source)))
    };
    let nearest = spec.authentication.iter().find(looks).unwrap_or(first);
    let refuse = |issuer: &Issuer, words: &str| invalid(spec, issuer, words);
    if token::contradicting(&located).is_some() {
        return Err(refuse(nearest, "the request has more than one token"));
    }

    let (header, body, signature) =
        parts(found.token).ok_or_else(|| refuse(nearest, "the token is not a JWT in compact form"))?;
    let mut buffer = Vec::new();
    let header = decode(header, &mut buffer)
        .and_then(Claims::parse)
        .ok_or_else(|| refuse(nearest, "the token's header is not one JSON object without duplicates"))?;
    let sought = Sought::by(&header);
    if body.len() > CHEAP && input.verified.is_none() {
        // A forged token must at least name a key before the program spends time on its claims.
        let may_pass = |sought: &Sought<'_>| {
            let keyed = || spec.authentication.iter().filter(looks).any(|issuer| sought.check(issuer).is_ok());
            if !may_sign(sought.algorithm, signature.len()) {
                Err("the token's signature is not valid".into())
            } else if !keyed() {
                Err(sought.check(nearest).err().unwrap_or(UNKNOWN_KEY.into()))
            } else {
                Ok(())
            }
        };
        sought.as_ref().map_err(Clone::clone).and_then(may_pass).map_err(|words| refuse(nearest, &words))?;
    }
    let claims = decode(body, payload)
        .and_then(Claims::parse)
        .ok_or_else(|| refuse(nearest, "the token's claims are not one JSON object without duplicates"))?;

    let accept = |issuer: &'a Issuer, claims: Claims<'a>, unverified: Option<SignatureWant>| {
        let sources = located.iter().map(|one| one.source).collect();
        let claims = claims.with_spaced(&issuer.space_delimited_claims);
        Ok(Some(CheckedToken { issuer, sources, claims, unverified }))
    };
    let (mut denial, mut pending, mut chosen, mut keys) = (None, None, None, Vec::new());
    for issuer in spec.authentication.iter().filter(looks) {
        if claims.string("iss") != Some(&issuer.issuer) {
            continue;
        }
        let checked = sought.as_ref().map_err(Clone::clone).and_then(|sought| {
            sought.check(issuer)?;
            check_claims(issuer, &claims, input.now_ms, window).map(|()| sought)
        });
        let sought = match checked {
            Ok(sought) => sought,
            // The denial names the first error.
            Err(words) => {
                denial.get_or_insert_with(|| refuse(issuer, &words));
                continue;
            }
        };
        if issuer.keys_pending {
            pending.get_or_insert(issuer);
        }
        for key in sought.keys(issuer) {
            if input.verified == Some(key.id) {
                return accept(issuer, claims, None);
            }
            chosen.get_or_insert((issuer, sought.algorithm));
            if !keys.contains(&key.id) {
                keys.push(key.id);
            }
        }
    }
    match chosen {
        Some((issuer, _)) if keys.len() > MAX_KEYS => Err(refuse(issuer, TOO_MANY_KEYS)),
        Some((issuer, algorithm)) => {
            let wrong = || refuse(issuer, "the token's signature is not valid");
            let denial = pending.map_or_else(wrong, not_yet);
            accept(issuer, claims, Some(SignatureWant { keys, algorithm, denial, failure: Vec::new() }))
        }
        None => Err(pending.map(not_yet).or(denial).unwrap_or_else(|| {
            let known: Vec<&Issuer> = spec.authentication.iter().filter(looks).collect();
            refuse(nearest, &format!("iss: matches none of {}", words::list(&known, |issuer| issuer.issuer.clone())))
        })),
    }
}

/// A CORS preflight: a browser asks before it sends a request, and may not say for which user
/// (Fetch standard, "CORS-preflight fetch").
fn is_preflight(input: &RequestInput<'_>) -> bool {
    let has = |name: &str| input.headers.iter().any(|header| header.name == name);
    let [origin, method, authorization, cookie] = PREFLIGHT;
    input.method == "OPTIONS" && has(origin) && has(method) && !has(authorization) && !has(cookie)
}

/// Whether a signature by this algorithm may have so many characters of base64url: RSA keys have
/// 2048 to 8192 bits, a curve fixes the length.
fn may_sign(algorithm: Algorithm, length: usize) -> bool {
    match algorithm {
        Algorithm::RS256
        | Algorithm::RS384
        | Algorithm::RS512
        | Algorithm::PS256
        | Algorithm::PS384
        | Algorithm::PS512 => (342..=1366).contains(&length),
        Algorithm::ES256 | Algorithm::EdDSA => length == 86,
        Algorithm::ES384 => length == 128,
        Algorithm::ES512 => length == 176,
    }
}

/// Header, payload and signature, still encoded.
fn parts(token: &str) -> Option<(&str, &str, &str)> {
    if token.len() > MAX_TOKEN {
        return None;
    }
    let (header, rest) = token.split_once('.')?;
    let (payload, signature) = rest.split_once('.')?;
    let base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    // A text that cannot be a signature causes no public-key operation.
    let signed = !signature.is_empty() && signature.len() % 4 != 1 && signature.bytes().all(base64url);
    signed.then_some((header, payload, signature))
}

/// Base64url without padding, and without stray bits at the end.
fn decode<'b>(text: &str, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
    buffer.clear();
    URL_SAFE_NO_PAD.decode_vec(text, buffer).ok()?;
    Some(buffer)
}

/// The key that a token's header asks for.
struct Sought<'t> {
    algorithm: Algorithm,
    kid: Option<&'t str>,
}

impl<'t> Sought<'t> {
    fn by(header: &'t Claims<'_>) -> Result<Self, Cow<'static, str>> {
        if header.member("crit").is_some() {
            return Err("crit: the token has critical extensions, and none is understood".into());
        }
        if header.member("b64").is_some() {
            return Err("b64: the token changes the encoding of its payload".into());
        }
        let algorithm = header.string("alg").and_then(algorithm).ok_or(NO_ALGORITHM)?;
        let kid = match header.member("kid") {
            None => None,
            Some(Json::Text(kid)) => Some(&**kid),
            Some(_) => return Err("kid: the token's is not a string".into()),
        };
        Ok(Self { algorithm, kid })
    }

    /// The issuer's own keys that may have made the token: the keys of its name and its algorithm.
    /// If no key has the name, all keys of its algorithm, as far as names do not tell them apart.
    fn keys<'k>(&self, issuer: &'k Issuer) -> impl Iterator<Item = &'k Key> {
        let (algorithm, kid) = (self.algorithm, self.kid);
        let named = self.is_named(issuer);
        let may_be_it = move |key: &&Key| match (kid, named) {
            (Some(kid), true) => key.kid.as_deref() == Some(kid),
            (Some(_), false) => key.kid.is_none(),
            (None, _) => true,
        };
        issuer.keys.iter().filter(may_be_it).filter(move |key| key.algorithms.contains(&algorithm))
    }

    fn is_named(&self, issuer: &Issuer) -> bool {
        self.kid.is_some_and(|kid| issuer.keys.iter().any(|key| key.kid.as_deref() == Some(kid)))
    }

    /// Whether there is such a key, or may be one.
    fn check(&self, issuer: &Issuer) -> Result<(), Cow<'static, str>> {
        match self.keys(issuer).next() {
            Some(_) => Ok(()),
            None if issuer.keys_pending => Ok(()),
            None if self.is_named(issuer) => Err("alg: the key may not be used with the token's algorithm".into()),
            None if self.kid.is_some() => Err(UNKNOWN_KEY.into()),
            None => Err("alg: no key of the issuer may be used with the token's algorithm".into()),
        }
    }
}

fn algorithm(name: &str) -> Option<Algorithm> {
    Some(match name {
        "RS256" => Algorithm::RS256,
        "RS384" => Algorithm::RS384,
        "RS512" => Algorithm::RS512,
        "PS256" => Algorithm::PS256,
        "PS384" => Algorithm::PS384,
        "PS512" => Algorithm::PS512,
        "ES256" => Algorithm::ES256,
        "ES384" => Algorithm::ES384,
        "ES512" => Algorithm::ES512,
        "EdDSA" | "Ed25519" => Algorithm::EdDSA,
        _ => return None,
    })
}

fn check_claims(
    issuer: &Issuer,
    claims: &Claims<'_>,
    now_ms: u64,
    window: &mut Window,
) -> Result<(), Cow<'static, str>> {
    let skew = issuer.clock_skew_ms;
    let date = |name: &str| claims.date(name).map_err(|_| format!("{name}: not a date (seconds since 1970)"));
    match date("exp")? {
        Some(exp) if window.is_past(exp.saturating_add(skew), now_ms) => {
            return Err("exp: the token has expired".into());
        }
        None if issuer.require_expiration => return Err("exp: the token has none, and it is required".into()),
        _ => {}
    }
    for name in ["nbf", "iat"] {
        if date(name)?.is_some_and(|from| !window.is_past(from.saturating_sub(skew), now_ms)) {
            return Err(format!("{name}: the token is from the future").into());
        }
    }
    if claims.member("sub").is_some() && claims.string("sub").is_none() {
        return Err("sub: not a string".into());
    }
    if !claims.audience_is_well_formed() {
        return Err("aud: neither a string nor a list of strings".into());
    }
    let wanted = &issuer.audiences;
    if !wanted.is_empty() && !claims.audience().any(|aud| wanted.iter().any(|wanted| wanted == aud)) {
        return Err(format!("aud: matches none of {}", words::list(wanted, Clone::clone)).into());
    }
    Ok(())
}

/// The header fields that are made of claims, and the fields that an authorizer's answer may set
/// later. All of them are written or removed, so a client cannot forge one.
pub(crate) fn written<'a>(spec: &'a ProgramSpec, checked: Option<&'a CheckedToken<'_>>) -> Vec<FieldOverride<'a>> {
    let answered = spec.authorizers.iter().flat_map(|authorizer| &authorizer.headers);
    let mut written: Vec<FieldOverride<'a>> = answered.map(|name| FieldOverride { name, value: None }).collect();
    for issuer in &spec.authentication {
        for (claim, name) in &issuer.claims_to_headers {
            let accepted = checked.filter(|checked| core::ptr::eq(checked.issuer, issuer));
            let value = accepted.and_then(|checked| checked.claims.text(claim)).filter(|text| is_field_value(text));
            match written.iter_mut().find(|written| written.name == name) {
                Some(written) => written.value = value.map(Cow::Borrowed).or(written.value.take()),
                None => written.push(FieldOverride { name, value: value.map(Cow::Borrowed) }),
            }
        }
    }
    written
}

/// RFC 9110, 5.5: no control characters, no white space around it.
fn is_field_value(text: &str) -> bool {
    let trimmed = text.trim_matches([' ', '\t']).len() == text.len();
    trimmed && text.len() <= MAX_FIELD && text.bytes().all(|byte| byte >= 0x20 && byte != 0x7f)
}

/// Removes the token from the request, unless its issuer forwards it. Returns the query to forward,
/// if it changes.
pub(crate) fn strip(
    needs: &Needs,
    input: &RequestInput<'_>,
    checked: &CheckedToken<'_>,
    edits: &mut Vec<HeaderEdit>,
) -> Option<String> {
    if checked.issuer.forward {
        return None;
    }
    // The same token may stand in several places; it is forwarded in none of them.
    let mut query: Option<String> = None;
    let mut cookies = Vec::new();
    for (index, source) in needs.tokens.iter().enumerate() {
        if !checked.sources.contains(&index) {
            continue;
        }
        match source {
            TokenSource::Header { name, .. } => edits.push(HeaderEdit::Remove(name.clone())),
            TokenSource::Query(name) => {
                let before = query.as_deref().unwrap_or_else(|| path::split(input.path).1.unwrap_or_default());
                query = Some(token::without_parameter(before, name));
            }
            TokenSource::Cookie(name) => cookies.push(name.as_str()),
        }
    }
    if !cookies.is_empty() {
        edits.push(match token::without_cookies(&input.headers, &cookies) {
            Some(rest) => HeaderEdit::Set("cookie".to_string(), rest),
            None => HeaderEdit::Remove("cookie".to_string()),
        });
    }
    query
}

/// The token may be good: the keys that would decide are missing, which is not the client's fault.
fn not_yet(issuer: &Issuer) -> Denial {
    Denial {
        status: 503,
        policy: PolicyKind::Authentication,
        rule: issuer.name.clone(),
        default: false,
        clause: KEYS_PENDING.to_string(),
        headers: vec![("retry-after".to_string(), "1".to_string())],
    }
}

/// RFC 6750, 3.1: a request without a token gets a challenge without an error code.
fn missing(spec: &ProgramSpec, issuer: &Issuer) -> Denial {
    denial(spec, issuer, "the request has no token", "")
}

fn invalid(spec: &ProgramSpec, issuer: &Issuer, words: &str) -> Denial {
    denial(spec, issuer, words, ", error=\"invalid_token\"")
}

fn denial(spec: &ProgramSpec, issuer: &Issuer, words: &str, error: &str) -> Denial {
    // Names of functions are DNS labels and a slash; nothing in them needs escaping.
    let challenge = format!("Bearer realm=\"{}\"{error}", spec.function);
    Denial {
        status: 401,
        policy: PolicyKind::Authentication,
        rule: issuer.name.clone(),
        default: false,
        clause: words.to_string(),
        headers: vec![("www-authenticate".to_string(), challenge)],
    }
}

#[cfg(test)]
mod tests;
