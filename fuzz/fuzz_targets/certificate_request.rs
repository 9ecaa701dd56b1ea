//! Signing requests of a node at the authority: an identity and a certificate request. A signed
//! certificate has that identity.
#![no_main]

use leno_identity::{Authority, SpiffeId, TrustDomain};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use std::time::Duration;

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| {
    let domain: TrustDomain = "mesh.test".parse().unwrap();
    Authority::new(&domain).unwrap()
});

// An identity, a blank, and a request in DER.
fuzz_target!(|bytes: &[u8]| {
    let Some(blank) = bytes.iter().position(|byte| *byte == b' ') else { return };
    let (Ok(identity), csr) = (std::str::from_utf8(&bytes[..blank]), &bytes[blank + 1..]) else { return };
    let Ok(id) = identity.parse::<SpiffeId>() else { return };
    assert_eq!(id.as_str(), identity);
    if let Some((namespace, name)) = id.namespace().zip(id.name()) {
        let domain = id.trust_domain().parse().unwrap();
        assert_eq!(SpiffeId::function(&domain, namespace, name).as_ref(), Ok(&id));
    }
    if let Ok(chain) = AUTHORITY.sign(csr, &id, Duration::from_secs(60)) {
        assert_eq!(id.trust_domain(), "mesh.test");
        assert!(chain.first().is_some_and(|leaf| leaf.windows(identity.len()).any(|part| part == identity.as_bytes())));
    }
});
