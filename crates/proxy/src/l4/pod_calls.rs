//! Connections that programs of pods open. Nothing is judged here: the node of the callee judges.

use super::ResetUnlessDone;
use crate::pipeline::worker::Worker;
use crate::state::destinations::{Call, Chosen, Transport, Way};
use crate::state::pods::{CallerEntry, ServedPod, canonical};
use leno_runtime::schedule::{self, Class};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Endpoints of a Service that one connection tries. Nothing was sent to those that refuse it.
const MAX_TRIES: usize = 4;
/// How long an endpoint may take to accept a connection, if the Service has others.
const ACCEPT: Duration = Duration::from_secs(3);

/// Connects a program's connection on to its callee, and copies bytes until both ends are
/// done.
pub(crate) async fn connect_on(worker: &Worker, pod: &Arc<ServedPod>, stream: TcpStream) {
    schedule::charge(Class::of(&pod.function().to_string()));
    let mut stream = ResetUnlessDone { stream, done: false };
    let connected = match stream.stream.local_addr() {
        Ok(called) => connect(worker, pod, canonical(called)).await,
        Err(error) => Err(error),
    };
    let (upstream, held) = match connected {
        Ok(connected) => connected,
        Err(error) => return tracing::debug!(pod = &*pod.name, %error, "a connection of a pod has failed"),
    };
    let transport = match &held.1 {
        Some(chosen) => worker.node.destinations.transport(chosen.pod.as_ref()),
        None => Transport::Cluster,
    };
    worker.node.destinations.count(pod.namespace(), transport);
    let _ = upstream.set_nodelay(true);
    let mut upstream = ResetUnlessDone { stream: upstream, done: false };
    // The entries end before the socket does: another connection may have its address then.
    let _held = held;
    let copied = copy_bidirectional(&mut stream.stream, &mut upstream.stream).await;
    (stream.done, upstream.done) = (copied.is_ok(), copied.is_ok());
}

/// The entries in which pods of this node find the caller; `None`: the pod calls itself.
type Entries<'a> = Option<(CallerEntry<'a>, Box<dyn Send>)>;

/// A connection, with values that stay as long as it is open.
type Connected<'a> = (TcpStream, (Entries<'a>, Option<Chosen>));

/// Connects to the address that was called, or to an endpoint of the Service that has it.
async fn connect<'a>(worker: &'a Worker, pod: &Arc<ServedPod>, called: SocketAddr) -> io::Result<Connected<'a>> {
    let mut tried = Vec::new();
    let mut failed = None;
    loop {
        let client = pod.address_like(called.ip()).unwrap_or(called.ip());
        let call = Call { called, client, namespace: pod.namespace(), tried: &tried };
        let below = |count: u64| worker.random.up_to(count.saturating_sub(1));
        let chosen = match worker.node.destinations.find(call, below).await {
            Way::Called => return dial(worker, pod, called).await.map(|(stream, held)| (stream, (held, None))),
            Way::NoEndpoint(service) => {
                let none = || io::Error::new(ErrorKind::ConnectionRefused, format!("{service} has no endpoint"));
                return Err(failed.unwrap_or_else(none));
            }
            Way::Endpoint(chosen) => chosen,
        };
        let address = chosen.address;
        let may_pass_over = chosen.has_others && tried.len() + 1 < MAX_TRIES;
        let dialled = match may_pass_over {
            true => timeout(ACCEPT, dial(worker, pod, address)).await,
            false => Ok(dial(worker, pod, address).await),
        };
        let error = match dialled.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
            Ok((stream, held)) => return Ok((stream, (held, Some(chosen)))),
            Err(error) => error,
        };
        if chosen.service.is_none() || tried.len() + 1 >= MAX_TRIES {
            return Err(error);
        }
        tracing::debug!(pod = &*pod.name, %address, %error, "an endpoint has refused a connection");
        tried.push(address);
        failed = Some(error);
    }
}

/// Connects from the pod's network and address.
async fn dial<'a>(
    worker: &'a Worker,
    pod: &Arc<ServedPod>,
    address: SocketAddr,
) -> io::Result<(TcpStream, Entries<'a>)> {
    if pod.has_address(address.ip()) {
        // A pod that calls itself by its Service: its connections to itself are not captured.
        let client = SocketAddr::new(address.ip(), 0);
        return Ok((pod.network().connect_in(address, client).await?, None));
    }
    let bound = pod.network().bind_out(address).await?;
    // From here on, a pod of this node knows who calls.
    let entries = (worker.node.pod_callers.enter(bound.local, pod), bound.known);
    Ok((bound.dial.await?, Some(entries)))
}
