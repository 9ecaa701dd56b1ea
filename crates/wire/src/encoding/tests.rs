use super::*;
use proptest::prelude::*;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Plain {
    flag: bool,
    number: u32,
    signed: i64,
    share: f64,
    text: String,
    list: Vec<u16>,
    bytes: Vec<u8>,
    hash: Option<[u8; 4]>,
    map: BTreeMap<String, String>,
    pair: Option<(u8, String)>,
    nested: Inner,
    maybe: Option<Inner>,
    choice: Option<Choice>,
    choices: Vec<Choice>,
    time: Duration,
    wrapped: Vec<Newtype>,
    options: Vec<Option<u8>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Inner {
    a: u8,
    b: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Newtype(u8);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Choice {
    Unit,
    One(u8),
    Two(u8, Vec<u8>),
    Named { x: u32, y: Option<String> },
    Struct(Inner),
}

/// `Plain` in an earlier release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Before {
    flag: bool,
    number: u32,
}

fn round_trip<T: Serialize + DeserializeOwned + PartialEq + fmt::Debug>(value: &T) -> Vec<u8> {
    let bytes = to_bytes(value).unwrap();
    assert_eq!(from_bytes::<T>(&bytes).as_ref(), Ok(value));
    bytes
}

fn refusal<T: DeserializeOwned + fmt::Debug>(bytes: &[u8]) -> String {
    from_bytes::<T>(bytes).unwrap_err().to_string()
}

#[test]
fn zeros_take_no_place() {
    assert_eq!(round_trip(&Plain::default()), [0x80]);
    assert_eq!(round_trip(&Plain { flag: true, ..Plain::default() }), b"\x81\xa4flag\xc3");
}

#[test]
fn what_is_there_though_it_is_zero_is_not_lost() {
    let map = BTreeMap::from([("empty".to_owned(), String::new())]);
    round_trip(&Plain { maybe: Some(Inner::default()), map, list: vec![0], ..Plain::default() });
    round_trip(&Plain { hash: Some([0; 4]), nested: Inner { a: 0, b: Some(0) }, ..Plain::default() });
    round_trip(&Plain { options: vec![None, Some(0)], share: -0.0, ..Plain::default() });
    round_trip(&Some(String::new()));
    round_trip(&vec![Choice::Struct(Inner::default()), Choice::Named { x: 0, y: None }]);
}

#[test]
fn bytes_are_byte_strings() {
    assert_eq!(round_trip(&vec![1_u8, 0xff]), [0xc4, 2, 1, 0xff]);
    assert_eq!(round_trip(&[7_u8; 32]).len(), 34);
    assert_eq!(round_trip(&vec![1_u16, 2]), [0x92, 1, 2]);
    assert_eq!(round_trip(&vec![Newtype(1)]), [0x91, 1]);
    assert_eq!(round_trip(&vec![Some(1_u8)]), [0x91, 1]);
}

#[test]
fn an_older_release_reads_what_it_knows_and_refuses_the_rest() {
    let before = Before { flag: true, number: 3 };
    let now = Plain { flag: true, number: 3, ..Plain::default() };
    let bytes = to_bytes(&before).unwrap();
    assert_eq!(to_bytes(&now).unwrap(), bytes, "the same content has the same version in both releases");
    assert_eq!(from_bytes::<Plain>(&bytes).unwrap(), now);
    let used = to_bytes(&Plain { text: "new".into(), ..now }).unwrap();
    assert_eq!(refusal::<Before>(&used), "unknown or repeated field `text` of Before");
}

#[test]
fn a_refusal_says_where() {
    #[derive(Serialize)]
    enum Later {
        Struct { a: u8, c: u8 },
        Three,
    }
    #[derive(Serialize)]
    struct Holder {
        choices: Vec<Later>,
    }
    let holder = |later| to_bytes(&Holder { choices: vec![Later::Struct { a: 1, c: 0 }, later] }).unwrap();
    assert_eq!(
        refusal::<Plain>(&holder(Later::Struct { a: 1, c: 2 })),
        "choices[1].Struct: unknown or repeated field `c` of Inner"
    );
    assert_eq!(refusal::<Plain>(&holder(Later::Three)), "choices[1]: unknown variant `Three` of Choice");
}

#[test]
fn what_is_not_exactly_a_value_is_refused() {
    assert_eq!(refusal::<Before>(b"\x82\xa4flag\xc3\xa4flag\xc3"), "unknown or repeated field `flag` of Before");
    assert_eq!(refusal::<Inner>(b"\x80\x80"), "it is too long");
    assert_eq!(refusal::<Inner>(b""), "it is cut off");
    assert_eq!(refusal::<Inner>(b"\x91\x01"), "expected a map, found FixArray(1)");
    assert_eq!(refusal::<[u8; 2]>(&[0x93, 1, 2, 3]), "a list has 1 elements too many");
    assert!(from_bytes::<[u8; 2]>(&[0xc4, 3, 1, 2, 3]).is_err());
    assert_eq!(refusal::<Choice>(b"\xa3One"), "the variant `One` of Choice has no content");
    assert_eq!(refusal::<Choice>(b"\x81\xa4Unit\x01"), "the variant `Unit` of Choice has content");
    // Lengths beyond the end of the input reserve no memory.
    assert_eq!(refusal::<Vec<u64>>(&[0xdd, 0xff, 0xff, 0xff, 0xff]), "[0]: it is cut off");
    #[derive(Debug, Serialize, Deserialize)]
    struct Needs {
        choice: Choice,
    }
    assert_eq!(refusal::<Needs>(b"\x80"), "missing field `choice` of Needs");
}

fn inner() -> impl Strategy<Value = Inner> {
    (any::<u8>(), any::<Option<u32>>()).prop_map(|(a, b)| Inner { a, b })
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![
        Just(Choice::Unit),
        any::<u8>().prop_map(Choice::One),
        any::<(u8, Vec<u8>)>().prop_map(|(a, b)| Choice::Two(a, b)),
        (any::<u32>(), any::<Option<String>>()).prop_map(|(x, y)| Choice::Named { x, y }),
        inner().prop_map(Choice::Struct),
    ]
}

fn plain() -> impl Strategy<Value = Plain> {
    let scalars = (any::<bool>(), any::<u32>(), any::<i64>(), -1e9..1e9_f64, any::<String>(), any::<Duration>());
    let lists = (any::<Vec<u16>>(), any::<Vec<u8>>(), any::<Option<[u8; 4]>>(), any::<Vec<Option<u8>>>());
    let map = prop::collection::btree_map(any::<String>(), any::<String>(), 0..40);
    let nested =
        (inner(), prop::option::of(inner()), prop::option::of(choice()), prop::collection::vec(choice(), 0..4));
    (scalars, lists, map, any::<Option<(u8, String)>>(), nested, any::<Vec<u8>>()).prop_map(
        |((flag, number, signed, share, text, time), (list, bytes, hash, options), map, pair, nested, wrapped)| {
            let (nested, maybe, choice, choices) = nested;
            let wrapped = wrapped.into_iter().map(Newtype).collect();
            Plain {
                flag,
                number,
                signed,
                share,
                text,
                list,
                bytes,
                hash,
                map,
                pair,
                nested,
                maybe,
                choice,
                choices,
                time,
                wrapped,
                options,
            }
        },
    )
}

proptest! {
    #[test]
    fn every_value_is_read_back(value in plain()) {
        round_trip(&value);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = from_bytes::<Plain>(&bytes);
    }

    #[test]
    fn what_is_cut_off_is_refused(value in plain(), share in 0.0..1.0_f64) {
        let bytes = to_bytes(&value).unwrap();
        let length = (bytes.len() as f64 * share) as usize;
        prop_assert!(from_bytes::<Plain>(&bytes[..length]).is_err());
    }
}
