//! A TCP proxy in front of a server, which a test slows down or holds up.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Proxies connections to a server as long as the process runs.
pub struct Wire {
    pub address: SocketAddr,
    /// Delay of each piece in milliseconds, or [`HELD`].
    delay: Arc<AtomicU64>,
}

/// No bytes pass, and no connection closes, as if a cable were cut.
const HELD: u64 = u64::MAX;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Wire {
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, delay) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let of_all = delay.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // If the server is down, dropping the client's connection refuses the client.
                let Ok(server) = TcpStream::connect(server) else { continue };
                for (from, to) in [(client.try_clone(), server.try_clone()), (server.try_clone(), client.try_clone())] {
                    let (from, to, delay) = (from.unwrap(), to.unwrap(), of_all.clone());
                    std::thread::spawn(move || carry(from, to, &delay));
                }
            }
        });
        Self { address, delay }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn slow(&self, delay: Duration) {
        self.delay.store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    pub fn hold(&self) {
        self.delay.store(HELD, Ordering::Relaxed);
    }

    pub fn mend(&self) {
        self.slow(Duration::ZERO);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, delay: &AtomicU64) {
    let mut piece = [0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        while delay.load(Ordering::Relaxed) == HELD {
            std::thread::sleep(POLL_INTERVAL);
        }
        std::thread::sleep(Duration::from_millis(delay.load(Ordering::Relaxed)));
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
