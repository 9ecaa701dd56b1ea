//! Browsers, each with a separate cart, that request one page after the other.

use super::contender::Running;
use super::{AllProcesses, CONNECTIONS, Usage};
use crate::sample::Sample;
use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{COOKIE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};

/// The intent of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Home,
    SetCurrency,
    Browse,
    AddToCart,
    ViewCart,
    Checkout,
}

/// A request of a browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Home,
    SetCurrency,
    Product,
    AddToCart,
    ViewCart,
    Checkout,
}

use Task::{AddToCart, Browse, Checkout, Home, SetCurrency, ViewCart};

/// In the shares of the Online Boutique's own load, in an order that spreads them.
const TASKS: [Task; 19] = [
    Home,
    Browse,
    Browse,
    AddToCart,
    Browse,
    ViewCart,
    Browse,
    SetCurrency,
    Browse,
    Browse,
    ViewCart,
    AddToCart,
    Browse,
    Browse,
    SetCurrency,
    Browse,
    ViewCart,
    Browse,
    Checkout,
];
const CURRENCIES: [&str; 4] = ["EUR", "USD", "JPY", "CAD"];
const QUANTITIES: [u32; 6] = [1, 2, 3, 4, 5, 10];
const PRODUCTS: [&str; 9] = [
    "tea-kettle",
    "bread-tray",
    "stone-bowl",
    "desk-light",
    "note-block",
    "wall-clock",
    "wool-scarf",
    "rain-cloak",
    "felt-shoes",
];
const ORDER: &str = "email=somebody@shop.example&street=Way&city=Town&country=Land&zip_code=1234&card_number=4111-1111-1111-1111&card_month=1&card_year=2039&card_code=123";

impl Task {
    fn pages(self) -> &'static [Page] {
        match self {
            Home => &[Page::Home],
            SetCurrency => &[Page::SetCurrency],
            Browse => &[Page::Product],
            AddToCart => &[Page::Product, Page::AddToCart],
            ViewCart => &[Page::ViewCart],
            Checkout => &[Page::Product, Page::AddToCart, Page::Checkout],
        }
    }
}

/// An endless visitor. It chooses by number, so that all contenders get the same requests.
struct Browser {
    user: String,
    currency: usize,
    pages: Box<dyn Iterator<Item = Page>>,
    asked: usize,
}

impl Browser {
    fn new(number: usize) -> Self {
        // Each begins with another task, so that at any time there are requests for all pages.
        let tasks = TASKS.iter().cycle().skip(number % TASKS.len());
        let pages = Box::new(tasks.flat_map(|task| task.pages().iter().copied()));
        Self { user: format!("user-{number:04}"), currency: 3, pages, asked: number }
    }

    /// The next request, and the status that is to answer it.
    fn next(&mut self) -> anyhow::Result<(Request<Full<Bytes>>, u16)> {
        let page = self.pages.next().context("tasks never end")?;
        self.asked += 1;
        let product = PRODUCTS[self.asked % PRODUCTS.len()];
        let quantity = QUANTITIES[self.asked % QUANTITIES.len()];
        let (method, path, body, status) = match page {
            Page::Home => (Method::GET, "/".to_owned(), String::new(), 200),
            Page::SetCurrency => {
                self.currency += 1;
                let code = CURRENCIES[self.currency % CURRENCIES.len()];
                (Method::POST, "/setCurrency".to_owned(), format!("currency_code={code}"), 302)
            }
            Page::Product => (Method::GET, format!("/product/{product}"), String::new(), 200),
            Page::AddToCart => {
                (Method::POST, "/cart".to_owned(), format!("product_id={product}&quantity={quantity}"), 302)
            }
            Page::ViewCart => (Method::GET, "/cart".to_owned(), String::new(), 200),
            Page::Checkout => (Method::POST, "/cart/checkout".to_owned(), ORDER.to_owned(), 200),
        };
        let currency = CURRENCIES[self.currency % CURRENCIES.len()];
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "shop.example")
            .header(COOKIE, format!("user={}; currency={currency}", self.user));
        Ok((request.body(Full::new(body.into()))?, status))
    }
}

/// The results of the measured time.
pub(super) struct LoadResult {
    pub answered: usize,
    /// From the first request to the last, with those that were not counted.
    pub all: Totals,
    pub seconds: f64,
    pub usage: Usage,
    pub others: Duration,
    pub latencies: Sample,
}

/// The traffic of all browsers.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub requests: u64,
    /// Bytes of bodies.
    pub sent: u64,
    pub received: u64,
}

/// What all browsers write down.
#[derive(Default)]
struct Notes {
    counting: Cell<bool>,
    ending: Cell<bool>,
    all: Cell<Totals>,
    latencies: RefCell<Vec<Duration>>,
}

/// Sends requests in closed loop. Reads the usage of these processes when the measured time begins
/// and when it ends. Fails with the first request that fails.
pub(super) fn run(
    running: &Running,
    pids: &[u32],
    warm_up: Duration,
    measured: Duration,
) -> anyhow::Result<LoadResult> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let notes = Rc::new(Notes::default());
    LocalSet::new().block_on(&runtime, async {
        let mut browsers = JoinSet::new();
        for number in 0..CONNECTIONS {
            let (notes, address) = (notes.clone(), running.shop);
            browsers.spawn_local(async move { browse(address, Browser::new(number), &notes).await });
        }
        tokio::time::sleep(warm_up).await;
        let (usage, everybody) = (Usage::of(pids)?, AllProcesses::now()?);
        let begin = Instant::now();
        notes.counting.set(true);
        tokio::time::sleep(measured).await;
        notes.counting.set(false);
        let (seconds, usage) = (begin.elapsed().as_secs_f64(), Usage::of(pids)? - usage);
        let ours = [pids, &[std::process::id()]].concat();
        let others = AllProcesses::now()?.others_since(&everybody, &ours);
        // Requests in flight finish first, so that the other counters and this one cover the same
        // requests.
        notes.ending.set(true);
        while let Some(ended) = browsers.join_next().await {
            ended??;
        }
        let latencies = notes.latencies.take();
        ensure!(!latencies.is_empty(), "nothing was answered");
        let answered = latencies.len();
        Ok(LoadResult { answered, all: notes.all.get(), seconds, usage, others, latencies: Sample::new(latencies) })
    })
}

async fn browse(address: SocketAddr, mut browser: Browser, notes: &Notes) -> anyhow::Result<()> {
    let mut sender = connect(address).await?;
    while !notes.ending.get() {
        let (request, expected) = browser.next()?;
        let sent = request.body().size_hint().exact().unwrap_or_default();
        let what = format!("{} {}", request.method(), request.uri());
        let begin = Instant::now();
        let (status, body) = exchange(&mut sender, request).await?;
        ensure!(status == expected, "{what} is answered with {status}");
        let Totals { requests, sent: before, received } = notes.all.get();
        notes.all.set(Totals { requests: requests + 1, sent: before + sent, received: received + body.len() as u64 });
        if notes.counting.get() {
            notes.latencies.borrow_mut().push(begin.elapsed());
        }
    }
    Ok(())
}

async fn connect(address: SocketAddr) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::task::spawn_local(async move { drop(connection.await) });
    Ok(sender)
}

async fn exchange(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<(u16, Bytes)> {
    sender.ready().await?;
    let answer = sender.send_request(request).await?;
    let status = answer.status().as_u16();
    Ok((status, answer.into_body().collect().await?.to_bytes()))
}

/// One GET over a new connection.
pub(super) fn get(address: SocketAddr, host: &str, path: &str) -> anyhow::Result<(u16, Bytes)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let request = Request::get(path).header(HOST, host).body(Full::default())?;
        exchange(&mut connect(address).await?, request).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_asked_for_in_their_shares() {
        let pages: Vec<Page> = TASKS.iter().flat_map(|task| task.pages().iter().copied()).collect();
        let count = |page| pages.iter().filter(|other| **other == page).count();
        let all = [Page::Product, Page::AddToCart, Page::ViewCart, Page::SetCurrency, Page::Home, Page::Checkout];
        assert_eq!(all.map(count), [13, 3, 3, 2, 1, 1]);
        assert_eq!(pages.len(), 23);
    }
}
