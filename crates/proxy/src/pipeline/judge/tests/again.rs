//! Open requests that are judged again.

use super::*;
use crate::state::function::ProgramError;

impl Bench {
    /// Permits a request, as it is then judged again by `entry` at this time.
    fn again(
        &self,
        request: http::request::Builder,
        entry: &FunctionEntry,
        now_ms: u64,
    ) -> (Result<Option<u64>, Withdrawn>, Explanation) {
        let (head, ()) = request.body(()).unwrap().into_parts();
        let record = self.record(&head);
        let Judgement::Permitted(mut permitted) = self.judge(head, &record) else { panic!("refused") };
        let peer = self.peer();
        let reopened = OpenRequest {
            direction: self.direction,
            peer: &peer,
            target: self.target.unwrap(),
            protocol: Protocol::Http1,
            port: 80,
            asked: &permitted.take_asked(),
        };
        let again = self.judge.again(entry, &reopened, now_ms, &record);
        drop((permitted, record));
        (again, self.telemetry.ring.latest(1).remove(0))
    }
}

const EXPIRES_MS: u64 = 4_102_444_800_000;
const NOW_MS: u64 = 1_800_000_000_000;

#[test]
fn what_is_permitted_takes_nothing_again_and_is_not_told_of() {
    for engine in engines() {
        let key = SigningKey::generate(Algorithm::ES256);
        let mut config = token_config(&key);
        config.inbound.rate_limits = vec![limit(1, vec![KeyPart::Claim(vec!["sub".into()])])];
        config.inbound.sidecar.request_headers.push(HeaderRule::Set("x-mesh".into(), "leno".into()));
        let bench = Bench::new(engine, config);
        let (again, told) = bench.again(with_token(&sign(&key, CLAIMS)), &bench.entry, NOW_MS);
        assert_eq!(again.unwrap(), Some(EXPIRES_MS));
        assert_eq!((told.quotas.len(), told.quotas[0].remaining, told.signatures.len()), (1, Some(0), 1));
        let judgement = told.judgement.unwrap();
        assert_eq!((judgement.verdict.as_str(), judgement.runs), ("allow", 2));
        assert_eq!(denied(bench.ask(with_token(&sign(&key, CLAIMS))).0).status, 429, "its limit is used up");
        let (bob, _) = bench.again(with_token(&sign(&key, &CLAIMS.replace("ann", "bob"))), &bench.entry, NOW_MS);
        assert!(bob.is_ok(), "and another's is not");
    }
}

#[test]
fn what_is_permitted_no_more_is_said_with_its_rule() {
    for engine in engines() {
        let key = SigningKey::generate(Algorithm::ES256);
        let bench = Bench::new(engine, token_config(&key));
        let token = sign(&key, CLAIMS);
        let again = |entry: &FunctionEntry, now_ms| {
            let (again, _) = bench.again(with_token(&token), entry, now_ms);
            again.map_err(|Withdrawn { status, verdict, .. }| {
                let (rule, clause) = verdict.rule_and_clause();
                (status.as_u16(), rule.to_owned(), clause.to_owned())
            })
        };
        assert!(again(&bench.entry, EXPIRES_MS - 1).is_ok());
        let (status, rule, clause) = again(&bench.entry, EXPIRES_MS).unwrap_err();
        assert_eq!((status, &*rule, &*clause), (401, "p/authentication/login", "exp: the token has expired"));

        let mut forbids = token_config(&key);
        forbids.inbound.authorization.insert(0, super::rule("p/authorization/nobody", Action::Deny));
        let (status, rule, _) = again(&FunctionEntry::load(engine, forbids), NOW_MS).unwrap_err();
        assert_eq!((status, &*rule), (403, "p/authorization/nobody"));

        // The key set has changed: the signature is verified anew, and by the new key.
        let other = FunctionEntry::load(engine, {
            let mut config = token_config(&SigningKey::generate(Algorithm::ES256));
            config.inbound.authentication[0].keys[0].id = KeyId([9; 32]);
            config.keys[0].id = KeyId([9; 32]);
            config
        });
        let (status, _, clause) = again(&other, NOW_MS).unwrap_err();
        assert_eq!((status, &*clause), (401, "the token's signature is not valid"));
    }
}

#[test]
fn a_program_without_a_verdict_permits_nothing() {
    let key = SigningKey::generate(Algorithm::ES256);
    let engine = Engine::inline();
    let bench = Bench::new(&engine, token_config(&key));
    let mut entry = FunctionEntry::load(&engine, token_config(&key));
    entry.inbound.image = Err(ProgramError::Encoding(postcard::Error::SerializeBufferFull));
    let (again, _) = bench.again(with_token(&sign(&key, CLAIMS)), &entry, NOW_MS);
    let withdrawn = again.unwrap_err();
    assert_eq!((withdrawn.status.as_u16(), withdrawn.verdict.word()), (503, "error"));
}
