//! What a node says of itself at `/metrics`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// What is asked of an admin address bears this. The nodes under test are on loopback, and nobody else's.
pub(crate) const TOKEN: &str = "leno-bench-asks-the-node-that-it-measures";

/// The answer to a GET of a path at an admin address, head and body; `None`: there is none.
pub(crate) fn get(admin: SocketAddr, path: &str) -> Option<String> {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&admin, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: admin\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\r\n"
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    ask().ok()
}

/// The sum of all samples of this name that have this text among their labels; `None`: there are none.
pub(crate) fn sum(text: &str, name: &str, label: &str) -> Option<u64> {
    let value = |line: &str| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} ")?;
        labels.contains(label).then(|| value.parse::<u64>().ok())?
    };
    let values: Vec<u64> = text.lines().filter_map(value).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_added_up_by_name_and_label() {
        let text = "# TYPE a counter\na_total{f=\"x\",d=\"up\"} 3\na_total{f=\"y\",d=\"up\"} 4\na_total{f=\"y\",d=\"down\"} 5\nab_total{} 9\n";
        assert_eq!(sum(text, "a_total", "d=\"up\""), Some(7));
        assert_eq!(sum(text, "a_total", ""), Some(12));
        assert_eq!(sum(text, "b_total", ""), None);
    }
}
