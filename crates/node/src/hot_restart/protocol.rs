//! Messages between the two processes. They may be of different releases: each refuses messages
//! that it does not know, and then the parent continues to run.

use crate::callers::Announcement;
use crate::warm::Ready;
use bytes::Bytes;
use leno_proxy::limits::LimitCounts;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

/// Rises with each change that the other process must not ignore.
pub(crate) const VERSION: u32 = 1;
/// Name of the socket on which the child passes on the updates that it puts into force. A child of
/// an older release does not take it.
pub(crate) const UPDATES: &str = "updates";
/// Maximum number of descriptors: four listeners, the 64 ports that Gateway documents may open, the
/// admin listener and its lock, and sockets for counting and for updates.
const MOST_DESCRIPTORS: usize = 80;
/// Longest frame, in bytes. Modules are the longest content.
const LONGEST: u32 = 80 << 20;
/// Maximum number of frames in the queue.
const QUEUE: usize = 16;
const MESSAGE: u8 = 0;
const UPDATE: u8 = 1;

/// The parent's first message, sent together with descriptors.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Start {
    pub version: u32,
    pub release: String,
    /// How many of the descriptors are the proxy's listeners. They come first.
    pub listeners: usize,
    /// Purposes of the other descriptors.
    pub others: Vec<String>,
    /// Number of the child's first instance.
    pub first_instance: u64,
    /// The child's jails have IDs of the second half.
    pub second_half: bool,
    /// Soft limit on descriptors with which the first process of the node was started.
    pub descriptors: Option<u64>,
    /// How long the parent waits for `Ready`.
    pub patience_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) enum Message {
    Start(Start),
    /// So many instances are ready.
    Warm(Vec<Ready>),
    Caller(Announcement),
    /// The child can take over.
    Ready,
    /// The child cannot, for this reason.
    Failed(String),
    /// The counters of a function's rate limits.
    Counts(String, Vec<LimitCounts>),
    /// The child owns the node. Its shares of rate limits count for so long.
    #[serde(rename = "HandOver")]
    Transfer {
        term_ms: Option<u64>,
    },
    /// The child accepts connections.
    Serving,
}

pub(super) enum Frame {
    Message(Message),
    /// An update of the control plane: [`leno_agent::Agent::copy`].
    Update(Bytes),
}

pub(crate) fn begin(socket: &UnixStream, start: Start, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Descriptors need at least one byte of data.
    sendmsg(socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    let (head, body) = encoded(&Frame::Message(Message::Start(start)))?;
    let mut socket = socket;
    socket.write_all(&head)?;
    socket.write_all(&body)
}

/// Receives the first message.
pub(super) fn begun(socket: &UnixStream) -> io::Result<(Start, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("descriptors are missing; is the limit on them too low?"));
    }
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    };
    let descriptors = ancillary.drain().filter_map(rights).flatten().collect();
    let (mut head, mut socket) = ([0; 5], socket);
    socket.read_exact(&mut head)?;
    let mut body = vec![0; length(head)?];
    socket.read_exact(&mut body)?;
    match decoded(head[4], body)? {
        Frame::Message(Message::Start(start)) if start.version == VERSION => Ok((start, descriptors)),
        Frame::Message(Message::Start(start)) => Err(io::Error::other(format!(
            "release {} hot-restarts by version {} of the protocol, and this one by {VERSION}",
            start.release, start.version
        ))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn encoded(frame: &Frame) -> io::Result<([u8; 5], Bytes)> {
    let (kind, body) = match frame {
        Frame::Message(message) => (MESSAGE, serde_json::to_vec(message)?.into()),
        Frame::Update(update) => (UPDATE, update.clone()),
    };
    let length =
        u32::try_from(body.len()).ok().filter(|length| *length <= LONGEST).ok_or(io::ErrorKind::FileTooLarge)?;
    let [a, b, c, d] = length.to_be_bytes();
    Ok(([a, b, c, d, kind], body))
}

fn length([a, b, c, d, _]: [u8; 5]) -> io::Result<usize> {
    let length = u32::from_be_bytes([a, b, c, d]);
    if length > LONGEST { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(length as usize) }
}

fn decoded(kind: u8, body: Vec<u8>) -> io::Result<Frame> {
    match kind {
        MESSAGE => Ok(Frame::Message(serde_json::from_slice(&body)?)),
        UPDATE => Ok(Frame::Update(body.into())),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The socket to the other process, after the first message.
pub(super) struct Link {
    writer: OwnedWriteHalf,
    frames: mpsc::Receiver<io::Result<Frame>>,
}

impl Link {
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let (reader, writer) = tokio::net::UnixStream::from_std(socket)?.into_split();
        let (queue, frames) = mpsc::channel(QUEUE);
        tokio::spawn(read(reader, queue));
        Ok(Self { writer, frames })
    }

    pub(super) async fn send(&mut self, frame: Frame) -> io::Result<()> {
        let (head, body) = encoded(&frame)?;
        self.writer.write_all(&head).await?;
        self.writer.write_all(&body).await
    }

    /// The next frame, or why there is none. It is cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<Frame> {
        self.frames.recv().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))
    }
}

/// Reads until the other end is closed, or the receiver of the queue is dropped.
async fn read(mut reader: OwnedReadHalf, queue: mpsc::Sender<io::Result<Frame>>) {
    loop {
        let frame = tokio::select! {
            frame = read_one(&mut reader) => frame,
            () = queue.closed() => return,
        };
        let last = frame.is_err();
        if queue.send(frame).await.is_err() || last {
            return;
        }
    }
}

async fn read_one(reader: &mut OwnedReadHalf) -> io::Result<Frame> {
    let mut head = [0; 5];
    reader.read_exact(&mut head).await?;
    let mut body = vec![0; length(head)?];
    reader.read_exact(&mut body).await?;
    decoded(head[4], body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(version: u32) -> Start {
        Start {
            version,
            release: "0".to_owned(),
            listeners: 1,
            others: vec!["admin".to_owned()],
            first_instance: 1000,
            second_half: true,
            descriptors: Some(1024),
            patience_ms: 1,
        }
    }

    #[test]
    fn the_beginning_arrives_with_its_descriptors() {
        let (one, other) = UnixStream::pair().unwrap();
        let (file, end) = UnixStream::pair().unwrap();
        begin(&one, start(VERSION), &[file.as_fd(), one.as_fd()]).unwrap();
        let (begun, descriptors) = begun(&other).unwrap();
        assert_eq!((begun.first_instance, descriptors.len()), (1000, 2));
        drop(file);
        // It is the same socket.
        let [passed, _] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
        UnixStream::from(passed).write_all(b"x").unwrap();
        let mut byte = [0];
        (&end).read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let (one, other) = UnixStream::pair().unwrap();
        begin(&one, start(VERSION + 1), &[one.as_fd()]).unwrap();
        let error = begun(&other).unwrap_err().to_string();
        assert!(error.contains("version 2") && error.contains("this one by 1"), "{error}");
        let more = br#"{"Ready":null,"more":1}"#.to_vec();
        for (kind, body) in [(2, Vec::new()), (MESSAGE, br#""Unknown""#.to_vec()), (MESSAGE, more)] {
            assert!(decoded(kind, body).is_err());
        }
        assert!(length([255, 0, 0, 0, 0]).is_err());
        assert_eq!(length([0, 0, 1, 0, 0]).unwrap(), 256);
    }

    #[tokio::test]
    async fn frames_arrive_in_order_and_then_the_end() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut one, mut other) = (Link::new(one).unwrap(), Link::new(other).unwrap());
        one.send(Frame::Update(Bytes::from_static(b"bytes"))).await.unwrap();
        one.send(Frame::Message(Message::Transfer { term_ms: Some(5) })).await.unwrap();
        drop(one);
        assert!(matches!(other.next().await, Ok(Frame::Update(bytes)) if bytes == "bytes"));
        assert!(matches!(other.next().await, Ok(Frame::Message(Message::Transfer { term_ms: Some(5) }))));
        assert!(other.next().await.is_err() && other.next().await.is_err());
    }
}
