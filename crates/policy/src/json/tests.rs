use super::{Json, Members, object};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use proptest::prelude::*;

fn text(value: &str) -> Json<'_> {
    Json::Text(value.into())
}

#[test]
fn values() {
    let read = object(r#" {"a":"x","b":[1,-0.5e+3,true,false,null,[],{}],"c":{"d":""}} "#).unwrap();
    let list = [
        Json::Number("1"),
        Json::Number("-0.5e+3"),
        Json::Bool(true),
        Json::Bool(false),
        Json::Null,
        Json::List(vec![]),
        Json::Object(vec![]),
    ];
    let expected: Members<'_> = vec![
        ("a".into(), text("x")),
        ("b".into(), Json::List(list.to_vec())),
        ("c".into(), Json::Object(vec![("d".into(), text(""))])),
    ];
    assert_eq!(read, expected);
}

#[test]
fn escapes() {
    let read = object(r#"{"a":"\"\\\/\b\f\n\r\t\u0041\u00e9\uD834\uDD1E|é"}"#).unwrap();
    assert_eq!(read[0].1, text("\"\\/\u{8}\u{c}\n\r\tA\u{e9}\u{1d11e}|é"));
}

#[test]
fn refused() {
    let deep = |levels: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    assert!(object(&deep(15)).is_some());
    let wide = |members: usize| {
        let members: Vec<String> = (0..members).map(|index| format!("\"{index}\":0")).collect();
        format!("{{{}}}", members.join(","))
    };
    assert!(object(&wide(256)).is_some());
    for bad in [
        "",
        "{",
        "[]",
        "1",
        "{}x",
        "{} {}",
        "{,}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":1 "b":2}"#,
        r#"{a:1}"#,
        r#"{'a':1}"#,
        r#"{"a":01}"#,
        r#"{"a":+1}"#,
        r#"{"a":.5}"#,
        r#"{"a":1.}"#,
        r#"{"a":1e}"#,
        r#"{"a":-}"#,
        r#"{"a":NaN}"#,
        r#"{"a":True}"#,
        r#"{"a":nul}"#,
        r#"{"a":[1,]}"#,
        r#"{"a":"}"#,
        r#"{"a":"\x"}"#,
        r#"{"a":"\u12"}"#,
        r#"{"a":"\u+123"}"#,
        r#"{"a":"\ud800"}"#,
        r#"{"a":"\ud800\u0041"}"#,
        r#"{"a":"\udc00"}"#,
        "{\"a\":\"\n\"}",
        "{\"a\":1/**/}",
        "\u{feff}{}",
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"\u0061":1}"#,
        r#"{"x":{"b":[{"a":1,"a":1}]}}"#,
    ] {
        assert_eq!(object(bad), None, "{bad}");
    }
    assert_eq!(object(&deep(16)), None);
    assert_eq!(object(&deep(10_000)), None);
    assert_eq!(object(&wide(257)), None);
}

#[test]
fn no_member_is_there_twice_among_many_either() {
    let object_of = |names: &[String]| {
        let members: Vec<String> = names.iter().map(|name| format!("\"{name}\":0")).collect();
        format!("{{\"a\":{{{}}}}}", members.join(","))
    };
    for many in [2, 15, 16, 17, 100, 256] {
        let names: Vec<String> = (0..many).map(|number| format!("m{}", number * 7 % 256)).collect();
        assert!(object(&object_of(&names)).is_some(), "{many}");
        for twin in [0, (many - 1) / 2, many - 2] {
            let mut names = names.clone();
            names[many - 1] = names[twin].clone();
            assert_eq!(object(&object_of(&names)), None, "{many}: the last like that at {twin}");
        }
    }
}

fn same(ours: &Json<'_>, theirs: &serde_json::Value) -> bool {
    match (ours, theirs) {
        (Json::Null, serde_json::Value::Null) => true,
        (Json::Bool(ours), serde_json::Value::Bool(theirs)) => ours == theirs,
        (Json::Number(ours), serde_json::Value::Number(theirs)) => ours.parse::<f64>().ok() == theirs.as_f64(),
        (Json::Text(ours), serde_json::Value::String(theirs)) => ours == theirs,
        (Json::List(ours), serde_json::Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| same(ours, theirs))
        }
        (Json::Object(ours), serde_json::Value::Object(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().all(|(name, value)| theirs.get(&**name).is_some_and(|theirs| same(value, theirs)))
        }
        _ => false,
    }
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        (-1e9f64..1e9).prop_map(serde_json::Value::from),
        any::<String>().prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn reads_what_another_writes(value in json()) {
        let text = serde_json::json!({ "value": value }).to_string();
        let read = object(&text);
        prop_assert!(read.is_some_and(|members| same(&members[0].1, &value)), "{text}");
    }

    /// Another parser accepts every accepted text too, and sees the same.
    #[test]
    fn accepts_nothing_else(text in r#"\{"a":[-0-9eE.+tfn\[\]{},:"\\u ]{0,12}\}"#) {
        if let Some(members) = object(&text) {
            let theirs: serde_json::Value = serde_json::from_str(&text).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert!(same(&Json::Object(members), &theirs), "{text}");
        }
    }

    #[test]
    fn never_panics(text in any::<String>()) {
        let _ = object(&text);
    }
}
