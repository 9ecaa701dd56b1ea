//! Hosts as documents write them, converted into the form in which the mesh compares hosts
//! ([`leno_policy::host`]).

use idna::AsciiDenyList;
use std::borrow::Cow;

/// The form in which hosts are compared. Names beyond ASCII are converted as clients do (UTS 46,
/// then Punycode). `None` for text that is not a host.
pub(crate) fn normal(written: &str) -> Option<String> {
    leno_policy::host::of_document(&ascii(written)?)
}

/// The same for `*`, `*.name` or a host.
pub(crate) fn pattern(written: &str) -> Option<String> {
    match written.strip_prefix("*.") {
        Some(name) => Some(format!("*.{}", normal(name)?)),
        None if written == "*" => Some("*".to_owned()),
        None => normal(written),
    }
}

/// The beginning of hosts. Its last label may be incomplete, so it must be ASCII.
pub(crate) fn prefix(written: &str) -> Option<String> {
    let (labels, part) = written.rsplit_once('.').map_or(("", written), |(labels, part)| (labels, part));
    let part = Some(part).filter(|part| part.is_ascii())?.to_ascii_lowercase();
    if labels.is_empty() {
        return Some(part).filter(|_| !written.starts_with('.'));
    }
    let labels = ascii(labels).filter(|labels| !labels.ends_with('.'))?;
    Some(format!("{}.{part}", name(&labels)?))
}

/// The end of hosts. Its first label may be incomplete, so it must be ASCII.
pub(crate) fn suffix(written: &str) -> Option<String> {
    let (part, labels) = written.split_once('.').map_or((written, None), |(part, labels)| (part, Some(labels)));
    let part = Some(part).filter(|part| part.is_ascii())?.to_ascii_lowercase();
    match labels {
        Some("") => Some(part).filter(|part| !part.is_empty()),
        Some(labels) => Some(format!("{part}.{}", name(labels)?)),
        None => Some(part),
    }
}

/// Labels without a port.
fn name(written: &str) -> Option<String> {
    normal(written).filter(|name| !name.starts_with('[') || written.starts_with('['))
}

fn ascii(written: &str) -> Option<Cow<'_, str>> {
    if written.is_ascii() {
        return Some(Cow::Borrowed(written));
    }
    idna::domain_to_ascii_cow(written.as_bytes(), AsciiDenyList::EMPTY).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_have_one_form() {
        for (written, host) in [
            ("Shop.Example", "shop.example"),
            ("shop.example.", "shop.example"),
            ("*.Shop.Example.", "*.shop.example"),
            ("[2001:0DB8::A]", "[2001:db8::a]"),
            ("*", "*"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.Example.", "xn--bcher-kva.example"),
            ("bu\u{308}cher.example", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
            ("*.bücher.example", "*.xn--bcher-kva.example"),
            ("faß.example", "xn--fa-hia.example"),
            ("例え。テスト", "xn--r8jz45g.xn--zckzah"),
            ("ｓｈｏｐ．example", "shop.example"),
        ] {
            assert_eq!(pattern(written).as_deref(), Some(host), "{written}");
        }
        for written in [
            "",
            ".",
            "a..b",
            "a..",
            ".a",
            "ü..example",
            "ü.example..",
            ".ü",
            "a:80",
            "ü:80",
            "ü/b",
            "ü@b",
            "\u{2024}",
            "*.",
            "＊.example",
        ] {
            assert_eq!(pattern(written), None, "{written}");
        }
    }

    #[test]
    fn ends_of_hosts_have_one_form() {
        for (written, form) in [
            (".Shop.Example.", ".shop.example"),
            ("shop", "shop"),
            (".bücher.example", ".xn--bcher-kva.example"),
            ("x.bücher", "x.xn--bcher-kva"),
        ] {
            assert_eq!(suffix(written).as_deref(), Some(form), "{written}");
        }
        for written in ["bücher.example", ".", ".a..", "a..b", "..a"] {
            assert_eq!(suffix(written), None, "{written}");
        }
        for (written, form) in
            [("Shop.", "shop."), ("bücher.", "xn--bcher-kva."), ("bücher.ex", "xn--bcher-kva.ex"), ("[", "[")]
        {
            assert_eq!(prefix(written).as_deref(), Some(form), "{written}");
        }
        for written in ["büch", "shop.bü", ".a", "a..", "a..b"] {
            assert_eq!(prefix(written), None, "{written}");
        }
    }

    proptest! {
        #[test]
        fn the_form_is_stable(written in r"[a-cA-C.üß例\u{308}：:\[\]*0-9-]{0,10}") {
            if let Some(host) = pattern(&written) {
                prop_assert!(host.is_ascii());
                prop_assert_eq!(pattern(&host), Some(host));
            }
        }
    }
}
