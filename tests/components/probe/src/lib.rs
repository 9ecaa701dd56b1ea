//! A component that performs the action in a request's path, so that tests can see the result.

use std::io::{Read, Write};
use wasip2::cli::environment::get_environment;
use wasip2::clocks::monotonic_clock;
use wasip2::exports::http::incoming_handler::Guest;
use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    Fields, IncomingBody, IncomingRequest, OutgoingBody, OutgoingRequest, OutgoingResponse, ResponseOutparam, Scheme,
};

struct Probe;

wasip2::http::proxy::export!(Probe);

/// Outlives requests if the instance does.
static mut COUNT: u32 = 0;

impl Guest for Probe {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let target = request.path_with_query().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        match path {
            "/count" => {
                // SAFETY: an instance has one thread.
                let count = unsafe {
                    COUNT += 1;
                    COUNT
                };
                answer(out, 200, &format!("{count}"));
            }
            "/echo" => echo(request, out),
            "/headers" => {
                let fields = request.headers().entries();
                let lines = fields.iter().map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value)));
                let lines: String = lines.collect();
                answer(out, 200, &format!("{}\n{lines}", request.authority().unwrap_or_default()));
            }
            "/env" => {
                let lines: String = get_environment().iter().map(|(name, value)| format!("{name}={value}\n")).collect();
                answer(out, 200, &lines);
            }
            "/log" => {
                let _ = wasip2::cli::stdout::get_stdout().write_all(format!("{query}\nwithout end").as_bytes());
                let _ = wasip2::cli::stderr::get_stderr().write_all(b"an error\n");
                answer(out, 200, "logged");
            }
            "/call" => {
                let (status, text) = call(query, None).unwrap_or_else(|error| (599, error));
                answer(out, 200, &format!("{status} {text}"));
            }
            "/relay" => relay(request, out, query),
            "/files" => answer(out, 200, &format!("{}", wasip2::filesystem::preopens::get_directories().len())),
            "/socket" => answer(out, 200, &socket()),
            "/wait" => {
                let _ = wasip2::cli::stdout::get_stdout().write_all(b"waiting\n");
                monotonic_clock::subscribe_duration(query.parse().unwrap_or(u64::MAX / 4)).block();
                answer(out, 200, "waited");
            }
            "/compute" => answer(out, 200, &format!("{}", compute(query.parse().unwrap_or(1)))),
            "/trap" => panic!("as asked"),
            "/late" => {
                let (body, mut stream) = begin(out, 200);
                let _ = stream.write_all(b"the beginning");
                let _ = stream.flush();
                std::mem::forget(body);
                panic!("as asked, in the middle");
            }
            "/loop" => {
                let mut number = 1_u64;
                loop {
                    number = std::hint::black_box(number.wrapping_mul(3));
                }
            }
            "/memory" => {
                let mut taken: Vec<Vec<u8>> = Vec::new();
                loop {
                    taken.push(std::hint::black_box(vec![1; 1 << 20]));
                }
            }
            "/resources" => {
                let mut taken = Vec::new();
                loop {
                    taken.push(Fields::new());
                }
            }
            "/recursion" => answer(out, 200, &format!("{}", deep(1))),
            "/exit" => wasip2::cli::exit::exit(Err(())),
            "/silent" => {}
            "/error" => ResponseOutparam::set(out, Err(wasip2::http::types::ErrorCode::ConfigurationError)),
            "/status" => answer(out, query.parse().unwrap_or(200), "status"),
            "/after" => {
                let (body, mut stream) = begin(out, 200);
                let _ = stream.write_all(b"answered");
                drop(stream);
                let _ = OutgoingBody::finish(body, None);
                let _ = wasip2::cli::stdout::get_stdout().write_all(b"after the answer\n");
            }
            _ => answer(out, 200, "hello"),
        }
    }
}

fn begin(out: ResponseOutparam, status: u16) -> (OutgoingBody, wasip2::io::streams::OutputStream) {
    let response = OutgoingResponse::new(Fields::new());
    response.set_status_code(status).expect("a status");
    let body = response.body().expect("a body");
    ResponseOutparam::set(out, Ok(response));
    let stream = body.write().expect("a stream");
    (body, stream)
}

fn answer(out: ResponseOutparam, status: u16, text: &str) {
    let (body, mut stream) = begin(out, status);
    let _ = stream.write_all(text.as_bytes());
    drop(stream);
    let _ = OutgoingBody::finish(body, None);
}

/// Sends each piece back at once.
fn echo(request: IncomingRequest, out: ResponseOutparam) {
    let incoming = request.consume().expect("a body");
    let mut from = incoming.stream().expect("a stream");
    let (body, mut to) = begin(out, 200);
    let mut piece = [0; 4096];
    loop {
        match Read::read(&mut from, &mut piece) {
            Ok(0) => break,
            Ok(length) => to.write_all(&piece[..length]).expect("written"),
            // The sender broke off, so the answer breaks off too.
            Err(_) => panic!("the request broke off"),
        }
    }
    drop((from, to));
    let trailers = IncomingBody::finish(incoming);
    trailers.subscribe().block();
    let trailers = trailers.get().and_then(Result::ok).and_then(Result::ok).flatten();
    let copy = trailers.map(|fields| Fields::from_list(&fields.entries()).expect("fields"));
    let _ = OutgoingBody::finish(body, copy);
}

/// Sends the request's body on to `http://<query>`, and passes on the answer.
fn relay(request: IncomingRequest, out: ResponseOutparam, query: &str) {
    let incoming = request.consume().expect("a body");
    let mut from = incoming.stream().expect("a stream");
    let mut text = Vec::new();
    from.read_to_end(&mut text).expect("read");
    let (status, text) = call(query, Some(&text)).unwrap_or_else(|error| (599, error));
    answer(out, 200, &format!("{status} {text}"));
}

fn call(url: &str, body: Option<&[u8]>) -> Result<(u16, String), String> {
    let (scheme, rest) = match url.split_once("://") {
        Some(("https", rest)) => (Scheme::Https, rest),
        Some((_, rest)) => (Scheme::Http, rest),
        None => (Scheme::Http, url),
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // An identity that an instance may not claim.
    let fields = [("x-forwarded-client-cert", "By=me;URI=spiffe://other"), ("x-probe", "1")];
    let fields: Vec<_> = fields.into_iter().map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).collect();
    let request = OutgoingRequest::new(Fields::from_list(&fields).expect("fields"));
    request.set_scheme(Some(&scheme)).expect("a scheme");
    request.set_authority(Some(host)).map_err(|()| "not an authority")?;
    request.set_path_with_query(Some(if path.is_empty() { "/" } else { path })).map_err(|()| "not a path")?;
    let outgoing = body.map(|_| {
        request.set_method(&wasip2::http::types::Method::Post).expect("a method");
        request.body().expect("a body")
    });
    let waiting = outgoing_handler::handle(request, None).map_err(|error| format!("{error:?}"))?;
    if let (Some(outgoing), Some(bytes)) = (outgoing, body) {
        outgoing.write().expect("a stream").write_all(bytes).map_err(|error| error.to_string())?;
        OutgoingBody::finish(outgoing, None).map_err(|error| format!("{error:?}"))?;
    }
    waiting.subscribe().block();
    let response = waiting.get().expect("a response").expect("once").map_err(|error| format!("{error:?}"))?;
    let mut text = String::new();
    let body = response.consume().expect("a body");
    body.stream().expect("a stream").read_to_string(&mut text).map_err(|error| format!("in the body: {error}"))?;
    Ok((response.status(), text))
}

fn socket() -> String {
    use wasip2::sockets::{instance_network, ip_name_lookup, network, tcp, tcp_create_socket};
    let network_here = instance_network::instance_network();
    let name = ip_name_lookup::resolve_addresses(&network_here, "localhost").and_then(|names| {
        names.subscribe().block();
        names.resolve_next_address()
    });
    let address = network::IpSocketAddress::Ipv4(network::Ipv4SocketAddress { port: 1, address: (127, 0, 0, 1) });
    let connected = tcp_create_socket::create_tcp_socket(network::IpAddressFamily::Ipv4)
        .and_then(|socket: tcp::TcpSocket| socket.start_connect(&network_here, address));
    format!("{name:?} {connected:?}")
}

fn compute(rounds: u64) -> u64 {
    let mut number = 1_u64;
    for round in 0..rounds * 1_000_000 {
        number = std::hint::black_box(number.wrapping_mul(3) ^ round);
    }
    number
}

#[allow(unconditional_recursion)]
fn deep(level: u64) -> u64 {
    let room = std::hint::black_box([level; 64]);
    deep(room[3] + 1) + room[1]
}
