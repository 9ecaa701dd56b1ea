//! The node's side of an instance: its inputs, and its counted resources.

use super::outbound::{Body, Outbound, StreamError};
use super::program::Settings;
use super::stdio::Output;
use http::uri::Scheme;
use http::{Request, Response};
use http_body_util::BodyExt;
use std::future::Future;
use wasmtime::component::ResourceTable;
use wasmtime::{ResourceLimiter, Result};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView};

/// The limit of resources of an instance at one time: requests, fields, streams, waits.
const MOST_RESOURCES: usize = 1024;
/// The limit of bytes of one set of header fields that it makes.
const LARGEST_FIELDS: usize = 64 * 1024;
/// The limit of bytes of a body in one write; as many are buffered for a slow reader.
const PIECE: usize = 64 * 1024;
/// The limit of random bytes in one call.
const MOST_RANDOM: u64 = 1024 * 1024;
/// The limit of elements of one table.
const LARGEST_TABLE: usize = 100_000;

/// The data that a store holds besides its instance.
pub(super) struct Host {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
    calls: Calls,
    limit: usize,
    /// Bytes of all memories of the instance.
    memory: usize,
    lacked_memory: bool,
}

impl Host {
    pub(super) fn new(settings: &Settings, outbound: Box<dyn Outbound>) -> Self {
        let mut wasi = WasiCtx::builder();
        wasi.envs(&settings.env)
            .stdout(Output::new(&settings.stdout, &settings.admits))
            .stderr(Output::new(&settings.stderr, &settings.admits))
            .max_random_size(MOST_RANDOM)
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false);
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(LARGEST_FIELDS);
        let mut table = ResourceTable::new();
        table.set_max_capacity(MOST_RESOURCES);
        let (limit, memory, lacked_memory) = (settings.memory, 0, false);
        Self { wasi: wasi.build(), http, table, calls: Calls(outbound), limit, memory, lacked_memory }
    }

    /// The memory limit of the instance, if it wanted more.
    pub(super) fn lacked_memory(&self) -> Option<usize> {
        self.lacked_memory.then_some(self.limit)
    }
}

impl ResourceLimiter for Host {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> Result<bool> {
        let memory = self.memory.saturating_add(desired.saturating_sub(current));
        if memory > self.limit {
            self.lacked_memory = true;
            return Ok(false);
        }
        self.memory = memory;
        Ok(true)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> Result<bool> {
        Ok(desired <= LARGEST_TABLE)
    }
}

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for Host {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, table: &mut self.table, hooks: &mut self.calls }
    }
}

/// The instance's outgoing calls.
struct Calls(Box<dyn Outbound>);

type Io = Box<dyn Future<Output = Result<(), Error>> + Send>;

impl WasiHttpHooks for Calls {
    /// The sidecar speaks TLS where it is needed.
    fn is_supported_scheme(&mut self, scheme: &Scheme) -> bool {
        *scheme == Scheme::HTTP
    }

    fn default_scheme(&mut self) -> Option<Scheme> {
        Some(Scheme::HTTP)
    }

    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Io,
    ) -> Box<dyn Future<Output = Result<(Response<WasiBody>, Io), Error>> + Send> {
        let request: Request<Body> =
            request.map(|body| body.map_err(|error| StreamError(error.to_string())).boxed_unsync());
        let sending = self.0.send(request);
        let limit = options.and_then(|options| options.first_byte_timeout);
        Box::new(async move {
            let sent = match limit {
                Some(limit) => tokio::time::timeout(limit, sending).await.map_err(|_| Error::ConnectionReadTimeout)?,
                None => sending.await,
            };
            let response = sent.map_err(|StreamError(reason)| Error::InternalError(Some(reason)))?;
            let done: Io = Box::new(std::future::ready(Ok(())));
            Ok((response.map(|body| body.map_err(|_| Error::ConnectionTerminated).boxed_unsync()), done))
        })
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        PIECE
    }
}
