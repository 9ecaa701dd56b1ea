//! Trust bundles as files.

use leno_identity::{Authority, TrustBundle};

#[test]
fn roots_in_pem_name_their_trust_domain() {
    let [one, other] = ["one.example", "other.example"].map(|domain| Authority::new(&domain.parse().unwrap()).unwrap());
    let read = TrustBundle::from_pem(one.bundle().to_pem().as_bytes()).unwrap();
    assert_eq!(read, *one.bundle());
    let both = one.bundle().to_pem() + &other.bundle().to_pem();
    let error = TrustBundle::from_pem(both.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "root 1 of the trust bundle is not one of `one.example`");
    for (text, expected) in [
        ("", "it has no certificate"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "root 0 of the trust bundle is not"),
    ] {
        let error = TrustBundle::from_pem(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
