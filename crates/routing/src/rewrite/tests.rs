use super::*;
use proptest::prelude::*;

fn prefix(text: &str) -> PathPattern {
    PathPattern::Prefix(text.trim_end_matches('/').into())
}

#[test]
fn prefixes_are_replaced_with_every_slash() {
    for (path, pattern, replacement, expected) in [
        ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
        ("/foo", "/foo", "/xyz", "/xyz"),
        ("/foo", "/foo", "/xyz/", "/xyz"),
        ("/foo/", "/foo", "/xyz", "/xyz/"),
        ("/foo/bar", "/foo", "", "/bar"),
        ("/foo/", "/foo", "", "/"),
        ("/foo", "/foo", "", "/"),
        ("/foo/", "/foo", "/", "/"),
        ("/foo", "/foo", "/", "/"),
        ("/", "/", "/", "/"),
        ("/", "/", "/xyz", "/xyz/"),
        ("/a/b", "/", "/xyz", "/xyz/a/b"),
        ("/a/b", "/", "", "/a/b"),
        ("/a/b/c/", "/a/b", "/x/y/z", "/x/y/z/c/"),
        ("/a%20b/c", "/a%20b", "/d%20e", "/d%20e/c"),
    ] {
        let rewritten = rewritten_path(&PathChange::Prefix(replacement.into()), &prefix(pattern), path);
        assert_eq!(rewritten.as_deref(), Ok(expected), "{path} {pattern} {replacement}");
    }
}

#[test]
fn paths_stay_normal() {
    let full = |text: &str| PathChange::Full(text.into());
    let any = prefix("/");
    assert_eq!(rewritten_path(&full("/a/b"), &any, "/c").as_deref(), Ok("/a/b"));
    assert_eq!(rewritten_path(&full(""), &any, "/c").as_deref(), Ok("/"));
    for text in
        ["a", "*", "//a", "/a/../b", "/a/.", "/%61", "/a%2fb", "/a b", "/a?b=c", "/a#b", "/é", "/a\r\nb", "/a;/..;x/"]
    {
        assert_eq!(rewritten_path(&full(text), &any, "/c"), Err(BadRewrite::Path), "{text}");
    }
    for (change, pattern, path, expected) in [
        ("/x/..", "/a", "/a/b", BadRewrite::Path),
        ("x", "/a", "/a/b", BadRewrite::Path),
        ("/x?y", "/a", "/a/b", BadRewrite::Path),
        ("/x", "/a", "/ab", BadRewrite::Prefix),
        ("/x", "/", "*", BadRewrite::Prefix),
    ] {
        assert_eq!(rewritten_path(&PathChange::Prefix(change.into()), &prefix(pattern), path), Err(expected));
    }
    for pattern in [PathPattern::Exact("/a".into()), PathPattern::Regex("/a".into()), PathPattern::Literal("/a".into())]
    {
        assert_eq!(rewritten_path(&PathChange::Prefix("/x".into()), &pattern, "/a"), Err(BadRewrite::Prefix));
    }
}

#[test]
fn redirects_have_the_port_of_their_scheme() {
    let redirect = |scheme: Option<&str>, host: Option<&str>, port: Option<u16>| Redirect {
        scheme: scheme.map(Into::into),
        host: host.map(Into::into),
        path: None,
        port,
        status: 302,
    };
    let http = RequestOrigin { scheme: "http", host: "shop.example", port: 80 };
    let https = RequestOrigin { scheme: "https", host: "shop.example", port: 443 };
    let http_8080 = RequestOrigin { port: 8080, ..http };
    let https_8443 = RequestOrigin { port: 8443, ..https };
    for (asked, scheme, host, port, expected) in [
        (http, None, None, None, "http://shop.example/a"),
        (https, None, None, None, "https://shop.example/a"),
        (http_8080, None, None, None, "http://shop.example:8080/a"),
        (https_8443, None, None, None, "https://shop.example:8443/a"),
        (http, Some("https"), None, None, "https://shop.example/a"),
        (http_8080, Some("https"), None, None, "https://shop.example/a"),
        (https_8443, Some("http"), None, None, "http://shop.example/a"),
        (https_8443, Some("https"), None, None, "https://shop.example/a"),
        (http, Some("https"), None, Some(8443), "https://shop.example:8443/a"),
        (http, Some("https"), None, Some(80), "https://shop.example:80/a"),
        (http, None, None, Some(443), "http://shop.example:443/a"),
        (http_8080, None, None, Some(80), "http://shop.example/a"),
        (https_8443, None, None, Some(443), "https://shop.example/a"),
        (http_8080, None, Some("other.example"), None, "http://other.example:8080/a"),
        (http, Some("https"), Some("other.example"), None, "https://other.example/a"),
        (RequestOrigin { host: "[::1]", ..http_8080 }, None, None, None, "http://[::1]:8080/a"),
    ] {
        let found = super::redirect(&redirect(scheme, host, port), &prefix("/"), "/a", None, asked);
        let expected = HeaderValue::from_static(expected);
        assert_eq!(found, Ok((StatusCode::FOUND, expected)), "{asked:?} {scheme:?} {host:?} {port:?}");
    }
}

#[test]
fn redirects_keep_the_query() {
    let asked = RequestOrigin { scheme: "http", host: "a.example", port: 80 };
    let mut redirect = Redirect { scheme: None, host: None, path: None, port: None, status: 301 };
    let found = |redirect: &Redirect, path: &str, query: Option<&str>| {
        super::redirect(redirect, &prefix("/old"), path, query, asked)
            .map(|(status, location)| (status.as_u16(), location.to_str().unwrap().to_owned()))
    };
    assert_eq!(found(&redirect, "/old/b", Some("c=d&e")), Ok((301, "http://a.example/old/b?c=d&e".into())));
    redirect.path = Some(PathChange::Prefix("/new".into()));
    redirect.status = 308;
    assert_eq!(found(&redirect, "/old/b", Some("c")), Ok((308, "http://a.example/new/b?c".into())));
    redirect.path = Some(PathChange::Full("/all".into()));
    redirect.status = 303;
    assert_eq!(found(&redirect, "/old/b", Some("")), Ok((303, "http://a.example/all?".into())));
    redirect.status = 307;
    assert_eq!(found(&redirect, "/old", None), Ok((307, "http://a.example/all".into())));
    redirect.path = None;
    assert_eq!(found(&redirect, "*", None), Err(BadRewrite::Path));
    redirect.status = 200;
    assert_eq!(found(&redirect, "/old", None), Err(BadRewrite::Status));
    redirect.status = 302;
    redirect.host = Some("b\r\nset-cookie: c".into());
    assert_eq!(found(&redirect, "/old", None), Err(BadRewrite::Header));
}

proptest! {
    #[test]
    fn a_rewritten_path_is_normal(
        change in prop_oneof!["[/a.%2;?]{0,8}".prop_map(PathChange::Full), "[/a.%2;?]{0,8}".prop_map(PathChange::Prefix)],
        pattern in "(/[ab]){0,2}",
        path in "(/[ab;.%20]{0,3}){1,4}",
    ) {
        let Ok(path) = path::normalise(&path) else { return Ok(()) };
        if let Ok(rewritten) = rewritten_path(&change, &PathPattern::Prefix(pattern), &path) {
            let normal = path::normalise(&rewritten);
            prop_assert_eq!(normal.as_deref(), Ok(&*rewritten));
            prop_assert!(rewritten.starts_with('/') && !rewritten.contains('?'));
        }
    }
}
