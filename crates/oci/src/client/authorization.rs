//! The authorization of registries: Basic, and Bearer with a token server, as
//! <https://distribution.github.io/distribution/spec/auth/token/> and `…/oauth/` say.

use super::{Access, Client, Endpoint, host_of, ok, read, refusal, unreachable, without_query};
use crate::registries::Credentials;
use crate::{Error, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Response;
use reqwest::header::{HeaderValue, WWW_AUTHENTICATE};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use url::Url;

/// How long a token server's answer may be, in bytes.
const MAX_TOKEN_BYTES: usize = 64 << 10;
/// How many tokens are cached. A full cache is emptied; each token comes back with one more
/// request.
const MAX_TOKENS: usize = 256;

/// The authorization that each registry last accepted, by host, repository and access.
#[derive(Default)]
pub(super) struct Tokens(Mutex<HashMap<(String, String, Access), Arc<HeaderValue>>>);

impl Tokens {
    pub(super) fn get(&self, endpoint: &Endpoint, access: Access) -> Option<Arc<HeaderValue>> {
        let tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.get(&(endpoint.host.clone(), endpoint.repository.clone(), access)).cloned()
    }

    pub(super) fn put(&self, endpoint: &Endpoint, access: Access, token: Arc<HeaderValue>) {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= MAX_TOKENS {
            tokens.clear();
        }
        tokens.insert((endpoint.host.clone(), endpoint.repository.clone(), access), token);
    }
}

impl Client {
    /// The authorization that answers the challenge in a 401.
    pub(super) async fn authorize(
        &self,
        endpoint: &Endpoint,
        access: Access,
        response: Response,
    ) -> Result<HeaderValue> {
        // A response after a redirect is from another host, which gets no credentials of the
        // registry.
        let from = response.url().clone();
        let own = host_of(&from) == host_of(&endpoint.base);
        let challenges: Vec<String> = response
            .headers()
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| value.to_str().ok().map(str::to_owned))
            .collect();
        let challenges: Vec<_> =
            challenges.iter().filter_map(|value| http_auth::parse_challenges(value).ok()).flatten().collect();
        let of = |scheme: &str| challenges.iter().find(|challenge| challenge.scheme.eq_ignore_ascii_case(scheme));
        let credentials = self.credentials(&endpoint.host);
        if !own {
            return Err(refusal(response).await);
        }
        if let Some(challenge) = of("Bearer") {
            if let Some(Credentials::Token(token)) = credentials {
                return secret(&from, format!("Bearer {token}"));
            }
            let parameter = |name: &str| {
                challenge
                    .params
                    .iter()
                    .find(|(key, _)| key.eq_ignore_ascii_case(name))
                    .map(|(_, value)| value.to_unescaped())
            };
            let wrong = |reason: String| Error::Answer {
                url: without_query(&from),
                status: Some(401),
                reason,
                retry_after: None,
            };
            let realm = parameter("realm")
                .ok_or_else(|| wrong("its challenge names no `realm` to get a token from".to_owned()))?;
            let realm = Url::parse(&realm)
                .map_err(|error| wrong(format!("the realm `{realm}` of its challenge is no URL: {error}")))?;
            return self.token(endpoint, access, realm, parameter("service"), credentials).await;
        }
        match (of("Basic"), credentials) {
            (Some(_), Some(credentials)) => basic(&from, credentials),
            _ => Err(refusal(response).await),
        }
    }

    /// Requests a token from a token server.
    async fn token(
        &self,
        endpoint: &Endpoint,
        access: Access,
        realm: Url,
        service: Option<String>,
        credentials: Option<&Credentials>,
    ) -> Result<HeaderValue> {
        #[derive(serde::Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
        }
        let wrong = |reason: &str| Error::Answer {
            url: without_query(&realm),
            status: None,
            reason: reason.to_owned(),
            retry_after: None,
        };
        let insecure = host_of(&realm)
            .is_some_and(|host| self.settings.registries.registries.get(&host).is_some_and(|it| it.insecure));
        if realm.scheme() != "https" && !(realm.scheme() == "http" && insecure) {
            return Err(wrong("this token server is no HTTPS; list its host as insecure to allow that"));
        }
        self.check(endpoint, &realm)?;
        let actions = if access == Access::Pull { "pull" } else { "pull,push" };
        let scope = format!("repository:{}:{actions}", endpoint.repository);
        let mut parameters = vec![("scope", scope.as_str())];
        parameters.extend(service.as_deref().map(|service| ("service", service)));
        let request = match credentials {
            Some(Credentials::Identity(token)) => {
                parameters.extend([
                    ("grant_type", "refresh_token"),
                    ("client_id", "leno"),
                    ("refresh_token", token.as_str()),
                ]);
                self.http(endpoint).post(realm.clone()).form(&parameters)
            }
            Some(Credentials::Basic { username, password }) => {
                self.http(endpoint).get(realm.clone()).query(&parameters).basic_auth(username, Some(password))
            }
            Some(Credentials::Token(_)) | None => self.http(endpoint).get(realm.clone()).query(&parameters),
        };
        let response = request.send().await.map_err(|error| unreachable(&realm, error))?;
        let body = read(ok(response).await?, MAX_TOKEN_BYTES).await?;
        let token: Token = serde_json::from_slice(&body).map_err(|_| wrong("expected a JSON object with a `token`"))?;
        let filled = |token: Option<String>| token.filter(|token| !token.is_empty());
        let token =
            filled(token.token).or(filled(token.access_token)).ok_or_else(|| wrong("its answer has no `token`"))?;
        secret(&realm, format!("Bearer {token}"))
    }
}

fn basic(url: &Url, credentials: &Credentials) -> Result<HeaderValue> {
    match credentials {
        Credentials::Basic { username, password } => {
            secret(url, format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
        }
        Credentials::Token(token) => secret(url, format!("Bearer {token}")),
        Credentials::Identity(_) => Err(Error::Answer {
            url: without_query(url),
            status: Some(401),
            reason: "it wants a user name and a password; there is only an identity token".to_owned(),
            retry_after: None,
        }),
    }
}

fn secret(url: &Url, value: String) -> Result<HeaderValue> {
    let wrong = |_| Error::Answer {
        url: without_query(url),
        status: None,
        reason: "a token for it has characters that no header can carry".to_owned(),
        retry_after: None,
    };
    let mut value = HeaderValue::try_from(value).map_err(wrong)?;
    value.set_sensitive(true);
    Ok(value)
}
