//! How fields of a record are encoded in the ring, where serde's own form does not fit.

/// A point in time of this process.
pub(crate) mod moment {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    /// The origin of encoded times: the creation of the first ring.
    pub(crate) fn base() -> Instant {
        static BASE: OnceLock<Instant> = OnceLock::new();
        *BASE.get_or_init(Instant::now)
    }

    pub(super) fn since_base(moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(base()).as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn at(nanoseconds: u64) -> Instant {
        base() + Duration::from_nanos(nanoseconds)
    }

    pub(crate) fn serialize<S: Serializer>(moment: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
        since_base(*moment).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Instant, D::Error> {
        u64::deserialize(deserializer).map(at)
    }
}

/// Points in time that may not have come.
pub(crate) mod moments {
    use super::moment;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Instant;

    type Moments = [Option<Instant>; 4];

    pub(crate) fn serialize<S: Serializer>(moments: &Moments, serializer: S) -> Result<S::Ok, S::Error> {
        moments.map(|moment| moment.map(moment::since_base)).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Moments, D::Error> {
        <[Option<u64>; 4]>::deserialize(deserializer).map(|moments| moments.map(|moment| moment.map(moment::at)))
    }
}

/// The name of a header field.
pub(crate) mod name {
    use http::HeaderName;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(name: &HeaderName, serializer: S) -> Result<S::Ok, S::Error> {
        name.as_str().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HeaderName, D::Error> {
        <&str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A text that many records share.
pub(crate) mod shared {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    pub(crate) fn serialize<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        (**text).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        <&str>::deserialize(deserializer).map(Arc::from)
    }
}

/// A text that many records share, or none.
pub(crate) mod shared_option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    type Text = Option<Arc<str>>;

    pub(crate) fn serialize<S: Serializer>(text: &Text, serializer: S) -> Result<S::Ok, S::Error> {
        text.as_deref().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        Ok(<Option<&str>>::deserialize(deserializer)?.map(Arc::from))
    }
}

/// Places that many records share.
pub(crate) mod sources {
    use leno_policy::spec::TokenSource;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    pub(crate) fn serialize<S: Serializer>(sources: &Arc<[TokenSource]>, serializer: S) -> Result<S::Ok, S::Error> {
        (**sources).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[TokenSource]>, D::Error> {
        Vec::deserialize(deserializer).map(Arc::from)
    }
}

/// The other end of a connection.
pub(crate) mod peer {
    use leno_http::peer::Peer;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::net::SocketAddr;
    use std::sync::Arc;

    pub(crate) fn serialize<S: Serializer>(peer: &Peer, serializer: S) -> Result<S::Ok, S::Error> {
        (peer.identity.as_deref(), peer.address).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Peer, D::Error> {
        let (identity, address): (Option<&str>, SocketAddr) = Deserialize::deserialize(deserializer)?;
        Ok(Peer { identity: identity.map(Arc::from), address })
    }
}

/// The label of a revision, without its statistics.
pub(crate) mod revision {
    use crate::stats::RevisionLabel;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    type Label = Option<Arc<RevisionLabel>>;

    pub(crate) fn serialize<S: Serializer>(label: &Label, serializer: S) -> Result<S::Ok, S::Error> {
        label.as_ref().map(|label| (label.number, &*label.name)).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Label, D::Error> {
        let label: Option<(u32, &str)> = Option::deserialize(deserializer)?;
        let label = label.map(|(number, name)| RevisionLabel { number, name: name.into(), stats: Default::default() });
        Ok(label.map(Arc::new))
    }
}
