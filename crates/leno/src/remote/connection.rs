//! Requests to a control plane.

use super::context::{Server, Target};
use crate::progress::Progress;
use crate::screen::shown;
use anyhow::{Context, Result, anyhow, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use leno_api::control::types::Refusal;
use leno_identity::{TrustedServers, handshake_failure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};

/// A change may wait for registries.
const LONGEST: Duration = Duration::from_secs(70);

/// A client for the API of a control plane.
pub(crate) struct Connection {
    target: Target,
    token: String,
    tls: TlsConnector,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The control plane refused the request.
    #[error("the control plane at {server} refused: {} ({})", shown(&refusal.error), status.as_u16())]
    Refused { server: String, status: StatusCode, refusal: Refusal },
    /// No control plane answered.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

impl Connection {
    pub(crate) fn to(server: &Server) -> Result<Self> {
        Self::of(server.required()?)
    }

    pub(crate) fn of(target: Target) -> Result<Self> {
        let token = target.token()?;
        let config = trusted(target.ca.as_deref())?.client_config()?.with_no_client_auth();
        Ok(Self { target, token, tls: TlsConnector::from(Arc::new(config)) })
    }

    /// The namespace of names without one.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.target.namespace.as_deref()
    }

    pub(crate) fn address(&self) -> &str {
        &self.target.server
    }

    /// Whether only the current context names the control plane.
    pub(crate) fn is_implied(&self) -> bool {
        self.target.implied
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        read(&self.ask(Method::GET, path, None)?)
    }

    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(anyhow::Error::from)?;
        let _waits = Progress::of(format!("waits for the control plane at {}", self.target.server));
        read(&self.ask(Method::POST, path, Some(body.into()))?)
    }

    pub(crate) fn delete(&self, path: &str) -> Result<(), Failure> {
        self.ask(Method::DELETE, path, None).map(drop)
    }

    fn ask(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Bytes, Failure> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::from)?;
        let (server, status, answer) = runtime.block_on(self.answer(&method, path, body))?;
        match refusal(status, &answer) {
            None => Ok(answer),
            Some(refusal) => Err(Failure::Refused { server, status, refusal }),
        }
    }

    /// The status and body of an answer.
    pub(crate) async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<(StatusCode, Bytes)> {
        let body = (!body.is_empty()).then_some(body);
        self.answer(&method, path, body).await.map(|(_, status, answer)| (status, answer))
    }

    /// Sends a request to the control plane, and if that names another leader, to the leader. Returns
    /// the server that has answered, too.
    async fn answer(&self, method: &Method, path: &str, body: Option<Bytes>) -> Result<(String, StatusCode, Bytes)> {
        let ask = async |server: &str| {
            let answer = timeout(LONGEST, self.once(server, method, path, body.clone())).await;
            answer.with_context(|| format!("{server} did not answer within {LONGEST:?}"))?
        };
        let server = self.target.server.trim_end_matches('/').to_owned();
        let (status, answer) = ask(&server).await?;
        match refusal(status, &answer) {
            Some(Refusal { leader: Some(leader), .. }) => {
                let (status, answer) = ask(&leader).await?;
                Ok((leader, status, answer))
            }
            _ => Ok((server, status, answer)),
        }
    }

    async fn once(
        &self,
        server: &str,
        method: &Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<(StatusCode, Bytes)> {
        let uri: Uri = server.parse().with_context(|| format!("`{}` is no address", shown(server)))?;
        ensure!(
            uri.scheme_str() == Some("https") && matches!(uri.path(), "" | "/"),
            "`{}` is no address of a control plane; expected https://HOST:PORT",
            shown(server)
        );
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(443);
        let stream = TcpStream::connect((host.as_str(), port)).await;
        let stream = stream.with_context(|| format!("no control plane answers at {server}"))?;
        let name = ServerName::try_from(host).with_context(|| format!("`{}` names no host", shown(server)))?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| {
            let reason = handshake_failure(&error).unwrap_or_else(|| error.to_string());
            anyhow!("{server} cannot be trusted to be a control plane (--ca names the certificates to trust): {reason}")
        })?;
        let broken = || format!("the control plane at {server} closed the connection");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", authority)
            .header("authorization", format!("Bearer {}", self.token));
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request.body(Full::new(body.unwrap_or_default()))?;
        let response = sender.send_request(request).await.with_context(broken)?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }
}

/// The reason of a refusal; `None`: the control plane did not refuse.
fn refusal(status: StatusCode, answer: &[u8]) -> Option<Refusal> {
    if status.is_success() {
        return None;
    }
    let in_words = || String::from_utf8_lossy(answer).trim_end().to_owned();
    let refusal = serde_json::from_slice(answer);
    Some(refusal.unwrap_or_else(|_| Refusal { error: in_words(), problems: Vec::new(), leader: None }))
}

fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Failure> {
    Ok(serde_json::from_slice(answer).context("the control plane's answer is not what this release expects")?)
}

fn trusted(ca: Option<&Path>) -> Result<TrustedServers> {
    let mut trusted = TrustedServers::default();
    match ca {
        Some(path) => {
            let failed = || format!("the certificates in {} cannot be read", path.display());
            let roots = leno_identity::roots(&std::fs::read(path).with_context(failed)?, UnixTime::now());
            let roots = roots.with_context(failed)?;
            for refused in &roots.refused {
                eprintln!("{}: {refused}; it is left out", path.display());
            }
            trusted.add(roots).with_context(failed)?;
        }
        None => {
            // Unreadable certificates of the machine do no harm, unless the needed root is among
            // them.
            trusted.add_machine(rustls_native_certs::load_native_certs().certs);
            ensure!(!trusted.is_empty(), "this machine trusts no certificates; give --ca FILE");
        }
    }
    Ok(trusted)
}
