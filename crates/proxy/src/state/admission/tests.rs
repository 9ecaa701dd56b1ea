use super::*;

const BOUNDS: Bounds = Bounds { address: 3, direction: 5, node: 7 };

fn admit(admission: &Arc<Admission>, direction: TrafficDirection, host: u8) -> Option<(AdmissionGuard, Arc<Activity>)> {
    let activity = Activity::new();
    let holder = Holder::Address([192, 0, 2, host].into());
    Some((admission.admit(direction, holder, &activity, BOUNDS).ok()?, activity))
}

fn is_closed(admitted: &AdmissionGuard) -> bool {
    admitted.shared.closing.load(Ordering::Relaxed)
}

#[test]
fn the_oldest_silent_one_is_closed_first_then_the_oldest_idle_one() {
    let admission = Arc::new(Admission::default());
    let of_one = |_| admit(&admission, TrafficDirection::Gateway, 1).unwrap();
    let [busy, idle, silent] = std::array::from_fn(of_one);
    let working = busy.1.begin();
    drop(idle.1.begin());
    let fourth = of_one(0);
    assert_eq!([&busy, &idle, &silent].map(|(admitted, _)| is_closed(admitted)), [false, false, true]);
    let _too = fourth.1.begin();
    let fifth = of_one(0);
    assert!(is_closed(&idle.0));
    let _three = fifth.1.begin();
    assert!(admit(&admission, TrafficDirection::Gateway, 1).is_none(), "all of this address are at work");
    assert!(admit(&admission, TrafficDirection::Gateway, 2).is_some(), "another address is another matter");
    drop(working);
    assert!(admit(&admission, TrafficDirection::Gateway, 1).is_some());
    assert!(is_closed(&busy.0));
}

#[test]
fn each_listener_has_its_bound_and_the_node_has_one() {
    let admission = Arc::new(Admission::default());
    let gateway: Vec<_> = (0..5).map(|host| admit(&admission, TrafficDirection::Gateway, host).unwrap()).collect();
    let outbound: Vec<_> = (0..2).map(|_| admit(&admission, TrafficDirection::Outbound, 1).unwrap()).collect();
    let _more = admit(&admission, TrafficDirection::Gateway, 9).unwrap();
    assert!(is_closed(&gateway[0].0), "the oldest at the gateway");
    let _more = admit(&admission, TrafficDirection::Outbound, 2).unwrap();
    assert!(is_closed(&gateway[1].0) && !is_closed(&outbound[0].0), "the oldest of all");
    drop((gateway, outbound));
    assert_eq!(admission.lock().entries.len(), 2);
    let text = leno_telemetry::exposition::Exposition::default().with(&admission.scrape()).finish();
    assert!(text.contains("leno_connections_closed_total{listener=\"gateway\",bound=\"listener\"} 1"), "{text}");
    assert!(text.contains("leno_connections_closed_total{listener=\"outbound\",bound=\"descriptors\"} 1"), "{text}");
    assert!(text.contains("leno_connections{listener=\"gateway\"} 1"), "{text}");
}

#[test]
fn unfinished_heads_are_bounded_and_who_holds_most_loses_first() {
    const HEAD: usize = 40 * 1024;
    let most = heads::MOST_HELD;
    let admission = Arc::new(Admission::default());
    let bounds = Bounds { address: usize::MAX, direction: usize::MAX, node: usize::MAX };
    let open = |address: [u8; 4]| {
        let activity = Activity::new();
        let holder = Holder::Address(address.into());
        (admission.admit(TrafficDirection::Gateway, holder, &activity, bounds).unwrap(), activity)
    };
    let few: Vec<_> = (0..10).map(|host| open([192, 0, 2, host])).collect();
    few.iter().for_each(|(_, activity)| activity.received(HEAD));
    // Less than a connection's buffer.
    let small = open([192, 0, 2, 99]);
    small.1.received(8 * 1024);
    let mut many = Vec::new();
    for _ in 0..3 * most / HEAD {
        let one = open([192, 0, 2, 99]);
        one.1.received(HEAD / 2);
        one.1.received(HEAD / 2);
        many.push(one);
        // The tasks of closed connections end.
        many.retain(|(admitted, _)| !is_closed(admitted));
        assert!(admission.held() <= most);
    }
    assert!(few.iter().chain([&small]).all(|(admitted, _)| !is_closed(admitted)), "they hold little");
    assert!(many.len() * HEAD > most / 2);
    let _busy: Vec<_> = many.iter().map(|(_, activity)| activity.begin()).collect();
    assert_eq!(admission.held(), 10 * HEAD, "a whole head does not count");
    drop(few);
    assert_eq!(admission.held(), 0);
}

fn of_instance(
    admission: &Arc<Admission>,
    (name, namespace): (&str, &Arc<Namespace>),
    node: usize,
) -> Result<(AdmissionGuard, Arc<Activity>), AdmissionError> {
    let (activity, holder) = (Activity::new(), Holder::Instance(name, namespace));
    let bounds = Bounds { address: usize::MAX, direction: 1000, node };
    Ok((admission.admit(TrafficDirection::Outbound, holder, &activity, bounds)?, activity))
}

#[test]
fn a_namespace_closes_its_own_idle_connections_and_no_others() {
    let (admission, namespaces) = (Arc::new(Admission::default()), leno_namespaces::Namespaces::default());
    let (hostile, shop) = (namespaces.of("hostile"), namespaces.of("shop"));
    hostile.set(&leno_namespaces::Bounds { connections: Some(8), ..Default::default() });
    let other = of_instance(&admission, ("shop/web[1]", &shop), 1000).unwrap();
    let client = admit(&admission, TrafficDirection::Gateway, 1).unwrap();
    let open = |name| of_instance(&admission, (name, &hostile), 1000);
    let six: Vec<_> = (0..6).map(|_| open("hostile/a[1]").unwrap()).collect();
    let _busy: Vec<_> = six.iter().skip(1).map(|(_, activity)| activity.begin()).collect();
    let seventh = open("hostile/a[1]").unwrap();
    let _busy_too = seventh.1.begin();
    assert!(is_closed(&six[0].0), "an instance has three quarters");
    assert_eq!(open("hostile/a[1]").unwrap_err(), AdmissionError::Instance);
    let rest: Vec<_> = (0..2).map(|_| open("hostile/b[2]").unwrap()).collect();
    let _more = open("hostile/b[2]").unwrap();
    assert!(is_closed(&rest[0].0) && !is_closed(&rest[1].0));
    let _busy_last = [rest[1].1.begin(), _more.1.begin()];
    assert_eq!(open("hostile/b[2]").unwrap_err(), AdmissionError::Namespace);
    assert!(!is_closed(&other.0) && !is_closed(&client.0));
    assert_eq!(hostile.count(Resource::Connections).used(), 8);
    drop((six, seventh, rest));
    assert_eq!(hostile.count(Resource::Connections).used(), 1);
}

#[test]
fn instances_leave_capacity_for_the_gateway_and_the_largest_namespace_yields() {
    let (admission, namespaces) = (Arc::new(Admission::default()), leno_namespaces::Namespaces::default());
    let (hostile, shop) = (namespaces.of("hostile"), namespaces.of("shop"));
    let open = |name, namespace| of_instance(&admission, (name, namespace), 8);
    let held: Vec<_> = (0..6).map(|_| open("hostile/a[1]", &hostile).unwrap()).collect();
    let busy: Vec<_> = held.iter().map(|(_, activity)| activity.begin()).collect();
    assert_eq!(open("hostile/a[1]", &hostile).unwrap_err(), AdmissionError::Descriptors);
    let activity = Activity::new();
    let bounds = Bounds { address: 100, direction: 1000, node: 8 };
    let client = |host: u8| {
        let holder = Holder::Address([192, 0, 2, host].into());
        admission.admit(TrafficDirection::Gateway, holder, &activity, bounds)
    };
    let clients = [client(1), client(2)].map(Result::unwrap);
    drop(busy);
    let of_shop = open("shop/web[1]", &shop).unwrap();
    assert!(is_closed(&held[0].0), "one of the namespace that has the most");
    assert!(clients.iter().all(|client| !is_closed(client)));
    assert!(!is_closed(&of_shop.0));
}

#[test]
fn a_connection_counts_for_its_namespace_once_its_instance_is_known() {
    let (admission, namespaces) = (Arc::new(Admission::default()), leno_namespaces::Namespaces::default());
    let shop = namespaces.of("shop");
    shop.set(&leno_namespaces::Bounds { connections: Some(1), ..Default::default() });
    let [one, two] = [1, 1].map(|host| admit(&admission, TrafficDirection::Outbound, host).unwrap());
    let _busy = [one.1.begin(), two.1.begin()];
    one.0.attribution().set("shop/web[1]", &shop).unwrap();
    one.0.attribution().set("shop/web[1]", &shop).unwrap();
    assert_eq!(shop.count(Resource::Connections).used(), 1);
    assert!(two.0.attribution().set("shop/web[1]", &shop).is_err());
    drop(one);
    assert_eq!(shop.count(Resource::Connections).used(), 0);
}
