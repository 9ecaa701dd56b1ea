//! Measures the time of a hop: one function calls another, through a node without policies. All
//! three are on one core if they are started so: `taskset -c 0 cargo run --release -p leno-sdk
//! --example hop`. Prints the median round trip in µs.

use leno_sdk::{Chain, Method, RequestHead, StatusCode};
use leno_shm::{Domain, Incoming, Link, Settings};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::error::Error;
use std::io;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const ROUNDS: usize = 50_000;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("caller") => call(),
        Some("callee") => answer(),
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(route()),
    }
}

fn chain() -> Result<Chain, Box<dyn Error>> {
    Ok(Chain::over(io::stdin().as_fd().try_clone_to_owned()?)?)
}

fn answer() -> Result<(), Box<dyn Error>> {
    let chain = chain()?;
    while let Some(call) = chain.next() {
        call.answer_with(StatusCode::OK, |body| body.into())?;
    }
    Ok(())
}

fn call() -> Result<(), Box<dyn Error>> {
    let chain = chain()?;
    let Some(start) = chain.next() else { return Ok(()) };
    let head = RequestHead::new(Method::POST, "callee".parse()?, "/".parse()?);
    for bytes in [100, 1 << 20] {
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            let mut body = chain.buffer(bytes)?;
            body[0] = 1;
            let answer = chain.call(Some(&start), &head, body)?.wait()?;
            assert_eq!(answer.body().len(), bytes);
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        println!("{bytes} bytes there and back: {:.1} µs", times[ROUNDS / 2].as_secs_f64() * 1e6);
    }
    start.answer(StatusCode::OK, ())?;
    Ok(())
}

async fn start(name: &str, domain: &Domain) -> Result<(Child, Link, Incoming), Box<dyn Error>> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let child = Command::new(std::env::current_exe()?).arg(name).stdin(Stdio::from(theirs)).spawn()?;
    let (link, incoming) = Link::open(ours, domain, name, &Settings::default()).await?;
    Ok((child, link, incoming))
}

async fn route() -> Result<(), Box<dyn Error>> {
    let domain = Domain::new("hop");
    let (mut caller, first, mut calls) = start("caller", &domain).await?;
    let (mut callee, second, mut others) = start("callee", &domain).await?;
    tokio::spawn(async move { while others.next().await.is_some() {} });
    let (to, callee_link) = (second.clone(), second);
    tokio::spawn(async move {
        while let Some(mut call) = calls.next().await {
            let Ok(asked) = to.call(&call.head, call.body.take().as_ref(), None) else { continue };
            tokio::spawn(async move {
                if let Ok(answer) = asked.await {
                    let _ = call.reply.answer(&answer.head, answer.body.as_ref());
                }
            });
        }
    });
    let head = RequestHead::new(Method::POST, "caller".parse()?, "/".parse()?);
    first.call(&head, None, None)?.await?;
    first.end();
    callee_link.end();
    caller.wait()?;
    callee.wait()?;
    Ok(())
}
