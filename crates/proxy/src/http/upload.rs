//! How far a request's body has come, so that what a client did is not charged to an instance.

use crate::http::failure::Failure;
use std::cell::Cell;
use std::rc::Rc;

/// Seen by all legs of an exchange. The body from the client's connection notes each look at it here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Upload(Rc<Cell<Progress>>);

/// Whose turn it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The upstream's: it has not asked for more, or has it all.
    #[default]
    Upstream,
    /// The client's: the upstream asked for more, and nothing has come.
    Client,
    /// The client went away, or what it sent is malformed.
    Broken,
}

impl Upload {
    /// Notes what the last look at the body brought.
    pub(crate) fn note(&self, progress: Progress) {
        self.0.set(progress);
    }

    /// Makes a failure the client's doing, if it is.
    pub(crate) fn attribute(&self, failure: &mut Failure) {
        match (self.0.get(), &*failure) {
            // An instance that broke off first is not excused by a client that did so because of it: its body would still be waited for.
            (Progress::Broken, Failure::Reset { .. } | Failure::Timeout(_)) => *failure = Failure::ClientGone,
            (Progress::Client, &Failure::Timeout(limit)) => *failure = Failure::SlowClient(limit),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_what_the_client_did_is_its_doing() {
        let timeout = || Failure::Timeout(Duration::from_secs(1));
        let reset = || Failure::Reset { cause: String::new(), refused: false };
        let after = |progress, mut failure| {
            let upload = Upload::default();
            upload.note(progress);
            upload.attribute(&mut failure);
            failure.status().as_u16()
        };
        assert_eq!([after(Progress::Upstream, timeout()), after(Progress::Upstream, reset())], [504, 502]);
        assert_eq!([after(Progress::Client, timeout()), after(Progress::Client, reset())], [408, 502]);
        assert_eq!([after(Progress::Broken, timeout()), after(Progress::Broken, reset())], [400, 400]);
        assert_eq!(after(Progress::Broken, Failure::Overflow), 503);
    }
}
