//! Constant load of real connections.

use super::Node;
use crate::TIMEOUT;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Sends one request after the other until stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u16>>,
}

impl Load {
    pub fn start(gateway: &Node) -> Self {
        Self::start_at(gateway, "/")
    }

    pub fn start_at(gateway: &Node, path: &'static str) -> Self {
        let (stop, address) = (Arc::new(AtomicBool::new(false)), gateway.gateway);
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut answers = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                answers.push(request(address, path).unwrap_or(0));
                std::thread::sleep(Duration::from_millis(2));
            }
            answers
        });
        Self { stop, thread }
    }

    /// Returns the number of requests. Panics if one of them failed.
    pub fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let answers = self.thread.join().unwrap();
        let failed: Vec<_> = answers.iter().filter(|status| **status != 200).collect();
        assert!(failed.is_empty(), "{} of {} failed: {failed:?}", failed.len(), answers.len());
        answers.len()
    }
}

/// The status of one request; `None`: there was no response.
fn request(address: SocketAddr, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: test.example\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}
