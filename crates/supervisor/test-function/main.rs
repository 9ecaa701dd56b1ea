//! A function for the tests of the supervisor: HTTP/1.1 on `PORT`.
//!
//! `GET /env` answers its environment, `/pid` its process number, `/exit` makes it exit with status 3, `/healthz` answers 200
//! once the file named by the first argument exists (at once, without an argument), `/deaf` closes the listener; everything else 200.
//!
//! With the argument `jailer` it is the jailer instead.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn main() -> std::process::ExitCode {
    if std::env::args().nth(1).as_deref() == Some("jailer") {
        return leno_jail::jailer::run();
    }
    match serve() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn serve() -> std::io::Result<()> {
    let port: u16 =
        std::env::var("PORT").ok().and_then(|port| port.parse().ok()).ok_or(std::io::ErrorKind::InvalidInput)?;
    let gate = std::env::args().nth(1);
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("listening on {port}");
    while !DEAF.load(Ordering::SeqCst) {
        let (stream, gate) = (listener.accept()?.0, gate.clone());
        std::thread::spawn(move || answer(stream, gate.as_deref()));
    }
    drop(listener);
    println!("deaf");
    loop {
        std::thread::park();
    }
}

/// The listener is to be closed after the next connection.
static DEAF: AtomicBool = AtomicBool::new(false);

fn answer(mut stream: TcpStream, gate: Option<&str>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let Some(first) = lines.next().transpose()? else { return Ok(()) };
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let path = first.split(' ').nth(1).unwrap_or("/");
    let (status, body) = match path {
        "/env" => (200, std::env::vars().map(|(name, value)| format!("{name}={value}\n")).collect()),
        "/pid" => (200, std::process::id().to_string()),
        "/deaf" => {
            DEAF.store(true, Ordering::SeqCst);
            // The listener waits for one more.
            TcpStream::connect(stream.local_addr()?)?;
            (200, String::new())
        }
        "/exit" => {
            eprintln!("told to exit");
            std::process::exit(3)
        }
        "/healthz" if gate.is_some_and(|gate| !Path::new(gate).exists()) => {
            println!("not ready");
            (503, String::new())
        }
        _ => (200, String::from("ok")),
    };
    write!(stream, "HTTP/1.1 {status} -\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}
