//! Constant load of real connections.

use super::Node;
use crate::TIMEOUT;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Sends one request after the other until stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Answer>>,
}

/// The answer to one request.
struct Answer {
    begun: SystemTime,
    /// Empty: there was none.
    text: String,
}

impl Answer {
    fn is_ok(&self) -> bool {
        self.text.split(' ').nth(1) == Some("200")
    }
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
                let begun = SystemTime::now();
                answers.push(Answer { begun, text: request(address, path).unwrap_or_default() });
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
        let failed: Vec<_> = answers.iter().filter(|answer| !answer.is_ok()).collect();
        for Answer { begun, text } in failed.iter().take(10) {
            let since = begun.duration_since(UNIX_EPOCH).unwrap();
            let (seconds, millis) = (since.as_secs() % 60, since.subsec_millis());
            eprintln!("failed at second {seconds:02}.{millis:03} of the minute: {text:?}");
        }
        assert!(failed.is_empty(), "{} of {} failed", failed.len(), answers.len());
        answers.len()
    }
}

/// The answer to one request; `None`: there was none.
fn request(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: test.example\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
