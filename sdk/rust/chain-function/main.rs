//! A function of the tests. What it does is in the path of each call. Its link is its standard input, or, with `listen`, comes to where the
//! environment says.

use leno_sdk::{Answer, Call, Chain, Error, Method, OnFull, Pending, RequestHead, ResponseHead, StatusCode};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with};
use std::error::Error as StdError;
use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

/// What `swap` and `keep-answer` hold.
static HELD: Mutex<Option<Call>> = Mutex::new(None);
static ANSWER: Mutex<Option<(Vec<u8>, Answer)>> = Mutex::new(None);

/// Workers, unless there is to be `one`.
const WORKERS: usize = 4;

fn main() -> Result<(), Box<dyn StdError>> {
    let mode = std::env::args().nth(1).unwrap_or_default();
    if mode == "knock" {
        return knock();
    }
    let chain = match mode.as_str() {
        "listen" => Chain::from_environment()?,
        _ => Chain::over(io::stdin().as_fd().try_clone_to_owned()?)?,
    };
    if mode == "waits" {
        chain.set_on_full(OnFull::Wait);
    }
    let workers: Vec<_> = (0..if mode == "one" { 1 } else { WORKERS })
        .map(|_| {
            let chain = chain.clone();
            thread::spawn(move || {
                while let Some(call) = chain.next() {
                    if let Err(error) = handle(&chain, call) {
                        eprintln!("{error}");
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    Ok(())
}

/// Connects as if it were the node, and waits until it is turned away.
fn knock() -> Result<(), Box<dyn StdError>> {
    let name = format!("leno-chain-{}", std::env::var("PORT")?);
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    while connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?).is_err() {
        thread::yield_now();
    }
    match recv(&socket, &mut [0; 1], RecvFlags::empty())? {
        (_, 0) => Ok(()),
        _ => Err("somebody speaks".into()),
    }
}

fn to(name: &str, path: &str) -> RequestHead {
    RequestHead::new(Method::POST, name.parse().unwrap(), path.parse().unwrap())
}

/// `/do/NAME/PATH`: does something with a function of that name, and a path for it.
fn handle(chain: &Chain, call: Call) -> Result<(), Box<dyn StdError>> {
    let path = call.path().to_owned();
    let (verb, rest) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
    let (name, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let rest = format!("/{rest}");
    match verb {
        "echo" => {
            let mut head = ResponseHead::new(StatusCode::OK);
            head.headers = call.headers().clone();
            call.answer_with(head, |body| body.into())?;
        }
        "middle" => call.answer_with(StatusCode::OK, |body| body.part(1..body.len() - 1).into())?,
        "length" => {
            let length = chain.copy(call.body().len().to_string().as_bytes())?;
            call.answer(StatusCode::OK, length)?;
        }
        "sum" => {
            let sum: u64 = call.body().iter().map(|byte| u64::from(*byte)).sum();
            call.answer(StatusCode::OK, chain.copy(sum.to_string().as_bytes())?)?;
        }
        "forward" => call.forward_with(&to(name, &rest), |body| body.into())?,
        // Passes the body on, and the answer's back.
        "pass" => {
            let answer = chain.call(Some(&call), &to(name, &rest), call.body())?.wait()?;
            call.answer(answer.status(), answer.body())?;
        }
        // Writes a body in place, has it sent there and back, and says whether it is where it was.
        "same" => {
            let mut buffer = chain.buffer(100_000)?;
            buffer.fill(7);
            let body = buffer.share();
            let answer = chain.call(Some(&call), &to(name, &rest), &body)?.wait()?;
            let same = answer.body().as_ptr() == body.as_ptr() && answer.body().len() == body.len();
            drop((answer, body));
            call.answer(StatusCode::OK, chain.copy(same.to_string().as_bytes())?)?;
        }
        // The same body to many, each of which gets another part.
        "spread" => {
            let body = chain.copy(call.body().bytes())?.share();
            let pending: Result<Vec<Pending>, Error> =
                (0..body.len()).map(|length| chain.call(Some(&call), &to(name, &rest), body.part(..=length))).collect();
            let mut pending = pending?;
            let mut total = 0_u64;
            while let Some((_, answer)) = Pending::wait_any(&mut pending) {
                total += String::from_utf8(answer?.body().to_vec())?.parse::<u64>()?;
            }
            call.answer(StatusCode::OK, chain.copy(total.to_string().as_bytes())?)?;
        }
        // With a field, and a liar's is one that only the mesh may set.
        "fields" | "liar" => {
            let mut head = to(name, &rest);
            head.headers.insert(if verb == "liar" { "x_forwarded_client_cert" } else { "x-team" }, "red".parse()?);
            let answer = chain.call(Some(&call), &head, ())?.wait()?;
            call.answer(answer.head().clone(), ())?;
        }
        // Calls with a body of its own, and passes the answer's back.
        "relay" => {
            let answer =
                chain.call(Some(&call), &to(name, &rest), chain.copy(b"its own body"[..9].as_ref())?)?.wait()?;
            call.answer(answer.status(), answer.body())?;
        }
        "slow-length" => {
            thread::sleep(Duration::from_millis(150));
            let length = chain.copy(call.body().len().to_string().as_bytes())?;
            call.answer(StatusCode::OK, length)?;
        }
        // Waits for an answer that has come long before.
        "wait-late" => {
            let pending = chain.call(Some(&call), &to(name, &rest), chain.copy(b"a body")?)?;
            thread::sleep(Duration::from_millis(300));
            let answer = pending.wait()?;
            let length = chain.copy(&answer.body())?;
            call.answer(answer.status(), length)?;
        }
        // A body of its own with the same bytes.
        "copy" => {
            let copy = chain.copy(&call.body())?;
            call.answer(StatusCode::OK, copy)?;
        }
        // Two calls, the second of which is answered with the first one's body.
        "two" => {
            let ask = |body: &[u8]| chain.call(Some(&call), &to(name, &rest), chain.copy(body)?);
            let (first, second) = (ask(b"the first one")?, ask(b"the second one")?);
            let bodies = [second.wait()?, first.wait()?].map(|answer| answer.body().to_vec());
            call.answer(StatusCode::OK, chain.copy(&bodies.concat())?)?;
        }
        "swap" => {
            let first = HELD.lock().map_err(|_| "poisoned")?.take();
            match first {
                Some(first) => {
                    call.answer(StatusCode::OK, first.body())?;
                    first.answer(StatusCode::OK, ())?;
                }
                None => *HELD.lock().map_err(|_| "poisoned")? = Some(call),
            }
        }
        // Keeps an answer, and says later whether it is what it was.
        "keep-answer" => {
            let answer = chain.call(Some(&call), &to(name, &rest), chain.copy(&[7; 1000])?)?.wait()?;
            *ANSWER.lock().map_err(|_| "poisoned")? = Some((answer.body().to_vec(), answer));
            call.answer(StatusCode::OK, ())?;
        }
        "same-answer" => {
            let kept = ANSWER.lock().map_err(|_| "poisoned")?.take();
            let same = kept.is_some_and(|(copy, answer)| !copy.is_empty() && *copy == *answer.body());
            call.answer(StatusCode::OK, chain.copy(same.to_string().as_bytes())?)?;
        }
        // Writes to all memory that is free.
        "scribble" => {
            let mut taken = Vec::new();
            for length in [1 << 20, 1 << 12, 64] {
                while let Ok(mut buffer) = chain.buffer(length) {
                    buffer.fill(0xff);
                    taken.push(buffer);
                }
            }
            drop(taken);
            call.answer(StatusCode::OK, ())?;
        }
        // Calls as often as the name says, without an answer of its own in between: all of its arena comes and goes.
        "many" => {
            for _ in 0..name.parse::<u32>()? {
                let body = chain.buffer(60_000)?;
                chain.call(Some(&call), &to("echo", "/length"), body)?.wait()?;
            }
            call.answer(StatusCode::OK, ())?;
        }
        // As many bytes as the name says, at once.
        "take" => match chain.buffer(name.parse()?) {
            Ok(_) => call.answer(StatusCode::OK, ())?,
            Err(Error::Full(_)) => call.answer(StatusCode::INSUFFICIENT_STORAGE, ())?,
            Err(error) => return Err(error.into()),
        },
        // Gives a call up that has no answer, once the function there says that it is cancelled.
        "give-up" => {
            drop(chain.call(Some(&call), &to(name, &rest), ())?);
            call.answer(StatusCode::OK, ())?;
        }
        "status-of" => {
            let status = match chain.call(Some(&call), &to(name, &rest), call.body())?.wait() {
                Ok(answer) => answer.status(),
                Err(_) => StatusCode::BAD_GATEWAY,
            };
            call.answer(status, ())?;
        }
        "hang" => {
            while !call.is_cancelled() {
                thread::yield_now();
            }
            call.answer(StatusCode::OK, ())?;
        }
        // Never answered, and held for ever.
        "keep" => std::mem::forget(call),
        "fail" => drop(call),
        // How many arenas of others this process has mapped.
        "arenas" => {
            let maps = std::fs::read_to_string("/proc/self/maps")?;
            let arenas = maps.lines().filter(|line| line.contains("memfd:leno-chain-instance")).count() - 1;
            call.answer(StatusCode::OK, chain.copy(arenas.to_string().as_bytes())?)?;
        }
        _ => call.answer(StatusCode::NOT_FOUND, ())?,
    }
    Ok(())
}
