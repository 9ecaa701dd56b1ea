//! Answers the DNS queries of a jail. A name that its instance may call has an address; no other
//! name exists, and the node forwards no query. So a name cannot carry data out of the jail.

pub(crate) mod answer;
mod look_ups;

use crate::pipeline::worker::Worker;
use crate::state::credential::Caller;
use leno_runtime::schedule::give_way;
use leno_telemetry::flows::Refusal;
use look_ups::LookUps;
use std::time::Instant;
use tokio::net::UdpSocket;

/// Maximum length of a query. A longer one asks for nothing that is answered here.
const LONGEST: usize = 512;

/// Answers queries until the future is dropped.
pub(super) async fn answer(worker: &Worker, caller: &Caller, socket: &UdpSocket) {
    let (mut question, mut refused) = ([0; LONGEST], LookUps::default());
    loop {
        let asked = socket.recv_from(&mut question).await;
        // An instance that asks without end gets one turn at a time, and so does an error that
        // persists.
        give_way().await;
        // An error is about an earlier answer that the instance did not take.
        let Ok((length, from)) = asked else { continue };
        let address = |name: &str, record| {
            let found = worker.snapshot_with(&caller.function);
            let callee = found.and_then(|(_, entry)| Some(entry.callee(name)?.id.clone()));
            if callee.is_none() && refused.begins(name, record, Instant::now()) {
                worker.node.telemetry.destinations.name(&caller.function, name);
                worker.node.telemetry.connection_flows.push(Refusal {
                    kind: "name",
                    instance: (&*caller.instance).into(),
                    during: Some(caller.handled()),
                    rule: caller.function.callees_rule().into(),
                    what: "look-up".into(),
                    host: name.into(),
                    reason: "no callee of this function has this name, so it has no address",
                });
            }
            worker.node.addresses.of(&callee?)
        };
        if let Some(reply) = question.get(..length).and_then(|question| answer::reply(question, address)) {
            // This fails if the process that asked is gone.
            let _ = socket.send_to(&reply, from).await;
        }
    }
}
