mod server;

use super::*;
use leno_model::FunctionId;
use leno_model::RedisTransport;
use leno_policy::spec::{Counts, QuotaAlgorithm, RateLimit};
use leno_proxy::limits::{Answer, LimitRefusal};
use leno_testkit::free_port;
use server::Server;
use std::net::TcpListener;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TIMEOUT: Duration = Duration::from_secs(60);
const DAY_MS: u64 = 86_400_000;

fn settings(port: u16) -> RedisQuotas {
    RedisQuotas {
        address: format!("127.0.0.1:{port}"),
        transport: RedisTransport::Plain,
        username: None,
        password_file: None,
        database: 0,
        prefix: "test".to_owned(),
        // The processors of a test machine also run other work.
        timeout: Duration::from_secs(5),
    }
}

/// A node's limits, with its own connection.
#[derive(Clone)]
struct Node(Arc<NodeLimits>);

impl Node {
    fn start(settings: RedisQuotas) -> Self {
        let limits = Arc::<NodeLimits>::default();
        start(settings, &limits).unwrap();
        Self(limits)
    }

    async fn take(&self, limit: &RateLimit, key: &str) -> Result<(), LimitRefusal> {
        let demand = leno_proxy::limits::Demand { limit, key, cost: 1 };
        self.0.function(&shop()).take_or_wait(&[demand], now_ms()).await.map(drop)
    }

    /// Takes until it is refused. Returns the number of admitted requests.
    async fn take_all(&self, limit: &RateLimit, key: &str) -> u64 {
        let mut taken = 0;
        while self.take(limit, key).await.is_ok() {
            taken += 1;
        }
        taken
    }

    fn store(&self) -> &Store {
        self.0.store().unwrap()
    }
}

fn shop() -> FunctionId {
    "demo/shop".parse().unwrap()
}

fn limit(algorithm: QuotaAlgorithm) -> RateLimit {
    RateLimit {
        name: "p/rateLimits/all".to_owned(),
        counts: Counts::Requests,
        only: None,
        from: Vec::new(),
        except: Vec::new(),
        audit: false,
        key: Vec::new(),
        algorithm,
    }
}

/// A window that does not end during a test, except on one day in a thousand.
fn window(requests: u32) -> RateLimit {
    limit(QuotaAlgorithm::FixedWindow { requests, period_ms: DAY_MS })
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < TIMEOUT, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Takes on all nodes until the limit is exhausted, and a while longer.
async fn exhaust(nodes: &[Node], limit: &RateLimit, key: &str, expected: u64) {
    let mut taken = 0;
    eventually("all of the limit", async || {
        let tasks: Vec<_> = nodes
            .iter()
            .cycle()
            .take(nodes.len() * 4)
            .cloned()
            .map(|node| {
                let (limit, key) = (limit.clone(), key.to_owned());
                tokio::spawn(async move { node.take_all(&limit, &key).await })
            })
            .collect();
        for task in tasks {
            taken += task.await.unwrap();
        }
        assert!(taken <= expected, "{taken} of {expected}");
        taken == expected
    })
    .await;
    for node in nodes {
        assert!(node.take(limit, key).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_a_window_exactly() {
    let server = Server::start(&[]);
    let nodes = [Node::start(server.settings()), Node::start(server.settings())];
    exhaust(&nodes, &window(1000), "", 1000).await;
    let late = Node::start(server.settings());
    let refused = late.take(&window(1000), "").await.unwrap_err();
    assert_eq!((refused.uncounted, refused.taken.limit, refused.taken.remaining), (None, 1000, 0));
    assert!(refused.taken.retry_after_ms > 0 && refused.taken.retry_after_ms <= DAY_MS, "{refused:?}");
    let round_trips = nodes[0].store().counts.round_trips.load(Ordering::Relaxed);
    assert!(round_trips < 500, "{round_trips} questions for half of a thousand requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_key_has_the_limit_once_on_all_nodes() {
    let server = Server::start(&[]);
    let nodes = [Node::start(server.settings()), Node::start(server.settings())];
    for key in ["a", "b", "{c}:*\r\nFLUSHALL", "d\0"] {
        exhaust(&nodes, &window(3), key, 3).await;
    }
}

/// In no interval do nodes admit more than the burst and the tokens added in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_a_bucket() {
    const BURST: u32 = 40;
    const PER_SECOND: u32 = 100;
    let server = Server::start(&[]);
    let bucket = limit(QuotaAlgorithm::TokenBucket { requests: PER_SECOND, period_ms: 1000, burst: BURST });
    let nodes = [Node::start(server.settings()), Node::start(server.settings())];
    let began = Instant::now();
    let tasks: Vec<_> = nodes
        .iter()
        .cycle()
        .take(6)
        .cloned()
        .enumerate()
        .map(|(number, node)| {
            let bucket = bucket.clone();
            tokio::spawn(async move {
                let mut admitted = Vec::new();
                while began.elapsed() < Duration::from_secs(4) {
                    let before = began.elapsed();
                    if node.take(&bucket, "").await.is_ok() {
                        admitted.push((before, began.elapsed()));
                    }
                    // Some requests are in bursts, so that nodes give allowances back and take them
                    // again.
                    let pause = if number % 3 == 0 { 700 } else { 1 };
                    if number % 3 != 0 || admitted.len() % 10 == 9 {
                        tokio::time::sleep(Duration::from_millis(pause)).await;
                    }
                }
                admitted
            })
        })
        .collect();
    let mut admitted = Vec::new();
    for task in tasks {
        admitted.extend(task.await.unwrap());
    }
    admitted.sort();
    assert!(admitted.len() > BURST as usize, "{}", admitted.len());
    for (first, (from, _)) in admitted.iter().enumerate() {
        let mut until = Duration::ZERO;
        for (count, (_, to)) in (1..).zip(&admitted[first..]) {
            until = until.max(*to);
            let most = f64::from(BURST) + (until - *from).as_secs_f64() * f64::from(PER_SECOND) + 1.0;
            assert!(f64::from(count) <= most, "{count} of {most} from {from:?} until {until:?}");
        }
    }
    eprintln!(
        "{} of {} requests in {:?}",
        admitted.len(),
        u64::from(BURST) + 4 * u64::from(PER_SECOND),
        began.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_survive_a_server_that_keeps_them() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let node = Node::start(server.settings());
    for _ in 0..30 {
        node.take(&window(100), "").await.unwrap();
    }
    // The node gives back the allowance that it holds ahead, so it is not lost with the node.
    eventually("what is held to be given back", async || {
        server.cli(&["EVAL", "return #redis.call('KEYS', 'test:demo/shop:*')", "0"]) == "2" && held(&server) == 0
    })
    .await;
    server.kill();
    eventually("the refusal", async || {
        let refused = node.take(&window(100), "").await;
        refused.is_err_and(|refused| refused.uncounted == Some("the quota store does not answer"))
    })
    .await;
    server.start_again();
    eventually("the connection", async || node.store().answers()).await;
    exhaust(&[node, Node::start(server.settings())], &window(100), "", 70).await;
}

/// Requests that nodes hold, according to the server.
fn held(server: &Server) -> u64 {
    let script = "local sum = 0 for _, key in ipairs(redis.call('KEYS', 'test:demo/shop:*')) do \
                  if redis.call('TYPE', key).ok == 'hash' then local all = redis.call('HGETALL', key) \
                  for index = 1, #all, 2 do if all[index]:sub(1, 1) == 'h' then sum = sum + tonumber(all[index + 1]:match('^%d+')) end end end end \
                  return sum";
    server.cli(&["EVAL", script, "0"]).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_lost_its_counters_begins_with_nothing_left() {
    let mut server = Server::start(&[]);
    let node = Node::start(server.settings());
    let mut taken = 0;
    for _ in 0..30 {
        node.take(&window(100), "").await.unwrap();
        taken += 1;
    }
    let quick = limit(QuotaAlgorithm::TokenBucket { requests: 100, period_ms: 1000, burst: 10 });
    node.take(&quick, "bucket").await.unwrap();
    server.kill();
    eventually("the end of what is held", async || match node.take(&window(100), "").await {
        Ok(()) => {
            taken += 1;
            false
        }
        Err(refused) => refused.uncounted.is_some(),
    })
    .await;
    server.start_again();
    eventually("a refusal by count", async || match node.take(&window(100), "").await {
        Ok(()) => {
            taken += 1;
            false
        }
        Err(refused) => refused.uncounted.is_none(),
    })
    .await;
    assert!((30..=100).contains(&taken), "{taken}");
    // A node that has not counted anything gets the same result.
    let other = Node::start(server.settings());
    assert!(other.take(&window(100), "").await.is_err());
    assert!(other.take(&window(100), "another key").await.is_err());
    eventually("the bucket to fill", async || other.take(&quick, "bucket").await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_refuses_what_nobody_holds() {
    let server = Server::start(&[]);
    let nodes = [(); 2].map(|()| Node::start(RedisQuotas { timeout: Duration::from_millis(300), ..server.settings() }));
    let mut taken = 0;
    eventually("a first request", async || {
        taken += u64::from(nodes[0].take(&window(100), "").await.is_ok());
        taken > 0
    })
    .await;
    server.signal(rustix::process::Signal::STOP);
    eventually("the refusal", async || match nodes[0].take(&window(100), "").await {
        Ok(()) => {
            taken += 1;
            false
        }
        Err(refused) => refused.uncounted == Some("the quota store does not answer"),
    })
    .await;
    assert!(nodes[1].take(&window(100), "").await.is_err());
    assert!(nodes[0].store().counts.refused.load(Ordering::Relaxed) > 0);
    // Now the server executes the call, although the node has given up on it. The granted allowance
    // counts as used when its term is over.
    server.signal(rustix::process::Signal::CONT);
    eventually("the rest", async || {
        for node in &nodes {
            taken += node.take_all(&window(100), "").await;
        }
        assert!(taken <= 100, "{taken}");
        let used = server.cli(&["EVAL", "return redis.call('HGET', redis.call('KEYS', 'test:demo/shop:*window:????????????????????????????????')[1], 'u')", "0"]);
        held(&server) == 0 && used == "100"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_refuses_until_it_is_right() {
    // The rights of a user for nodes, as documented.
    let user = "nodes on >right ~test:* +evalsha +script|load +info +select +time +hmget +hset +hgetall +del +pexpire +pttl +zadd +zrem +zcard \
                +zremrangebyscore";
    let arguments: Vec<&str> = ["--user"].into_iter().chain(user.split_whitespace()).collect();
    let server = Server::start(&arguments);
    let file = server.folder.path().join("password");
    std::fs::write(&file, "wrong\n").unwrap();
    let username = Some("nodes".to_owned());
    let node = Node::start(RedisQuotas { username, password_file: Some(file.clone()), ..server.settings() });
    eventually("the refusal", async || {
        let refused = node.take(&window(10), "").await.unwrap_err();
        refused.uncounted == Some("the quota store does not answer") && !node.store().answers()
    })
    .await;
    std::fs::write(&file, "right\n").unwrap();
    exhaust(&[node], &window(10), "", 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_script_is_loaded_again() {
    let server = Server::start(&[]);
    let node = Node::start(server.settings());
    node.take(&window(100), "a").await.unwrap();
    assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
    node.take(&window(100), "b").await.unwrap();
    assert_eq!(node.store().counts.failed.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_makes_no_sense_refuses() {
    let endless = vec![b'x'; 64 << 10];
    let answers: [&[u8]; 8] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"+OK\r\n",
        b"*3\r\n$1\r\ne\r\n$16\r\nthis-is-sequence\r\n*6\r\n:4000000000\r\n:0\r\n:1\r\n:0\r\n:5000\r\n:0\r\n",
        b"*3\r\n$1\r\ne\r\n$16\r\nthis-is-sequence\r\n*6\r\n:1\r\n:-1\r\n:1\r\n:0\r\n:5000\r\n:0\r\n",
        // It would be valid, but answers another question.
        b"*3\r\n$1\r\ne\r\n$1\r\n1\r\n*6\r\n:1\r\n:0\r\n:1\r\n:0\r\n:5000\r\n:0\r\n",
        b"*100000000\r\n",
        b"$999999999999\r\nx",
        &endless,
    ];
    for (answer, sensible) in answers.iter().flat_map(|answer| [(*answer, false), (*answer, true)]) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let reply = answer.to_vec();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let reply = reply.clone();
                tokio::spawn(async move {
                    let (mut buffer, mut received) = ([0; 4096], Vec::new());
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        received.extend_from_slice(&buffer[..count]);
                        let has = |text: &str| received.windows(text.len()).any(|window| window == text.as_bytes());
                        // The usual answers of a server, until a call concerns counters. A script
                        // ends with its last line.
                        let usual = match () {
                            () if !sensible || has("EVALSHA") => None,
                            () if has("return results\n") => Some(format!("$40\r\n{}\r\n", "a".repeat(40))),
                            () if has("INFO") => Some("-ERR forbidden\r\n".to_owned()),
                            () => continue,
                        };
                        let reply = with_sequence(&reply, &received);
                        received.clear();
                        if let Some(usual) = usual {
                            stream.write_all(usual.as_bytes()).await.unwrap();
                            continue;
                        }
                        while stream.write_all(&reply).await.is_ok() && reply.len() > 4096 {}
                    }
                });
            }
        });
        let node = Node::start(RedisQuotas { timeout: Duration::from_millis(500), ..settings(port) });
        let refused = node.take(&window(10), "").await.unwrap_err();
        assert_eq!(refused.uncounted, Some("the quota store does not answer"), "{answer:?}");
        assert!(node.take(&window(10), "other").await.is_err());
    }
}

/// The reply with the sequence of the call, the only argument of 16 digits.
fn with_sequence(reply: &[u8], call: &[u8]) -> Vec<u8> {
    let number = call.split(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\r"));
    let number = number.filter(|line| line.len() == 16).find(|line| line.iter().all(u8::is_ascii_digit));
    let mut reply = reply.to_vec();
    let place = reply.windows(16).position(|window| window == b"this-is-sequence");
    if let (Some(number), Some(place)) = (number, place) {
        reply[place..place + 16].copy_from_slice(number);
    }
    reply
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_in_the_server_that_means_nothing() {
    let server = Server::start(&[]);
    let node = Node::start(server.settings());
    let short = limit(QuotaAlgorithm::TokenBucket { requests: 10, period_ms: 100, burst: 10 });
    for key in 0..50 {
        node.take(&short, &key.to_string()).await.unwrap();
        node.take(&window(10), &key.to_string()).await.unwrap();
    }
    let without_ttl = "local found = {} for _, key in ipairs(redis.call('KEYS', '*')) do if redis.call('PTTL', key) < 0 then \
                       found[#found + 1] = key end end return found";
    assert_eq!(server.cli(&["EVAL", without_ttl, "0"]), "test:epoch");
    // The windows and their index stay until tomorrow.
    eventually("the buckets to be full", async || server.cli(&["DBSIZE"]) == "52").await;
    eventually("the node to forget them", async || node.0.function(&shop()).is_empty()).await;
}

fn name(key: &str) -> CounterName {
    CounterName { function: shop(), limit: "p/rateLimits/all".into(), key: key.into() }
}

fn question(keep: u32, need: u32) -> Question {
    let QuotaAlgorithm::FixedWindow { .. } = window(10).algorithm else { unreachable!() };
    Question { algorithm: window(10).algorithm, unused: keep, keep, need, extra: 0 }
}

async fn ask(settling: &mut Settling, connection: &mut Connection, key: &str, question: Question) -> Answer {
    settling.ask(connection, &[(&name(key), question)]).await.unwrap()[0]
}

#[tokio::test]
async fn keys_for_which_there_is_no_room_share_what_a_counter_admits() {
    let server = Server::start(&[]);
    let mut connection = Connection::open(&server.settings()).await.unwrap();
    let mut settling = Settling::new("test".to_owned()).unwrap();
    settling.limit_counters(2);
    for key in ["a", "b"] {
        assert_eq!(ask(&mut settling, &mut connection, key, question(0, 4)).await.held, 4);
    }
    let mut shared = ask(&mut settling, &mut connection, "c", question(0, 4)).await;
    assert_eq!((shared.held, shared.left, shared.shared), (4, 6, true));
    shared = ask(&mut settling, &mut connection, "c", question(4, 7)).await;
    assert_eq!(
        (shared.held, shared.left),
        (6, 0),
        "what it has is not the node's to keep, and what is left is all that it gets"
    );
    let own = ask(&mut settling, &mut connection, "a", question(4, 4)).await;
    assert_eq!((own.held, own.left, own.shared), (8, 2, false));
    // When there is capacity, it begins with the usage of the shared counter.
    settling.limit_counters(3);
    let own = ask(&mut settling, &mut connection, "c", question(0, 1)).await;
    assert_eq!((own.held, own.shared), (0, false));
}

#[tokio::test]
async fn a_question_that_comes_late_changes_nothing() {
    let server = Server::start(&[]);
    let mut connection = Connection::open(&server.settings()).await.unwrap();
    let mut settling = Settling::new("test".to_owned()).unwrap();
    let mut late = settling.another();
    assert_eq!(ask(&mut settling, &mut connection, "", question(0, 6)).await.held, 6);
    let gives_back = Question { unused: 6, ..question(0, 0) };
    assert_eq!(ask(&mut late, &mut connection, "", gives_back).await.held, 0);
    let other = ask(&mut Settling::new("test".to_owned()).unwrap(), &mut connection, "", question(0, 10)).await;
    assert_eq!(other.held, 4, "the first one's six are its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_proves_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let authority = leno_testkit::keys::CertificateAuthority::default();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("ca.pem"), authority.pem()).unwrap();
    authority.write(folder.path(), "redis", &["redis.example"]);
    let tls = free_port().to_string();
    let [chain, key] = ["redis.pem", "redis.key"].map(|name| path(name).to_str().unwrap().to_owned());
    let _server = Server::start(&[
        "--tls-port",
        &tls,
        "--tls-cert-file",
        &chain,
        "--tls-key-file",
        &key,
        "--tls-auth-clients",
        "no",
    ]);
    let of = |name: &str| RedisQuotas {
        transport: RedisTransport::Tls { ca_file: Some(path("ca.pem")), server_name: name.to_owned() },
        ..settings(tls.parse().unwrap())
    };
    assert!(Node::start(of("redis.example")).take(&window(10), "").await.is_ok());
    let Err(error) = Connection::open(&of("other.example")).await else { panic!("it proves any name") };
    let reason = error.to_string();
    assert!(reason.contains("not valid for name"), "{reason}");
    let plain = settings(tls.parse().unwrap());
    assert!(
        Node::start(RedisQuotas { timeout: Duration::from_millis(500), ..plain }).take(&window(10), "").await.is_err()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_refuses() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = Node::start(settings(port)).take(&window(10), "").await.unwrap_err();
    assert_eq!(refused.uncounted, Some("the quota store does not answer"));
}
