//! Connections that clients keep, and programs that close theirs.

use super::*;
use tokio::net::TcpListener;

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

async fn program() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A client that has got an answer, and its connection to the program.
async fn kept(pod: &TestPod, listener: &TcpListener, answer: &str) -> (Raw, Raw) {
    let mut client = pod.connect(CLIENT).await;
    client.send(GET).await;
    let mut program = Raw(listener.accept().await.unwrap().0);
    program.head().await;
    program.send(answer).await;
    (client, program)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_with_the_one_to_the_program() {
    let (listener, address) = program().await;
    let mesh = mesh(AppProtocol::Http1, address);
    let pod = TestPod::start(&mesh, "web", address, |_| ());
    let (mut client, mut upstream) = kept(&pod, &listener, ANSWER).await;
    client.until("ok").await;
    // While the program keeps it, the client may.
    client.send(GET).await;
    upstream.head().await;
    upstream.send(ANSWER).await;
    let head = client.head().await;
    assert!(!head.contains("connection: close"), "{head}");
    client.until("ok").await;
    drop(upstream);
    assert_eq!(client.rest().await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_hears_that_the_program_closes_after_an_answer() {
    let (listener, address) = program().await;
    let mesh = mesh(AppProtocol::Http1, address);
    let pod = TestPod::start(&mesh, "web", address, |_| ());
    for last in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nconnection: x, Close\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ] {
        let (mut client, upstream) = kept(&pod, &listener, last).await;
        let head = client.head().await;
        assert!(head.contains("connection: close"), "{head}");
        drop(upstream);
        assert!(client.rest().await.contains("ok"));
    }
    let keeps = "HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 2\r\n\r\nok";
    let (mut client, _upstream) = kept(&pod, &listener, keeps).await;
    let head = client.head().await;
    assert!(!head.contains("connection: close"), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_to_a_program_that_has_gone_ends_without_an_answer() {
    let (listener, address) = program().await;
    let mesh = mesh(AppProtocol::Http1, address);
    let pod = TestPod::start(&mesh, "web", address, |_| ());
    // A request that is refused needs no connection to the program, whose end would show.
    let mut client = pod.connect(CLIENT).await;
    client.send(GET.replace("host:", "x-deny: 1\r\nhost:")).await;
    assert_eq!(raw::status(&client.head().await), 403);
    client.until("}\n").await;
    drop(listener);
    client.send(GET).await;
    assert_eq!(client.rest().await, "");
    // The first request of a connection is answered: another connection would not help.
    let first = pod.get(CLIENT, "/").await;
    assert_eq!(raw::status(&first), 503, "{first}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_http2_is_told_that_the_program_takes_no_more_requests() {
    let (listener, address) = program().await;
    let mesh = mesh(AppProtocol::H2c, address);
    let pod = TestPod::start(&mesh, "web", address, |_| ());
    for is_graceful in [true, false] {
        let stream = connect_from(CLIENT, pod.inbound).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let ended = tokio::spawn(connection);
        let (end, ends) = tokio::sync::oneshot::channel::<()>();
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(|_| async {
                    Ok::<_, std::convert::Infallible>(Response::new(full("ok")))
                });
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let mut serving = Box::pin(builder.serve_connection(TokioIo::new(stream), service));
                tokio::select! {
                    _ = serving.as_mut() => {}
                    _ = ends => if is_graceful {
                        serving.as_mut().graceful_shutdown();
                        let _ = serving.await;
                    }
                }
            });
        };
        let request = Request::get("http://web/").body(empty()).unwrap();
        let (response, ()) = tokio::join!(sender.send_request(request), serve);
        assert_eq!(answer(response.unwrap()).await.status, 200);
        end.send(()).unwrap();
        // GOAWAY ends a connection without requests.
        tokio::time::timeout(raw::TIMEOUT, ended).await.expect("the connection stays").unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connections_of_a_pod_end_with_it() {
    let (listener, address) = program().await;
    let mesh = mesh(AppProtocol::Http1, address);
    let pod = TestPod::start(&mesh, "web", address, |pod| {
        pod.ports = vec![PodPort { name: Some("http".to_owned()), number: 0 }]
    });
    pod.set(|it| it.ports[0].number = pod.inbound.port());
    let silent = pod.connect(CLIENT).await;
    let (mut idle, _upstream) = kept(&pod, &listener, ANSWER).await;
    idle.until("ok").await;
    let mut busy = pod.connect(CLIENT).await;
    busy.send(GET).await;
    let mut upstream = Raw(listener.accept().await.unwrap().0);
    upstream.head().await;
    pod.served.end_connections();
    assert_eq!((silent.rest().await, idle.rest().await), (String::new(), String::new()));
    // An open request gets its answer.
    upstream.send(ANSWER).await;
    let answered = busy.rest().await;
    assert!(answered.contains("connection: close") && answered.ends_with("ok"), "{answered}");
    tokio::time::timeout(raw::TIMEOUT, pod.served.drained()).await.expect("a connection stays open");
}
