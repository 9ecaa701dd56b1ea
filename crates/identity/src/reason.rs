//! Words for the reasons that the TLS library writes as the names of its own types.

use std::fmt::Debug;

/// Why there is no valid path from a certificate to a root, in words.
pub(crate) fn path(error: &webpki::Error) -> String {
    match error {
        webpki::Error::CaUsedAsEndEntity => {
            "the peer shows the certificate of an authority (CaUsedAsEndEntity), which \
            is not among the trusted certificates; add it there (`caFile`, `--ca`), or give the peer a certificate \
            with `CA:FALSE`, such as of `openssl req -x509 -addext basicConstraints=critical,CA:FALSE`"
                .to_owned()
        }
        webpki::Error::UnknownIssuer => "no trusted root has signed it (UnknownIssuer)".to_owned(),
        other => words(other),
    }
}

/// The name of a variant in words: `BadDer` is `bad der (BadDer)`.
pub(crate) fn words(variant: &dyn Debug) -> String {
    let text = format!("{variant:?}");
    let name = text.split(|character: char| !character.is_alphanumeric()).next().unwrap_or_default();
    let mut words = String::new();
    for (at, character) in name.char_indices() {
        if at > 0 && character.is_uppercase() {
            words.push(' ');
        }
        words.extend(character.to_lowercase());
    }
    format!("{words} ({name})")
}
