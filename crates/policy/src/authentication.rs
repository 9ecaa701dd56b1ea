//! Policy 1: who the user is, by a JSON Web Token (RFC 7519) in compact form (RFC 7515), with the advice of RFC 8725.
//!
//! Everything that is cheap is checked first. The signature is not checked here: the program names key and algorithm, the
//! runtime verifies, and a fresh run decides. Only the flag that says so replaces the signature; claims, times and
//! keys are looked at each time. An absent `exp` is accepted, as Istio and Envoy do: a policy that wants one
//! can say so by an authorization rule on the claim.

use crate::claims::{Claims, Value};
use crate::input::RequestInput;
use crate::needs::Needs;
use crate::outcome::{Denial, HeaderEdit, PolicyKind, SignatureWant, Wants};
use crate::path;
use crate::program::Stop;
use crate::spec::{Algorithm, Issuer, Key, ProgramSpec, TokenSource};
use crate::token::{self, Located, MAX_TOKEN};
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// A token whose every check has passed.
pub struct Authenticated<'a> {
    issuer: &'a Issuer,
    source: &'a TokenSource,
    /// Its claims.
    pub claims: Claims<'a>,
}

impl Authenticated<'_> {
    /// `<iss>/<sub>`; `<iss>/` without a subject.
    pub fn principal(&self) -> String {
        format!("{}/{}", self.issuer.issuer, self.claims.string("sub").unwrap_or_default())
    }
}

/// The one token of a request, checked; `None` where there is none and none is required. `payload` holds the decoded claims.
pub fn judge<'a>(
    spec: &'a ProgramSpec,
    needs: &'a Needs,
    input: &'a RequestInput<'a>,
    payload: &'a mut Vec<u8>,
) -> Result<Option<Authenticated<'a>>, Stop> {
    let Some(first) = spec.authentication.first() else { return Ok(None) };
    let located = token::locate(&needs.tokens, &input.headers, input.path);
    let Some(found) = located.first() else {
        return match spec.authentication.iter().find(|issuer| issuer.required) {
            Some(issuer) => Err(missing(issuer).into()),
            None => Ok(None),
        };
    };
    let refuse = |issuer: &Issuer, words: &str| Stop::Denied(invalid(issuer, words));
    if located.iter().any(|other| other.token != found.token) {
        return Err(refuse(first, "the request has more than one token"));
    }
    let Some(source) = needs.tokens.get(found.source) else {
        return Err(refuse(first, "the token's source is unknown"));
    };
    let issuers: Vec<&Issuer> = spec.authentication.iter().filter(|issuer| issuer.sources.contains(source)).collect();
    let nearest = issuers.first().copied().unwrap_or(first);

    let (header, body) = parts(found.token).ok_or_else(|| refuse(nearest, "the token is not a JWT in compact form"))?;
    let claims = decode(body, payload)
        .and_then(Claims::parse)
        .ok_or_else(|| refuse(nearest, "the token's claims are not one JSON object without duplicates"))?;
    let issuer =
        claims.string("iss").and_then(|iss| issuers.iter().copied().find(|issuer| issuer.issuer == iss)).ok_or_else(
            || refuse(nearest, &format!("iss: matches none of {}", list(issuers.iter().map(|issuer| &issuer.issuer)))),
        )?;
    let (key, algorithm) = choose_key(issuer, header).map_err(|words| refuse(issuer, words))?;
    check_claims(issuer, &claims, input.now_ms).map_err(|words| refuse(issuer, &words))?;

    if verified(&located, input, key) {
        return Ok(Some(Authenticated { issuer, source, claims }));
    }
    Err(Stop::Wants(Wants {
        signature: Some(SignatureWant {
            token: 0,
            key: key.id,
            algorithm,
            denial: invalid(issuer, "the token's signature is not valid"),
        }),
        quotas: Vec::new(),
    }))
}

/// All located tokens are the same text, so a signature over any of them will do.
fn verified(located: &[Located<'_>], input: &RequestInput<'_>, key: &Key) -> bool {
    input.verified.iter().take(located.len()).any(|id| *id == Some(key.id))
}

/// Header and payload, still encoded.
fn parts(token: &str) -> Option<(&str, &str)> {
    if token.len() > MAX_TOKEN {
        return None;
    }
    let mut parts = token.split('.');
    let (header, payload, signature) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = parts.next().is_none() && !header.is_empty() && !payload.is_empty() && !signature.is_empty();
    whole.then_some((header, payload))
}

/// Base64url without padding, and without stray bits at the end.
fn decode<'b>(text: &str, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
    buffer.clear();
    URL_SAFE_NO_PAD.decode_vec(text, buffer).ok()?;
    Some(buffer)
}

/// The key that the header asks for, among the issuer's own, if it may be used with the header's algorithm.
fn choose_key<'k>(issuer: &'k Issuer, header: &str) -> Result<(&'k Key, Algorithm), &'static str> {
    let mut buffer = Vec::new();
    let header = decode(header, &mut buffer)
        .and_then(Claims::parse)
        .ok_or("the token's header is not one JSON object without duplicates")?;
    if header.member("crit").is_some() {
        return Err("the token's header has critical extensions, and none is understood");
    }
    if header.member("b64").is_some() {
        return Err("the token's header changes the encoding of the payload");
    }
    let algorithm = header
        .string("alg")
        .and_then(algorithm)
        .ok_or("alg: matches none of [RS256, RS384, RS512, PS256, ES256, ES384, EdDSA]")?;
    let fits = |key: &&Key| key.algorithms.contains(&algorithm);
    match header.member("kid") {
        None => {
            let mut candidates = issuer.keys.iter().filter(fits);
            match (candidates.next(), candidates.next()) {
                (Some(only), None) => Ok((only, algorithm)),
                (None, _) => Err("alg: no key of the issuer may be used with the token's algorithm"),
                (Some(_), Some(_)) => {
                    Err("kid: the token names no key, and more than one may be used with its algorithm")
                }
            }
        }
        Some(Value::Text(kid)) => {
            let mut named = issuer.keys.iter().filter(|key| key.kid.as_deref() == Some(kid)).peekable();
            if named.peek().is_none() {
                return Err(UNKNOWN_KEY);
            }
            named
                .find(fits)
                .map(|key| (key, algorithm))
                .ok_or("alg: the key may not be used with the token's algorithm")
        }
        Some(_) => Err("kid: the token's is not a string"),
    }
}

/// The clause of a token that names a key nobody has: the runtime fetches key sets anew on it.
pub const UNKNOWN_KEY: &str = "kid: the issuer has no key of the token's name";

fn algorithm(name: &str) -> Option<Algorithm> {
    Some(match name {
        "RS256" => Algorithm::RS256,
        "RS384" => Algorithm::RS384,
        "RS512" => Algorithm::RS512,
        "PS256" => Algorithm::PS256,
        "ES256" => Algorithm::ES256,
        "ES384" => Algorithm::ES384,
        "EdDSA" => Algorithm::EdDSA,
        _ => return None,
    })
}

fn check_claims(issuer: &Issuer, claims: &Claims<'_>, now_ms: u64) -> Result<(), String> {
    let skew = issuer.clock_skew_ms;
    if date(claims, "exp")?.is_some_and(|exp| exp.saturating_add(skew) <= now_ms) {
        return Err("exp: the token has expired".to_string());
    }
    for name in ["nbf", "iat"] {
        if date(claims, name)?.is_some_and(|from| from > now_ms.saturating_add(skew)) {
            return Err(format!("{name}: the token is from the future"));
        }
    }
    if claims.member("sub").is_some_and(|sub| !matches!(sub, Value::Text(_))) {
        return Err("sub: not a string".to_string());
    }
    let well_formed = match claims.member("aud") {
        None | Some(Value::Text(_)) => true,
        Some(Value::List(items)) => items.iter().all(|item| matches!(item, Value::Text(_))),
        Some(_) => false,
    };
    if !well_formed {
        return Err("aud: neither a string nor a list of strings".to_string());
    }
    let wanted = &issuer.audiences;
    if !wanted.is_empty() && !claims.audience().any(|aud| wanted.iter().any(|wanted| wanted == aud)) {
        return Err(format!("aud: matches none of {}", list(wanted.iter())));
    }
    Ok(())
}

/// A NumericDate (RFC 7519, 2) in milliseconds.
fn date(claims: &Claims<'_>, name: &str) -> Result<Option<u64>, String> {
    /// The year 9999.
    const LATEST: u64 = 253_402_300_799;
    let seconds = match claims.member(name) {
        None => return Ok(None),
        Some(Value::Unsigned(seconds)) if *seconds <= LATEST => *seconds * 1000,
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked just before")]
        Some(Value::Float(seconds)) if (0.0..=LATEST as f64).contains(seconds) => (*seconds * 1000.0) as u64,
        Some(_) => return Err(format!("{name}: not a date (seconds since 1970)")),
    };
    Ok(Some(seconds))
}

/// Edits to the forwarded request: claims become headers, tokens are taken out. Returns the query to forward, if that changes it.
pub fn edits(
    spec: &ProgramSpec,
    input: &RequestInput<'_>,
    authenticated: Option<&Authenticated<'_>>,
    edits: &mut Vec<HeaderEdit>,
) -> Option<String> {
    // First remove what a client may have forged, for every issuer; a later issuer must not remove what an earlier one set.
    for (_, header) in spec.authentication.iter().flat_map(|issuer| &issuer.claims_to_headers) {
        edits.push(HeaderEdit::Remove(header.clone()));
    }
    let authenticated = authenticated?;
    for (claim, header) in &authenticated.issuer.claims_to_headers {
        if let Some(text) = authenticated.claims.text(claim).filter(|text| is_field_value(text)) {
            edits.push(HeaderEdit::Set(header.clone(), text.into_owned()));
        }
    }
    if authenticated.issuer.forward {
        return None;
    }
    // The same token may stand in several places; none of them is forwarded.
    let mut query = None;
    for source in spec.authentication.iter().flat_map(|issuer| &issuer.sources) {
        let here = !token::locate(core::slice::from_ref(source), &input.headers, input.path).is_empty();
        match source {
            _ if !here && source != authenticated.source => {}
            TokenSource::Header { name, .. } => edits.push(HeaderEdit::Remove(name.clone())),
            TokenSource::Query(name) => {
                let rest: Cow<'_, str> = match query {
                    Some(rest) => Cow::Owned(rest),
                    None => Cow::Borrowed(path::split(input.path).1.unwrap_or_default()),
                };
                query = Some(token::without_parameter(&rest, name));
            }
            TokenSource::Cookie(name) => edits.push(match token::without_cookie(&input.headers, name) {
                Some(rest) => HeaderEdit::Set("cookie".to_string(), rest),
                None => HeaderEdit::Remove("cookie".to_string()),
            }),
        }
    }
    query
}

/// RFC 9110, 5.5: no control characters, no white space around it.
fn is_field_value(text: &str) -> bool {
    text.trim_matches([' ', '\t']).len() == text.len() && text.bytes().all(|byte| byte >= 0x20 && byte != 0x7f)
}

/// RFC 6750, 3.1: a request without a token gets a challenge without an error code.
fn missing(issuer: &Issuer) -> Denial {
    denial(issuer, "the request has no token", "Bearer".to_string())
}

fn invalid(issuer: &Issuer, words: &str) -> Denial {
    denial(issuer, words, "Bearer error=\"invalid_token\"".to_string())
}

fn denial(issuer: &Issuer, words: &str, challenge: String) -> Denial {
    Denial {
        status: 401,
        policy: PolicyKind::Authentication,
        rule: issuer.name.clone(),
        default: false,
        clause: words.to_string(),
        headers: vec![("www-authenticate".to_string(), challenge)],
    }
}

fn list<'a>(items: impl Iterator<Item = &'a String>) -> String {
    let items: Vec<&str> = items.map(String::as_str).collect();
    format!("[{}]", items.join(", "))
}
