//! The addresses of machines that nodes receive.

use super::*;

fn machines(state: &mut State, name: &str, session: u64) -> Option<Vec<IpAddr>> {
    match state.next_delta(name, session) {
        Next::Send(v1::ToNode { message: Some(v1::to_node::Message::Machines(sent)) }) => {
            Some(messages::machine_addresses(&sent))
        }
        _ => None,
    }
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn nodes_hear_of_the_addresses_of_all_machines_and_of_changes() {
    let bundle = Authority::new(&configs::DOMAIN.parse().unwrap()).unwrap().bundle().clone();
    let mut state = State::new(CompiledDefinitions::nothing(&bundle).unwrap(), Histories::default());
    let nothing = Placement::Only(BTreeSet::new());
    let admission = Admission { placement: nothing, gateway: false, locality: Default::default(), egress: false };
    for (name, at) in [("one", "203.0.113.1"), ("two", "2001:db8::2")] {
        state.admit(name, admission.clone());
        state.locate(name, &addresses(&["127.0.0.1", "::1", at, "::ffff:198.51.100.7"]));
    }
    let greeting = |protocol: u32, from: &str| Hello {
        from: Some(from.parse().unwrap()),
        at: Some("192.0.2.1".parse().unwrap()),
        protocol,
        ..Hello::default()
    };
    let one = state.connect("one", greeting(leno_wire::MACHINES, "203.0.113.1"), Arc::default()).unwrap();
    let all = ["192.0.2.1", "198.51.100.7", "203.0.113.1", "2001:db8::2"];
    assert_eq!(machines(&mut state, "one", one), Some(addresses(&all)));
    assert_eq!(machines(&mut state, "one", one), None, "said once");

    // A node of an earlier release does not know the message, and its stream has yet another source
    // address.
    let two = state.connect("two", greeting(leno_wire::AUTHORITIES, "192.0.2.22"), Arc::default()).unwrap();
    assert_eq!(machines(&mut state, "two", two), None);
    let more = ["192.0.2.1", "192.0.2.22", "198.51.100.7", "203.0.113.1", "2001:db8::2"];
    assert_eq!(machines(&mut state, "one", one), Some(addresses(&more)));

    state.expel("two");
    assert_eq!(machines(&mut state, "one", one), Some(addresses(&["192.0.2.1", "198.51.100.7", "203.0.113.1"])));
}
