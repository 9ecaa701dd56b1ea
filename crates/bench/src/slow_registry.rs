//! `leno-bench slow-registry`: a registry that takes every connection and answers with a byte now
//! and then.
//!
//! It does so between the lines `hold` and `release` on its standard input. At other times it
//! answers 503, so that no pull lasts.

use anyhow::{Context, bail};
use leno_oci::Digest;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Between two bytes of an answer.
const PERIOD: Duration = Duration::from_millis(250);
/// Bytes of a layer, as in its manifest.
const LAYER_BYTES: usize = 1 << 20;
const LARGEST_HEAD: usize = 16 << 10;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const BLOB: &str = "application/octet-stream";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where to listen; may be given several times.
    #[arg(long, value_name = "ADDRESS", required = true)]
    listen: Vec<SocketAddr>,
}

/// The answers that the registry held open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pulls {
    /// Manifests at a time, on average.
    pub manifests_held: f64,
    /// Layers at a time, on average.
    pub layers_held: f64,
}

/// A number of open answers over time.
struct Gauge {
    open: u32,
    since: Instant,
    /// Seconds of all answers together.
    seconds: f64,
}

impl Gauge {
    fn new() -> Self {
        Self { open: 0, since: Instant::now(), seconds: 0.0 }
    }

    fn set(&mut self, open: u32) {
        self.seconds += f64::from(self.open) * self.since.elapsed().as_secs_f64();
        (self.open, self.since) = (open, Instant::now());
    }
}

/// The time since `hold`.
struct HoldTimes {
    begin: Instant,
    manifests: Gauge,
    layers: Gauge,
}

impl HoldTimes {
    fn begin() -> Self {
        Self { begin: Instant::now(), manifests: Gauge::new(), layers: Gauge::new() }
    }

    fn gauge(&mut self, layer: bool) -> &mut Gauge {
        if layer { &mut self.layers } else { &mut self.manifests }
    }

    fn pulls(&mut self) -> Pulls {
        let seconds = self.begin.elapsed().as_secs_f64();
        let mut average = |layer| {
            let gauge = self.gauge(layer);
            gauge.set(gauge.open);
            gauge.seconds / seconds
        };
        Pulls { manifests_held: average(false), layers_held: average(true) }
    }
}

struct Registry {
    /// Odd between `hold` and `release`. Answers end with their phase.
    phase: AtomicU64,
    held: Mutex<HoldTimes>,
}

/// The name of an image. It is in the first of these registries if its number is even, and its
/// manifest is held; else it is in the second one, and its layer is held. A node waits for few
/// answers of one registry at a time, so that one registry would have manifests only.
pub(crate) fn image(registries: &[String; 2], number: usize) -> String {
    let registry = &registries[number % 2];
    format!("{registry}/slow/{number}@{}", Digest::of(manifest(number).as_bytes()))
}

fn manifest(number: usize) -> String {
    let (config, layer) = (config(number), Digest::of(number.to_string().as_bytes()));
    let digest = Digest::of(config.as_bytes());
    format!(
        r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{digest}","size":{}}},"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"{layer}","size":{LAYER_BYTES}}}]}}"#,
        config.len()
    )
}

fn config(number: usize) -> String {
    // No layer comes as far as being compared with this.
    let layer = Digest::of(format!("layer {number}").as_bytes());
    format!(r#"{{"architecture":"amd64","os":"linux","rootfs":{{"type":"layers","diff_ids":["{layer}"]}}}}"#)
}

/// Serves until its standard input ends.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let registry: &'static Registry =
        Box::leak(Box::new(Registry { phase: AtomicU64::new(0), held: Mutex::new(HoldTimes::begin()) }));
    for address in &arguments.listen {
        let listener =
            TcpListener::bind(address).with_context(|| format!("the registry cannot listen on {address}"))?;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away is no event.
                thread::spawn(move || drop(registry.serve(stream)));
            }
        });
    }
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        println!("{}", registry.obey(&line?)?);
    }
    Ok(())
}

impl Registry {
    /// The answer to a line of the standard input.
    fn obey(&self, line: &str) -> anyhow::Result<String> {
        let mut held = self.held();
        match (line, self.phase().is_multiple_of(2)) {
            ("release", false) => {
                self.phase.fetch_add(1, Ordering::Relaxed);
                Ok(serde_json::to_string(&held.pulls())?)
            }
            ("hold", is_released) => {
                self.phase.fetch_add(if is_released { 1 } else { 2 }, Ordering::Relaxed);
                *held = HoldTimes::begin();
                Ok("holding".to_owned())
            }
            _ => bail!("`{line}` is not what comes next"),
        }
    }

    fn phase(&self) -> u64 {
        self.phase.load(Ordering::Relaxed)
    }

    fn held(&self) -> MutexGuard<'_, HoldTimes> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                _ if head.len() > LARGEST_HEAD => return Err(ErrorKind::InvalidData.into()),
                read => head.extend_from_slice(&buffer[..read]),
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default();
        let Some((number, kind, digest)) = named(path) else { return answer(&mut stream, "404 Not Found", BLOB, "") };
        let phase = self.phase();
        if phase.is_multiple_of(2) {
            return answer(&mut stream, "503 Service Unavailable", BLOB, "");
        }
        let config = config(number);
        match kind {
            "manifests" if number.is_multiple_of(2) => {
                self.hold(&mut stream, phase, (MANIFEST, manifest(number).len()), false)
            }
            "manifests" => answer(&mut stream, "200 OK", MANIFEST, &manifest(number)),
            _ if digest == Digest::of(config.as_bytes()).to_string() => answer(&mut stream, "200 OK", BLOB, &config),
            _ => self.hold(&mut stream, phase, (BLOB, LAYER_BYTES), true),
        }
    }

    /// Answers with a byte now and then, until the phase ends.
    fn hold(
        &self,
        stream: &mut TcpStream,
        phase: u64,
        (media_type, length): (&str, usize),
        layer: bool,
    ) -> std::io::Result<()> {
        let count = |change: fn(u32) -> u32| {
            let mut held = self.held();
            if self.phase() == phase {
                let gauge = held.gauge(layer);
                gauge.set(change(gauge.open));
            }
        };
        count(|open| open + 1);
        let mut sent = write_head(stream, "200 OK", media_type, length);
        for _ in 0..length {
            thread::sleep(PERIOD);
            if sent.is_err() || self.phase() != phase {
                break;
            }
            sent = stream.write_all(b"x");
        }
        count(|open| open.saturating_sub(1));
        sent
    }
}

/// Number, kind and digest: `/v2/slow/3/blobs/sha256:…`.
fn named(path: &str) -> Option<(usize, &str, &str)> {
    let mut parts = path.strip_prefix("/v2/slow/")?.split('/');
    let (number, kind, digest) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    (["manifests", "blobs"].contains(&kind) && parts.next().is_none()).then_some((number, kind, digest))
}

fn answer(stream: &mut TcpStream, status: &str, media_type: &str, body: &str) -> std::io::Result<()> {
    write_head(stream, status, media_type, body.len())?;
    stream.write_all(body.as_bytes())
}

fn write_head(stream: &mut TcpStream, status: &str, media_type: &str, length: usize) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_the_path_that_its_name_gives() {
        let name = image(&["127.0.0.1:5000", "127.0.0.2:5000"].map(str::to_owned), 3);
        let (repository, digest) = name.strip_prefix("127.0.0.2:5000/").unwrap().split_once('@').unwrap();
        assert_eq!(named(&format!("/v2/{repository}/manifests/{digest}")), Some((3, "manifests", digest)));
        assert_eq!(named(&format!("/v2/{repository}/tags/list")), None);
    }

    #[test]
    fn an_average_is_of_the_time_since_hold() {
        let mut held = HoldTimes::begin();
        let earlier = Instant::now().checked_sub(Duration::from_secs(100)).unwrap();
        held.begin = earlier;
        held.layers = Gauge { open: 3, since: earlier, seconds: 0.0 };
        let Pulls { manifests_held, layers_held } = held.pulls();
        assert!(manifests_held == 0.0 && (2.9..3.1).contains(&layers_held), "{layers_held}");
    }
}
