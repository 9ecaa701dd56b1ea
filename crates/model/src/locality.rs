//! Regions and zones of nodes.

use serde::{Deserialize, Serialize};

/// A node's location, in the terms of Kubernetes (`topology.kubernetes.io/region`,
/// `topology.kubernetes.io/zone`) and Istio. A request goes to a near node with a ready instance,
/// if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locality {
    /// The region, such as `eu-central-1`; `None`: unknown.
    pub region: Option<String>,
    /// The zone within the region, such as `eu-central-1a`; `None`: unknown.
    pub zone: Option<String>,
}

/// The distance between two nodes, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// In the same zone of the same region.
    Zone,
    /// In another zone of the same region.
    Region,
    /// In another region, or the location is unknown.
    Remote,
}

impl Locality {
    /// The distance to `other`.
    pub fn distance(&self, other: &Self) -> Distance {
        let same_zone = self.zone.is_some() && self.zone == other.zone;
        match (self.region == other.region, same_zone, self.region.is_some()) {
            (true, true, _) => Distance::Zone,
            (true, false, true) => Distance::Region,
            _ => Distance::Remote,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(region: &str, zone: &str) -> Locality {
        let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Locality { region: part(region), zone: part(zone) }
    }

    #[test]
    fn a_zone_is_one_only_within_its_region_and_what_is_unknown_is_far() {
        for (one, other, distance) in [
            (at("eu", "a"), at("eu", "a"), Distance::Zone),
            (at("", "a"), at("", "a"), Distance::Zone),
            (at("eu", "a"), at("eu", "b"), Distance::Region),
            (at("eu", "a"), at("eu", ""), Distance::Region),
            (at("eu", ""), at("eu", ""), Distance::Region),
            (at("eu", "a"), at("us", "a"), Distance::Remote),
            (at("eu", "a"), at("", "a"), Distance::Remote),
            (at("", ""), at("", ""), Distance::Remote),
        ] {
            assert_eq!((one.distance(&other), other.distance(&one)), (distance, distance), "{one:?} {other:?}");
        }
        assert!(Distance::Zone < Distance::Region && Distance::Region < Distance::Remote);
    }
}
