//! The user that an image's configuration names, and the image's `/etc/passwd` and `/etc/group`: a
//! user that is found is one of the container's users.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The file itself, because the crate around it is about namespaces.
#[allow(dead_code)]
#[path = "../../crates/jail/src/user/names.rs"]
mod names;

use names::{CONTAINER_IDS, look_up};

// A user, and the two files, with a zero byte after each of the first two.
fuzz_target!(|text: &str| {
    let mut parts = text.splitn(3, '\0');
    let mut next = || parts.next().unwrap_or_default();
    let (spec, passwd, group) = (next(), next(), next());
    match look_up(spec, passwd, group) {
        Ok(found) => {
            assert!(found.user < CONTAINER_IDS && found.group < CONTAINER_IDS);
            assert!(found.groups.iter().all(|id| *id < CONTAINER_IDS));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
