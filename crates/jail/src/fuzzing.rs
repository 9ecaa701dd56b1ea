//! The entry point of the target in `fuzz/`. It panics if a property does not hold.

use crate::user::names::{CONTAINER_IDS, look_up};

/// Looks up the user that an image's configuration names. The text is the user and the contents of
/// `/etc/passwd` and `/etc/group`, with a zero byte between them. A user that is found is one of
/// the container's users.
pub fn user(text: &str) {
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
}
