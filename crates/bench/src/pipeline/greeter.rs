//! `leno-bench greeter`: the function of `examples/components/rust` as a process. It does the same, by the same means: one thread, connections
//! kept to its outbound sidecar.

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{HOST, PROXY_AUTHORIZATION};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

/// This subcommand.
pub(crate) const SUBCOMMAND: &str = "greeter";

/// Serves HTTP/1.1 on the port in `PORT`, until it is ended.
pub(crate) fn run() -> anyhow::Result<()> {
    let port: u16 = std::env::var("PORT").context("PORT")?.parse().context("PORT")?;
    let words = std::env::var("GREETING_FROM").ok().map(|url| Words::new(&url)).transpose()?.map(Rc::new);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let words = words.clone();
            let service = service_fn(move |request| answer(request, words.clone()));
            let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client that goes away is no event.
            tokio::task::spawn_local(async move { drop(serving.await) });
        }
    })
}

async fn answer(request: Request<Incoming>, words: Option<Rc<Words>>) -> anyhow::Result<Response<Full<Bytes>>> {
    let name = request.uri().path_and_query().map_or("", |path| path.as_str()).trim_matches('/').to_owned();
    let greeting = match words {
        Some(words) => words.fetch().await?,
        None => "Hello".to_owned(),
    };
    let name = if name.is_empty() { "stranger" } else { &name };
    Ok(Response::new(Full::new(Bytes::from(format!("{}, {name}!\n", greeting.trim())))))
}

/// Another function, behind this one's outbound sidecar.
struct Words {
    url: String,
    host: String,
    /// Address and credential of the proxy; `None`: this is a room, where names lead there.
    proxy: Option<(SocketAddr, String)>,
    idle: RefCell<Vec<SendRequest<Empty<Bytes>>>>,
}

impl Words {
    fn new(url: &str) -> anyhow::Result<Self> {
        let proxy = std::env::var("HTTP_PROXY").ok().map(|proxy| {
            let (user, address) = proxy
                .strip_prefix("http://")
                .and_then(|rest| rest.split_once('@'))
                .context("HTTP_PROXY has no user")?;
            let credential = format!("Basic {}", STANDARD.encode(user));
            Ok::<_, anyhow::Error>((address.trim_end_matches('/').parse()?, credential))
        });
        let proxy = proxy.transpose()?;
        let host = url.strip_prefix("http://").and_then(|rest| rest.split('/').next()).context("GREETING_FROM")?;
        Ok(Self { url: url.to_owned(), host: host.to_owned(), proxy, idle: RefCell::default() })
    }

    async fn fetch(&self) -> anyhow::Result<String> {
        let idle = self.idle.borrow_mut().pop();
        let mut sender = match idle {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        sender.ready().await?;
        let mut request = Request::get(&self.url).header(HOST, &self.host);
        if let Some((_, credential)) = &self.proxy {
            request = request.header(PROXY_AUTHORIZATION, credential);
        }
        let response = sender.send_request(request.body(Empty::new())?).await?;
        anyhow::ensure!(response.status() == 200, "{} answered with {}", self.host, response.status());
        let text = response.into_body().collect().await?.to_bytes();
        self.idle.borrow_mut().push(sender);
        Ok(String::from_utf8(text.to_vec())?)
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
        let stream = match self.proxy {
            Some((proxy, _)) => TcpStream::connect(proxy).await?,
            None => TcpStream::connect((&*self.host, 80)).await?,
        };
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::task::spawn_local(async move { drop(connection.await) });
        Ok(sender)
    }
}
