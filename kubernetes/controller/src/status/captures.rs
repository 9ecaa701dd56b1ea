//! The pods of the mesh, counted by whether they are captured.

use crate::index::PodFault;
use leno_model::FunctionId;
use std::collections::BTreeMap;

/// Pods that are named for one function.
const NAMED_PODS: usize = 8;

/// The pods of the mesh, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captures {
    /// The pods that are in the mesh, by their labels.
    pub enrolled: usize,
    /// Those that are not captured, by the word of the reason.
    pub faults: BTreeMap<&'static str, usize>,
    /// The first pods of each function that are not captured, with the reasons.
    pub by_function: BTreeMap<FunctionId, Vec<String>>,
}

impl Captures {
    /// Counts faults. `elsewhere`: those that agents report to other controllers.
    pub fn of(enrolled: usize, faults: &[PodFault], elsewhere: usize) -> Self {
        let mut captures = Self { enrolled, ..Self::default() };
        for PodFault { pod, function, reason, .. } in faults {
            *captures.faults.entry(reason.word()).or_default() += 1;
            let named = captures.by_function.entry(function.clone()).or_default();
            if named.len() < NAMED_PODS {
                named.push(format!("{} ({reason})", pod.name));
            }
        }
        if elsewhere > 0 {
            *captures.faults.entry("CaptureFailed").or_default() += elsewhere;
        }
        captures
    }

    /// How many pods are not captured.
    pub fn missing(&self) -> usize {
        self.faults.values().sum()
    }

    /// How many pods their agents cannot capture.
    pub(crate) fn failed(&self) -> usize {
        self.faults.get("CaptureFailed").copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ObjectKey;
    use crate::index::UncapturedReason;

    fn fault(name: &str, reason: UncapturedReason) -> PodFault {
        PodFault {
            pod: ObjectKey { namespace: "shop".to_owned(), name: name.to_owned() },
            uid: format!("uid-{name}").parse().unwrap(),
            function: FunctionId::new("shop", "web").unwrap(),
            reason,
        }
    }

    #[test]
    fn pods_are_counted_by_reason_and_named_by_function() {
        let mut faults: Vec<PodFault> =
            (0..9).map(|number| fault(&format!("web-{number}"), UncapturedReason::HostNetwork)).collect();
        faults.push(fault("web-x", UncapturedReason::NetAdmin));
        let captures = Captures::of(20, &faults, 3);
        assert_eq!(captures.faults, [("CaptureFailed", 3), ("HostNetwork", 9), ("NetAdmin", 1)].into());
        assert_eq!((captures.missing(), captures.failed()), (13, 3));
        let named = &captures.by_function[&FunctionId::new("shop", "web").unwrap()];
        assert_eq!(named.len(), NAMED_PODS);
        assert_eq!(named[0], "web-0 (it has the network of its node (hostNetwork))");
    }
}
