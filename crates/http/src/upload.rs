//! The progress of a request body's upload. With it, a failure that the client caused is not
//! charged to an instance.

use crate::failure::Failure;
use std::cell::Cell;
use std::rc::Rc;

/// The upload's progress, shared by all legs of an exchange. The body from the client's connection
/// updates it at each poll.
#[derive(Clone, Debug, Default)]
pub struct Upload(Rc<Cell<Progress>>);

/// The party that must act next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// The upstream: it has not asked for more, or has everything.
    #[default]
    Upstream,
    /// The client: the upstream asked for more, and nothing has come.
    Client,
    /// The client disconnected, or its body is malformed.
    Broken,
}

impl Upload {
    /// Notes the result of the last poll of the body.
    #[inline]
    pub fn note(&self, progress: Progress) {
        self.0.set(progress);
    }

    /// Turns a failure into the client's, if the client caused it.
    #[inline]
    pub fn attribute(&self, failure: &mut Failure) {
        match (self.0.get(), &*failure) {
            // If an instance breaks off first, the client's body is still waited for, so the
            // progress is not `Broken` yet. A client that leaves because of it does not excuse the
            // instance.
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
    fn failures_are_attributed_to_the_client_only_if_it_caused_them() {
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
