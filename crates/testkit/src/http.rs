//! Requests of tests.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A response.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Header fields, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The value of a header field.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Reads a response. Skips interim responses (100 Continue).
    fn parse(mut text: &str) -> Option<Self> {
        loop {
            let (head, body) = text.split_once("\r\n\r\n")?;
            let mut lines = head.split("\r\n");
            let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
            if status < 200 {
                text = body;
                continue;
            }
            let headers = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect();
            return Some(Self { status, headers, body: body.to_owned() });
        }
    }
}

/// One request by curl.
pub fn curl(url: &str, arguments: &[&str]) -> Answer {
    try_curl(url, arguments).unwrap_or_else(|| panic!("curl got no answer from {url}"))
}

/// The same; `None`: there was no response.
pub fn try_curl(url: &str, arguments: &[&str]) -> Option<Answer> {
    let output = Command::new("curl")
        .args(["--silent", "--include", "--max-time", "40", "--path-as-is", "--noproxy", "*"])
        .args(arguments)
        .arg(url)
        .output()
        .expect("curl is installed (make setup)");
    Answer::parse(&String::from_utf8_lossy(&output.stdout))
}

/// An admin listener.
#[derive(Clone, Debug)]
pub enum Admin {
    /// A Unix socket.
    Socket(PathBuf),
    /// An address, and the token for it.
    Address(SocketAddr, String),
}

impl Admin {
    /// The answer to a GET; `None`: there was none.
    pub fn get(&self, path: &str) -> Option<Answer> {
        self.try_get(path).ok().and_then(|text| Answer::parse(&text))
    }

    /// Whether the node is ready.
    pub fn is_ready(&self) -> bool {
        self.get("/readyz").is_some_and(|answer| answer.status == 200)
    }

    fn try_get(&self, path: &str) -> io::Result<String> {
        let timeout = Some(Duration::from_secs(40));
        // The server answers HTTP/1.0 without chunks, and then closes the connection.
        let head = format!("GET {path} HTTP/1.0\r\nhost: admin\r\n");
        match self {
            Self::Socket(socket) => {
                let stream = UnixStream::connect(socket)?;
                stream.set_read_timeout(timeout)?;
                exchange(stream, &format!("{head}\r\n"))
            }
            Self::Address(address, token) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(timeout)?;
                exchange(stream, &format!("{head}authorization: Bearer {token}\r\n\r\n"))
            }
        }
    }
}

fn exchange(mut stream: impl Read + Write, request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
