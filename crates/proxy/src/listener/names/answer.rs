//! The answer to a DNS query.

use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use domain::base::{Message, MessageBuilder, Ttl};
use domain::rdata::A;
use std::net::Ipv4Addr;

/// How long a resolver may cache an answer: the callees of a function can change.
const TTL: Ttl = Ttl::from_secs(5);

/// The answer to one query, with the name's address, if it has one; `address` gets the name and the
/// type of record. `None`: the message is no query.
pub(crate) fn reply(question: &[u8], address: impl FnOnce(&str, Rtype) -> Option<Ipv4Addr>) -> Option<Vec<u8>> {
    let message = Message::from_octets(question).ok().filter(|message| !message.header().qr())?;
    let respond = |code| MessageBuilder::new_vec().start_answer(&message, code).ok();
    if message.header().opcode() != Opcode::QUERY {
        return Some(respond(Rcode::NOTIMP)?.finish());
    }
    let Ok(asked) = message.sole_question() else {
        return Some(MessageBuilder::new_vec().start_error(&message, Rcode::FORMERR).finish());
    };
    let is_internet = asked.qclass() == Class::IN;
    let address = if is_internet { address(&asked.qname().to_string(), asked.qtype()) } else { None };
    let Some(address) = address else { return Some(respond(Rcode::NXDOMAIN)?.finish()) };
    let mut reply = respond(Rcode::NOERROR)?;
    reply.header_mut().set_aa(true);
    reply.header_mut().set_ra(true);
    if asked.qtype() == Rtype::A {
        reply.push((asked.qname(), TTL, A::new(address))).ok()?;
    }
    Some(reply.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::base::Name;

    const CALLEE: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 7);

    fn ask(name: &str, kind: Rtype) -> Vec<u8> {
        let mut question = MessageBuilder::new_vec().question();
        question.push((name.parse::<Name<Vec<u8>>>().unwrap(), kind)).unwrap();
        question.finish()
    }

    fn code_and_address(reply: &[u8]) -> (Rcode, Option<Ipv4Addr>) {
        let message = Message::from_octets(reply).unwrap();
        let mut records = message.answer().unwrap().limit_to::<A>();
        (message.header().rcode(), records.next().map(|record| record.unwrap().data().addr()))
    }

    #[test]
    fn only_names_of_callees_have_an_address() {
        let about = |name: &str, kind| {
            code_and_address(&reply(&ask(name, kind), |name, _| (name == "stock").then_some(CALLEE)).unwrap())
        };
        assert_eq!(about("stock", Rtype::A), (Rcode::NOERROR, Some(CALLEE)));
        assert_eq!(about("stock.", Rtype::A), (Rcode::NOERROR, Some(CALLEE)));
        // The name exists, but has no record of this type: an error would make resolvers give up on
        // the name.
        assert_eq!(about("stock", Rtype::AAAA), (Rcode::NOERROR, None));
        assert_eq!(about("c2VjcmV0.tunnel.example", Rtype::TXT), (Rcode::NXDOMAIN, None));
        assert_eq!(about("example.com", Rtype::A), (Rcode::NXDOMAIN, None));
    }

    #[test]
    fn what_is_no_question_gets_no_answer_and_never_an_address() {
        let answer = reply(&ask("stock", Rtype::A), |_, _| Some(CALLEE)).unwrap();
        assert_eq!(reply(&answer, |_, _| Some(CALLEE)), None, "answers to answers would go round for ever");
        assert_eq!(reply(b"", |_, _| Some(CALLEE)), None);
        let two = {
            let mut question = MessageBuilder::new_vec().question();
            for name in ["stock", "stock"] {
                question.push((name.parse::<Name<Vec<u8>>>().unwrap(), Rtype::A)).unwrap();
            }
            question.finish()
        };
        assert_eq!(code_and_address(&reply(&two, |_, _| Some(CALLEE)).unwrap()).0, Rcode::FORMERR);
        for length in 0..two.len() {
            drop(reply(&two[..length], |_, _| Some(CALLEE)));
        }
    }
}
