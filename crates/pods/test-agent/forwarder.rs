//! Forwards the connections of a captured pod.

use leno_pods::{CapturedPod, PodDialer};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// A connection that arrived at the agent: whether it goes out of the pod, its source and its
/// destination.
pub(crate) type Arrival = (bool, SocketAddr, SocketAddr);

/// An agent that forwards everything.
#[derive(Debug)]
pub(crate) struct Forwarder {
    pod: CapturedPod,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    /// The tasks that accept, and the one that follows the interfaces.
    accepting: usize,
    runtime: Runtime,
}

#[allow(dead_code, reason = "the program does not use all of it")]
impl Forwarder {
    /// Begins to accept connections.
    pub(crate) fn start(pod: CapturedPod) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let arrivals = Arc::<Mutex<Vec<Arrival>>>::default();
        let follow = pod.interfaces().clone().follow(|error| eprintln!("an interface is not captured: {error}"));
        runtime.spawn(follow);
        let mut accepting = 1;
        for (out, listeners) in [(true, pod.outbound()), (false, pod.inbound())] {
            for listener in listeners.iter() {
                let _inside = runtime.enter();
                let listener = TcpListener::from_std(listener.try_clone().unwrap()).unwrap();
                runtime.spawn(accept(out, listener, pod.dialer().clone(), arrivals.clone()));
                accepting += 1;
            }
        }
        Self { pod, arrivals, accepting, runtime }
    }

    /// The pod.
    pub(crate) fn pod(&self) -> &CapturedPod {
        &self.pod
    }

    /// The connections that have arrived so far.
    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until no connection has been open for a while.
    fn drain(runtime: &Runtime, accepting: usize) {
        let mut idle = 0;
        while idle < 20 {
            idle = if runtime.metrics().num_alive_tasks() > accepting { 0 } else { idle + 1 };
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the capture. Open connections go on until they end.
    pub(crate) fn release(self) {
        self.pod.stop().unwrap();
        Self::drain(&self.runtime, self.accepting);
        self.pod.release().unwrap();
    }

    /// Ends when all connections that arrived before the next agent took over have ended.
    pub(crate) fn finish(self) {
        Self::drain(&self.runtime, self.accepting);
    }
}

async fn accept(out: bool, listener: TcpListener, dialer: PodDialer, arrivals: Arc<Mutex<Vec<Arrival>>>) {
    loop {
        let (stream, from) = listener.accept().await.unwrap();
        let to = stream.local_addr().unwrap();
        arrivals.lock().unwrap_or_else(PoisonError::into_inner).push((out, from, to));
        tokio::spawn(forward(out, stream, from, to, dialer.clone()));
    }
}

async fn forward(out: bool, mut near: TcpStream, from: SocketAddr, to: SocketAddr, dialer: PodDialer) {
    let connected = if out { dialer.connect_out(to).await } else { dialer.connect_in(to, from).await };
    match connected {
        Ok(mut far) => {
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        }
        Err(error) => {
            eprintln!("{from} -> {to}: {error}");
            // The caller sees a reset.
            let _ = socket2::SockRef::from(&near).set_linger(Some(Duration::ZERO));
        }
    }
}
