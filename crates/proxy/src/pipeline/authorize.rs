//! Asks a function's external authorizers about a request that its program has permitted.
//!
//! The program selects the authorizers. Each is called as if an instance of the function called it:
//! by the function's outbound program, over the pool, to a function or to an external service,
//! whose policies judge the call. An answer can refuse the request, or set headers that the policy
//! names. If there is no valid answer, the proxy refuses the request.

pub(crate) mod answer;
mod by_route;
mod envoy;
mod question;

use crate::pipeline::exchange::{Arrival, Exchange, Origin};
use crate::pipeline::judge::{self, Judgement, PermittedRequest, Refusal};
use crate::pipeline::reply::OwnResponse;
use crate::state::authorizer::{Answer, Authorizer, AuthorizerRefusal};
use crate::state::function::FunctionEntry;
use crate::state::in_flight::InFlight;
use answer::{Names, NoAnswer};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, request};
use http_body_util::BodyExt;
use leno_http::body::{Body, grpc_status};
use leno_http::failure::Failure;
use leno_http::peer::Peer;
use leno_model::AuthorizerProtocol;
use leno_policy::outcome::PolicyKind;
use leno_policy::trace::TraceContext;
use leno_telemetry::exchange::{AuthorizerCheck, RecordedVerdict};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// Limit on the bytes of an answer's body.
const LARGEST_ANSWER: usize = 64 * 1024;

impl Exchange {
    /// Asks the authorizers that the program selected, one after the other, until one refuses.
    pub(super) async fn authorize(&self, mut permitted: PermittedRequest, bodiless: bool) -> Judgement {
        let began = Instant::now();
        let entry = permitted.entry().clone();
        let mut refusal = None;
        for index in permitted.take_asks() {
            // The judge has checked that the authorizer exists.
            let Some(authorizer) = entry.authorizers.get(usize::from(index)) else { continue };
            let started = Instant::now();
            let (answer, remembered) = self.answer_about(authorizer, &entry, &permitted, bodiless).await;
            let now = Instant::now();
            let check = |result: String| AuthorizerCheck {
                name: authorizer.spec.name.as_str().into(),
                result: result.into(),
                remembered,
                time: now.saturating_duration_since(started),
            };
            let (clause, refused) = match answer.as_deref() {
                Ok(Answer::Allows(edits)) => {
                    self.record.note(|observed| observed.authorizers.push(check("allowed".to_owned())));
                    permitted.edit(edits.clone(), &self.record);
                    continue;
                }
                Ok(Answer::Refuses(refused)) => (refused.clause(), self::refusal(refused)),
                Err(error) => {
                    let status = StatusCode::from_u16(authorizer.spec.status_on_error);
                    let status = status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
                    (error.to_string(), Refusal { status, headers: HeaderMap::new(), own: None })
                }
            };
            self.record.note(|observed| observed.authorizers.push(check(clause.clone())));
            let verdict = RecordedVerdict::Deny {
                policy: PolicyKind::ExternalAuthorization,
                rule: authorizer.spec.name.as_str().into(),
                default: false,
                clause: clause.into(),
            };
            if authorizer.spec.audit {
                judge::audit(&self.record, verdict);
                continue;
            }
            judge::overrule(&self.record, verdict);
            refusal = Some(refused);
            break;
        }
        judge::add_time(&self.record, began);
        match refusal {
            Some(refusal) => Judgement::Denied(refusal),
            None => Judgement::Permitted(permitted),
        }
    }

    /// The answer about a request, and whether it comes from the cache. If the path has several
    /// readings, the authorizer is asked about each. The answer about another reading counts only
    /// if it refuses.
    async fn answer_about(
        &self,
        authorizer: &Authorizer,
        entry: &Arc<FunctionEntry>,
        permitted: &PermittedRequest,
        bodiless: bool,
    ) -> (Result<Arc<Answer>, NoAnswer>, bool) {
        let others = match permitted.other_heads() {
            Ok(others) => others,
            Err(error) => return (Err(NoAnswer::NotAsked(error.to_string())), false),
        };
        let trace = permitted.trace();
        for about in &others {
            let (answer, remembered) = self.look_up_or_ask(authorizer, entry, (about, trace), bodiless).await;
            if !matches!(answer.as_deref(), Ok(Answer::Allows(_))) {
                return (answer, remembered);
            }
        }
        self.look_up_or_ask(authorizer, entry, (permitted.head(), trace), bodiless).await
    }

    async fn look_up_or_ask(
        &self,
        authorizer: &Authorizer,
        entry: &Arc<FunctionEntry>,
        (about, trace): (&request::Parts, Option<TraceContext>),
        bodiless: bool,
    ) -> (Result<Arc<Answer>, NoAnswer>, bool) {
        let key = question::key(authorizer, self, about);
        if let Some(known) = key.and_then(|key| authorizer.look_up(key, Instant::now())) {
            return (Ok(known), true);
        }
        let answer = self.ask_about(authorizer, entry, (about, trace), bodiless).await.map(Arc::new);
        if let (Ok(answer), Some(key)) = (&answer, key) {
            authorizer.remember(key, answer, Instant::now());
        }
        (answer, false)
    }

    async fn ask_about(
        &self,
        authorizer: &Authorizer,
        entry: &Arc<FunctionEntry>,
        (about, trace): (&request::Parts, Option<TraceContext>),
        bodiless: bool,
    ) -> Result<Answer, NoAnswer> {
        let spec = &authorizer.spec;
        let (head, body) = question::question(spec, self, about, self.callee_identity(entry), bodiless)
            .ok_or_else(|| NoAnswer::NotAsked(format!("`{}` is no authority", spec.authority)))?;
        let in_flight = Arc::new(InFlight::new(&self.request_id, trace, &about.headers));
        let asking = async {
            let answered = self.call_as(entry, in_flight, head, body).await?;
            let (issuers, names) = (&entry.inbound.spec.authentication, Names::Listed(&spec.upstream_headers));
            match spec.protocol {
                AuthorizerProtocol::Grpc => answer::of_grpc(spec, names, issuers, &succeeded(answered).await?),
                AuthorizerProtocol::Http => {
                    let (head, body) = answered.into_parts();
                    let (body, _) = collect(body).await?;
                    answer::of_http(spec, names, issuers, head.status, &head.headers, body)
                }
            }
        };
        tokio::time::timeout(spec.timeout, asking).await.unwrap_or(Err(NoAnswer::Timeout(spec.timeout)))
    }

    /// Makes a call with the identity of the function that the request is for.
    async fn call_as(
        &self,
        entry: &Arc<FunctionEntry>,
        in_flight: Arc<InFlight>,
        mut head: Box<request::Parts>,
        body: Body,
    ) -> Result<http::Response<Body>, NoAnswer> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let peer = Peer { identity: Some(entry.identity.clone()), address };
        let origin = Origin::Outbound(entry.clone(), None);
        let (worker, snapshot) = (self.worker.clone(), self.snapshot.clone());
        let arrival = Arrival {
            tells_own: true,
            is_unshared: true,
            // The worker's time stays charged to the function that it is charged to now.
            is_nested: true,
            ..Arrival::new(worker, snapshot, origin, peer, Some(in_flight))
        };
        let (exchange, admitted) = Self::call(arrival, &mut head);
        let response = match admitted {
            Ok(()) => {
                let body = body.count_in(exchange.record.meter());
                // The pipeline calls itself here. Without a box, its future would have no finite
                // size.
                Box::pin(exchange.run(head, body, None)).await
            }
            Err(malformed) => exchange.fail(malformed.into()),
        };
        let extensions = response.extensions();
        // A callee's sidecar behind TLS reports its failures in another way: as a `Failure`.
        let failure = || extensions.get().map(Failure::to_string);
        match extensions.get().map(|OwnResponse(reason)| reason.clone()).or_else(failure) {
            Some(reason) => Err(NoAnswer::NotAsked(reason)),
            None => Ok(response),
        }
    }
}

impl AuthorizerRefusal {
    fn clause(&self) -> String {
        let status = self.status.as_u16();
        if self.details.is_empty() {
            format!("it refused with {status}")
        } else {
            format!("it refused with {status}: {}", self.details)
        }
    }
}

/// The response that the client gets. If the authorizer sends no body, the mesh writes one.
fn refusal(AuthorizerRefusal { status, headers, body, .. }: &AuthorizerRefusal) -> Refusal {
    let own = (!body.is_empty() || status.is_redirection()).then(|| Box::new((body.clone(), None)));
    Refusal { status: *status, headers: headers.clone(), own }
}

/// The message of a gRPC call, if the call succeeded.
async fn succeeded(response: http::Response<Body>) -> Result<Bytes, NoAnswer> {
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(NoAnswer::Status(head.status.as_u16()));
    }
    if let Some(status @ 1..) = grpc_status(&head.headers) {
        return Err(NoAnswer::Grpc(status));
    }
    let (message, trailers) = collect(body).await?;
    match trailers.as_ref().and_then(grpc_status) {
        Some(0) => Ok(message),
        Some(status) => Err(NoAnswer::Grpc(status)),
        None => Err(NoAnswer::Malformed("its gRPC call has no status")),
    }
}

/// A whole body, and its trailers.
async fn collect(mut body: Body) -> Result<(Bytes, Option<HeaderMap>), NoAnswer> {
    let (mut whole, mut trailers) = (BytesMut::new(), None);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| NoAnswer::Broken(error.to_string()))?;
        match frame.into_data() {
            Ok(data) if whole.len() + data.len() > LARGEST_ANSWER => return Err(NoAnswer::TooLarge(LARGEST_ANSWER)),
            Ok(data) => whole.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok((whole.freeze(), trailers))
}
