//! Nodes that are away, and their functions.

use super::*;

#[test]
fn nodes_that_are_away_together_keep_their_functions_for_a_while() {
    let (mut mesh, id) = restarted();
    mesh.state.stop_awaiting();
    let sessions = NODES.map(|name| {
        mesh.connect(name);
        mesh.ends[name].session.unwrap()
    });
    let host = NODES.iter().position(|name| mesh.state.nodes.all[*name].hosted.contains(&id)).unwrap();
    let forget = |mesh: &mut Mesh, node: usize, patience| mesh.state.forget(NODES[node], sessions[node], patience);
    // All nodes disconnect. The first one that comes back gets no function of another one.
    NODES.iter().zip(sessions).for_each(|(name, session)| mesh.state.disconnect(name, session));
    assert_eq!(forget(&mut mesh, host, Wait::Again), Departure::Open);
    let other = NODES[(host + 1) % NODES.len()];
    mesh.connect(other);
    assert!(
        mesh.state.nodes.all[NODES[host]].hosted.contains(&id) && !mesh.state.nodes.all[other].hosted.contains(&id)
    );
    // After a while, the nodes count as the cause.
    for node in [host, (host + 2) % NODES.len()] {
        assert_eq!(forget(&mut mesh, node, Wait::Last), Departure::Settled);
    }
    assert!(mesh.state.nodes.all[other].hosted.contains(&id));
}

#[test]
fn a_node_that_is_away_alone_is_replaced_at_once() {
    let (mut mesh, id) = restarted();
    mesh.state.stop_awaiting();
    NODES.iter().for_each(|name| mesh.connect(name));
    let host = NODES.into_iter().find(|name| mesh.state.nodes.all[*name].hosted.contains(&id)).unwrap();
    let session = mesh.ends[host].session.unwrap();
    mesh.state.disconnect(host, session);
    assert_eq!(mesh.state.forget(host, session, Wait::Again), Departure::Settled);
    assert!(!mesh.state.nodes.all[host].hosted.contains(&id));
}

#[test]
fn a_node_that_comes_back_serves_until_its_replacement_does() {
    let (mut mesh, id) = restarted();
    mesh.state.stop_awaiting();
    NODES.iter().for_each(|name| mesh.connect(name));
    mesh.settle().unwrap();
    let home = |mesh: &Mesh| {
        let home = mesh.state.hosting.scheduler.nodes_of(&id)[0].clone();
        NODES.into_iter().find(|name| **name == *home).unwrap()
    };
    let before = home(&mesh);
    let session = mesh.ends[before].session.unwrap();
    mesh.state.disconnect(before, session);
    assert_eq!(mesh.state.forget(before, session, Wait::Again), Departure::Settled);
    let replacement = home(&mesh);
    assert_ne!(replacement, before);
    mesh.connect(before);
    let config = Subject::FunctionConfig(id.clone());
    let serves = |mesh: &mut Mesh, name| {
        while mesh.read(name) || !mesh.ends[name].read.is_empty() {
            mesh.answer(name, true);
        }
        mesh.ends[name].held.contains_key(&config) && mesh.ends[name].bounds[&id].iter().any(|bounds| bounds.most > 0)
    };
    assert!(serves(&mut mesh, before), "nobody else does");
    // A node that only knows the configuration gets nothing by it.
    let third = NODES.into_iter().find(|name| ![before, replacement].contains(name)).unwrap();
    let version = mesh.state.catalog.compiled.contents[&config].version;
    mesh.ends.get_mut(third).unwrap().held.insert(config.clone(), version);
    mesh.connect(third);
    assert!(!serves(&mut mesh, third));
    mesh.settle().unwrap();
    assert_eq!(home(&mesh), replacement);
    assert!(serves(&mut mesh, replacement) && !mesh.ends[before].held.contains_key(&config));
    assert_eq!(mesh.state.hosting.scheduler.leaving(&id).count(), 0);
}

#[test]
fn a_node_that_comes_back_serves_until_callers_know_its_replacement() {
    let (mut mesh, id) = restarted();
    mesh.state.stop_awaiting();
    NODES.iter().for_each(|name| mesh.connect(name));
    mesh.put(FUNCTIONS.len() - 1, 0);
    mesh.settle().unwrap();
    let home = |mesh: &Mesh, id: &FunctionId| {
        let home = mesh.state.hosting.scheduler.nodes_of(id)[0].clone();
        NODES.into_iter().find(|name| **name == *home).unwrap()
    };
    let before = home(&mesh, &id);
    let caller = home(&mesh, &configs::function(FUNCTIONS[FUNCTIONS.len() - 1]));
    let session = mesh.ends[before].session.unwrap();
    mesh.state.disconnect(before, session);
    assert_eq!(mesh.state.forget(before, session, Wait::Again), Departure::Settled);
    let replacement = home(&mesh, &id);
    assert_eq!(BTreeSet::from([before, caller, replacement]).len(), 3);
    let answer_all = |mesh: &mut Mesh, name| {
        while mesh.read(name) || !mesh.ends[name].read.is_empty() {
            mesh.answer(name, true);
        }
    };
    let serves =
        |mesh: &Mesh, name| mesh.ends[name].bounds.get(&id).is_some_and(|all| all.iter().any(|it| it.most > 0));
    answer_all(&mut mesh, replacement);
    assert!(serves(&mesh, replacement));
    mesh.connect(before);
    answer_all(&mut mesh, before);
    assert!(serves(&mesh, before), "the caller has not heard of the replacement");
    mesh.settle().unwrap();
    assert!(serves(&mesh, replacement) && !serves(&mesh, before));
    assert_eq!(home(&mesh, &id), replacement);
}
