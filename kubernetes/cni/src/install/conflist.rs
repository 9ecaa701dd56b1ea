//! Leno's entry in the text of a network configuration. All other bytes of the text stay.

use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::plugin::VERSIONS;

/// Why a file cannot have an entry.
#[derive(Debug, thiserror::Error)]
pub enum ConflistError {
    /// The file cannot be read, perhaps because another program is about to write it.
    #[error("it cannot be decoded: {0}")]
    Decode(#[from] serde_json::Error),
    /// The file has no plug-in after which the entry could stand. Runtimes skip an empty list.
    #[error("it has no plug-in that makes a network")]
    Empty,
    /// Runtimes pass no result from plug-in to plug-in.
    #[error("`cniVersion` is `{0}`, which has no chains; leno-cni knows {known}", known = VERSIONS.join(", "))]
    Version(String),
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(rename = "cniVersion")]
    version: Option<String>,
    #[serde(default, rename = "cniVersions")]
    versions: Vec<String>,
    #[serde(borrow)]
    plugins: Vec<&'a RawValue>,
}

/// A configuration of one plug-in (`.conf`).
#[derive(Deserialize)]
struct Single {
    #[serde(rename = "cniVersion")]
    version: Option<String>,
    name: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// The place of each plug-in in the text, and whether it is Leno's.
fn places(text: &str, list: &List<'_>) -> Vec<(Range<usize>, bool)> {
    let place = |plugin: &&RawValue| {
        // The value is a part of the text.
        let begin = plugin.get().as_ptr() as usize - text.as_ptr() as usize;
        let kind = serde_json::from_str::<Single>(plugin.get()).ok().and_then(|single| single.kind);
        (begin..begin + plugin.get().len(), kind.as_deref() == Some(crate::NAME))
    };
    list.plugins.iter().map(place).collect()
}

fn check_version(version: Option<&str>, versions: &[String]) -> Result<(), ConflistError> {
    let version = version.unwrap_or("0.1.0");
    if VERSIONS.contains(&version) || versions.iter().any(|one| VERSIONS.contains(&one.as_str())) {
        return Ok(());
    }
    Err(ConflistError::Version(version.chars().take(80).collect()))
}

/// The text with exactly one entry of Leno, equal to this one; `None` if it is so already. An entry
/// that is there keeps its place among the others.
pub fn with_entry(text: &str, entry: &str) -> Result<Option<String>, ConflistError> {
    let list: List<'_> = serde_json::from_str(text)?;
    let plugins = places(text, &list);
    let others = plugins.iter().filter(|(_, ours)| !ours).count();
    if others == 0 {
        return Err(ConflistError::Empty);
    }
    check_version(list.version.as_deref(), &list.versions)?;
    let ours: Vec<&Range<usize>> = plugins.iter().filter(|(_, ours)| *ours).map(|(place, _)| place).collect();
    match ours[..] {
        [] => {
            let (last, _) = &plugins[plugins.len() - 1];
            // The entry stands apart from its neighbour as others do.
            let before = &text[..last.start];
            let space = &before[before.trim_end().len()..];
            Ok(Some(format!("{},{space}{entry}{}", &text[..last.end], &text[last.end..])))
        }
        [place] if *place != plugins[0].0 => {
            let same = serde_json::from_str::<Value>(&text[place.clone()])? == serde_json::from_str::<Value>(entry)?;
            Ok((!same).then(|| format!("{}{entry}{}", &text[..place.start], &text[place.end..])))
        }
        // Several entries, or one with no plug-in before it whose result it could report.
        _ => with_entry(&without_entry(text)?.unwrap_or_default(), entry),
    }
}

/// The text without entries of Leno; `None` if it has none.
pub fn without_entry(text: &str) -> Result<Option<String>, ConflistError> {
    let list: List<'_> = serde_json::from_str(text)?;
    let plugins = places(text, &list);
    if plugins.iter().all(|(_, ours)| !ours) {
        return Ok(None);
    }
    let kept: Vec<&Range<usize>> = plugins.iter().filter(|(_, ours)| !ours).map(|(place, _)| place).collect();
    let (first, last) = (&plugins[0].0, &plugins[plugins.len() - 1].0);
    let mut result = text[..first.start].to_owned();
    for (number, place) in kept.iter().enumerate() {
        if number > 0 {
            // The comma and the space before the plug-in, as they were.
            let before =
                plugins.iter().rfind(|(other, _)| other.end <= place.start).map_or(first.start, |(other, _)| other.end);
            result.push_str(&text[before..place.start]);
        }
        result.push_str(&text[(*place).clone()]);
    }
    result.push_str(&text[last.end..]);
    Ok(Some(result))
}

/// A list that has the single plug-in of a `.conf` file, and Leno's entry after it.
pub fn list_of(text: &str, entry: &str) -> Result<String, ConflistError> {
    let single: Single = serde_json::from_str(text)?;
    if single.kind.as_deref() == Some(crate::NAME) {
        return Err(ConflistError::Empty);
    }
    check_version(single.version.as_deref(), &[])?;
    // Neither can fail: they are strings.
    let version = serde_json::to_string(&single.version)?;
    let name = serde_json::to_string(&single.name)?;
    let plugin = text.trim();
    Ok(format!(
        "{{\n  \"cniVersion\": {version},\n  \"name\": {name},\n  \"plugins\": [\n    {plugin},\n    {entry}\n  ]\n}}\n"
    ))
}

/// The single plug-in of a list; `None` if it has several.
pub fn single_of(text: &str) -> Result<Option<String>, ConflistError> {
    let list: List<'_> = serde_json::from_str(text)?;
    match list.plugins[..] {
        [plugin] => Ok(Some(format!("{}\n", plugin.get()))),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENTRY: &str = r#"{"type": "leno-cni", "leno": {"socket": "/run/leno/cni.sock"}}"#;

    fn kinds(text: &str) -> Vec<String> {
        let value: Value = serde_json::from_str(text).unwrap();
        value["plugins"]
            .as_array()
            .unwrap()
            .iter()
            .map(|plugin| plugin["type"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    #[test]
    fn an_entry_is_added_and_removed_without_a_trace() {
        for text in [
            r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge"}]}"#,
            "{\n  \"name\": \"n\", \"plugins\": [\n    {\"type\": \"bridge\", \"mtu\": 1e3, \"big\": 123456789012345678901234567890},\n\n    {\"type\": \"portmap\"}\n  ],\n  \"cniVersion\": \"0.3.1\"\n}\n",
            "{\"cniVersions\": [\"0.1.0\", \"1.1.0\"], \"plugins\": [ {\"type\": \"a ], [\", \"leno-cni\": true} ]\t}",
        ] {
            let added = with_entry(text, ENTRY).unwrap().unwrap();
            assert_eq!(kinds(&added).last().unwrap(), crate::NAME, "{added}");
            assert_eq!(with_entry(&added, ENTRY).unwrap(), None);
            assert_eq!(without_entry(&added).unwrap().unwrap(), text);
            assert_eq!(without_entry(text).unwrap(), None);
        }
    }

    #[test]
    fn an_entry_keeps_its_place_and_gets_the_right_options() {
        let text = r#"{"cniVersion":"1.0.0","plugins":[{"type":"bridge"}, {"type":"leno-cni"}, {"type":"tuning"}]}"#;
        let changed = with_entry(text, ENTRY).unwrap().unwrap();
        assert_eq!(changed, text.replace(r#"{"type":"leno-cni"}"#, ENTRY));
        // Another program may have formatted the file anew.
        let spaced = changed.replace(": ", " :  ");
        assert_eq!(with_entry(&spaced, ENTRY).unwrap(), None);
    }

    #[test]
    fn a_second_entry_goes_and_one_before_all_others_moves() {
        for text in [
            r#"{"cniVersion":"1.0.0","plugins":[{"type":"leno-cni"},{"type":"bridge"}]}"#,
            r#"{"cniVersion":"1.0.0","plugins":[{"type":"bridge"},{"type":"leno-cni"},{"type":"leno-cni"}]}"#,
            r#"{"cniVersion":"1.0.0","plugins":[{"type":"leno-cni"},{"type":"leno-cni"},{"type":"bridge"},{"type":"leno-cni"}]}"#,
        ] {
            let changed = with_entry(text, ENTRY).unwrap().unwrap();
            assert_eq!(kinds(&changed), ["bridge", "leno-cni"], "{changed}");
            assert_eq!(kinds(&without_entry(text).unwrap().unwrap()), ["bridge"]);
        }
    }

    #[test]
    fn files_that_runtimes_refuse_or_cannot_chain_are_errors() {
        assert!(matches!(with_entry("{\"cniVersion\": \"1.0.0\", \"plug", ENTRY), Err(ConflistError::Decode(_))));
        assert!(matches!(with_entry("", ENTRY), Err(ConflistError::Decode(_))));
        assert!(matches!(with_entry(r#"{"cniVersion":"1.0.0","plugins":[]}"#, ENTRY), Err(ConflistError::Empty)));
        assert!(matches!(
            with_entry(r#"{"cniVersion":"1.0.0","plugins":[{"type":"leno-cni"}]}"#, ENTRY),
            Err(ConflistError::Empty)
        ));
        assert!(matches!(
            with_entry(r#"{"cniVersion":"0.2.0","plugins":[{}]}"#, ENTRY),
            Err(ConflistError::Version(_))
        ));
        assert!(matches!(list_of(r#"{"type":"bridge"}"#, ENTRY), Err(ConflistError::Version(_))));
        assert!(matches!(list_of(ENTRY, ENTRY), Err(ConflistError::Empty)));
    }

    #[test]
    fn a_single_plug_in_becomes_a_list_and_back() {
        let text = "{\"cniVersion\": \"0.3.1\", \"name\": \"a \\\" b\",\n \"type\": \"ptp\"}";
        let list = list_of(text, ENTRY).unwrap();
        assert_eq!(kinds(&list), ["ptp", "leno-cni"]);
        assert_eq!(serde_json::from_str::<Value>(&list).unwrap()["name"], "a \" b");
        assert_eq!(with_entry(&list, ENTRY).unwrap(), None);
        let left = without_entry(&list).unwrap().unwrap();
        assert_eq!(single_of(&left).unwrap().unwrap(), format!("{text}\n"));
    }

    fn plugin() -> impl Strategy<Value = String> {
        ("[ \n\t]{0,3}", prop_oneof![Just("leno-cni"), Just("bridge"), Just("ünï ],}")], ".{0,6}").prop_map(
            |(space, kind, value)| {
                format!("{{{space}\"type\":{space}{},\"x\":{}}}", serde_json::json!(kind), serde_json::json!(value))
            },
        )
    }

    proptest! {
        #[test]
        fn other_plug_ins_stay_whatever_the_list(plugins in proptest::collection::vec(plugin(), 0..6), space in "[ \n]{0,3}") {
            let text = format!("{{{space}\"cniVersion\": \"1.0.0\",\"plugins\": [{space}{}{space}]}}", plugins.join(&format!("{space},{space}")));
            let others: Vec<&String> = plugins.iter().filter(|plugin| !plugin.contains("leno-cni")).collect();
            let all = |text: &str| -> Vec<String> {
                let list: List<'_> = serde_json::from_str(text).unwrap();
                list.plugins.iter().map(|plugin| plugin.get().to_owned()).collect()
            };
            match with_entry(&text, ENTRY) {
                Ok(Some(added)) => {
                    let now = all(&added);
                    prop_assert_eq!(now.iter().filter(|one| *one == ENTRY).count(), 1);
                    prop_assert_eq!(now.iter().filter(|one| *one != ENTRY).collect::<Vec<_>>(), others.clone());
                    prop_assert_ne!(now[0].as_str(), ENTRY);
                    prop_assert_eq!(with_entry(&added, ENTRY).unwrap(), None);
                }
                Ok(None) => prop_assert!(false, "an entry with other options stays"),
                Err(_) => prop_assert!(others.is_empty()),
            }
            let without = without_entry(&text).unwrap().unwrap_or(text);
            let left = all(&without);
            prop_assert_eq!(left.iter().collect::<Vec<_>>(), others);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[\\[\\]{}\":,a-z \\\\]{0,64}") {
            let _ = (with_entry(&text, ENTRY), without_entry(&text), list_of(&text, ENTRY), single_of(&text));
        }
    }
}
