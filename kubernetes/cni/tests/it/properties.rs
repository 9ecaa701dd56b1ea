//! Inputs that no runtime and no agent would write: each gets a result or an error, and no panic.

use std::ffi::OsString;
use std::path::PathBuf;

use leno_cni::enforced::EnforcedNamespaces;
use leno_cni::plugin::{self, Configuration, PodName};
use leno_cni::protocol::{CniCommand, CniRequest, CniResponse, Message};
use proptest::prelude::*;

const CONFIGURATION: &str = r#"{"cniVersion": "1.1.0", "name": "n", "type": "leno-cni", "leno": {"socket": "/nonexistent/cni.sock", "enforced": "/nonexistent/enforced", "exempt": ["kube-system"], "timeoutMilliseconds": 1}, "prevResult": {"interfaces": [{"name": "eth0", "sandbox": "/run/netns/x"}], "ips": [{"address": "10.0.0.1/24", "interface": 0}]}}"#;

/// A text in which some bytes are others, or missing.
fn damaged(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec((0..text.len(), any::<u8>(), any::<bool>()), 0..4).prop_map(move |changes| {
        let mut bytes = text.as_bytes().to_vec();
        for (place, byte, cut) in changes {
            if cut {
                bytes.truncate(place.max(1));
            } else if let Some(old) = bytes.get_mut(place) {
                *old = byte;
            }
        }
        bytes
    })
}

fn requests() -> impl Strategy<Value = CniRequest> {
    let command = prop_oneof![Just(CniCommand::Add), Just(CniCommand::Check), Just(CniCommand::Del)];
    let netns = proptest::option::of(".{0,20}".prop_map(PathBuf::from));
    let addresses = proptest::collection::vec(any::<std::net::IpAddr>(), 0..3);
    (command, ".{0,20}", netns, ".{0,20}", ".{0,20}", proptest::option::of(".{0,20}"), addresses).prop_map(
        |(command, container_id, netns, namespace, pod, uid, addresses)| CniRequest {
            version: 1,
            command,
            container_id,
            netns,
            namespace,
            pod,
            uid,
            addresses,
        },
    )
}

proptest! {
    #[test]
    fn every_input_of_the_plug_in_has_an_outcome(
        text in prop_oneof![damaged(CONFIGURATION), proptest::collection::vec(any::<u8>(), 0..64)],
        command in prop_oneof![Just("ADD"), Just("CHECK"), Just("DEL"), Just("GC"), Just("STATUS"), Just("VERSION"), Just("?")],
        arguments in prop_oneof![Just("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=a".to_owned()), ".{0,40}"],
    ) {
        let variable = |name: &str| match name {
            "CNI_COMMAND" => Some(OsString::from(command)),
            "CNI_CONTAINERID" => Some("abc".into()),
            "CNI_NETNS" => Some("/run/netns/x".into()),
            "CNI_IFNAME" => Some("eth0".into()),
            "CNI_ARGS" => Some(arguments.clone().into()),
            _ => None,
        };
        let (mut output, mut notices) = (Vec::new(), Vec::new());
        let code = plugin::run(variable, text.as_slice(), &mut output, &mut notices);
        let success = format!("{code:?}") == format!("{:?}", std::process::ExitCode::SUCCESS);
        if success && command == "ADD" {
            // The result is a part of the configuration, byte by byte.
            prop_assert!(!output.is_empty() && text.windows(output.len()).any(|part| part == output));
        }
        if !success {
            let error: serde_json::Value = serde_json::from_slice(&output).unwrap();
            prop_assert!(error["code"].is_u64() && error["msg"].is_string() && error["cniVersion"].is_string());
        }
    }

    #[test]
    fn messages_survive_the_socket(request in requests(), reason in ".{0,40}") {
        let line = request.to_line().unwrap();
        prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        prop_assert_eq!(CniRequest::from_line(&line).unwrap(), request);
        for response in [CniResponse::Captured, CniResponse::NotEnrolled, CniResponse::Refused { reason }] {
            let line = response.to_line().unwrap();
            prop_assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
            prop_assert_eq!(CniResponse::from_line(&line).unwrap(), response);
        }
    }

    #[test]
    fn arbitrary_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..128), text in "[a-z0-9=;._A-Z/-]{0,64}") {
        let _ = (CniRequest::from_line(&bytes), CniResponse::from_line(&bytes), Configuration::read(&bytes));
        let _ = (PodName::read(&text), plugin::addresses(&text), EnforcedNamespaces::new(text.lines()));
    }
}
