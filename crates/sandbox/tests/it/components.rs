//! Components, good and bad: each request has a separate instance, which cannot access the node.

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Full};
use leno_sandbox::component::{
    Answer, Body, CompiledComponents, Component, Components, Failure, Outbound, Program, Sending, Settings, StreamError,
};
use std::fs::Permissions;
use std::future::poll_fn;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::oneshot;

const MEMORY: usize = 16 << 20;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The component of these tests, built now.
fn probe_bytes() -> &'static [u8] {
    static PROBE: OnceLock<Vec<u8>> = OnceLock::new();
    PROBE.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let built = Command::new(root.join("examples/components/build")).arg("probe").status().unwrap();
        assert!(built.success(), "the component cannot be built");
        std::fs::read(root.join("target/components/probe.wasm")).unwrap()
    })
}

/// The same, compiled once.
fn probe() -> Component {
    static PROBE: OnceLock<Component> = OnceLock::new();
    PROBE.get_or_init(|| Components::new(None).unwrap().compile(probe_bytes()).unwrap()).clone()
}

fn program(env: &[(&str, &str)]) -> Program {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Program::new(probe(), Settings::new("tests/probe", env, MEMORY))
}

fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

fn get(target: &str) -> Request<Body> {
    Request::get(format!("http://probe{target}")).body(body("")).unwrap()
}

/// The calls of an instance, all of which are answered.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<Request<()>>>>);

impl Outbound for Calls {
    fn send(&mut self, request: Request<Body>) -> Sending {
        let calls = self.0.clone();
        Box::pin(async move {
            let (head, sent) = request.into_parts();
            let sent = sent.collect().await?.to_bytes();
            let answer = format!("{} {} {}", head.method, head.uri, String::from_utf8_lossy(&sent));
            calls.lock().unwrap().push(Request::from_parts(head, ()));
            Ok(Response::builder().status(203).body(body(answer)).unwrap())
        })
    }
}

/// Runs one request; returns the whole answer, and the result of the run.
async fn whole(
    program: &Program,
    request: Request<Body>,
) -> (Result<(StatusCode, String), String>, Result<(), Failure>) {
    let (sender, receiver) = oneshot::channel::<Result<Response<Answer>, Failure>>();
    let answered = async {
        let response = receiver.await.unwrap().map_err(|failure| failure.to_string())?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|StreamError(reason)| reason)?.to_bytes();
        Ok((status, String::from_utf8(bytes.to_vec()).unwrap()))
    };
    let run = program.run(request, Box::new(Calls::default()), sender);
    let (run, answered) = tokio::join!(run, answered);
    (answered, run)
}

fn text(program: &Program, target: &str) -> String {
    let (answer, run) = runtime().block_on(whole(program, get(target)));
    run.unwrap();
    let (status, text) = answer.unwrap();
    assert_eq!(status, 200);
    text
}

fn failure(target: &str) -> Failure {
    let (answer, run) = runtime().block_on(whole(&program(&[]), get(target)));
    let failure = run.unwrap_err();
    assert_eq!(answer.unwrap_err(), failure.to_string());
    failure
}

#[test]
fn each_request_has_an_instance_of_its_own() {
    let program = program(&[]);
    for _ in 0..3 {
        assert_eq!(text(&program, "/count"), "1");
    }
}

#[test]
fn an_instance_has_the_environment_it_is_given_and_nothing_else() {
    let program = program(&[("COLOUR", "blue")]);
    assert_eq!(text(&program, "/env"), "COLOUR=blue\n");
    assert_eq!(text(&program, "/files"), "0");
    let sockets = text(&program, "/socket");
    assert!(sockets.contains("permanent-resolver-failure") && sockets.contains("access-denied"), "{sockets}");
}

#[test]
fn calls_are_handed_to_the_outside_and_to_nobody_else() {
    let (sender, receiver) = oneshot::channel();
    let calls = Calls::default();
    let program = program(&[]);
    let request = Request::post("http://probe/relay?http://stock.shop/items").body(body("three")).unwrap();
    let run = program.run(request, Box::new(calls.clone()), sender);
    let answered = async {
        let response: Response<Answer> = receiver.await.unwrap().unwrap();
        response.into_body().collect().await.unwrap().to_bytes()
    };
    let (run, answered) = runtime().block_on(async { tokio::join!(run, answered) });
    run.unwrap();
    assert_eq!(answered, "203 POST http://stock.shop/items three");
    assert_eq!(calls.0.lock().unwrap()[0].headers()["host"], "stock.shop");
    // TLS is the sidecar's task; a component that insists on making TLS itself gets an error.
    assert!(text(&program, "/call?https://elsewhere/").contains("HttpProtocolError"));
}

#[test]
fn bodies_stream_both_ways() {
    let program = program(&[]);
    let (mut frames, pieces) = Channel::<Bytes, StreamError>::new(1);
    let request = Request::post("http://probe/echo").body(pieces.boxed_unsync()).unwrap();
    let (sender, receiver) = oneshot::channel();
    runtime().block_on(async {
        let run = program.run(request, Box::new(Calls::default()), sender);
        let talk = async {
            let mut answer = receiver.await.unwrap().unwrap().into_body();
            for piece in ["one", "two", "three"] {
                frames.send_data(Bytes::from(piece)).await.unwrap();
                // Each frame comes back before the next is sent.
                let frame = answer.frame().await.unwrap().unwrap();
                assert_eq!(frame.into_data().unwrap(), piece);
            }
            let trailers = http::HeaderMap::from_iter([("x-end".parse().unwrap(), "yes".parse().unwrap())]);
            frames.send_trailers(trailers).await.unwrap();
            drop(frames);
            let frame = answer.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_trailers().unwrap()["x-end"], "yes");
            assert!(answer.frame().await.is_none());
        };
        let (run, ()) = tokio::join!(run, talk);
        run.unwrap();
    });
}

#[test]
fn what_goes_wrong_ends_one_run_and_says_what_it_was() {
    assert_eq!(failure("/trap").label(), "trap");
    // Rust's stack lies at the bottom of the instance's memory, so an overflow leaves the memory.
    assert_eq!(failure("/recursion").label(), "trap");
    assert_eq!(failure("/memory"), Failure::Memory(MEMORY));
    assert_eq!(failure("/exit"), Failure::Exit(1));
    assert_eq!(failure("/silent"), Failure::Silent);
    assert_eq!(failure("/resources").label(), "host");
    let (answer, run) = runtime().block_on(whole(&program(&[]), get("/error")));
    run.unwrap();
    assert_eq!(answer.unwrap_err(), "answered with the error ErrorCode::ConfigurationError");
    assert_eq!(text(&program(&[]), "/hello"), "hello");
}

#[test]
fn an_answer_that_breaks_off_does_not_seem_to_be_whole() {
    let (answer, run) = runtime().block_on(whole(&program(&[]), get("/late")));
    assert_eq!(run.unwrap_err().label(), "trap");
    assert!(answer.unwrap_err().contains("executed an undefined instruction"));
}

#[test]
fn a_computation_takes_turns_and_ends_when_nobody_waits_for_it() {
    let program = program(&[]);
    runtime().block_on(async {
        let (sender, _receiver) = oneshot::channel();
        let mut endless = Box::pin(program.run(get("/loop"), Box::new(Calls::default()), sender));
        // Each poll returns, so that other requests can be served in between.
        for _ in 0..5 {
            let over = poll_fn(|cx| std::task::Poll::Ready(endless.as_mut().poll(cx).is_ready())).await;
            assert!(!over);
            let (answer, run) = whole(&program, get("/hello")).await;
            run.unwrap();
            assert_eq!(answer.unwrap().1, "hello");
        }
        drop(endless);
    });
}

#[test]
fn an_instance_that_waits_is_dropped_with_its_run() {
    let program = program(&[]);
    runtime().block_on(async {
        let (sender, receiver) = oneshot::channel();
        let waiting = program.run(get("/wait"), Box::new(Calls::default()), sender);
        tokio::time::timeout(Duration::from_millis(20), waiting).await.unwrap_err();
        assert!(receiver.await.is_err());
    });
}

#[test]
fn an_instance_may_go_on_after_its_answer() {
    assert_eq!(text(&program(&[]), "/after"), "answered");
    assert_eq!(text(&program(&[]), "/log?a%20line"), "logged");
}

#[test]
fn what_is_no_component_for_http_is_refused_in_words() {
    let components = Components::new(None).unwrap();
    let refused = |bytes: &[u8]| components.compile(bytes).unwrap_err().to_string();
    assert!(refused(b"text").contains("cannot be compiled"));
    assert!(refused(&wat::parse_str("(module)").unwrap()).contains("cannot be compiled"));
    assert!(refused(&wat::parse_str("(component)").unwrap()).contains("exports no `wasi:http/incoming-handler`"));
    let foreign = wat::parse_str("(component (import \"acme:disk/all\" (func)))").unwrap();
    assert!(refused(&foreign).contains("acme:disk/all"));
}

#[test]
fn a_component_that_begins_with_more_memory_than_it_is_given_is_not_run() {
    let program = Program::new(probe(), Settings::new("tests/probe", Vec::new(), 64 << 10));
    let (answer, run) = runtime().block_on(whole(&program, get("/hello")));
    assert_eq!(run.unwrap_err(), Failure::Memory(64 << 10));
    assert!(answer.unwrap_err().contains("needed more memory than the 65536 bytes"));
}

#[test]
fn a_second_process_does_not_compile_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = || CompiledComponents::open(folder.path().join("components")).unwrap();
    let compile = || Components::new(Some(cache())).unwrap().compile(probe_bytes()).map(drop);
    let files = || -> Vec<_> {
        let entries = std::fs::read_dir(folder.path().join("components")).unwrap();
        entries.map(|entry| entry.unwrap()).map(|entry| (entry.path(), entry.metadata().unwrap())).collect()
    };
    compile().unwrap();
    let first = files();
    assert_eq!(first.len(), 1);
    compile().unwrap();
    assert_eq!(files()[0].1.ino(), first[0].1.ino(), "the file was used, and not written again");
    // A damaged file, one of another account's making, and one that is cut off are not run.
    let path = &first[0].0;
    let code = std::fs::read(path).unwrap();
    let mut damaged = code.clone();
    damaged[code.len() / 2] ^= 1;
    for content in [&damaged[..], &code[..code.len() / 2], &[]] {
        std::fs::write(path, content).unwrap();
        compile().unwrap();
        assert_eq!(std::fs::read(path).unwrap(), code);
    }
    std::fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    compile().unwrap();
    assert_eq!(files()[0].1.mode() & 0o777, 0o600, "it was written again");
    std::fs::set_permissions(folder.path().join("components"), Permissions::from_mode(0o777)).unwrap();
    assert!(CompiledComponents::open(folder.path().join("components")).is_err());
}
