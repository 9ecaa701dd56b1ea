//! The web server of the page: sessions, the answers of the mesh as JSON, and streams of events.
//!
//! All text of the mesh leaves as JSON, which the page shows as text. The page loads nothing from
//! elsewhere.

mod answers;
mod assets;
mod error;
mod guard;
mod listener;
mod sessions;
mod shares;
mod stream;

pub use assets::has_page;
pub use guard::SignedIn;
pub use listener::serve;
pub use sessions::{NoRandomness, OneTimeToken};

use self::sessions::Sessions;
use self::shares::Streams;
use crate::source::Source;
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The path of the page: begins and ends with `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base(String);

/// A text is not the path of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a path such as /mesh/: letters, digits, `-`, `_`, `.` and `~` between slashes")]
pub struct BadBase;

impl FromStr for Base {
    type Err = BadBase;

    fn from_str(text: &str) -> Result<Self, BadBase> {
        let path = text.trim_matches('/');
        let is_plain = |part: &str| {
            !matches!(part, "" | "." | "..")
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte))
        };
        match path {
            "" => Ok(Self("/".to_owned())),
            path if path.split('/').all(is_plain) => Ok(Self(format!("/{path}/"))),
            _ => Err(BadBase),
        }
    }
}

impl fmt::Display for Base {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Makes the source for a bearer of a token of a control plane's API; `None`: the token is not valid.
pub type TokenSource = Box<dyn Fn(&str) -> Option<Arc<dyn Source>> + Send + Sync>;

/// How a user begins a session.
pub enum SignIn {
    /// With a token that a command prints, once; all sessions ask this source.
    Command(OneTimeToken, Arc<dyn Source>),
    /// With a token of a control plane's API, whose rights the session has.
    Token(TokenSource),
}

/// The web server's configuration.
pub struct Options {
    /// The path of the page.
    pub base: Base,
    /// How users sign in.
    pub sign_in: SignIn,
    /// Names besides those of loopback by which clients reach the server. Requests that name another
    /// host come from a page of that host, whose name has this server's address (DNS rebinding).
    pub is_own_host: Box<dyn Fn(&str) -> bool + Send + Sync>,
    /// Clients reach the server by HTTPS only.
    pub secure: bool,
}

/// The web server.
pub struct Dashboard {
    options: Options,
    sessions: Arc<Sessions>,
    streams: Arc<Streams>,
}

impl Dashboard {
    /// A server without sessions.
    pub fn new(options: Options) -> Result<Arc<Self>, NoRandomness> {
        let sessions = Sessions::new(&options.base, options.secure)?;
        Ok(Arc::new(Self { options, sessions, streams: Arc::default() }))
    }

    /// Its paths.
    pub fn router(self: &Arc<Self>) -> Router {
        let base = &self.options.base.0;
        let path = |path: &str| format!("{base}{path}");
        let mut router = Router::new()
            .route(base, get(assets::page))
            .route(&path("{asset}"), get(assets::asset))
            .route(&path("session"), post(answers::sign_in).delete(answers::sign_out))
            .route(&path("api/mesh"), get(answers::mesh))
            .route(&path("api/graph"), get(answers::graph))
            .route(&path("api/functions/{namespace}/{name}"), get(answers::function))
            .route(&path("api/requests/{id}"), get(answers::request))
            .route(&path("api/replay"), post(answers::replay))
            .route(&path("api/stream"), get(stream::stream))
            .route(&path("api/{listing}"), get(answers::listing));
        if let Some(without_slash) = base.strip_suffix('/').filter(|path| !path.is_empty()) {
            router = router.route(without_slash, get(assets::add_slash));
        }
        router.layer(from_fn_with_state(self.clone(), guard::guarded)).with_state(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_a_plain_path() {
        for (text, expected) in [("/", "/"), ("", "/"), ("/mesh", "/mesh/"), ("a/b/", "/a/b/")] {
            assert_eq!(text.parse::<Base>().map(|base| base.0).as_deref(), Ok(expected));
        }
        for bad in ["/a//b", "/../a", "/a b", "/{a}", "/a?b", "/a;b=c", "/ä"] {
            assert_eq!(bad.parse::<Base>(), Err(BadBase), "{bad}");
        }
    }
}
