//! A table of rules, new or changed, agrees with a matcher that looks at each rule.
//! Rewritten paths are normal.
//!
//! Each line is a rule (`ROUTE KIND PATH METHOD CONDITION...`, with a kind of `=/^~g` and conditions
//! such as `x=1`, `x~1`, `?x=1`, `?x~1`) or a request (`> METHOD TARGET NAME:VALUE...`).
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use leno_model::{FieldMatch, HttpRouteKind, PathChange, PathPattern, Precedence, RouteMatch, ValuePattern};
use leno_routing::{Entry, RequestParts, RouteTable, reference, rewritten_path};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut rules: Vec<Entry<usize>> = Vec::new();
    let mut requests = Vec::new();
    for line in text.lines().take(64) {
        let mut words = line.split(' ');
        match words.next() {
            Some(">") => requests.extend(request(words)),
            Some(route) => rules.extend(rule(route, words, rules.len())),
            None => {}
        }
    }
    for precedence in [Precedence::MostSpecific, Precedence::First] {
        let Ok(whole) = RouteTable::new(precedence, rules.iter().map(copy)) else { return };
        let mut changed = RouteTable::empty(precedence);
        for rule in &rules {
            changed.insert(copy(rule)).expect("rules that a table has");
            changed.insert(Entry { value: rule.value + 1000, ..copy(rule) }).expect("rules that a table has");
        }
        for rule in &rules {
            changed.remove(rule.kind, &rule.pattern, |value| *value >= 1000);
        }
        for (method, path, query, headers) in &requests {
            let parts = RequestParts {
                authority: headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default(),
                path,
                query: query.as_deref(),
                method,
                headers,
            };
            let admits = |value: &usize| value % 5 != 4;
            let expected = reference::find(precedence, &rules, &parts, admits);
            for table in [&whole, &changed] {
                let found = table.find(&parts, admits).map(|entry| entry.value);
                assert_eq!(found, expected.map(|place| rules[place].value), "{path} {query:?}");
            }
            let Ok(path) = leno_policy::path::normalise(path) else { continue };
            for rule in &rules {
                for change in [PathChange::Full(rule.route.clone()), PathChange::Prefix(rule.route.clone())] {
                    if let Ok(rewritten) = rewritten_path(&change, &rule.pattern.path, &path) {
                        assert_eq!(leno_policy::path::normalise(&rewritten).as_deref(), Ok(&*rewritten));
                        assert!(rewritten.starts_with('/') && !rewritten.contains('?'));
                    }
                }
            }
        }
    }
});

fn copy(entry: &Entry<usize>) -> Entry<usize> {
    Entry { route: entry.route.clone(), kind: entry.kind, pattern: entry.pattern.clone(), value: entry.value }
}

fn rule<'t>(route: &str, mut words: impl Iterator<Item = &'t str>, value: usize) -> Option<Entry<usize>> {
    let (kind, path, method) = (words.next()?, words.next()?.to_owned(), words.next()?.to_owned());
    let (kind, path) = match kind {
        "=" => (HttpRouteKind::Http, PathPattern::Exact(path)),
        "/" => (HttpRouteKind::Http, PathPattern::Prefix(path.trim_end_matches('/').to_owned())),
        "^" => (HttpRouteKind::Http, PathPattern::Literal(path)),
        "~" => (HttpRouteKind::Http, PathPattern::Regex(path)),
        "g" => (HttpRouteKind::Grpc, PathPattern::Regex(path)),
        _ => return None,
    };
    let (mut headers, mut query) = (Vec::new(), Vec::new());
    for word in words.take(4) {
        let (fields, word) = match word.strip_prefix('?') {
            Some(word) => (&mut query, word),
            None => (&mut headers, word),
        };
        let (name, text) = word.split_at_checked(word.find(['=', '~'])?)?;
        let value = match text.strip_prefix('~') {
            Some(regex) => ValuePattern::Regex(regex.to_owned()),
            None => ValuePattern::Exact(text[1..].to_owned()),
        };
        fields.push(FieldMatch { name: name.to_owned(), value });
    }
    Some(Entry { route: route.to_owned(), kind, pattern: RouteMatch { path, method, headers, query }, value })
}

fn request<'t>(mut words: impl Iterator<Item = &'t str>) -> Option<(Method, String, Option<String>, HeaderMap)> {
    let method = Method::from_bytes(words.next()?.as_bytes()).ok()?;
    let (path, query) = leno_policy::path::split(words.next()?);
    let mut headers = HeaderMap::new();
    for word in words.take(8) {
        let (name, value) = word.split_once(':')?;
        headers.append(HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?);
    }
    Some((method, path.to_owned(), query.map(str::to_owned), headers))
}
