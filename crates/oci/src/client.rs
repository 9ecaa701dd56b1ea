//! Speaks to registries: requests with the right credentials, and blobs whose download resumes
//! after a broken connection.

mod authorization;
mod blob;
mod check;
mod coding;
mod retry;

pub(crate) use blob::ReceiverGone;
pub use check::AddressCheck;

use crate::manifest::{self, Document, INDEX_TYPES, MANIFEST_TYPES};
use crate::registries::{Credentials, Registries, docker_credentials};
use crate::{Digest, Error, Result};
use authorization::Tokens;
use check::Lookup;
use coding::Coding;
use leno_files::{FileAccess, MAX_SMALL_FILE};
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, NoProxy, Proxy, Response, StatusCode, redirect};
use retry::RetryBudget;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// How often a registry may redirect one request.
const MAX_REDIRECTS: usize = 5;
/// How much of an error's text is read.
const MAX_ERROR_BYTES: usize = 8 << 10;

/// The digest of a manifest, as the registry understands it.
const DOCKER_CONTENT_DIGEST: &str = "docker-content-digest";

const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";

pub(crate) struct Client {
    http: reqwest::Client,
    /// For registries that have their own certificate authorities, by host.
    own: BTreeMap<String, reqwest::Client>,
    /// For registries that the settings do not name.
    other: reqwest::Client,
    /// The address check of `other`.
    check: AddressCheck,
    settings: Arc<Settings>,
}

struct Settings {
    registries: Registries,
    /// The certificate authorities of all registries.
    tls: rustls::ClientConfig,
    /// Credentials from the Docker configuration, by host.
    found: BTreeMap<String, Credentials>,
    tokens: Tokens,
}

/// A repository in a registry, or in one of its mirrors.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// The host as configured. Credentials are looked up by it.
    host: String,
    /// The address of the API. It ends in `/v2/`.
    base: Url,
    repository: String,
    /// It is a mirror, after which another endpoint is asked.
    is_mirror: bool,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)
    }
}

impl Endpoint {
    pub(crate) fn url(&self, rest: &str) -> Result<Url> {
        let path = format!("{}/{rest}", self.repository);
        self.base
            .join(&path)
            .map_err(|error| Error::Settings { place: format!("registry {}", self.host), reason: error.to_string() })
    }
}

/// The kind of access to a repository; part of a token's scope.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    Pull,
    Push,
}

/// A request that can be sent again, with other credentials.
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<&'a (dyn Fn() -> reqwest::Body + Sync)>,
}

impl Request<'_> {
    pub(crate) fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: None }
    }
}

impl Client {
    pub(crate) fn new(registries: Registries) -> Result<Self> {
        let found = registries.docker_config.as_deref();
        let found = found.map(|path| docker_credentials(path, &registries.files)).transpose()?.unwrap_or_default();
        let bundle = registries.ca_bundle.as_deref().map(|file| (file, &FileAccess::Any));
        let tls = tls(bundle.into_iter())?;
        let any = AddressCheck::default();
        let http = http(&registries, tls.clone(), &any)?;
        let own = registries.registries.iter().filter_map(|(host, registry)| {
            let file = registry.ca_file.as_deref()?;
            let tls = self::tls(bundle.into_iter().chain([(file, &registries.files)]));
            Some(tls.and_then(|tls| self::http(&registries, tls, &any)).map(|http| (host.clone(), http)))
        });
        let own = own.collect::<Result<_>>()?;
        let settings = Arc::new(Settings { registries, tls, found, tokens: Tokens::default() });
        Ok(Self { other: http.clone(), http, own, check: any, settings })
    }

    /// The same client, for an image that is not named by the operator.
    pub(crate) fn checked(&self, check: &AddressCheck) -> Result<Self> {
        let settings = self.settings.clone();
        let other = match check.is_any() {
            true => self.http.clone(),
            false => http(&settings.registries, settings.tls.clone(), check)?,
        };
        Ok(Self { http: self.http.clone(), own: self.own.clone(), other, check: check.clone(), settings })
    }

    /// The HTTP client for this registry, and for the hosts that it redirects to.
    fn http(&self, endpoint: &Endpoint) -> &reqwest::Client {
        match self.own.get(&endpoint.host) {
            Some(own) => own,
            None if self.is_named(endpoint) => &self.http,
            None => &self.other,
        }
    }

    /// Whether the operator's settings name this host: as a registry, as a mirror of one, or as the default.
    fn is_named(&self, endpoint: &Endpoint) -> bool {
        let Registries { default_registry, registries, .. } = &self.settings.registries;
        default_registry.as_ref() == Some(&endpoint.host)
            || registries
                .iter()
                .any(|(host, registry)| *host == endpoint.host || registry.mirrors.contains(&endpoint.host))
    }

    /// Refuses a URL with an address that may not be connected to.
    fn check(&self, endpoint: &Endpoint, url: &Url) -> Result<()> {
        let refused = |reason: check::Reason| Error::Unreachable {
            url: without_query(url),
            reason: reason.to_string(),
            is_lost: false,
        };
        if self.is_named(endpoint) { Ok(()) } else { self.check.url(url).map_err(refused) }
    }

    /// The mirrors of a registry in their order, and then the registry itself.
    pub(crate) fn endpoints(&self, registry: &str, repository: &str) -> Result<Vec<Endpoint>> {
        let mirrors = self.settings.registries.registries.get(registry).map_or(&[][..], |registry| &registry.mirrors);
        let mut endpoints = Vec::new();
        for host in mirrors {
            endpoints.push(Endpoint { is_mirror: true, ..self.endpoint(host, repository)? });
        }
        endpoints.push(self.endpoint(registry, repository)?);
        Ok(endpoints)
    }

    fn endpoint(&self, host: &str, repository: &str) -> Result<Endpoint> {
        let scheme = if self.settings.registries.registries.get(host).is_some_and(|registry| registry.insecure) {
            "http"
        } else {
            "https"
        };
        // Docker Hub's registry has another host name than its images.
        let address = if host == "docker.io" { "registry-1.docker.io" } else { host };
        let wrong = |reason: String| Error::Settings { place: format!("registry `{host}`"), reason };
        let base = Url::parse(&format!("{scheme}://{address}/v2/")).map_err(|error| wrong(error.to_string()))?;
        if base.host_str().is_none()
            || base.path() != "/v2/"
            || !base.username().is_empty()
            || base.password().is_some()
        {
            return Err(wrong("expected a host, or a host and `:port`".to_owned()));
        }
        Ok(Endpoint { host: host.to_owned(), base, repository: repository.to_owned(), is_mirror: false })
    }

    fn credentials(&self, host: &str) -> Option<&Credentials> {
        let Settings { registries, found, .. } = &*self.settings;
        let configured = registries.registries.get(host).and_then(|registry| registry.credentials.as_ref());
        configured.or_else(|| found.get(host))
    }

    /// Waits for the complete answer of a registry, within `answer_timeout`.
    async fn whole<T>(&self, url: &Url, answer: impl Future<Output = Result<T>>) -> Result<T> {
        within(self.settings.registries.answer_timeout, url, answer).await
    }

    /// The manifest or index that a tag names now. An answer counts only if it can be parsed: a
    /// caller that pins the tag to an unreadable document finds nothing later.
    pub(crate) async fn tag(&self, endpoint: &Endpoint, tag: &str, image: &str, limit: usize) -> Result<Vec<u8>> {
        let request = manifest_request(endpoint, tag)?;
        let Registries { answer_timeout, mirror_timeout, .. } = self.settings.registries;
        let time = if endpoint.is_mirror { mirror_timeout.min(answer_timeout) } else { answer_timeout };
        let mut budget = RetryBudget::new(self, endpoint);
        loop {
            match within(time, &request.url, self.understood(endpoint, &request, image, limit)).await {
                Err(error) => budget.wait(error).await?,
                Ok(bytes) => return Ok(bytes),
            }
        }
    }

    /// An answer that is a manifest or an index, and does not contradict its own headers.
    async fn understood(
        &self,
        endpoint: &Endpoint,
        request: &Request<'_>,
        image: &str,
        limit: usize,
    ) -> Result<Vec<u8>> {
        let response = ok(self.send(endpoint, Access::Pull, request).await?).await?;
        let (headers, url) = (response.headers().clone(), without_query(response.url()));
        let bytes = read(response, limit).await?;
        let document = manifest::read(image, &bytes)?;
        match contradiction(&headers, &bytes, &document) {
            None => Ok(bytes),
            Some(reason) => Err(Error::Answer { url, status: None, reason, retry_after: None }),
        }
    }

    /// A manifest or index by its digest, which the caller verifies.
    pub(crate) async fn manifest(&self, endpoint: &Endpoint, digest: Digest, limit: usize) -> Result<Vec<u8>> {
        self.small(endpoint, &manifest_request(endpoint, &digest.to_string())?, limit).await
    }

    /// Fetches a blob that fits into memory. The caller verifies its digest.
    pub(crate) async fn small_blob(&self, endpoint: &Endpoint, digest: Digest, limit: usize) -> Result<Vec<u8>> {
        self.small(endpoint, &Request::new(Method::GET, endpoint.url(&format!("blobs/{digest}"))?), limit).await
    }

    async fn small(&self, endpoint: &Endpoint, request: &Request<'_>, limit: usize) -> Result<Vec<u8>> {
        let mut budget = RetryBudget::new(self, endpoint);
        loop {
            let answer = async { read(ok(self.send(endpoint, Access::Pull, request).await?).await?, limit).await };
            match self.whole(&request.url, answer).await {
                Err(error) => budget.wait(error).await?,
                Ok(bytes) => return Ok(bytes),
            }
        }
    }

    /// Sends a request. If the registry demands credentials, it is sent again with them. A response
    /// with any status is returned.
    pub(crate) async fn send(&self, endpoint: &Endpoint, access: Access, request: &Request<'_>) -> Result<Response> {
        let known = self.settings.tokens.get(endpoint, access);
        let response = self.send_with(endpoint, request, known).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        // A cached token may have expired.
        let authorization = Arc::new(self.authorize(endpoint, access, response).await?);
        self.settings.tokens.put(endpoint, access, authorization.clone());
        self.send_with(endpoint, request, Some(authorization)).await
    }

    async fn send_with(
        &self,
        endpoint: &Endpoint,
        request: &Request<'_>,
        authorization: Option<Arc<HeaderValue>>,
    ) -> Result<Response> {
        self.check(endpoint, &request.url)?;
        let mut builder =
            self.http(endpoint).request(request.method.clone(), request.url.clone()).headers(request.headers.clone());
        if let Some(authorization) = authorization {
            builder = builder.header(AUTHORIZATION, (*authorization).clone());
        }
        if let Some(body) = request.body {
            builder = builder.body(body());
        }
        builder.send().await.map_err(|error| unreachable(&request.url, error))
    }
}

fn manifest_request(endpoint: &Endpoint, reference: &str) -> Result<Request<'static>> {
    let mut request = Request::new(Method::GET, endpoint.url(&format!("manifests/{reference}"))?);
    request.headers.insert(ACCEPT, HeaderValue::from_static(MANIFESTS));
    Ok(request)
}

/// Describes how the headers of a manifest's answer contradict its bytes, if they do.
fn contradiction(headers: &HeaderMap, bytes: &[u8], document: &Document) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().trim();
    let found = Digest::of(bytes);
    // Digests by other algorithms are not checked.
    if let Ok(said) = text(DOCKER_CONTENT_DIGEST).parse::<Digest>()
        && said != found
    {
        return Some(format!("it says that the manifest is {said}, and sends {found}"));
    }
    let said = text(CONTENT_TYPE.as_str()).split(';').next().unwrap_or_default().trim();
    let other = if matches!(document, Document::Index(_)) { MANIFEST_TYPES } else { INDEX_TYPES };
    other.contains(&said).then(|| format!("it says that the manifest is `{said}`, and sends something else"))
}

async fn within<T>(limit: Duration, url: &Url, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| {
        let reason = format!("no whole answer within {limit:?}");
        Err(Error::Unreachable { url: without_query(url), reason, is_lost: false })
    };
    tokio::time::timeout(limit, answer).await.unwrap_or_else(late)
}

/// An HTTP client that connects to addresses that pass the check, and verifies servers by these
/// authorities.
fn http(registries: &Registries, tls: rustls::ClientConfig, check: &AddressCheck) -> Result<reqwest::Client> {
    let insecure: Vec<String> =
        registries.registries.iter().filter(|(_, registry)| registry.insecure).map(|(host, _)| host.clone()).collect();
    // Between hosts, reqwest itself takes the credentials off.
    let checked = check.clone();
    let redirects = redirect::Policy::custom(move |attempt| {
        let url = attempt.url();
        let plain = url.scheme() != "https" && !host_of(url).is_some_and(|host| insecure.contains(&host));
        if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error(format!("more than {MAX_REDIRECTS} redirects"))
        } else if plain {
            let reason = format!(
                "redirected to {}, which is no HTTPS; list its host as insecure to allow that",
                without_query(url)
            );
            attempt.error(reason)
        } else if let Err(reason) = checked.url(url) {
            let reason = format!("redirected to {}: {reason}", without_query(url));
            attempt.error(reason)
        } else {
            attempt.follow()
        }
    });
    // Digests are of the bytes as sent, so nothing is to be compressed on the way.
    let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("identity"))]);
    let mut builder = reqwest::Client::builder()
        .default_headers(headers)
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("leno/", env!("CARGO_PKG_VERSION")))
        .redirect(redirects)
        .referer(false)
        .connect_timeout(registries.connect_timeout)
        .read_timeout(registries.idle_timeout)
        // A connection carries one request, so a late or second answer of a registry cannot resolve another tag.
        .pool_max_idle_per_host(0)
        .no_proxy();
    let proxies = &registries.proxies;
    if !check.is_any() {
        let host = |url: &String| Some(Url::parse(url).ok()?.host_str()?.to_owned());
        let proxies = [&proxies.https_proxy, &proxies.http_proxy].into_iter().flatten().filter_map(host).collect();
        builder = builder.dns_resolver(Arc::new(Lookup { check: check.clone(), proxies }));
    }
    let except = proxies.no_proxy.as_deref().and_then(NoProxy::from_string);
    type MakeProxy = fn(&str) -> reqwest::Result<Proxy>;
    let kinds: [(&str, &Option<String>, MakeProxy); 2] = [
        ("HTTPS_PROXY", &proxies.https_proxy, |url| Proxy::https(url)),
        ("HTTP_PROXY", &proxies.http_proxy, |url| Proxy::http(url)),
    ];
    for (name, url, proxy) in kinds {
        if let Some(url) = url {
            let wrong = |error: reqwest::Error| Error::Settings {
                place: name.to_owned(),
                reason: causes(&error.without_url()),
            };
            builder = builder.proxy(proxy(url).map_err(wrong)?.no_proxy(except.clone()));
        }
    }
    builder.build().map_err(|error| Error::Settings { place: "registries".to_owned(), reason: causes(&error) })
}

/// The machine's certificate authorities, and those of these files.
fn tls<'a>(files: impl Iterator<Item = (&'a Path, &'a FileAccess)>) -> Result<rustls::ClientConfig> {
    use rustls::pki_types::UnixTime;
    let mut trusted = leno_identity::TrustedServers::default();
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::warn!(%error, "certificate authorities of this machine are left out");
    }
    trusted.add_machine(native.certs);
    for (path, access) in files {
        let wrong = |reason: String| Error::Settings { place: path.display().to_string(), reason };
        let pem = leno_files::read(path, access, MAX_SMALL_FILE);
        let pem = pem.map_err(Error::io("cannot read the certificate authorities", path))?;
        let found = leno_identity::roots(&pem, UnixTime::now()).map_err(|error| wrong(error.to_string()))?;
        for refused in &found.refused {
            tracing::warn!("{}: {refused}; it is left out", path.display());
        }
        trusted.add(found).map_err(|error| wrong(error.to_string()))?;
    }
    let wrong = |error: rustls::Error| Error::Settings { place: "TLS".to_owned(), reason: error.to_string() };
    Ok(trusted.client_config().map_err(wrong)?.with_no_client_auth())
}

/// The response, if it is a success.
pub(crate) async fn ok(response: Response) -> Result<Response> {
    if response.status().is_success() { Ok(response) } else { Err(refusal(response).await) }
}

/// The error of a registry's response, with the registry's own messages.
pub(crate) async fn refusal(mut response: Response) -> Error {
    #[derive(serde::Deserialize)]
    struct Errors {
        errors: Vec<Reason>,
    }
    #[derive(serde::Deserialize)]
    struct Reason {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let (status, url) = (response.status(), without_query(response.url()));
    let retry_after = retry::retry_after(response.headers());
    let mut text = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        if text.len() + chunk.len() > MAX_ERROR_BYTES {
            break;
        }
        text.extend_from_slice(&chunk);
    }
    let mut reason = format!("the registry answers {status}");
    if let Ok(Errors { errors }) = serde_json::from_slice(&text) {
        for error in errors.iter().take(3) {
            let said: String =
                format!("{} {}", error.code, error.message).chars().filter(|c| !c.is_control()).take(200).collect();
            reason.push_str(&format!(": {}", said.trim()));
        }
    }
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        reason.push_str("; check the credentials for this registry");
    }
    if let Some(wait) = retry_after {
        reason.push_str(&format!("; it wants to be asked again in {} s", wait.as_secs()));
    }
    Error::Answer { url, status: Some(status.as_u16()), reason, retry_after }
}

/// The body, decoded, if it is no longer than `limit`.
async fn read(mut response: Response, limit: usize) -> Result<Vec<u8>> {
    let url = response.url().clone();
    let wrong = |reason| Error::Answer { url: without_query(&url), status: None, reason, retry_after: None };
    let too_long = || wrong(format!("the answer is longer than {limit} bytes"));
    let coding = Coding::of(&response)?;
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Err(too_long());
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| unreachable(&url, error))? {
        if body.len() + chunk.len() > limit {
            return Err(too_long());
        }
        body.extend_from_slice(&chunk);
    }
    let decoded =
        coding.decode(body, limit).map_err(|error| wrong(format!("its {coding:?} coding is broken: {error}")));
    decoded?.ok_or_else(too_long)
}

pub(crate) fn unreachable(url: &Url, error: reqwest::Error) -> Error {
    let is_lost = retry::is_lost(&error);
    Error::Unreachable { url: without_query(url), reason: causes(&error.without_url()), is_lost }
}

/// Queries of blob stores contain signatures, which are as good as a password.
fn without_query(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.to_string()
}

fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(reason) = leno_identity::handshake_failure(error) {
        return reason;
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// The host as in the configuration: with its port, if that is not the scheme's own.
fn host_of(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}
