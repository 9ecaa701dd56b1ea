//! Names in `toFQDNs` of Cilium.

/// A `matchName` or a `matchPattern`: in lower case, without a dot at its end. In a pattern, `*` stands for any characters of one label, `**.` at its
/// beginning for one label or more, and `*` alone for every name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fqdn(String);

impl Fqdn {
    /// `None`: Cilium refuses the text too.
    pub(super) fn new(text: &str, pattern: bool) -> Option<Self> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) || (pattern && byte == b'*');
        let text = text.trim();
        (!text.is_empty() && text.len() <= 255 && text.bytes().all(good))
            .then(|| Self(text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase()))
    }

    /// The host of an External document that stands for the same names, or for some of them: `*.`
    /// is one label there.
    pub(super) fn host(&self) -> Option<String> {
        match self.0.split_once('.') {
            Some((first, rest)) if is_stars(first) && !rest.contains('*') => Some(format!("*.{rest}")),
            _ if self.0.contains('*') => None,
            _ => Some(self.0.clone()),
        }
    }

    /// Whether it matches names of several labels where [`Self::host`] matches those of one.
    pub(super) fn is_deep(&self) -> bool {
        self.0.starts_with("**") && self.host().is_some()
    }

    /// Whether it matches all names that a host of an External document stands for.
    pub(super) fn covers(&self, host: &str) -> bool {
        if is_stars(&self.0) {
            return true;
        }
        match (host.strip_prefix("*."), self.0.split_once('.')) {
            (None, _) => self.matches(host),
            (Some(suffix), Some((first, rest))) if is_stars(first) => {
                let below = |rest: &str| suffix.strip_suffix(rest).is_some_and(|before| before.ends_with('.'));
                suffix == rest || (first.len() > 1 && below(rest))
            }
            (Some(_), _) => false,
        }
    }

    fn matches(&self, name: &str) -> bool {
        let mut wanted: Vec<&str> = self.0.split('.').collect();
        let mut labels: Vec<&str> = name.split('.').collect();
        if wanted.len() > 1 && wanted[0].len() > 1 && is_stars(wanted[0]) {
            if labels.len() < wanted.len() {
                return false;
            }
            labels.drain(..=labels.len() - wanted.len());
            wanted.remove(0);
        }
        wanted.len() == labels.len() && wanted.iter().zip(labels).all(|(wanted, label)| glob(wanted, label))
    }
}

fn is_stars(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte == b'*')
}

/// Whether a label matches, where `*` stands for any characters.
fn glob(pattern: &str, label: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = label.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regex_automata::nfa::thompson::pikevm::PikeVM;

    fn fqdn(text: &str) -> Fqdn {
        Fqdn::new(text, true).unwrap()
    }

    #[test]
    fn patterns_become_hosts_where_there_is_one() {
        for (pattern, host) in [
            ("API.Example.org.", Some("api.example.org")),
            ("*.example.org", Some("*.example.org")),
            ("**.example.org", Some("*.example.org")),
            ("*", None),
            ("**", None),
            ("api*.example.org", None),
            ("*.*.example.org", None),
            ("api.*.org", None),
        ] {
            assert_eq!(fqdn(pattern).host().as_deref(), host, "{pattern}");
        }
        assert!(fqdn("**.example.org").is_deep() && !fqdn("*.example.org").is_deep() && !fqdn("**").is_deep());
        for bad in ["", "a b", "a/b", "ä.example"] {
            assert_eq!(Fqdn::new(bad, true), None, "{bad}");
        }
        assert_eq!(Fqdn::new("*.example.org", false), None, "a name has no wildcard");
    }

    /// Whether Cilium matches a name with a pattern (`pkg/fqdn/matchpattern`), both without a dot
    /// at the end.
    fn cilium(pattern: &str, name: &str) -> bool {
        let regex = PikeVM::new(&regex(pattern)).unwrap();
        regex.is_match(&mut regex.create_cache(), name)
    }

    fn regex(pattern: &str) -> String {
        if pattern.bytes().all(|byte| byte == b'*') {
            return "^([-a-z0-9_]+[.])*[-a-z0-9_]+$".to_owned();
        }
        let stars = pattern.len() - pattern.trim_start_matches('*').len();
        let (first, rest) = match pattern[stars..].strip_prefix('.') {
            Some(rest) if stars > 1 => ("([-a-z0-9_]+([.][-a-z0-9_]+)*)[.]", rest),
            _ => ("", pattern),
        };
        let mut rest = rest.replace('.', "[.]");
        while rest.contains("**") {
            rest = rest.replace("**", "*");
        }
        format!("^{first}{}$", rest.replace('*', "[-a-z0-9_]*"))
    }

    proptest! {
        #[test]
        fn it_matches_as_cilium_does(pattern in "[*]{0,3}[.]?[ab*.]{1,6}", name in "[ab]{1,2}([.][ab]{1,2}){0,3}") {
            let matcher = fqdn(&pattern);
            // A dot at the end has no meaning.
            let pattern = pattern.strip_suffix('.').unwrap_or(&pattern);
            prop_assume!(!pattern.is_empty());
            prop_assert_eq!(matcher.covers(&name), cilium(pattern, &name), "{} {}", pattern, name);
        }

        #[test]
        fn no_host_stands_for_more(pattern in "[*]{0,2}[.][ab*]{1,2}[.][ab]", label in "[ab]{1,3}", host in "[*][.]([ab][.]){1,2}[ab]") {
            let matcher = fqdn(&pattern);
            for host in matcher.host().into_iter().chain([host]).filter(|host| matcher.covers(host)) {
                let name = host.replace('*', &label);
                prop_assert!(cilium(&pattern, &name), "{} is for {}, as {}", pattern, name, host);
            }
        }
    }
}
