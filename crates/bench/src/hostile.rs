//! `leno-bench hostile`: an instance that takes resources without end. Each request makes it take
//! more.

use anyhow::Context;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const LINE: &[u8] = b"a line of a log that says nothing, and says it again and again, as fast as it can be written\n";
/// Connections are closed after this time without a request, so that the next measurement begins
/// without them.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Bytes that are written to standard output for each request.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    output: usize,
    /// Connections to the outbound listener that are opened for each request, and held.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    hoard: usize,
    /// The file in which the instance counts the bytes or connections that it has taken so far.
    #[arg(long, value_name = "FILE")]
    tally: PathBuf,
}

/// The number of bytes or connections that an instance has taken since it began.
struct Tally(Mutex<(File, u64)>);

impl Tally {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(Self(Mutex::new((file, 0))))
    }

    fn add(&self, count: u64) -> std::io::Result<()> {
        let mut tally = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, taken) = &mut *tally;
        *taken += count;
        // The text always has the same length, so that a reader sees no part of an old one.
        file.write_all_at(format!("{taken:020}").as_bytes(), 0)
    }
}

/// The number in such a file; 0 if the instance has taken nothing yet.
pub(crate) fn taken(path: &Path) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The connections that the instance holds.
struct Hoard {
    connections: Vec<TcpStream>,
    asked: Instant,
}

/// Serves until it is ended.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let port: u16 = std::env::var("PORT").context("PORT")?.parse().context("PORT")?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let proxy = std::env::var("HTTP_PROXY").context("HTTP_PROXY")?;
    let proxy = proxy.rsplit('@').next().unwrap_or_default().trim_end_matches('/').to_owned();
    let hoard = Arc::new(Mutex::new(Hoard { connections: Vec::new(), asked: Instant::now() }));
    let held = hoard.clone();
    thread::spawn(move || {
        loop {
            thread::sleep(PATIENCE);
            let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
            if held.asked.elapsed() > PATIENCE {
                held.connections.clear();
            }
        }
    });
    let (output, count) = (arguments.output, arguments.hoard);
    let tally = Arc::new(Tally::open(&arguments.tally)?);
    loop {
        let (stream, _) = listener.accept()?;
        let (hoard, proxy, tally) = (hoard.clone(), proxy.clone(), tally.clone());
        // A client that goes away is no event.
        thread::spawn(move || drop(serve(stream, (output, count), &hoard, &proxy, &tally)));
    }
}

fn serve(
    mut stream: TcpStream,
    (output, count): (usize, usize),
    hoard: &Mutex<Hoard>,
    proxy: &str,
    tally: &Tally,
) -> std::io::Result<()> {
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                read => head.extend_from_slice(&buffer[..read]),
            }
        }
        head.clear();
        let mut log = std::io::stdout().lock();
        for _ in 0..output.div_ceil(LINE.len()) {
            log.write_all(LINE)?;
        }
        drop(log);
        tally.add(output as u64)?;
        if count > 0 {
            let more: Vec<TcpStream> = (0..count).map_while(|_| TcpStream::connect(proxy).ok()).collect();
            tally.add(more.len() as u64)?;
            let mut hoard = hoard.lock().unwrap_or_else(PoisonError::into_inner);
            hoard.connections.extend(more);
            hoard.asked = Instant::now();
        }
        stream.write_all(RESPONSE)?;
    }
}
