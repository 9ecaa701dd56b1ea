//! Answers of an API server: events of a watch, and pages of a list.

use crate::api::object::{BrokenObject, Kind, Metadata, Object, ObjectKey};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The annotation of the bookmark that ends the initial objects of a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// One line of a watch.
#[derive(Debug)]
pub(crate) enum Event<K> {
    Put(K),
    Broken(BrokenObject, /* version */ String),
    Gone(ObjectKey, /* version */ String),
    Bookmark { version: String, ends_initial: bool },
    Failure(Failure),
}

/// A failure that the API server reports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Failure {
    pub(crate) code: u16,
    pub(crate) message: String,
}

#[derive(Deserialize)]
struct Line<'a, T> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    object: T,
}

#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    metadata: HeadMetadata,
}

/// The metadata of any object, whatever the rest of it is.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HeadMetadata {
    namespace: String,
    name: String,
    resource_version: String,
    annotations: Option<BTreeMap<String, serde_json::Value>>,
}

impl HeadMetadata {
    fn key(self) -> ObjectKey {
        ObjectKey { namespace: self.namespace, name: self.name }
    }
}

/// Decodes a line of a watch.
///
/// # Errors
/// The line is no event.
pub(crate) fn event<K: Object>(kind: Kind, line: &[u8]) -> Result<Event<K>, serde_json::Error> {
    // Nearly all lines are objects without errors, and are decoded once.
    let error = match serde_json::from_slice::<Line<'_, K>>(line) {
        Ok(Line { kind, object }) if matches!(&*kind, "ADDED" | "MODIFIED") => return Ok(Event::Put(object)),
        Ok(_) => None,
        Err(error) => Some(error),
    };
    let Line { kind: event, object: Head { metadata } } = serde_json::from_slice::<Line<'_, Head>>(line)?;
    Ok(match &*event {
        "DELETED" => {
            let version = metadata.resource_version.clone();
            Event::Gone(metadata.key(), version)
        }
        "BOOKMARK" => Event::Bookmark {
            ends_initial: metadata.annotations.is_some_and(|annotations| annotations.contains_key(INITIAL_EVENTS_END)),
            version: metadata.resource_version,
        },
        "ERROR" => Event::Failure(serde_json::from_slice::<Line<'_, Failure>>(line)?.object),
        _ => {
            let mut decoder = serde_json::Deserializer::from_slice(line);
            let (field, message) = match serde_path_to_error::deserialize::<_, Line<'_, K>>(&mut decoder) {
                Err(error) => (error.path().to_string(), error.inner().to_string()),
                // An event of a type that this version does not know.
                Ok(_) => (String::new(), error.map_or_else(|| format!("event {event}"), |error| error.to_string())),
            };
            let version = metadata.resource_version.clone();
            let field = field.strip_prefix("object.").unwrap_or(&field).to_owned();
            Event::Broken(BrokenObject { kind: kind.name, key: metadata.key(), field, message }, version)
        }
    })
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Page<K> {
    pub(crate) objects: Vec<K>,
    pub(crate) broken: Vec<BrokenObject>,
    pub(crate) version: String,
    /// The token with which the next page is asked for; empty at the last.
    pub(crate) next: String,
}

#[derive(Deserialize)]
struct List<T> {
    metadata: ListMetadata,
    // Go writes an empty list as null.
    items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    resource_version: String,
    r#continue: String,
}

/// Decodes a page of a list.
///
/// # Errors
/// The text is no list.
pub(crate) fn page<K: Object>(kind: Kind, text: &[u8]) -> Result<Page<K>, serde_json::Error> {
    if let Ok(List { metadata, items }) = serde_json::from_slice::<List<K>>(text) {
        let ListMetadata { resource_version, r#continue } = metadata;
        return Ok(Page {
            objects: items.unwrap_or_default(),
            broken: Vec::new(),
            version: resource_version,
            next: r#continue,
        });
    }
    let List { metadata, items } = serde_json::from_slice::<List<serde_json::Value>>(text)?;
    let (mut objects, mut broken) = (Vec::new(), Vec::new());
    for item in items.unwrap_or_default() {
        match serde_path_to_error::deserialize::<_, K>(&item) {
            Ok(object) => objects.push(object),
            Err(error) => {
                let head = Head::deserialize(&item).unwrap_or(Head { metadata: HeadMetadata::default() });
                broken.push(BrokenObject {
                    kind: kind.name,
                    key: head.metadata.key(),
                    field: error.path().to_string(),
                    message: error.inner().to_string(),
                });
            }
        }
    }
    Ok(Page { objects, broken, version: metadata.resource_version, next: metadata.r#continue })
}

/// An object of which only the metadata matters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct MetadataOnly {
    metadata: Metadata,
}

impl Object for MetadataOnly {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind::core("services", "Service");

    #[derive(Debug, Deserialize)]
    struct Service {
        metadata: Metadata,
        spec: Spec,
    }

    #[derive(Debug, Deserialize)]
    struct Spec {
        ports: Vec<u16>,
    }

    impl Object for Service {
        fn metadata(&self) -> &Metadata {
            &self.metadata
        }
    }

    fn decode(line: &str) -> Event<Service> {
        event(KIND, line.as_bytes()).unwrap()
    }

    #[test]
    fn events_are_told_apart_by_their_type() {
        let object = r#"{"metadata":{"namespace":"shop","name":"web","resourceVersion":"7"},"spec":{"ports":[80]}}"#;
        let added = decode(&format!(r#"{{"type":"ADDED","object":{object}}}"#));
        assert!(matches!(added, Event::Put(service) if service.spec.ports == [80]));
        let deleted = decode(&format!(r#"{{"type":"DELETED","object":{object}}}"#));
        assert!(matches!(deleted, Event::Gone(key, version) if key.to_string() == "shop/web" && version == "7"));
        let bookmark = |annotations| {
            format!(
                r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"9"{annotations}}},"spec":{{"ports":null}}}}}}"#
            )
        };
        let end = bookmark(r#","annotations":{"k8s.io/initial-events-end":"true"}"#);
        assert!(matches!(decode(&end), Event::Bookmark { version, ends_initial: true } if version == "9"));
        assert!(matches!(decode(&bookmark("")), Event::Bookmark { ends_initial: false, .. }));
        let gone =
            decode(r#"{"type":"ERROR","object":{"kind":"Status","metadata":{},"code":410,"message":"too old"}}"#);
        assert!(matches!(gone, Event::Failure(failure) if failure.code == 410 && failure.message == "too old"));
        assert!(event::<Service>(KIND, b"{\"type\":\"ADDED\",\"object\":").is_err());
    }

    #[test]
    fn a_broken_object_names_its_field() {
        let object =
            r#"{"metadata":{"namespace":"shop","name":"web","resourceVersion":"7"},"spec":{"ports":[80,"x"]}}"#;
        let Event::Broken(broken, version) = decode(&format!(r#"{{"type":"MODIFIED","object":{object}}}"#)) else {
            panic!("not broken");
        };
        assert_eq!(version, "7");
        let text = broken.to_string();
        assert!(
            text.starts_with("Service shop/web: spec.ports[1]: invalid type: string \"x\", expected u16"),
            "{text}"
        );

        let list = format!(r#"{{"metadata":{{"resourceVersion":"9","continue":"c"}},"items":[{object},{}]}}"#, {
            object.replace("\"x\"", "81").replace("web", "api")
        });
        let page = page::<Service>(KIND, list.as_bytes()).unwrap();
        assert_eq!((page.objects.len(), page.broken.len()), (1, 1));
        assert_eq!((page.broken[0].field.as_str(), page.broken[0].key.name.as_str()), ("spec.ports[1]", "web"));
        assert_eq!((page.version.as_str(), page.next.as_str()), ("9", "c"));
        let empty = super::page::<Service>(KIND, br#"{"metadata":{"resourceVersion":"9"},"items":null}"#).unwrap();
        assert!(empty.objects.is_empty() && empty.next.is_empty());
    }
}
