use super::*;
use leno_model::{EndpointPort, ServicePort};

const CALLED: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 0, 5));

/// A control plane that notes its questions.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<(Vec<IpAddr>, Vec<IpAddr>)>>, bool);

impl AddressBook for Notes {
    fn subscribe(&self, address: IpAddr) {
        self.0.lock().unwrap().0.push(address);
    }

    fn unsubscribe(&self, addresses: Vec<IpAddr>) {
        self.0.lock().unwrap().1.extend(addresses);
    }

    fn is_connected(&self) -> bool {
        self.1
    }
}

fn destinations(is_connected: bool) -> (Arc<Destinations>, Notes) {
    let (destinations, notes) = (Arc::new(Destinations::default()), Notes(Arc::default(), is_connected));
    destinations.begin(NodePlace { node: "one".to_owned(), zone: None }, Box::new(notes.clone()));
    (destinations, notes)
}

fn name() -> ServiceName {
    "shop/cart".parse().unwrap()
}

fn service(affinity: Option<Duration>) -> Destination {
    let port = |name: &str, number| ServicePort { name: name.to_owned(), number, app_protocol: None };
    let ports = vec![port("http", 80), port("admin", 81)];
    Destination::Service(Service { name: name(), ports, affinity, node_local: false, distribution: None })
}

fn endpoint(node: &str, ports: &[(&str, u16)]) -> ServiceEndpoint {
    let ports = ports.iter().map(|(name, number)| EndpointPort { name: (*name).to_owned(), number: *number });
    ServiceEndpoint {
        ports: ports.collect(),
        is_terminating: false,
        node: Some(node.to_owned()),
        zone: None,
        for_zones: Vec::new(),
        for_nodes: Vec::new(),
        pod: None,
    }
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 244, 1, last])
}

async fn find(destinations: &Destinations, port: u16, tried: &[SocketAddr]) -> Way {
    let call = Call { called: SocketAddr::new(CALLED, port), client: CLIENT, namespace: "shop", tried };
    destinations.find(call, |count| count - 1).await
}

fn at(way: &Way) -> String {
    match way {
        Way::Endpoint(chosen) => chosen.address.to_string(),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn the_first_call_waits_for_an_answer_and_later_ones_know_it() {
    let (destinations, notes) = destinations(true);
    let calling = tokio::spawn({
        let destinations = destinations.clone();
        async move { at(&find(&destinations, 80, &[]).await) }
    });
    while notes.0.lock().unwrap().0.is_empty() {
        tokio::task::yield_now().await;
    }
    destinations.set_endpoint(name(), address(1), vec![endpoint("one", &[("http", 8080), ("admin", 9000)])]);
    assert!(!destinations.set(CALLED, Some(service(None))));
    assert_eq!(calling.await.unwrap(), "10.244.1.1:8080");
    assert_eq!(at(&find(&destinations, 81, &[]).await), "10.244.1.1:9000");
    assert!(matches!(find(&destinations, 99, &[]).await, Way::Called), "a port that the Service does not have");
    assert_eq!(notes.0.lock().unwrap().0, [CALLED], "one subscription");
    // Its endpoints go, and come back.
    destinations.set_endpoint(name(), address(1), Vec::new());
    assert!(matches!(find(&destinations, 80, &[]).await, Way::NoEndpoint(_)));
    destinations.set_endpoint(name(), address(2), vec![endpoint("two", &[("http", 8081)])]);
    assert_eq!(at(&find(&destinations, 80, &[]).await), "10.244.1.2:8081");
    // It becomes something else.
    destinations.set(CALLED, None);
    assert!(matches!(find(&destinations, 80, &[]).await, Way::Called));
}

#[tokio::test]
async fn without_a_control_plane_what_is_unknown_takes_the_clusters_way_and_what_is_known_goes_on() {
    let (destinations, _) = destinations(false);
    assert!(matches!(find(&destinations, 80, &[]).await, Way::Called));
    destinations.set_endpoint(name(), address(1), vec![endpoint("one", &[("http", 8080)])]);
    destinations.set(CALLED, Some(service(None)));
    assert_eq!(at(&find(&destinations, 80, &[]).await), "10.244.1.1:8080");
    // A node that captures no pods asks nothing.
    assert!(matches!(find(&Destinations::default(), 80, &[]).await, Way::Called));
}

#[tokio::test]
async fn connections_are_spread_and_what_refuses_them_is_passed_over() {
    let (destinations, _) = destinations(true);
    destinations.set(CALLED, Some(service(None)));
    for last in 1..=3 {
        destinations.set_endpoint(name(), address(last), vec![endpoint("one", &[("http", 8080)])]);
    }
    let mut open = Vec::new();
    for _ in 0..9 {
        open.push(find(&destinations, 80, &[]).await);
    }
    let busy: Vec<_> = destinations.list()[0].endpoints.iter().map(|(.., open)| *open).collect();
    assert_eq!(busy.iter().sum::<usize>(), 9);
    let mut tried = Vec::new();
    while let Way::Endpoint(chosen) = find(&destinations, 80, &tried).await {
        assert!(!tried.contains(&chosen.address));
        tried.push(chosen.address);
    }
    assert_eq!(tried.len(), 3);
    drop(open);
    assert!(destinations.list()[0].endpoints.iter().all(|(.., open)| *open == 0));
}

#[tokio::test]
async fn a_client_stays_at_its_endpoint_while_that_is_there() {
    let (destinations, _) = destinations(true);
    destinations.set(CALLED, Some(service(Some(Duration::from_secs(60)))));
    for last in 1..=5 {
        destinations.set_endpoint(name(), address(last), vec![endpoint("one", &[("http", 8080)])]);
    }
    let first = find(&destinations, 80, &[]).await;
    for _ in 0..20 {
        let next = find(&destinations, 80, &[]).await;
        assert_eq!(at(&next), at(&first));
        std::mem::forget(next);
    }
    let Way::Endpoint(chosen) = &first else { panic!("{first:?}") };
    destinations.set_endpoint(name(), chosen.address.ip(), Vec::new());
    let moved = find(&destinations, 80, &[]).await;
    assert_ne!(at(&moved), at(&first));
    assert_eq!(at(&find(&destinations, 80, &[]).await), at(&moved));
}

#[tokio::test]
async fn subscriptions_end_and_are_bounded() {
    let (destinations, notes) = destinations(false);
    let call = |last: u16, namespace| {
        let [high, low] = last.to_be_bytes();
        let called = SocketAddr::from(([192, 0, high, low], 80));
        let destinations = &destinations;
        async move { destinations.find(Call { called, client: CLIENT, namespace, tried: &[] }, |_| 0).await }
    };
    let asked = || notes.0.lock().unwrap().0.len();
    for last in 0..MAX_OF_NAMESPACE as u16 + 10 {
        call(last, "shop").await;
    }
    assert_eq!(asked(), MAX_OF_NAMESPACE, "nothing is known of those before, so none goes");
    call(u16::MAX, "other").await;
    assert_eq!(asked(), MAX_OF_NAMESPACE + 1);
    // One that is neither a Service nor a pod makes room.
    let unknown = IpAddr::from([192, 0, 0, 7]);
    destinations.set(unknown, None);
    call(u16::MAX - 1, "shop").await;
    assert_eq!(asked(), MAX_OF_NAMESPACE + 1, "it was called a moment ago");
    let later = Instant::now() + UNUSED_FOR_ROOM;
    assert_eq!(destinations.lock().make_room("other", later), Some(None), "there is room");
    assert_eq!(destinations.lock().make_room("shop", later), Some(Some(unknown)));
    destinations.end_unused();
    assert_eq!(destinations.list().len(), MAX_OF_NAMESPACE);
    destinations.end_unused_at(Instant::now() + UNUSED);
    assert!(destinations.list().is_empty());
    assert_eq!(notes.0.lock().unwrap().1.len(), MAX_OF_NAMESPACE);
}
