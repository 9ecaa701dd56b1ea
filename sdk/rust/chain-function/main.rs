//! A function of the tests. The path of each call selects its action. The function's link is its
//! standard input, or, with `listen`, a connection to the place that the environment names. With
//! `serves` or `servesNUMBER` it handles its calls on one thread, at most so many at a time; with
//! `both`, on that thread and on others.

use leno_sdk::{Answer, Call, Chain, Error, Method, OnFull, Pending, RequestHead, ResponseHead, StatusCode};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with};
use std::error::Error as StdError;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

/// The values that `swap` and `keep-answer` hold.
static HELD: Mutex<Option<Call>> = Mutex::new(None);
static ANSWER: Mutex<Option<(Vec<u8>, Answer)>> = Mutex::new(None);

/// The number of workers, unless the mode is `one`.
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
    let threads = match mode.as_str() {
        "one" => 1,
        _ if mode.starts_with("serves") => 0,
        _ => WORKERS,
    };
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let chain = chain.clone();
            thread::spawn(move || {
                while let Some(call) = chain.next() {
                    say(at_once(handle(&Way::Thread, &chain, call)));
                }
            })
        })
        .collect();
    if mode.starts_with("serves") || mode == "both" {
        let most = mode.trim_start_matches("serves").parse().unwrap_or(usize::MAX);
        chain.serve(most, async |call| say(handle(&Way::Task, &chain, call).await))?;
    }
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    Ok(())
}

fn say(done: Result<(), Box<dyn StdError>>) {
    if let Err(error) = done {
        eprintln!("{error}");
    }
}

/// Connects as if it were the node, and waits until the function refuses the connection.
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

/// How a call waits.
enum Way {
    /// On a separate thread.
    Thread,
    /// On the thread of all calls.
    Task,
}

impl Way {
    async fn answer(&self, pending: Pending) -> Result<Answer, Error> {
        match self {
            Self::Thread => pending.wait(),
            Self::Task => pending.await,
        }
    }

    async fn a_moment(&self) {
        match self {
            Self::Thread => thread::yield_now(),
            Self::Task => {
                let mut again = true;
                let turn = poll_fn(|context| match std::mem::take(&mut again) {
                    true => {
                        context.waker().wake_by_ref();
                        Poll::Pending
                    }
                    false => Poll::Ready(()),
                });
                turn.await;
            }
        }
    }

    async fn sleep(&self, time: Duration) {
        match self {
            Self::Thread => thread::sleep(time),
            Self::Task => {
                let done = Arc::new(AtomicBool::new(false));
                let mut begun = false;
                let slept = poll_fn(|context| {
                    if !std::mem::replace(&mut begun, true) {
                        let (done, waker) = (done.clone(), context.waker().clone());
                        thread::spawn(move || {
                            thread::sleep(time);
                            done.store(true, Ordering::SeqCst);
                            waker.wake();
                        });
                    }
                    if done.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
                });
                slept.await;
            }
        }
    }
}

struct Holds {
    _call: Pending,
}

impl Wake for Holds {
    fn wake(self: Arc<Self>) {}
}

/// Runs a future that blocks its thread where it waits, and so is finished when it is first polled.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("it blocks"),
    }
}

/// `/do/NAME/PATH`: runs the action `do`, with a function of that name, and a path for it.
async fn handle(way: &Way, chain: &Chain, call: Call) -> Result<(), Box<dyn StdError>> {
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
            let answer = way.answer(chain.call(Some(&call), &to(name, &rest), call.body())?).await?;
            call.answer(answer.status(), answer.body())?;
        }
        // Writes a body in place, has it sent there and back, and answers whether it is at the same
        // address.
        "same" => {
            let mut buffer = chain.buffer(100_000)?;
            buffer.fill(7);
            let body = buffer.share();
            let answer = way.answer(chain.call(Some(&call), &to(name, &rest), &body)?).await?;
            let same = answer.body().as_ptr() == body.as_ptr() && answer.body().len() == body.len();
            drop((answer, body));
            call.answer(StatusCode::OK, chain.copy(same.to_string().as_bytes())?)?;
        }
        // The same body to many functions, each of which gets another part.
        "spread" => {
            let body = chain.copy(call.body().bytes())?.share();
            let pending: Result<Vec<Pending>, Error> =
                (0..body.len()).map(|length| chain.call(Some(&call), &to(name, &rest), body.part(..=length))).collect();
            let mut pending = pending?;
            let mut total = 0_u64;
            while let Some(answer) = match way {
                Way::Thread => Pending::wait_any(&mut pending).map(|(_, answer)| answer),
                Way::Task if pending.is_empty() => None,
                Way::Task => Some(pending.remove(0).await),
            } {
                total += String::from_utf8(answer?.body().to_vec())?.parse::<u64>()?;
            }
            call.answer(StatusCode::OK, chain.copy(total.to_string().as_bytes())?)?;
        }
        // With a header field; `liar` sets one that only the mesh may set.
        "fields" | "liar" => {
            let mut head = to(name, &rest);
            head.headers.insert(if verb == "liar" { "x_forwarded_client_cert" } else { "x-team" }, "red".parse()?);
            let answer = way.answer(chain.call(Some(&call), &head, ())?).await?;
            call.answer(answer.head().clone(), ())?;
        }
        // Calls with another body, and passes on the body of the answer.
        "relay" => {
            let pending = chain.call(Some(&call), &to(name, &rest), chain.copy(b"its own body"[..9].as_ref())?)?;
            let answer = way.answer(pending).await?;
            call.answer(answer.status(), answer.body())?;
        }
        "slow-length" => {
            way.sleep(Duration::from_millis(150)).await;
            let length = chain.copy(call.body().len().to_string().as_bytes())?;
            call.answer(StatusCode::OK, length)?;
        }
        // Waits for an answer that has arrived long before.
        "wait-late" => {
            let pending = chain.call(Some(&call), &to(name, &rest), chain.copy(b"a body")?)?;
            way.sleep(Duration::from_millis(300)).await;
            let answer = way.answer(pending).await?;
            let length = chain.copy(&answer.body())?;
            call.answer(answer.status(), length)?;
        }
        // A new body with the same bytes.
        "copy" => {
            let copy = chain.copy(&call.body())?;
            call.answer(StatusCode::OK, copy)?;
        }
        // Two calls, the second of which is answered with the first one's body.
        "two" => {
            let ask = |body: &[u8]| chain.call(Some(&call), &to(name, &rest), chain.copy(body)?);
            let (first, second) = (ask(b"the first one")?, ask(b"the second one")?);
            let bodies = [way.answer(second).await?, way.answer(first).await?].map(|answer| answer.body().to_vec());
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
        // Keeps an answer, and later reports whether it is unchanged.
        "keep-answer" => {
            let answer = way.answer(chain.call(Some(&call), &to(name, &rest), chain.copy(&[7; 1000])?)?).await?;
            *ANSWER.lock().map_err(|_| "poisoned")? = Some((answer.body().to_vec(), answer));
            call.answer(StatusCode::OK, ())?;
        }
        "same-answer" => {
            let kept = ANSWER.lock().map_err(|_| "poisoned")?.take();
            let same = kept.is_some_and(|(copy, answer)| !copy.is_empty() && *copy == *answer.body());
            call.answer(StatusCode::OK, chain.copy(same.to_string().as_bytes())?)?;
        }
        // Writes to all free memory.
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
        // Makes as many calls as the name says, without answering in between: every part of its
        // arena is allocated and freed.
        "many" => {
            for _ in 0..name.parse::<u32>()? {
                let body = chain.buffer(60_000)?;
                way.answer(chain.call(Some(&call), &to("echo", "/length"), body)?).await?;
            }
            call.answer(StatusCode::OK, ())?;
        }
        // As many bytes as the name says, at once.
        "take" => match chain.buffer(name.parse()?) {
            Ok(_) => call.answer(StatusCode::OK, ())?,
            Err(Error::Full(_)) => call.answer(StatusCode::INSUFFICIENT_STORAGE, ())?,
            Err(error) => return Err(error.into()),
        },
        // Cancels a call without an answer, once the function there reports that it is cancelled.
        "give-up" => {
            drop(chain.call(Some(&call), &to(name, &rest), ())?);
            call.answer(StatusCode::OK, ())?;
        }
        "status-of" => {
            let status = match way.answer(chain.call(Some(&call), &to(name, &rest), call.body())?).await {
                Ok(answer) => answer.status(),
                Err(_) => StatusCode::BAD_GATEWAY,
            };
            call.answer(status, ())?;
        }
        "hang" => {
            while !call.is_cancelled() {
                way.a_moment().await;
            }
            call.answer(StatusCode::OK, ())?;
        }
        // Answered once so many of these calls are here at a time, with the number of threads.
        "gather" => {
            static HERE: AtomicUsize = AtomicUsize::new(0);
            HERE.fetch_add(1, Ordering::SeqCst);
            while HERE.load(Ordering::SeqCst) < name.parse()? {
                way.a_moment().await;
            }
            let threads = std::fs::read_dir("/proc/self/task")?.count();
            call.answer(StatusCode::OK, chain.copy(threads.to_string().as_bytes())?)?;
        }
        // Waits like a task.
        "await" => {
            let answer = at_once(chain.call(Some(&call), &to(name, &rest), ())?);
            let status = if answer.err() == Some(Error::NotServed) { StatusCode::OK } else { StatusCode::CONFLICT };
            call.answer(status, ())?;
        }
        // Waits with wakers each of which holds another call, and so cancels that call when it is
        // dropped.
        "wakers" => {
            let ask = || chain.call(Some(&call), &to(name, &rest), ());
            let mut waits = ask()?;
            for holds in [ask()?, ask()?] {
                let waker = Waker::from(Arc::new(Holds { _call: holds }));
                if Pin::new(&mut waits).poll(&mut Context::from_waker(&waker)).is_ready() {
                    return Err("nobody answers".into());
                }
            }
            drop(waits);
            call.answer(StatusCode::OK, ())?;
        }
        // Serves on another thread.
        "serve" => {
            let error = thread::scope(|scope| scope.spawn(|| chain.serve(1, async |_| {}).err()).join());
            let error = error.map_err(|_| "it has failed")?.map(|error| error.to_string()).unwrap_or_default();
            call.answer(StatusCode::OK, chain.copy(error.as_bytes())?)?;
        }
        // Reads the packets that have arrived meanwhile, and then waits for ever.
        "hear" => {
            thread::sleep(Duration::from_millis(100));
            let _ = call.is_cancelled();
            way.sleep(Duration::from_secs(3600)).await;
        }
        // Never answered, and held for ever.
        "keep" => std::mem::forget(call),
        "fail" => drop(call),
        // The number of arenas of others that this process has mapped.
        "arenas" => {
            let maps = std::fs::read_to_string("/proc/self/maps")?;
            let arenas = maps.lines().filter(|line| line.contains("memfd:leno-chain-instance")).count() - 1;
            call.answer(StatusCode::OK, chain.copy(arenas.to_string().as_bytes())?)?;
        }
        _ => call.answer(StatusCode::NOT_FOUND, ())?,
    }
    Ok(())
}
