//! Real signatures, and the cache of verified tokens.

use super::*;
use crate::state::tokens::VerifiedToken;

#[test]
fn a_signature_is_verified_once_and_remembered() {
    for engine in engines() {
        for algorithm in [
            Algorithm::RS256,
            Algorithm::PS256,
            Algorithm::PS512,
            Algorithm::ES256,
            Algorithm::ES384,
            Algorithm::ES512,
            Algorithm::EdDSA,
        ] {
            let key = SigningKey::generate(algorithm);
            let bench = Bench::new(engine, token_config(&key));
            let token = sign(&key, CLAIMS);
            let results = ["good", "remembered", "remembered"].into_iter().zip([2, 0, 0]);
            for (result, runs) in results {
                let (judgement, told) = bench.ask(with_token(&token));
                let (head, _) = permitted(judgement);
                assert_eq!(head.headers["x-user"], "ann");
                assert!(!head.headers.contains_key("authorization"), "taken off");
                let judgement = told.judgement.unwrap();
                assert_eq!(judgement.runs, runs, "{algorithm:?} {result}");
                assert_eq!(judgement.principal.as_deref(), Some("https://login.example/ann"));
                let [check] = &told.signatures[..] else { panic!("{:?}", told.signatures) };
                assert_eq!((&*check.result, &*check.key), (result, "abababababababab"));
            }
        }
    }
}

#[test]
fn forged_and_missing_tokens_are_refused_and_never_remembered() {
    for engine in engines() {
        let (key, other) = (SigningKey::generate(Algorithm::ES256), SigningKey::generate(Algorithm::ES256));
        let mut config = token_config(&key);
        config.inbound.tracing.enabled = true;
        let bench = Bench::new(engine, config);
        for _ in 0..2 {
            let (judgement, told) = bench.ask(with_token(&sign(&other, CLAIMS)));
            assert!(told.trace.is_some(), "it has a span like any other");
            let refusal = denied(judgement);
            assert_eq!(refusal.status, 401);
            assert!(refusal.headers.contains_key("www-authenticate"));
            assert_eq!(told.signatures[0].result, "mismatch");
            assert_eq!(told.judgement.unwrap().policy.as_deref(), Some("authentication"));
        }
        assert_eq!(denied(bench.ask(get("/orders")).0).status, 401);
        assert_eq!(bench.policy_state.entries().tokens, 0);
    }
}

#[test]
fn a_remembered_signature_spares_nothing_but_the_signature() {
    for engine in engines() {
        let key = SigningKey::generate(Algorithm::ES256);
        let bench = Bench::new(engine, token_config(&key));
        let function = bench.policy_state.function(&"shop/orders".parse().unwrap());
        let remember = |token: &str, key| {
            let known = VerifiedToken { key, algorithm: Algorithm::ES256 };
            function.tokens.remember(bench.policy_state.tokens.hasher.hash(token.as_bytes()), known);
        };
        let expired = sign(&key, &CLAIMS.replace("4102444800", "1000000000"));
        let foreign = sign(&key, &CLAIMS.replace("login", "evil"));
        let good = sign(&key, CLAIMS);
        for token in [&expired, &foreign] {
            remember(token, KEY);
            assert_eq!(denied(bench.ask(with_token(token)).0).status, 401);
        }
        remember(&good, KeyId([0xde; 32]));
        let (judgement, told) = bench.ask(with_token(&good));
        drop(permitted(judgement));
        assert_eq!(told.judgement.unwrap().runs, 2, "of a key that is none of the program's: verified anew");

        // The key set changes. The token is still remembered, but its key is no longer trusted.
        remember(&good, KEY);
        let mut rotated = token_config(&key);
        let fresh = SigningKey::generate(Algorithm::ES256);
        rotated.keys = vec![fresh.verification_key(KeyId([0xee; 32]))];
        rotated.inbound.authentication[0].keys[0].id = KeyId([0xee; 32]);
        let bench = Bench { entry: Arc::new(FunctionEntry::load(engine, rotated)), ..bench };
        assert_eq!(denied(bench.ask(with_token(&good)).0).status, 401);
    }
}

/// The same bench for another function.
fn another(bench: Bench, engine: &Engine, mut config: FunctionConfig) -> Bench {
    config.id = "shop/invoices".parse().unwrap();
    config.inbound.targets[0].function = "shop/invoices".into();
    Bench { entry: Arc::new(FunctionEntry::load(engine, config)), target: Some("shop/invoices"), ..bench }
}

#[test]
fn what_one_function_verified_another_with_the_same_key_need_not() {
    for engine in engines() {
        let key = SigningKey::generate(Algorithm::EdDSA);
        let config = token_config(&key);
        let bench = Bench::new(engine, config.clone());
        let token = sign(&key, CLAIMS);
        let (judgement, told) = bench.ask(with_token(&token));
        drop(permitted(judgement));
        assert!(told.judgement.unwrap().runs > 1);
        let bench = another(bench, engine, config);
        let (judgement, told) = bench.ask(with_token(&token));
        drop(permitted(judgement));
        assert_eq!(told.judgement.unwrap().runs, 1);
        let [check] = &told.signatures[..] else { panic!("{:?}", told.signatures) };
        assert_eq!((&*check.result, &*check.key), ("remembered", "abababababababab"));
    }
}

#[test]
fn each_key_that_may_have_made_a_token_without_a_name_is_tried() {
    for engine in engines() {
        let keys: Vec<SigningKey> = (0..8).map(|_| SigningKey::generate(Algorithm::ES256)).collect();
        let mut config = token_config(&keys[0]);
        let id = |index: usize| KeyId([u8::try_from(index).unwrap(); 32]);
        config.keys = keys.iter().enumerate().map(|(index, key)| key.verification_key(id(index))).collect();
        let issuer = &mut config.inbound.authentication[0];
        issuer.keys = (0..8).map(|index| Key { id: id(index), ..issuer.keys[0].clone() }).collect();
        let bench = Bench::new(engine, config);
        let token = sign(&keys[7], CLAIMS);
        let (judgement, told) = bench.ask(with_token(&token));
        drop(permitted(judgement));
        let results: Vec<&str> = told.signatures.iter().map(|check| &*check.result).collect();
        assert_eq!((results.len(), results[7]), (8, "good"), "{results:?}");
        let (judgement, told) = bench.ask(with_token(&token));
        drop(permitted(judgement));
        assert_eq!((told.judgement.unwrap().runs, told.signatures.len()), (0, 1), "remembered by the key that made it");
        let forged = sign(&SigningKey::generate(Algorithm::ES256), CLAIMS);
        assert_eq!(denied(bench.ask(with_token(&forged)).0).status, 401);
    }
}

#[test]
fn a_key_of_the_same_name_is_not_the_same_key() {
    let key = SigningKey::generate(Algorithm::EdDSA);
    let engine = &engines()[0];
    let bench = Bench::new(engine, token_config(&key));
    let token = sign(&key, CLAIMS);
    drop(permitted(bench.ask(with_token(&token)).0));
    // Both key IDs begin with the same bytes, by which alone keys were once identified.
    let mut id = KEY;
    id.0[31] ^= 1;
    let mut other = token_config(&SigningKey::generate(Algorithm::EdDSA));
    other.keys[0].id = id;
    other.inbound.authentication[0].keys[0].id = id;
    let bench = another(bench, engine, other);
    let (judgement, told) = bench.ask(with_token(&token));
    assert_eq!(denied(judgement).status, 401);
    assert_eq!(told.signatures[0].result, "mismatch");
}

#[test]
fn what_others_found_out_spares_nothing_but_the_signature() {
    let key = SigningKey::generate(Algorithm::EdDSA);
    let engine = &engines()[0];
    let bench = Bench::new(engine, token_config(&key));
    let token = sign(&key, CLAIMS);
    drop(permitted(bench.ask(with_token(&token)).0));
    let mut stricter = token_config(&key);
    stricter.inbound.authentication[0].audiences = vec!["invoices".into()];
    let bench = another(bench, engine, stricter);
    assert_eq!(denied(bench.ask(with_token(&token)).0).status, 401);
}

#[test]
fn a_token_of_an_unknown_key_is_reported_once_for_functions_that_fetch_keys() {
    let key = SigningKey::generate(Algorithm::EdDSA);
    let mut config = token_config(&key);
    config.inbound.authentication[0].keys[0].kid = Some("old".into());
    let token = testing::sign_as(&key, Some("new"), CLAIMS);
    let inline = Bench::new(&engines()[0], config.clone());
    assert_eq!(denied(inline.ask(with_token(&token)).0).status, 401);
    assert!(inline.policy_state.tokens.key_sets.take().is_empty(), "its keys are part of the configuration");
    config.jwks.push(leno_model::JwksFetch {
        issuer: 0,
        url: "https://login.example/keys".into(),
        ca_file: None,
        ca: String::new(),
        refresh: Duration::from_secs(300),
        timeout: Duration::from_secs(5),
    });
    let fetched = Bench::new(&engines()[0], config);
    for _ in 0..2 {
        assert_eq!(denied(fetched.ask(with_token(&token)).0).status, 401);
    }
    assert_eq!(fetched.policy_state.tokens.key_sets.take(), ["shop/orders".parse().unwrap()]);
    let expired = testing::sign_as(&key, Some("old"), &CLAIMS.replace("4102444800", "1"));
    assert_eq!(denied(fetched.ask(with_token(&expired)).0).status, 401);
    assert!(fetched.policy_state.tokens.key_sets.take().is_empty());
}

#[test]
fn until_a_key_set_has_come_requests_with_tokens_are_to_come_again() {
    let key = SigningKey::generate(Algorithm::EdDSA);
    let (token, forged) = (sign(&key, CLAIMS), sign(&SigningKey::generate(Algorithm::EdDSA), CLAIMS));
    let failures = RateLimit { counts: Counts::AuthenticationFailures, ..limit(1, vec![KeyPart::Address]) };
    let mut complete = token_config(&key);
    complete.inbound.rate_limits = vec![failures];
    complete.jwks.push(leno_model::JwksFetch {
        issuer: 0,
        url: "https://login.example/keys".into(),
        ca_file: None,
        ca: String::new(),
        refresh: Duration::from_secs(300),
        timeout: Duration::from_secs(5),
    });
    let mut config = complete.clone();
    config.keys.clear();
    config.inbound.authentication[0].keys.clear();
    config.inbound.authentication[0].keys_pending = true;
    let bench = Bench::new(&engines()[0], config);
    for token in [&token, &forged, &token] {
        let refusal = denied(bench.ask(with_token(token)).0);
        assert_eq!((refusal.status.as_u16(), refusal.headers["retry-after"].as_bytes()), (503, &b"1"[..]));
    }
    assert_eq!(
        bench.policy_state.tokens.key_sets.take(),
        ["shop/orders".parse().unwrap()],
        "the set is fetched sooner"
    );
    let bench = Bench { entry: Arc::new(FunctionEntry::load(&engines()[0], complete)), ..bench };
    drop(permitted(bench.ask(with_token(&token)).0));
    assert_eq!(denied(bench.ask(with_token(&forged)).0).status, 401, "and none of those before was a failure");
}
