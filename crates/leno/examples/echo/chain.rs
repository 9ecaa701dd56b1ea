//! The same function, with calls through the shared memory of a chain.

use crate::{Call, Error, hostile};
use leno_sdk::{Chain, HeaderName, HeaderValue, Pending, RequestHead, ResponseHead, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Concurrent calls.
const THREADS: usize = 16;

/// Serves until the node ends the link.
pub(crate) fn serve() -> Result<(), Error> {
    let chain = Chain::from_environment()?;
    let handling = (0..THREADS).map(|_| {
        let chain = chain.clone();
        std::thread::spawn(move || {
            while let Some(call) = chain.next() {
                if let Err(error) = answer(&chain, call) {
                    println!("a call failed: {error}");
                }
            }
        })
    });
    // All of them start before this waits for the first.
    for thread in handling.collect::<Vec<_>>() {
        let _ = thread.join();
    }
    Ok(())
}

fn answer(chain: &Chain, call: leno_sdk::Call) -> Result<(), Error> {
    let path = call.path().to_owned();
    let mut segments = path.split('/').skip(1);
    match (segments.next(), segments.next()) {
        (Some("slow"), Some(milliseconds)) => {
            println!("pausing");
            std::thread::sleep(Duration::from_millis(milliseconds.parse()?));
            echo(chain, call, 200)
        }
        (Some("status"), Some(code)) => {
            let code = code.parse()?;
            echo(chain, call, code)
        }
        (Some("call"), Some(host)) => {
            let head = onward(&call, host, segments)?;
            let answer = chain.call(Some(&call), &head, call.body())?.wait()?;
            Ok(call.answer(answer.status(), answer.body())?)
        }
        (Some("forward"), Some(host)) => {
            let head = onward(&call, host, segments)?;
            Ok(call.forward_with(&head, |body| body.into())?)
        }
        (Some("all"), Some(hosts)) => {
            let rest: Vec<&str> = segments.collect();
            let ask = |host: &str| -> Result<Pending, Error> {
                let head = onward(&call, host, rest.iter().copied())?;
                Ok(chain.call(Some(&call), &head, call.body())?)
            };
            let asked = hosts.split(',').map(ask).collect::<Result<Vec<_>, _>>()?;
            let answers = Pending::wait_all(asked).into_iter().collect::<Result<Vec<_>, _>>()?;
            let statuses: Value = answers.iter().map(|answer| answer.status().as_u16()).collect();
            Ok(call.answer(StatusCode::OK, chain.copy(statuses.to_string().as_bytes())?)?)
        }
        (Some("same"), _) => Ok(call.answer_with(StatusCode::OK, |body| body.into())?),
        (Some("hostile"), Some(milliseconds)) => {
            let time = Duration::from_millis(milliseconds.parse()?);
            std::thread::spawn(move || hostile::scribble(time));
            echo(chain, call, 200)
        }
        (Some("hold"), _) => {
            println!("holding {} bytes", call.body().len());
            std::thread::sleep(Duration::from_secs(600));
            Ok(())
        }
        (Some("send"), None) => {
            let calls: Vec<Call> = serde_json::from_slice(&call.body())?;
            let send = |made: &Call| send(chain, &call, made);
            let answers: Value =
                calls.iter().map(|made| send(made).unwrap_or_else(|error| error.to_string().into())).collect();
            Ok(call.answer(StatusCode::OK, chain.copy(answers.to_string().as_bytes())?)?)
        }
        (Some("crash"), _) => std::process::exit(3),
        _ => {
            let status = std::env::var("STATUS").map_or(Ok(200), |status| status.parse())?;
            echo(chain, call, status)
        }
    }
}

/// The head of a call to another function, with the method of this one.
fn onward<'a>(call: &leno_sdk::Call, host: &str, path: impl Iterator<Item = &'a str>) -> Result<RequestHead, Error> {
    let path = format!("/{}", path.collect::<Vec<_>>().join("/"));
    Ok(RequestHead::new(call.method().clone(), host.parse()?, path.parse()?))
}

fn send(chain: &Chain, parent: &leno_sdk::Call, call: &Call) -> Result<Value, Error> {
    let mut head = RequestHead::new(call.method.parse()?, call.host.parse()?, call.path.parse()?);
    for (name, value) in &call.headers {
        head.headers.append(name.parse::<HeaderName>()?, value.parse::<HeaderValue>()?);
    }
    Ok(chain.call(Some(parent), &head, ())?.wait()?.status().as_u16().into())
}

fn echo(chain: &Chain, call: leno_sdk::Call, status: u16) -> Result<(), Error> {
    let mut headers = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in call.headers() {
        headers.entry(name.to_string()).or_default().push(String::from_utf8_lossy(value.as_bytes()).into_owned());
    }
    let environment: BTreeMap<String, String> = std::env::vars().collect();
    let body = json!({
        "method": call.method().as_str(), "path": call.path(), "authority": call.authority(), "headers": headers,
        "length": call.body().len(), "pid": std::process::id(), "environment": environment,
    });
    let mut answer = ResponseHead::new(StatusCode::from_u16(status)?);
    answer.headers.insert("content-type", HeaderValue::from_static("application/json"));
    Ok(call.answer(answer, chain.copy(body.to_string().as_bytes())?)?)
}
