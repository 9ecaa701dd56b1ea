//! A function that tries to bypass the mesh, to show that it cannot. `GET /WAY/ARGUMENT/…` makes
//! one attempt, in a separate process, and answers with the outcome: `done: …`, `refused: …`, or
//! `killed` if the kernel ended the process. In an argument, `~` stands for `/`.
#![forbid(unsafe_code)]

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use nix::sched::{CloneFlags, unshare};
use nix::sys::ptrace;
use nix::sys::signal::kill;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

type Outcome = Result<String, Box<dyn std::error::Error + Send + Sync>>;

/// The timeout of each attempt.
const PATIENCE: Duration = Duration::from_secs(3);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((way, arguments)) = arguments.split_first() {
        match attempt(way, arguments) {
            Ok(what) => println!("done: {what}"),
            Err(error) => println!("refused: {error}"),
        }
        return Ok(());
    }
    let port: u16 = std::env::var("PORT")?.parse()?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let arguments: Vec<String> = request.uri().path().split('/').skip(1).map(|part| part.replace('~', "/")).collect();
    let attempt = tokio::task::spawn_blocking(move || {
        std::process::Command::new(std::env::current_exe()?).args(arguments).output()
    });
    let output = attempt.await.map_err(std::io::Error::other)??;
    let text = if output.status.success() {
        String::from_utf8_lossy(&output.stdout).into_owned()
    } else {
        "killed".to_owned()
    };
    Ok(Response::new(Full::new(Bytes::from(text))))
}

/// The address of `name:port` or `address:port`.
fn located(text: &str) -> Result<std::net::SocketAddr, Box<dyn std::error::Error + Send + Sync>> {
    Ok(std::net::ToSocketAddrs::to_socket_addrs(text)?.next().ok_or("it has no address")?)
}

fn attempt(way: &str, arguments: &[String]) -> Outcome {
    let argument = |index: usize| arguments.get(index).map(String::as_str).ok_or("an argument is missing");
    let process = || Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Pid::from_raw(argument(0)?.parse()?));
    match way {
        "connect" => {
            TcpStream::connect_timeout(&located(argument(0)?)?, PATIENCE)?;
            Ok("connected".to_owned())
        }
        // Bytes other than HTTP to an address.
        "talk" => {
            let mut stream = TcpStream::connect_timeout(&located(argument(0)?)?, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(&argument(1)?.split(',').filter_map(|byte| byte.parse().ok()).collect::<Vec<u8>>())?;
            let mut answer = [0; 64];
            match stream.read(&mut answer)? {
                0 => Err("the connection was closed".into()),
                length => Ok(String::from_utf8_lossy(answer.get(..length).unwrap_or_default()).into_owned()),
            }
        }
        // A request to an address, with any host.
        "http" => http(TcpStream::connect_timeout(&located(argument(0)?)?, PATIENCE)?, argument(1)?),
        // The same with another source address.
        "spoof" => {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.bind(&argument(0)?.parse::<std::net::SocketAddr>()?.into())?;
            socket.connect_timeout(&located(argument(1)?)?.into(), PATIENCE)?;
            http(socket.into(), argument(2)?)
        }
        // The same by name.
        "call" => http(TcpStream::connect((argument(0)?, 80))?, argument(0)?),
        "resolve" => {
            let found = std::net::ToSocketAddrs::to_socket_addrs(&(argument(0)?, 80))?.next();
            Ok(found.map(|address| address.ip().to_string()).unwrap_or_default())
        }
        "udp" => {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.connect(argument(0)?)?;
            socket.send(b"hello")?;
            let mut answer = [0; 16];
            let length = socket.recv(&mut answer)?;
            Ok(String::from_utf8_lossy(answer.get(..length).unwrap_or_default()).into_owned())
        }
        "abstract" => {
            UnixStream::connect_addr(&SocketAddr::from_abstract_name(argument(0)?)?)?;
            Ok("connected".to_owned())
        }
        "read" => Ok(String::from_utf8_lossy(&std::fs::read(argument(0)?)?).replace('\0', " ")),
        "write" => Ok(std::fs::write(argument(0)?, "intruder").map(|()| "written".to_owned())?),
        "list" => {
            let names = std::fs::read_dir(argument(0)?)?.flatten().map(|entry| entry.file_name());
            let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
            names.sort();
            Ok(names.join(" "))
        }
        "link" => Ok(std::fs::read_link(argument(0)?)?.display().to_string()),
        "signal" => Ok(kill(process()?, None).map(|()| "sent".to_owned())?),
        "trace" => {
            ptrace::seize(process()?, ptrace::Options::empty())?;
            Ok("attached".to_owned())
        }
        "raw" => Ok(open(AddressFamily::Inet, SockType::Raw, Some(SockProtocol::Icmp))?),
        "packet" => Ok(open(AddressFamily::Packet, SockType::Raw, None)?),
        "multipath" => {
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, Some(socket2::Protocol::MPTCP))?;
            Ok("opened".to_owned())
        }
        "splice" => {
            let ((from, mut begin), (_end, to)) = (std::io::pipe()?, std::io::pipe()?);
            begin.write_all(b"hello")?;
            let moved = nix::fcntl::splice(&from, None, &to, None, 5, nix::fcntl::SpliceFFlags::empty())?;
            Ok(format!("{moved} bytes were moved"))
        }
        "vsock" => Ok(open(AddressFamily::Vsock, SockType::Stream, None)?),
        "namespace" => Ok(unshare(CloneFlags::CLONE_NEWNET).map(|()| "entered".to_owned())?),
        "listen" => {
            let listener = TcpListener::bind(argument(0)?)?;
            Ok(format!("listening on {}", listener.local_addr()?))
        }
        // An address that another process uses, with SO_REUSEPORT, so that the kernel would divide
        // connections between the two.
        "share" => {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.set_reuse_port(true)?;
            socket.bind(&argument(0)?.parse::<std::net::SocketAddr>()?.into())?;
            socket.listen(16)?;
            socket.set_nonblocking(true)?;
            std::thread::sleep(Duration::from_millis(300));
            match socket.accept() {
                Ok(_) => Ok("somebody came".to_owned()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok("nobody came".to_owned()),
                Err(error) => Err(error.into()),
            }
        }
        // More memory (in MiB) and more processes than its limits.
        "allocate" => {
            let size = argument(0)?.parse::<usize>()? << 20;
            // This writes to each page, so that the kernel really allocates it.
            let taken = vec![1_u8; size];
            Ok(format!("{} bytes are in use", taken.iter().filter(|byte| **byte == 1).count()))
        }
        "multiply" => {
            let mut many = Vec::new();
            for _ in 0..argument(0)?.parse::<usize>()? {
                many.push(std::thread::Builder::new().spawn(|| std::thread::sleep(PATIENCE))?);
            }
            Ok(format!("{} threads run", many.len()))
        }
        "whoami" => Ok(format!("{} {}", nix::unistd::getuid(), nix::unistd::gethostname()?.to_string_lossy())),
        _ => Err(format!("there is no way `{way}`").into()),
    }
}

fn open(family: AddressFamily, kind: SockType, protocol: Option<SockProtocol>) -> nix::Result<String> {
    socket(family, kind, SockFlag::empty(), protocol).map(|_| "opened".to_owned())
}

fn http(mut stream: TcpStream, host: &str) -> Outcome {
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}
