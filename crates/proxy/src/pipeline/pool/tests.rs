use super::http2::NODE_KEEP_ALIVE;
use super::*;
use std::cell::Cell;
use tokio::net::{TcpListener, TcpStream};

/// Puts a connection into the pool that has been idle for `time`.
async fn open(pool: &Pool, listener: &TcpListener, time: Duration) -> TcpStream {
    let key = ConnectionKey::instance(listener.local_addr().unwrap());
    let CheckedOutHttp1 { mut connection, .. } = pool
        .connect_http1(&key, &(), (None, None), (Duration::from_secs(5), &UpstreamLimits::default()))
        .await
        .unwrap();
    let (server, _) = listener.accept().await.unwrap();
    connection.sender.ready().await.unwrap();
    let since = Instant::now().checked_sub(time).unwrap();
    pool.http1.borrow_mut().get_mut(&key).unwrap().idle.push(Idle { connection, since });
    server
}

/// A pool with one connection that has been idle for `time`.
async fn idle_for(time: Duration) -> (Rc<Pool>, ConnectionKey, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pool = Pool::new(Arc::default(), Arc::default(), Arc::default());
    let server = open(&pool, &listener, time).await;
    (pool, ConnectionKey::instance(listener.local_addr().unwrap()), server)
}

fn block_on(test: impl Future<Output = ()> + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = Rc::new(Cell::new(false));
    let place = done.clone();
    runtime.block_on(schedule::run(async move {
        test.await;
        place.set(true);
    }));
    assert!(done.get(), "it panicked");
}

#[test]
fn an_old_connection_to_this_machine_is_for_requests_that_may_be_sent_twice() {
    block_on(async {
        let (pool, key, _server) = idle_for(2 * IDLE_TIMEOUT).await;
        pool.close_idle(Instant::now());
        let CheckedOutHttp1 { connection, idle } = pool.idle_http1(&key, true).expect("it is kept");
        assert!(idle.unwrap() >= 2 * IDLE_TIMEOUT);
        pool.return_http1(connection, key.clone());
        assert!(pool.idle_http1(&key, false).is_some(), "it was used just now");

        let (pool, key, _server) = idle_for(2 * IDLE_TIMEOUT).await;
        assert!(pool.idle_http1(&key, false).is_none());
        pool.changed_http1(&key).await;
        assert_eq!(pool.open_http1(&key), 0, "it was closed, and makes space for another one");

        let (pool, key, _server) = idle_for(LOOPBACK_IDLE_TIMEOUT).await;
        pool.close_idle(Instant::now());
        assert!(pool.idle_http1(&key, true).is_none());
    });
}

#[test]
fn of_what_a_burst_opened_a_few_are_kept_for_long() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let pool = Pool::new(Arc::default(), Arc::default(), Arc::default());
        let mut servers = Vec::new();
        for _ in 0..MAX_LONG_IDLE + 2 {
            servers.push(open(&pool, &listener, 2 * IDLE_TIMEOUT).await);
        }
        servers.push(open(&pool, &listener, Duration::ZERO).await);
        pool.close_idle(Instant::now());
        let key = ConnectionKey::instance(listener.local_addr().unwrap());
        let left = std::iter::from_fn(|| pool.idle_http1(&key, true)).count();
        assert_eq!(left, MAX_LONG_IDLE + 1, "those that were used just now are not meant");
    });
}

#[test]
fn connections_to_an_instance_that_is_to_end_are_not_kept() {
    block_on(async {
        let (pool, key, _server) = idle_for(Duration::ZERO).await;
        let CheckedOutHttp1 { connection, .. } = pool.idle_http1(&key, true).unwrap();
        pool.terminating.add("a", key.address);
        pool.return_http1(connection, key.clone());
        assert!(pool.idle_http1(&key, true).is_none());

        let (pool, key, _server) = idle_for(Duration::ZERO).await;
        pool.terminating.add("a", key.address);
        pool.close_idle(Instant::now());
        pool.changed_http1(&key).await;
        assert_eq!(pool.open_http1(&key), 0);
    });
}

#[test]
fn what_its_server_closed_is_not_used() {
    block_on(async {
        let (pool, key, server) = idle_for(IDLE_TIMEOUT).await;
        let gone = pool.changed_http1(&key);
        drop(server);
        gone.await;
        assert!(pool.idle_http1(&key, true).is_none());
    });
}

#[test]
fn pings_are_as_rare_as_servers_permit_by_default() {
    block_on(async {
        let pool = Pool::new(Arc::default(), Arc::default(), Arc::default());
        let key = ConnectionKey::instance("127.0.0.1:1".parse().unwrap());
        let after = |seconds| {
            let limits = UpstreamLimits { keep_alive: Duration::from_secs(seconds), ..UpstreamLimits::default() };
            pool.keep_alive(&key, &limits).0.as_secs()
        };
        assert_eq!([after(300), after(600), after(10)], [305, 600, 10]);
        pool.http2.borrow_mut().entry(key.clone()).or_default();
        for expected in [20, 40, 80, 160, 305, 305] {
            pool.calm(&key);
            assert_eq!([after(10), after(300)], [expected, 305]);
        }
        let node = CalleeKey::Sidecar(("a".into(), "b".into()));
        assert_eq!(
            pool.keep_alive(&ConnectionKey { callee: node, ..key.clone() }, &UpstreamLimits::default()).0,
            NODE_KEEP_ALIVE
        );
    });
}
