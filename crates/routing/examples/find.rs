//! Prints how long a table takes to find the last of its rules, for several forms and numbers of
//! rules: `cargo run --profile dist -p leno-routing --example find`.
#![forbid(unsafe_code)]

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use leno_model::{FieldMatch, HttpRouteKind, PathPattern, Precedence, RouteMatch, ValuePattern};
use leno_routing::{Entry, RequestParts, RouteTable};
use std::hint::black_box;
use std::time::Instant;

/// The pattern of the rule with this number.
type Form = fn(usize) -> RouteMatch;

const FORMS: [(&str, Form); 10] = [
    ("prefix", |i| path(PathPattern::Prefix(format!("/item-{i:05}")))),
    ("exact", |i| path(PathPattern::Exact(format!("/item-{i:05}/orders/17")))),
    ("regex", |i| path(PathPattern::Regex(format!("/item-{i:05}/[^/]+/[0-9]+")))),
    ("regex, class first", |i| path(PathPattern::Regex(format!("/[a-z]+-{i:05}/.*")))),
    ("regex, overlapping", |i| path(PathPattern::Regex(format!("/item-[0-9]{{1,5}}/.{{0,{}}}", i % 50 + 20)))),
    ("regex, anything first", |i| path(PathPattern::Regex(format!(".*-{i:05}.*")))),
    ("regex, divided", |i| path(PathPattern::Regex(format!(".*-0*{i}/.*(x{i}|rs/17)")))),
    ("header", |i| header(ValuePattern::Exact(format!("tenant-{i:05}")))),
    ("header regex", |i| header(ValuePattern::Regex(format!("(tenant|user)-{i:05}.*")))),
    ("all of it", |i| RouteMatch {
        path: PathPattern::Regex(format!("/item-[0-9]{{1,5}}/.{{0,{}}}", i % 50 + 20)),
        method: "GET".into(),
        query: vec![field("page", ValuePattern::Regex(format!("[0-9]{{1,{}}}", i % 20 + 1)))],
        ..header(ValuePattern::Regex(format!("(tenant|user)-{i:05}.*")))
    }),
];

fn field(name: &str, value: ValuePattern) -> FieldMatch {
    FieldMatch { name: name.into(), value }
}

fn path(path: PathPattern) -> RouteMatch {
    RouteMatch { path, method: String::new(), headers: vec![], query: vec![] }
}

fn header(value: ValuePattern) -> RouteMatch {
    RouteMatch { headers: vec![field("x-tenant", value)], ..path(PathPattern::Prefix(String::new())) }
}

fn main() {
    println!("{:22} {:>6} {:>10} {:>10}", "form", "rules", "build, us", "find, ns");
    for (name, form) in FORMS {
        for count in [1, 10, 100, 1_000, 10_000] {
            // The last number is the rule that the request follows.
            let entries = (0..count).map(|value| Entry {
                route: format!("shop/route-{value:05}"),
                kind: HttpRouteKind::Http,
                pattern: form(value),
                value,
            });
            let begin = Instant::now();
            let Ok(table) = RouteTable::new(Precedence::MostSpecific, entries) else {
                println!("{name:22} {count:6} {:>10} {:>10}", begin.elapsed().as_micros(), "refused");
                continue;
            };
            let built = begin.elapsed().as_micros();
            let last = count - 1;
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("accept", "*/*"),
                ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101"),
                ("x-tenant", &format!("tenant-{last:05}")),
                ("x-request-id", "8bd0d0a0-5a5c-4d8b-9a0c-f1a3a1b1c1d1"),
            ] {
                headers.insert(
                    HeaderName::try_from(name).expect("a name"),
                    HeaderValue::try_from(value).expect("a value"),
                );
            }
            let target = format!("/item-{last:05}/orders/17");
            let request = RequestParts {
                authority: "a.example",
                path: &target,
                query: Some("page=7&size=100"),
                method: &Method::GET,
                headers: &headers,
            };
            assert!(table.find(&request, |value| *value == last).is_some(), "{name} {count}");
            let find = || table.find(black_box(&request), |value| *value == last).map(|entry| entry.value);
            println!("{name:22} {count:6} {built:10} {:10.1}", nanoseconds(find));
        }
    }
    few_prefixes();
    one_of_many_changes();
}

/// A function that comes and goes, on a host that many have, while another copy of the table is in
/// use.
fn one_of_many_changes() {
    println!("\n{:22} {:>6} {:>10} {:>10}", "change of a prefix", "rules", "", "us");
    let prefix = |value: usize| path(PathPattern::Prefix(format!("/item-{value:05}")));
    let entry = |value| Entry { route: "a/a".into(), kind: HttpRouteKind::Http, pattern: prefix(value), value };
    for count in [10, 100, 1_000, 10_000] {
        let table = RouteTable::new(Precedence::MostSpecific, (0..count).map(entry)).expect("good patterns");
        let change = || {
            let mut copy = table.clone();
            copy.insert(entry(count)).expect("a good pattern");
            let in_use = copy.clone();
            copy.remove(HttpRouteKind::Http, &prefix(count), |value| *value == count);
            (copy, in_use)
        };
        println!("{:22} {count:6} {:10} {:10.1}", "", "", nanoseconds(change) / 1000.0 / 2.0);
    }
}

/// Few plain prefixes, and a list that is searched from its beginning.
fn few_prefixes() {
    println!("\n{:22} {:>6} {:>10} {:>10}", "few prefixes", "rules", "list, ns", "table, ns");
    let prefixes = ["/orders", "/payments", "/users", "/carts", "/stock", "/search", "/v1", ""];
    for count in [1, 2, 4, 8] {
        let mut list: Vec<&str> = prefixes[prefixes.len() - count..].to_vec();
        list.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
        let entries = list.iter().enumerate().map(|(value, prefix)| Entry {
            route: "a/a".into(),
            kind: HttpRouteKind::Http,
            pattern: path(PathPattern::Prefix((*prefix).into())),
            value,
        });
        let table = RouteTable::new(Precedence::MostSpecific, entries).expect("good patterns");
        let headers = HeaderMap::new();
        let request = RequestParts {
            authority: "a.example",
            path: "/search/17",
            query: None,
            method: &Method::GET,
            headers: &headers,
        };
        let is_below = |prefix: &str, path: &str| {
            prefix.is_empty() || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let by_list =
            nanoseconds(|| black_box(&list).iter().position(|prefix| is_below(prefix, black_box(request.path))));
        let by_table = nanoseconds(|| table.find(black_box(&request), |_| true).map(|entry| entry.value));
        println!("{:22} {count:6} {by_list:10.1} {by_table:10.1}", "");
    }
}

/// The time of the quickest of some runs, for one call.
fn nanoseconds<R>(mut call: impl FnMut() -> R) -> f64 {
    const CALLS: u32 = 500;
    let run = |_| {
        let begin = Instant::now();
        for _ in 0..CALLS {
            black_box(call());
        }
        begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..25).map(run).fold(f64::INFINITY, f64::min)
}
