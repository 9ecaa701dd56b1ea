//! The functions as processes, over HTTP/1.1 and gRPC, without a mesh: the tests check the pages,
//! and count the calls of each function for them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SHOP: [&str; 10] = [
    "frontend",
    "currency",
    "productcatalog",
    "cart",
    "recommendation",
    "shipping",
    "checkout",
    "payment",
    "email",
    "ad",
];
const ORDER: &str = "email=a@shop.example&street=Way&city=Town&country=Land&zip_code=1234&card_number=4111-1111-1111-1111&card_month=1&card_year=2039&card_code=123";

/// Running functions, with their addresses.
struct Running {
    children: Vec<Child>,
    addresses: BTreeMap<&'static str, SocketAddr>,
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    /// Starts functions. If another process gets one of the ports before its function, starts all
    /// of them anew with other ports.
    fn start(names: &[&'static str], transport: &str) -> Self {
        (0..10).find_map(|_| Self::start_once(names, transport)).expect("the functions do not start")
    }

    fn start_once(names: &[&'static str], transport: &str) -> Option<Self> {
        // This chooses all ports before it closes any listener, so that they differ.
        let listeners: Vec<_> = names.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: BTreeMap<_, _> =
            names.iter().copied().zip(listeners.iter().map(|listener| listener.local_addr().unwrap())).collect();
        drop(listeners);
        let direct: Vec<_> = addresses.iter().map(|(name, address)| format!("{name}={address}")).collect();
        let mut running = Self { children: Vec::new(), addresses };
        for (name, address) in &running.addresses {
            let mut command = Command::new(env!("CARGO_BIN_EXE_boutique"));
            command.arg(name).stdin(Stdio::null()).env_remove("HTTP_PROXY");
            command.env("PORT", address.port().to_string()).env("BOUTIQUE_TRANSPORT", transport);
            running.children.push(command.env("BOUTIQUE_DIRECT", direct.join(",")).spawn().unwrap());
        }
        for (child, address) in running.children.iter_mut().zip(running.addresses.values()) {
            let begin = Instant::now();
            while TcpStream::connect(address).is_err() {
                assert!(begin.elapsed() < Duration::from_secs(30), "a function does not start");
                std::thread::sleep(Duration::from_millis(5));
                if child.try_wait().unwrap().is_some() {
                    return None;
                }
            }
        }
        // Another process may answer at the port of a function that has ended.
        running.children.iter_mut().all(|child| child.try_wait().unwrap().is_none()).then_some(running)
    }

    /// Head and body of the response.
    fn send(&self, name: &str, method: &str, path: &str, cookie: &str, body: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.addresses[name]).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\ncookie: {cookie}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn page(&self, method: &str, path: &str, body: &str) -> String {
        let (head, body) = self.send("frontend", method, path, "user=anna; currency=EUR", body);
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}\n{body}");
        body
    }
}

/// How often each function was called since the last time, without functions that got no calls. For
/// functions that serve HTTP.
fn calls(running: &Running, before: &mut BTreeMap<&'static str, u64>) -> BTreeMap<&'static str, u64> {
    let mut since = BTreeMap::new();
    for name in running.addresses.keys() {
        let now: u64 = running.send(name, "GET", "/calls", "", "").1.parse().unwrap();
        let earlier = before.insert(name, now).unwrap_or_default();
        if now > earlier {
            since.insert(*name, now - earlier);
        }
    }
    since
}

#[test]
fn the_shop_makes_the_calls_that_its_pages_need() {
    let running = Running::start(&SHOP, "http");
    let mut before = BTreeMap::new();
    let mut expect = |expected: &[(&'static str, u64)]| {
        let made = calls(&running, &mut before);
        assert_eq!(made, expected.iter().copied().chain([("frontend", 1)]).collect());
    };

    let home = running.page("GET", "/", "");
    assert_eq!(home.matches("<p><a href=\"/product/").count(), 9);
    assert!(home.contains("<option selected>EUR") && home.contains("EUR 32.02"), "{home}");
    expect(&[("currency", 1 + 9), ("productcatalog", 1), ("cart", 1), ("ad", 1)]);

    let (head, _) = running.send("frontend", "POST", "/setCurrency", "", "currency_code=JPY");
    assert!(head.starts_with("HTTP/1.1 302") && head.contains("set-cookie: currency=JPY; path=/"), "{head}");
    expect(&[]);

    let product = running.page("GET", "/product/tea-kettle", "");
    assert!(product.contains("Boils a litre") && product.matches("class=liked").count() == 5, "{product}");
    expect(&[("productcatalog", 1), ("currency", 2), ("cart", 1), ("recommendation", 1), ("ad", 1)]);

    for item in ["product_id=tea-kettle&quantity=2", "product_id=wool-scarf&quantity=1"] {
        let (head, _) = running.send("frontend", "POST", "/cart", "user=anna", item);
        assert!(head.starts_with("HTTP/1.1 302") && head.contains("location: /cart"), "{head}");
    }
    assert_eq!(
        calls(&running, &mut before),
        [("frontend", 2), ("productcatalog", 2), ("cart", 2)].into_iter().collect()
    );
    let mut expect = |expected: &[(&'static str, u64)]| {
        let made = calls(&running, &mut before);
        assert_eq!(made, expected.iter().copied().chain([("frontend", 1)]).collect());
    };

    // Two kettles, a scarf, and a parcel with three pieces.
    let cart = running.page("GET", "/cart", "");
    assert!(cart.contains("2 x Kettle EUR 32.02") && cart.contains("Total: EUR 103.85"), "{cart}");
    expect(&[("currency", 1 + 1 + 2), ("cart", 1), ("recommendation", 1), ("shipping", 1), ("productcatalog", 2)]);

    let thanks = running.page("POST", "/cart/checkout", ORDER);
    assert!(thanks.contains("Order order-") && thanks.contains("Total: EUR 103.85"), "{thanks}");
    expect(&[
        ("checkout", 1),
        ("cart", 2),
        ("productcatalog", 2),
        ("currency", 2 + 1 + 1),
        ("shipping", 2),
        ("payment", 1),
        ("email", 1),
        ("recommendation", 1),
    ]);

    // The cart is empty, so there is nothing to pay.
    running.page("POST", "/cart/checkout", ORDER);
    expect(&[("checkout", 1), ("cart", 1), ("recommendation", 1), ("currency", 1)]);
}

#[test]
fn what_is_not_there_is_said_so() {
    let running = Running::start(&SHOP, "http");
    let status = |method, path, body| running.send("frontend", method, path, "", body).0[9..12].to_owned();
    assert_eq!(status("GET", "/elsewhere", ""), "404");
    assert_eq!(status("GET", "/product/nothing", ""), "502");
    assert_eq!(status("POST", "/cart", "product_id=tea-kettle"), "400");
    assert_eq!(status("POST", "/setCurrency", "currency_code=<b>"), "400");
    let (head, body) = running.send("cart", "POST", "/boutique.v1.Cart/GetCart", "", "\u{1}");
    assert!(head.starts_with("HTTP/1.1 400"), "{head}: {body}");
}

#[test]
fn grpc_carries_the_same() {
    let over_http = Running::start(&SHOP, "http");
    let by_grpc = Running::start(&SHOP, "grpc");
    let pages = |running: &Running| {
        let (_, moved) = running.send("frontend", "POST", "/cart", "user=anna", "product_id=felt-shoes&quantity=4");
        [
            moved,
            running.page("GET", "/", ""),
            running.page("GET", "/product/desk-light", ""),
            running.page("GET", "/cart", ""),
            running.page("POST", "/cart/checkout", ORDER),
            running.page("GET", "/cart", ""),
        ]
    };
    assert_eq!(pages(&over_http), pages(&by_grpc));
    let (head, _) = by_grpc.send("frontend", "GET", "/product/nothing", "", "");
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
}

#[test]
fn the_other_chains_answer() {
    for transport in ["http", "grpc"] {
        let motion = Running::start(&["sensor", "actuator"], transport);
        let (head, body) = motion.send("sensor", "GET", "/1/", "", "");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(body, "\u{8}\u{1}", "a light that is on");

        let parking = Running::start(&["detection", "search", "index", "persist", "charging"], transport);
        let mut ways = [0, 0];
        for picture in 0..12 {
            let (head, body) = parking.send("detection", "POST", "/1/", "", &format!("picture {picture}"));
            assert!(head.starts_with("HTTP/1.1 200") && body.contains("P-"), "{head}");
            ways[usize::from(body.ends_with('\u{1}'))] += 1;
        }
        assert!(ways[0] > ways[1], "{ways:?}");

        let hop = Running::start(&["caller", "echo"], transport);
        let (_, body) = hop.send("caller", "GET", "/hops?calls=20&bytes=100", "", "");
        assert!(body.starts_with("{\"p50_us\": "), "{body}");
    }
}
