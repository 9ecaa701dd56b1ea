//! Forwards a permitted request to an external service.

use super::send::Endpoints;
use super::{Forward, Reply, UpstreamGuard};
use crate::pipeline::pool::{CalleeKey, ConnectionKey};
use crate::state::egress::EgressTarget;
use crate::state::function::FunctionEntry;
use http::request;
use http::uri::Scheme;
use leno_http::body::Body;
use leno_http::failure::Failure;
use leno_http::head;
use leno_model::EgressProtocol;
use leno_model::egress::authority;
use leno_telemetry::exchange::Stage;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

impl Forward<'_> {
    /// Sends the request to an external service.
    pub(super) async fn to_egress(
        &self,
        entry: &FunctionEntry,
        external: &EgressTarget,
        mut head: Box<request::Parts>,
        body: Body,
        avoid: &[SocketAddr],
    ) -> Result<Reply, Failure> {
        let exchange = self.exchange;
        let port = external.egress.http_port(exchange.port).ok_or(Failure::NoHttp(exchange.port))?;
        if exchange.upgrade && port.http2 {
            return Err(Failure::Protocol("it speaks HTTP/2, over which no WebSocket is opened to the outside"));
        }
        let host = head::host(&head).into_owned();
        let node = &exchange.worker.node;
        let found = external.addresses(&node.resolver, &node.machines, &host).await?;
        let mut addresses: VecDeque<_> = found.iter().map(|ip| SocketAddr::new(*ip, port.number)).collect();
        let (target, now) = (&self.permit.target, Instant::now());
        addresses.retain(|address| !target.ejected(*address, now));
        // The addresses that were tried before come last.
        addresses.make_contiguous().sort_by_key(|address| avoid.contains(address));
        let address = addresses.pop_front().ok_or(Failure::Ejected)?;
        let tls = port.protocol == EgressProtocol::Https;
        let key = external.key(&host, tls, port.http2).await?;
        let credentials = external.credentials().await?;
        self.endpoint.set(Some(address));
        exchange.record.stage(Stage::Upstream);
        let authority = authority(&host, port);
        head::leave_mesh(&mut head, &authority, external.egress.trace_context);
        for (name, value) in credentials {
            head::set_alone(&mut head.headers, name, value);
        }
        let key = ConnectionKey { address, callee: CalleeKey::Egress(key) };
        let limit = external.egress.connect_timeout;
        let share = exchange.caller_share().or(entry.share());
        let endpoints = Endpoints { key, others: addresses, lease: Some(&()), limit, share };
        let (response, connection) = if port.http2 {
            let scheme = if tls { Scheme::HTTPS } else { Scheme::HTTP };
            self.send_http2_as(&scheme, Some(entry), endpoints, head, body.deliver(&external.not_in_trailers)).await?
        } else {
            self.send_http1(entry, endpoints, head, body.deliver(&external.not_in_trailers)).await?
        };
        let guard = UpstreamGuard { connection: Some(connection), ..UpstreamGuard::default() };
        Ok(Reply { response: response.map(Body::from), guard })
    }
}
