//! The plug-in's question to the agent: one line of JSON each way, on a Unix socket.
//!
//! Later versions may add fields, which both ends ignore if they do not know them. An agent that
//! cannot read a request closes the connection: the plug-in then behaves as without an agent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the protocol that this library writes.
pub const VERSION: u32 = 1;

/// The agent's socket on a node. Only root may connect.
pub const SOCKET: &str = "/run/leno/cni.sock";

/// The largest line that either end reads, in bytes.
pub const MAX_LINE: u64 = 64 << 10;

/// The operation that the container runtime wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CniCommand {
    /// The pod's network is complete, and its first program has not started.
    Add,
    /// The runtime asks if the pod's network is still as it was made.
    Check,
    /// The pod's network is about to go.
    Del,
}

/// A question of the plug-in about one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CniRequest {
    /// The version of the protocol: [`VERSION`].
    pub version: u32,
    /// The operation.
    pub command: CniCommand,
    /// The runtime's name of the pod's sandbox.
    pub container_id: String,
    /// The file of the pod's network namespace. It can be missing at [`CniCommand::Del`].
    pub netns: Option<PathBuf>,
    /// The pod's namespace in Kubernetes.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID, if the runtime passes it (containerd from 1.6, CRI-O from 1.24).
    pub uid: Option<String>,
    /// The addresses that the plug-ins before this one gave the pod.
    pub addresses: Vec<IpAddr>,
}

/// The agent's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "camelCase")]
pub enum CniResponse {
    /// The agent has captured the pod. At [`CniCommand::Del`]: it has released the pod.
    Captured,
    /// The pod is not in the mesh.
    NotEnrolled,
    /// The pod may not start.
    Refused {
        /// The reason, for the event that Kubernetes shows.
        reason: String,
    },
}

/// A line that is not a message of the protocol.
#[derive(Debug, thiserror::Error)]
#[error("not a message of the CNI protocol: {0}")]
pub struct MessageError(#[from] serde_json::Error);

/// A message of the protocol, in either direction.
pub trait Message: Serialize + DeserializeOwned {
    /// The message as one line, with its end.
    fn to_line(&self) -> Result<Vec<u8>, MessageError> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Reads a line, with or without its end.
    fn from_line(line: &[u8]) -> Result<Self, MessageError> {
        Ok(serde_json::from_slice(line)?)
    }
}

impl Message for CniRequest {}
impl Message for CniResponse {}

/// Why there is no answer of the agent.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The agent does not accept the connection, or the time ran out meanwhile.
    #[error("cannot connect to {}: {reason}", .socket.display())]
    Connect {
        /// The agent's socket.
        socket: PathBuf,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// The connection broke, or the time ran out.
    #[error("no answer within {} ms: {reason}", .limit.as_millis())]
    Exchange {
        /// The time limit of the whole question.
        limit: Duration,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// The answer is none of this protocol.
    #[error(transparent)]
    Answer(#[from] MessageError),
}

/// Asks the agent. The time limit is for the connection, the question and the answer together.
pub fn ask(socket: &Path, request: &CniRequest, limit: Duration) -> Result<CniResponse, AskError> {
    let deadline = Instant::now() + limit;
    let line = request.to_line()?;
    let stream = connect(socket, limit).map_err(|reason| AskError::Connect { socket: socket.to_owned(), reason })?;
    let mut bounded = DeadlineStream { stream, deadline };
    let mut answer = Vec::new();
    bounded
        .write_all(&line)
        .and_then(|()| BufReader::new(bounded.take(MAX_LINE)).read_until(b'\n', &mut answer))
        .map_err(|reason| AskError::Exchange { limit, reason })?;
    Ok(CniResponse::from_line(&answer)?)
}

/// Connects within a time limit: an agent that hangs can have a full queue of connections.
fn connect(path: &Path, limit: Duration) -> std::io::Result<UnixStream> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // On Unix sockets, the time limit of sending holds for connect(2) as well (unix(7)).
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// A connection whose reads and writes all end at one deadline.
struct DeadlineStream {
    stream: UnixStream,
    deadline: Instant,
}

impl DeadlineStream {
    fn remaining(&self) -> std::io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(std::io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

/// The system reports the end of a socket's time limit like an empty non-blocking socket.
fn timed_out(error: std::io::Error) -> std::io::Error {
    match error.kind() {
        std::io::ErrorKind::WouldBlock => std::io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(self.remaining()?)?;
        self.stream.read(buffer).map_err(timed_out)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(self.remaining()?)?;
        self.stream.write(data).map_err(timed_out)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
