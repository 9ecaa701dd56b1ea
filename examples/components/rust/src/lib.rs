//! A function as a component: it greets its caller. Another function can provide the words.
//!
//! `GREETING_FROM=http://greetings/today`: the source of the words. The default is "Hello".

use std::io::{Read, Write};
use wasip2::cli::environment::get_environment;
use wasip2::exports::http::incoming_handler::Guest;
use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    Fields, IncomingRequest, OutgoingBody, OutgoingRequest, OutgoingResponse, ResponseOutparam, Scheme,
};

struct Greeter;

wasip2::http::proxy::export!(Greeter);

impl Guest for Greeter {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let path = request.path_with_query().unwrap_or_default();
        let name = path.trim_matches('/');
        let from = get_environment().into_iter().find(|(name, _)| name == "GREETING_FROM");
        let (status, text) = match from.map_or(Ok("Hello".to_owned()), |(_, url)| fetch(&url)) {
            Ok(words) => (200, format!("{}, {}!\n", words.trim(), if name.is_empty() { "stranger" } else { name })),
            Err(reason) => (502, format!("no greeting today: {reason}\n")),
        };
        let response = OutgoingResponse::new(Fields::new());
        let _ = response.set_status_code(status);
        let Ok(body) = response.body() else { return };
        ResponseOutparam::set(out, Ok(response));
        if let Ok(mut stream) = body.write() {
            let _ = stream.write_all(text.as_bytes());
        }
        let _ = OutgoingBody::finish(body, None);
    }
}

/// A GET of `http://host/path`. It goes through the function's sidecar, which knows to which
/// function it belongs.
fn fetch(url: &str) -> Result<String, String> {
    let rest = url.strip_prefix("http://").ok_or("not an http:// address")?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let request = OutgoingRequest::new(Fields::new());
    let set = [
        request.set_scheme(Some(&Scheme::Http)),
        request.set_authority(Some(host)),
        request.set_path_with_query(Some(if path.is_empty() { "/" } else { path })),
    ];
    set.into_iter().collect::<Result<(), ()>>().map_err(|()| "not an address")?;
    let waiting = outgoing_handler::handle(request, None).map_err(|error| format!("{error:?}"))?;
    waiting.subscribe().block();
    let answered = waiting.get().ok_or("nothing came")?.map_err(|()| "it was taken already")?;
    let response = answered.map_err(|error| format!("{error:?}"))?;
    if response.status() != 200 {
        return Err(format!("{host} answered with {}", response.status()));
    }
    let body = response.consume().map_err(|()| "there is no body")?;
    let mut stream = body.stream().map_err(|()| "there is no stream")?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}
