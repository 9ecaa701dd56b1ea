use super::*;
use crate::reference;
use http::{HeaderMap, HeaderValue, Method};
use leno_model::FieldMatch;
use proptest::prelude::*;

fn all() -> RouteMatch {
    RouteMatch { path: PathPattern::Prefix(String::new()), method: String::new(), headers: vec![], query: vec![] }
}

fn path(path: PathPattern) -> RouteMatch {
    RouteMatch { path, ..all() }
}

fn exact(text: &str) -> RouteMatch {
    path(PathPattern::Exact(text.into()))
}

fn prefix(text: &str) -> RouteMatch {
    path(PathPattern::Prefix(text.into()))
}

fn regex(text: &str) -> RouteMatch {
    path(PathPattern::Regex(text.into()))
}

fn field(name: &str, value: &str) -> FieldMatch {
    let value = match value.strip_prefix('~') {
        Some(regex) => ValuePattern::Regex(regex.into()),
        None => ValuePattern::Exact(value.into()),
    };
    FieldMatch { name: name.into(), value }
}

fn with_headers(rule: RouteMatch, fields: &[(&str, &str)]) -> RouteMatch {
    RouteMatch { headers: fields.iter().map(|(name, value)| field(name, value)).collect(), ..rule }
}

fn with_query(rule: RouteMatch, fields: &[(&str, &str)]) -> RouteMatch {
    RouteMatch { query: fields.iter().map(|(name, value)| field(name, value)).collect(), ..rule }
}

fn with_method(rule: RouteMatch, method: &str) -> RouteMatch {
    RouteMatch { method: method.into(), ..rule }
}

fn entry<T>(route: &str, pattern: RouteMatch, value: T) -> Entry<T> {
    Entry { route: route.into(), kind: HttpRouteKind::Http, pattern, value }
}

/// A request line with header fields, such as `GET /a?b=c x:1 x:2`.
struct Request {
    method: Method,
    path: String,
    query: Option<String>,
    /// The field `host`.
    authority: String,
    headers: HeaderMap,
}

impl Request {
    fn new(text: &str) -> Self {
        let mut words = text.split(' ');
        let method = words.next().unwrap().parse().unwrap();
        let (path, query) = leno_policy::path::split(words.next().unwrap());
        let (mut headers, mut authority) = (HeaderMap::new(), String::new());
        for word in words {
            let (name, value) = word.split_once(':').unwrap();
            if name == "host" {
                authority = value.into();
                continue;
            }
            headers.append(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        }
        Self { method, path: path.into(), query: query.map(Into::into), authority, headers }
    }

    fn parts(&self) -> RequestParts<'_> {
        RequestParts {
            authority: &self.authority,
            path: &self.path,
            query: self.query.as_deref(),
            method: &self.method,
            headers: &self.headers,
        }
    }
}

/// The value of the rule that a request follows.
fn find<'t>(table: &'t RouteTable<&'static str>, request: &str) -> Option<&'t str> {
    table.find(&Request::new(request).parts(), |_| true).map(|entry| entry.value)
}

fn table(precedence: Precedence, rules: Vec<(&str, RouteMatch, &'static str)>) -> RouteTable<&'static str> {
    let entries = rules.into_iter().map(|(route, pattern, value)| entry(route, pattern, value));
    RouteTable::new(precedence, entries).unwrap()
}

#[test]
fn a_match_of_the_host_looks_at_the_authority() {
    let rules = table(
        Precedence::MostSpecific,
        vec![
            ("a/z", all(), "any"),
            ("a/z", with_headers(all(), &[("host", "a.example")]), "a"),
            ("a/z", with_headers(all(), &[("host", "a.example:8080")]), "a:8080"),
            ("a/z", with_headers(all(), &[("host", "~b[.].*")]), "b"),
        ],
    );
    for (request, expected) in [
        ("GET / host:a.example", "a"),
        ("GET / host:A.Example.", "a"),
        ("GET / host:a.example:8080", "a:8080"),
        ("GET / host:a.example:8081", "any"),
        ("GET / host:b.example", "b"),
        ("GET / host:a.example/", "any"),
        ("GET /", "any"),
    ] {
        assert_eq!(find(&rules, request), Some(expected), "{request}");
    }
}

#[test]
fn the_most_specific_rule_wins() {
    let rules = table(
        Precedence::MostSpecific,
        vec![
            ("a/z", all(), "any"),
            ("a/z", prefix("/a"), "/a"),
            ("a/z", prefix("/a/b"), "/a/b"),
            ("a/z", exact("/a/b"), "=/a/b"),
            ("a/z", exact("/a/b/"), "=/a/b/"),
            ("a/z", with_method(exact("/a/b"), "POST"), "POST =/a/b"),
            ("a/z", regex("/a/b/[0-9]+"), "~/a/b/[0-9]+"),
            ("a/z", regex("/a/[b]/7"), "~/a/[b]/7"),
            ("a/z", with_method(prefix("/m"), "GET"), "GET /m"),
            ("a/z", with_headers(prefix("/m"), &[("x", "1"), ("y", "1")]), "/m x y"),
            ("a/z", with_headers(prefix("/m"), &[("x", "1")]), "/m x"),
            ("a/z", with_query(with_headers(prefix("/m"), &[("x", "1")]), &[("q", "1")]), "/m x q"),
            ("a/z", with_query(prefix("/m"), &[("q", "1"), ("r", "1")]), "/m q r"),
            ("a/z", with_query(prefix("/m"), &[("q", "1")]), "/m q"),
            ("b/a", prefix("/n"), "b/a"),
            ("a/y", prefix("/n"), "a/y"),
            ("a/y", prefix("/n"), "a/y again"),
        ],
    );
    for (request, expected) in [
        ("GET /", "any"),
        ("GET /ab", "any"),
        ("OPTIONS *", "any"),
        ("GET /a", "/a"),
        ("GET /a/", "/a"),
        ("GET /a/bc", "/a"),
        ("GET /A", "any"),
        ("GET /a/b", "=/a/b"),
        ("POST /a/b", "POST =/a/b"),
        ("GET /a/b/", "=/a/b/"),
        ("GET /a/b/x", "/a/b"),
        ("GET /a/b/17", "~/a/b/[0-9]+"),
        ("GET /a/b/7", "~/a/b/[0-9]+"),
        ("GET /m x:1 y:1", "GET /m"),
        ("PUT /m x:1 y:1", "/m x y"),
        ("PUT /m x:1 y:2", "/m x"),
        ("PUT /m?q=1 x:1", "/m x q"),
        ("PUT /m?q=1&r=1", "/m q r"),
        ("PUT /m?q=1&r=2", "/m q"),
        ("PUT /m?r=1", "any"),
        ("GET /n/1", "a/y"),
    ] {
        assert_eq!(find(&rules, request), Some(expected), "{request}");
    }
}

#[test]
fn the_first_rule_wins_if_that_is_the_order() {
    let literal = |text: &str| path(PathPattern::Literal(text.into()));
    let rules = table(
        Precedence::First,
        vec![
            ("b/b", literal("/a/lo"), "/a/lo"),
            ("a/a", with_headers(all(), &[("x", "1")]), "x"),
            ("a/a", prefix("/b"), "/b"),
            ("a/a", exact("/b/c"), "=/b/c"),
            ("a/a", regex("/[c]+"), "~/[c]+"),
            ("a/a", literal("/"), "/"),
        ],
    );
    for (request, expected) in [
        ("GET /a/login", Some("/a/lo")),
        ("GET /a/lo/x x:1", Some("/a/lo")),
        ("GET /a x:1", Some("x")),
        ("GET /b/c", Some("/b")),
        ("GET /bc", Some("/")),
        ("GET /cc", Some("~/[c]+")),
        ("OPTIONS *", None),
    ] {
        assert_eq!(find(&rules, request), expected, "{request}");
    }
}

#[test]
fn grpc_services_come_before_methods_of_any_service() {
    let grpc = |pattern, value| Entry { kind: HttpRouteKind::Grpc, ..entry("a/a", pattern, value) };
    let rules = RouteTable::new(
        Precedence::MostSpecific,
        [
            grpc(all(), "any"),
            grpc(regex("/[^/]+/Get"), "Get"),
            grpc(prefix("/shop.Orders"), "shop.Orders"),
            grpc(exact("/shop.Orders/List"), "shop.Orders/List"),
            grpc(with_headers(prefix("/shop.Orders"), &[("v", "2")]), "shop.Orders v"),
        ],
    )
    .unwrap();
    for (request, expected) in [
        ("POST /shop.Orders/List", "shop.Orders/List"),
        ("POST /shop.Orders/List v:2", "shop.Orders/List"),
        ("POST /shop.Orders/Get", "shop.Orders"),
        ("POST /shop.Orders/Get v:2", "shop.Orders v"),
        ("POST /shop.Users/Get", "Get"),
        ("POST /shop.Users/List", "any"),
    ] {
        assert_eq!(find(&rules, request), Some(expected), "{request}");
    }
}

#[test]
fn fields_and_parameters_are_read_as_documented() {
    let rule = |rule: RouteMatch| table(Precedence::MostSpecific, vec![("a/a", rule, "found")]);
    let header = |name, value| rule(with_headers(all(), &[(name, value)]));
    let query = |name, value| rule(with_query(all(), &[(name, value)]));
    for (rules, request, matches) in [
        (header("X-Version", "v2"), "GET / x-version:v2", true),
        (header("x-version", "v2"), "GET / x-version:V2", false),
        (header("x-version", "v2"), "GET / x-version:v2 x-version:v3", false),
        (header("x-version", "v2,v3"), "GET / x-version:v2 x-version:v3", true),
        (header("x-version", "~.*v3"), "GET / x-version:v2 x-version:v3", true),
        (header("x-version", "~v"), "GET / x-version:v2", false),
        (header("x-version", "~"), "GET / x-version:", true),
        (header("x-version", "~.*"), "GET /", false),
        (header("cookie", "~(.*; )?a=1(;.*)?"), "GET / cookie:b=2 cookie:a=1 cookie:c=3", true),
        (rule(with_headers(all(), &[("x", "1"), ("X", "2")])), "GET / x:1", true),
        (rule(with_headers(all(), &[("x", "1"), ("y", "~2|3")])), "GET / x:1 y:3", true),
        (rule(with_headers(all(), &[("x", "1"), ("y", "~2|3")])), "GET / x:1 y:4", false),
        (query("a", "b c"), "GET /?a=b+c", true),
        (query("a", "b c"), "GET /?a=b%20c", true),
        (query("a b", "1"), "GET /?x&a%20b=1", true),
        (query("a", "1"), "GET /?a=1&a=2", true),
        (query("a", "2"), "GET /?a=1&a=2", false),
        (query("a", "%zz"), "GET /?a=%zz", true),
        (query("a", "~.*"), "GET /?a", true),
        (query("a", "~.*"), "GET /?b", false),
        (query("a", "~.*"), "GET /", false),
        (query("A", "1"), "GET /?a=1", false),
        (query("a", "~[0-9]"), "GET /?a=12", false),
        (query("a", "~.*b.*"), "GET /?a=%0Ab", false),
        (query("a", "~(?s).*b.*"), "GET /?a=%0Ab", true),
        (rule(with_query(all(), &[("a", "1"), ("a", "2")])), "GET /?a=1", true),
    ] {
        assert_eq!(find(&rules, request).is_some(), matches, "{rules:?} {request}");
    }
}

#[test]
fn a_rule_that_is_not_admitted_leaves_its_requests() {
    let rules = table(
        Precedence::MostSpecific,
        vec![("a/a", exact("/a"), "one"), ("a/b", exact("/a"), "two"), ("a/a", all(), "any")],
    );
    let request = Request::new("GET /a");
    for (refused, expected) in [
        (&[][..], Some("one")),
        (&["one"], Some("two")),
        (&["one", "two"], Some("any")),
        (&["one", "two", "any"], None),
    ] {
        let found = rules.find(&request.parts(), |value| !refused.contains(value));
        assert_eq!(found.map(|entry| entry.value), expected);
    }
}

#[test]
fn bad_patterns_are_refused_with_their_route() {
    for (pattern, fragment) in [
        (regex("/a("), "unclosed group"),
        (regex("(a|b)*a(a|b){16}"), "too large"),
        (exact("a"), "`a` is not a path"),
        (prefix("/a/"), "`/a/` is not a path"),
        (with_headers(all(), &[("a b", "1")]), "`a b` is not a header's name"),
        (with_headers(all(), &[("a", "~(")]), "unclosed group"),
        (with_query(all(), &[("a", "~(")]), "unclosed group"),
    ] {
        let error = RouteTable::new(Precedence::MostSpecific, [entry("shop/orders", pattern, ())]).unwrap_err();
        assert!(error.to_string().starts_with("route shop/orders: ") && error.reason.contains(fragment), "{error}");
    }
}

#[test]
fn expressions_with_too_little_in_common_are_refused() {
    // Two of these are too large for one automaton.
    let rule = |index: usize| entry(&format!("a/r{index:02}"), regex(&format!("/r{index:02}/[ab]*a[ab]{{10}}")), index);
    let error = RouteTable::new(Precedence::MostSpecific, (0..40).map(rule)).unwrap_err();
    assert!(error.to_string().starts_with("route a/r39: ") && error.reason.contains("32 automata"), "{error}");
    let mut rules = RouteTable::new(Precedence::MostSpecific, (0..31).map(rule)).unwrap();
    rules.insert(rule(31)).unwrap();
    assert_eq!(rules.insert(rule(32)).unwrap_err().route, "a/r32");
    assert_eq!(rules.entries().count(), 32);
    let found = |rules: &RouteTable<usize>, index: usize| {
        let request = Request::new(&format!("GET /r{index:02}/{}", "a".repeat(20)));
        rules.find(&request.parts(), |_| true).map(|entry| entry.value)
    };
    assert!((0..40).all(|index| found(&rules, index) == (index < 32).then_some(index)));
    rules.remove(HttpRouteKind::Http, &rule(7).pattern, |value| *value == 7);
    assert!((0..40).all(|index| found(&rules, index) == (index < 32 && index != 7).then_some(index)));
}

#[test]
fn a_copy_stays_as_it_was() {
    let mut rules = RouteTable::empty(Precedence::MostSpecific);
    for index in 0..100 {
        rules.insert(entry("a/a", prefix(&format!("/{}/{index}", index % 20)), index)).unwrap();
    }
    let copy = rules.clone();
    for index in 0..100 {
        rules.remove(HttpRouteKind::Http, &prefix(&format!("/{}/{index}", index % 20)), |value| *value == index);
    }
    assert!(rules.is_empty());
    for index in 0..100 {
        let request = Request::new(&format!("GET /{}/{index}/x", index % 20));
        assert_eq!(copy.find(&request.parts(), |_| true).map(|entry| entry.value), Some(index));
        assert!(rules.find(&request.parts(), |_| true).is_none());
    }
}

fn texts(text: &'static str) -> impl Strategy<Value = String> {
    prop::string::string_regex(text).unwrap()
}

fn values() -> impl Strategy<Value = ValuePattern> {
    prop_oneof![
        2 => texts("[ab]{1,2}").prop_map(ValuePattern::Exact),
        1 => texts(r"(\.\*)?[ab]{1,2}(\.\*|\+|,[ab])?").prop_map(ValuePattern::Regex),
        1 => texts(r"[ab]\|b|\.|a\*b\?|\[ab\]\+,?|a\\b\.\*").prop_map(ValuePattern::Regex),
    ]
}

fn fields() -> impl Strategy<Value = Vec<FieldMatch>> {
    let field = (texts("[xyX]|host"), values()).prop_map(|(name, value)| FieldMatch { name, value });
    prop_oneof![2 => Just(vec![]), 3 => prop::collection::vec(field, 0..4)]
}

fn paths() -> impl Strategy<Value = PathPattern> {
    prop_oneof![
        texts("(/[ab]{0,2}){1,3}").prop_map(PathPattern::Exact),
        texts("(/[ab]{1,2}){0,3}").prop_map(PathPattern::Prefix),
        texts("/[ab/]{0,3}").prop_map(PathPattern::Literal),
        texts(r"(\.\*|/)[ab]{0,2}(/\[\^/\]\+|\.\*|/a|b\+)").prop_map(PathPattern::Regex),
    ]
}

fn entries() -> impl Strategy<Value = Vec<Entry<usize>>> {
    let kind = prop_oneof![3 => Just(HttpRouteKind::Http), 1 => Just(HttpRouteKind::Grpc)];
    let entry = (texts("[ab]/[ab]"), kind, paths(), texts("(GET|POST)?"), fields(), fields());
    let entries = prop::collection::vec(entry, 0..40).prop_map(|entries| {
        let entry = |(value, (route, kind, path, method, headers, query))| Entry {
            route,
            kind,
            pattern: RouteMatch { path, method, headers, query },
            value,
        };
        entries.into_iter().enumerate().map(entry).collect::<Vec<_>>()
    });
    // Some tables have more rules of the same forms.
    (entries, prop_oneof![6 => Just(1_usize), 1 => Just(40)]).prop_map(|(entries, times)| {
        let count = entries.len();
        let copies = (0..times).flat_map(|time| {
            entries.iter().map(move |entry| Entry {
                route: if time == 0 { entry.route.clone() } else { format!("c/{time}") },
                kind: entry.kind,
                pattern: entry.pattern.clone(),
                value: entry.value + time * count,
            })
        });
        copies.collect()
    })
}

fn requests() -> impl Strategy<Value = Vec<String>> {
    let request = texts(
        r"(GET|POST|PUT) (/[ab]{0,2}){1,4}(\?[xyX]=[ab%0A,+]{0,3}(&[xyz]=?[ab]{0,2}){0,2})?( ([xyX]|host):[ab,]{0,3}){0,3}",
    );
    prop::collection::vec(request, 1..12)
}

fn precedences() -> impl Strategy<Value = Precedence> {
    prop_oneof![4 => Just(Precedence::MostSpecific), 1 => Just(Precedence::First)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_table_finds_what_the_reference_finds(
        entries in entries(), requests in requests(), precedence in precedences(), refused in 1..8_usize,
    ) {
        let copies = entries.iter().map(|entry| Entry {
            route: entry.route.clone(), kind: entry.kind, pattern: entry.pattern.clone(), value: entry.value,
        });
        let table = RouteTable::new(precedence, copies).unwrap();
        for request in requests {
            let request = Request::new(&request);
            let admits = |value: &usize| !value.is_multiple_of(refused) || refused == 1;
            let expected = reference::find(precedence, &entries, &request.parts(), admits);
            let found = table.find(&request.parts(), admits).map(|entry| entry.value);
            prop_assert_eq!(found, expected.map(|place| entries[place].value), "{:?}", request.path);
        }
    }

    #[test]
    fn a_changed_table_is_as_a_new_one(
        entries in entries(), removed in prop::collection::vec(any::<bool>(), 90), requests in requests(), precedence in precedences(),
    ) {
        let entries: Vec<Entry<usize>> = entries.into_iter().take(30).collect();
        let copy = |entry: &Entry<usize>| Entry {
            route: entry.route.clone(), kind: entry.kind, pattern: entry.pattern.clone(), value: entry.value,
        };
        let mut table = RouteTable::empty(precedence);
        for entry in &entries {
            table.insert(copy(entry)).unwrap();
        }
        for entry in entries.iter().filter(|entry| removed[entry.value % 90]) {
            table.remove(entry.kind, &entry.pattern, |value| *value == entry.value);
        }
        let left: Vec<Entry<usize>> = entries.iter().filter(|entry| !removed[entry.value % 90]).map(copy).collect();
        prop_assert_eq!(table.is_empty(), left.is_empty());
        prop_assert_eq!(table.entries().count(), left.len());
        prop_assert_eq!(table.any_entry().is_some(), !left.is_empty());
        for request in requests {
            let request = Request::new(&request);
            let expected = reference::find(precedence, &left, &request.parts(), |_| true);
            let found = table.find(&request.parts(), |_| true).map(|entry| entry.value);
            prop_assert_eq!(found, expected.map(|place| left[place].value));
        }
    }
}
