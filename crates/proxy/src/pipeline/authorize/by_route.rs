//! Asks the authorizers of a route about a request, before any policy judges it. So the policies
//! judge the request with the header fields that the answers set.
//!
//! A question is a call like a copy of the request: of the caller, or of the client at a gateway.
//! The policies of the authorizer decide about it.

use super::answer::{self, Names, NoAnswer};
use super::{collect, question, refusal, succeeded};
use crate::pipeline::exchange::Exchange;
use crate::pipeline::judge::{self, Refusal};
use crate::pipeline::reply::OwnResponse;
use crate::pipeline::route::Route;
use crate::pipeline::route::followed::FollowedRoute;
use crate::state::authorizer::Answer;
use http::{HeaderMap, HeaderName, StatusCode, request};
use leno_http::edits::{self, Edit};
use leno_http::failure::Failure;
use leno_http::head;
use leno_model::{AuthorizerProtocol, RouteAuthorizer};
use leno_policy::outcome::PolicyKind;
use leno_policy::reserved::is_same;
use leno_policy::spec::Protocol;
use leno_telemetry::exchange::{AuthorizerCheck, JudgementRecord, RecordedVerdict};
use std::time::{Duration, Instant};

/// Removes all fields that a function may take for this one.
fn remove_same(headers: &mut HeaderMap, name: &str) {
    let same = |other: &&HeaderName| is_same(other.as_str().as_bytes(), name.as_bytes());
    let found: Vec<HeaderName> = headers.keys().filter(same).cloned().collect();
    found.iter().for_each(|name| drop(headers.remove(name)));
}

impl Exchange {
    /// Asks the authorizers of the route that the request follows, one after the other, until one
    /// refuses. Sets the header fields of their answers.
    pub(crate) async fn ask_of_route(
        &self,
        route: &Route,
        followed: &FollowedRoute,
        head: &mut request::Parts,
        bodiless: bool,
    ) -> Result<(), Refusal> {
        for asked in followed.authorizers() {
            let spec = &asked.authorizer;
            // Clients cannot set these fields: they are the answer's.
            spec.upstream_headers.iter().for_each(|name| remove_same(&mut head.headers, name));
            let started = Instant::now();
            let asking = self.question_of_route(asked, (route, followed), head, bodiless);
            let answer =
                tokio::time::timeout(spec.timeout, asking).await.unwrap_or(Err(NoAnswer::Timeout(spec.timeout)));
            let time = started.elapsed();
            let (clause, refused) = match answer {
                Ok(Answer::Allows(edits)) => {
                    self.note_check(spec, "allowed", time);
                    for name in edits.iter().map(Edit::name) {
                        remove_same(&mut head.headers, name.as_str());
                    }
                    edits::apply(edits, &mut head.headers);
                    continue;
                }
                Ok(Answer::Refuses(refused)) => (refused.clause(), refusal(&refused)),
                Err(error) => {
                    let status = StatusCode::from_u16(spec.status_on_error).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
                    (error.to_string(), Refusal { status, headers: HeaderMap::new(), own: None })
                }
            };
            self.note_check(spec, &clause, time);
            self.note_refusal(route, spec, clause, time);
            return Err(refused);
        }
        Ok(())
    }

    fn note_check(&self, spec: &leno_model::Authorizer, result: &str, time: Duration) {
        let (name, result) = (spec.name.as_str().into(), result.into());
        let check = AuthorizerCheck { name, result, remembered: false, time };
        self.record.note(|observed| observed.authorizers.push(check));
    }

    /// Records the verdict of an authorizer on a request that no program has judged.
    fn note_refusal(&self, route: &Route, spec: &leno_model::Authorizer, clause: String, time: Duration) {
        let verdict = RecordedVerdict::Deny {
            policy: PolicyKind::ExternalAuthorization,
            rule: spec.name.as_str().into(),
            default: false,
            clause: clause.into(),
        };
        let function = route.judge.name.clone();
        self.record.note(|observed| {
            observed.judged = Some(JudgementRecord {
                function,
                engine: None,
                remembered: false,
                runs: 0,
                run_time: Duration::ZERO,
                time,
                verdict: verdict.clone(),
                audit: None,
                principal: None,
                path_changed: false,
                as_received: false,
            });
        });
        judge::overrule(&self.record, verdict);
    }

    async fn question_of_route(
        &self,
        asked: &RouteAuthorizer,
        (of_request, followed): (&Route, &FollowedRoute),
        about: &request::Parts,
        bodiless: bool,
    ) -> Result<Answer, NoAnswer> {
        let RouteAuthorizer { target, authorizer, sets_all } = asked;
        let own_host = authorizer.authority.is_empty().then(|| head::authority(about).to_owned());
        let spec = &match own_host {
            Some(authority) => leno_model::Authorizer { authority, ..authorizer.clone() },
            None => authorizer.clone(),
        };
        let not_asked = |reason: String| NoAnswer::NotAsked(reason);
        let route = followed.mirrored(self, target).ok_or_else(|| not_asked("this node cannot reach it".to_owned()))?;
        let callee = of_request.target_identity().unwrap_or_default();
        let (mut head, body) = question::question(spec, self, about, &callee, bodiless)
            .ok_or_else(|| not_asked(format!("`{}` is no authority", spec.authority)))?;
        let protocol = match spec.protocol {
            AuthorizerProtocol::Grpc => Protocol::Grpc,
            AuthorizerProtocol::Http => Protocol::Http1,
        };
        let exchange = self.for_question(protocol, target, &mut head);
        let body = body.count_in(exchange.record.meter());
        // The pipeline calls itself here. Without a box, its future would have no finite size.
        let answered = Box::pin(exchange.run(head, body, Some(Box::new(route)))).await;
        let extensions = answered.extensions();
        let failure = || extensions.get().map(Failure::to_string);
        if let Some(reason) = extensions.get().map(|OwnResponse(reason)| reason.clone()).or_else(failure) {
            return Err(not_asked(reason));
        }
        let names = if *sets_all { Names::All } else { Names::Listed(&spec.upstream_headers) };
        match spec.protocol {
            AuthorizerProtocol::Grpc => answer::of_grpc(spec, names, &[], &succeeded(answered).await?),
            AuthorizerProtocol::Http => {
                let (head, body) = answered.into_parts();
                let (body, _) = collect(body).await?;
                answer::of_http(spec, names, &[], head.status, &head.headers, body)
            }
        }
    }
}
