//! Sessions of pages, and the tokens that begin them.

use super::Base;
use super::error::WebError;
use super::shares::largest_share;
use crate::source::Source;
use crate::viewer::Viewer;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use axum::http::HeaderMap;
use axum::http::header::COOKIE;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Most sessions, most of one tenant, and most of one credential. Beyond the latter two, the one that
/// is idle longest ends; beyond the first, that of the tenant with the most.
const SESSIONS: usize = 256;
const OF_TENANT: usize = 32;
const OF_CREDENTIAL: usize = 16;
/// A session without requests ends after this time.
const IDLE: Duration = Duration::from_secs(12 * 3600);
/// Interval of checks whether a session is in use.
const WATCH: Duration = Duration::from_secs(60);
/// Lifetime of a one-time token.
const ONE_TIME: Duration = Duration::from_secs(600);

/// SHA-256 of a secret. The look-up by it takes no time that depends on the secret.
type Hash = [u8; 32];

/// The system has no random bytes.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the system has no random bytes for tokens")]
pub struct NoRandomness;

/// A secret of 256 random bits.
fn secret() -> Result<String, NoRandomness> {
    let mut bytes = [0; 32];
    rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn hash(secret: &str) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    hash
}

/// A token that begins one session, within ten minutes.
pub struct OneTimeToken(Mutex<Option<(Hash, Instant)>>);

impl OneTimeToken {
    /// A new token, and its text.
    pub fn new() -> Result<(Self, String), NoRandomness> {
        let text = secret()?;
        Ok((Self(Mutex::new(Some((hash(&text), Instant::now())))), text))
    }

    /// Whether this is the token. It is spent then.
    pub(super) fn spend(&self, text: &str) -> bool {
        let mut token = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_valid = token.is_some_and(|(expected, made)| {
            made.elapsed() < ONE_TIME && verify_slices_are_equal(&expected, &hash(text)).is_ok()
        });
        if is_valid {
            *token = None;
        }
        is_valid
    }
}

/// A session, in a request of its page.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) viewer: Arc<Viewer>,
    id: Hash,
}

/// The open sessions.
pub(super) struct Sessions {
    cookie: String,
    attributes: String,
    open: Mutex<HashMap<Hash, Entry>>,
}

struct Entry {
    viewer: Arc<Viewer>,
    credential: Hash,
    used: Instant,
}

impl Sessions {
    /// Browsers do not keep cookies of two ports apart, so the cookies of two servers have two names.
    pub(super) fn new(base: &Base, secure: bool) -> Result<Arc<Self>, NoRandomness> {
        let number = secret()?;
        let cookie = format!("leno-dashboard-{}", number.get(..8).unwrap_or_default());
        let secure = if secure { "; Secure" } else { "" };
        let attributes = format!("; Path={base}; HttpOnly; SameSite=Strict{secure}");
        Ok(Arc::new(Self { cookie, attributes, open: Mutex::default() }))
    }

    /// Begins a session of a credential. `source` answers it, unless another session of the credential
    /// has a source. Returns the value of `set-cookie`.
    pub(super) fn begin(self: &Arc<Self>, credential: &str, source: Arc<dyn Source>) -> Result<String, WebError> {
        let value = secret().map_err(|_| WebError::TooMany("the system has no random bytes for a session"))?;
        let (id, credential) = (hash(&value), hash(credential));
        let mut open = self.lock();
        open.retain(|_, entry| entry.goes_on());
        let viewer = open.values().find(|entry| entry.credential == credential).map(|entry| entry.viewer.clone());
        let viewer = viewer.unwrap_or_else(|| {
            let rights = source.rights_of_answers();
            let mut others = open.values().map(|entry| &entry.viewer);
            let other = others.find(|other| rights.is_some() && other.source.rights_of_answers() == rights);
            let answers = other.map(|other| other.answers.clone()).unwrap_or_default();
            Arc::new(Viewer::new(source, answers))
        });
        end_beyond(&mut open, OF_CREDENTIAL, |entry| entry.credential == credential);
        end_beyond(&mut open, OF_TENANT, |entry| entry.viewer.tenant == viewer.tenant);
        end_beyond(&mut open, SESSIONS, |_| true);
        open.insert(id, Entry { viewer: viewer.clone(), credential, used: Instant::now() });
        drop(open);
        tokio::spawn(self.clone().watch(id));
        Ok(format!("{}={value}{}", self.cookie, self.attributes))
    }

    /// The session of a request.
    pub(super) fn find(&self, headers: &HeaderMap) -> Option<Session> {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let cookies = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let mut open = self.lock();
        cookies.filter(|(name, _)| *name == self.cookie).find_map(|(_, value)| {
            let id = hash(value);
            let entry = open.get_mut(&id).filter(|entry| entry.goes_on())?;
            entry.used = Instant::now();
            Some(Session { viewer: entry.viewer.clone(), id })
        })
    }

    /// Whether a session goes on. A stream uses its session.
    pub(super) fn goes_on(&self, session: &Session) -> bool {
        let mut open = self.lock();
        let entry = open.get_mut(&session.id).filter(|entry| entry.goes_on());
        entry.map(|entry| entry.used = Instant::now()).is_some()
    }

    /// Frees the memory of a session: all of it at its end, and the answers of an unused one.
    async fn watch(self: Arc<Self>, id: Hash) {
        loop {
            sleep(WATCH).await;
            let viewer = {
                let mut open = self.lock();
                if open.get(&id).is_some_and(|entry| !entry.goes_on()) {
                    open.remove(&id);
                }
                open.get(&id).map(|entry| entry.viewer.clone())
            };
            let Some(viewer) = viewer else { return };
            viewer.forget_unused().await;
        }
    }

    /// Ends a session. Returns the value of `set-cookie` that removes the cookie.
    pub(super) fn end(&self, session: &Session) -> String {
        self.lock().remove(&session.id);
        format!("{}=; Max-Age=0{}", self.cookie, self.attributes)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Hash, Entry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes room for another one of the sessions that count among so many: the one that is idle longest
/// ends, of the tenant with the most.
fn end_beyond(open: &mut HashMap<Hash, Entry>, most: usize, counts: impl Fn(&Entry) -> bool) {
    let entries = open.iter().filter(|(_, entry)| counts(entry));
    if entries.clone().count() >= most
        && let Some((id, _)) = largest_share(entries.map(|(id, entry)| (*id, &*entry.viewer.tenant, entry.used)))
    {
        open.remove(&id);
    }
}

impl Entry {
    /// Whether it is not idle for too long, and its credential is valid.
    fn goes_on(&self) -> bool {
        self.used.elapsed() < IDLE && self.viewer.source.is_valid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceKind;
    use async_trait::async_trait;
    use axum::body::Bytes;
    use axum::http::{Method, StatusCode};

    #[test]
    fn a_token_is_spent_by_its_bearer_alone() {
        let (token, text) = OneTimeToken::new().unwrap();
        assert_eq!(text.len(), 43, "256 bits");
        for wrong in ["", &text[1..], &format!("{text}A"), &text.to_lowercase()] {
            assert!(!token.spend(wrong), "{wrong}");
        }
        assert!(token.spend(&text) && !token.spend(&text));
    }

    /// The bearer of a tenant's token.
    struct Bearer(&'static str);

    #[async_trait]
    impl Source for Bearer {
        fn kind(&self) -> SourceKind {
            SourceKind::ControlPlane
        }

        fn name(&self) -> String {
            "the test".to_owned()
        }

        fn tenant(&self) -> String {
            self.0.to_owned()
        }

        async fn exchange(&self, _: Method, _: &str, _: Bytes) -> Result<(StatusCode, Bytes), String> {
            Err("there is no answer".to_owned())
        }
    }

    struct Server(Arc<Sessions>);

    impl Server {
        fn new() -> Self {
            Self(Sessions::new(&"/".parse().unwrap(), false).unwrap())
        }

        /// Begins a session, and returns its cookie.
        fn sign_in(&self, tenant: &'static str, token: usize) -> HeaderMap {
            let cookie = self.0.begin(&format!("{tenant} {token}"), Arc::new(Bearer(tenant))).unwrap();
            HeaderMap::from_iter([(COOKIE, cookie.parse().unwrap())])
        }

        fn knows(&self, cookie: &HeaderMap) -> bool {
            self.0.find(cookie).is_some()
        }
    }

    #[tokio::test]
    async fn the_tokens_of_one_tenant_take_its_share_alone() {
        let server = Server::new();
        let admin = server.sign_in("token 1", 0);
        let sessions: Vec<_> = (0..SESSIONS).map(|token| server.sign_in("a", token)).collect();
        let (ended, open) = sessions.split_at(SESSIONS - OF_TENANT);
        assert!(server.knows(&admin) && open.iter().all(|cookie| server.knows(cookie)));
        assert!(!ended.iter().any(|cookie| server.knows(cookie)));
    }

    #[tokio::test]
    async fn everyone_gets_in_if_there_are_too_many_sessions() {
        const TENANTS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        let server = Server::new();
        let few = server.sign_in("few", 0);
        let many: Vec<_> =
            TENANTS.iter().flat_map(|tenant| (0..OF_TENANT).map(|token| server.sign_in(tenant, token))).collect();
        assert_eq!(server.0.lock().len(), SESSIONS);
        let admin = server.sign_in("token 1", 0);
        assert!(server.knows(&admin) && server.knows(&few), "the smallest shares stay");
        assert_eq!(server.0.lock().len(), SESSIONS);
        assert!(!server.knows(&many[0]) && server.knows(&many[many.len() - 1]));
    }

    #[test]
    fn an_old_token_is_not_valid() {
        let (token, text) = OneTimeToken::new().unwrap();
        // A machine that has just started has no earlier time.
        let Some(made) = Instant::now().checked_sub(ONE_TIME) else { return };
        token.0.lock().unwrap().as_mut().unwrap().1 = made;
        assert!(!token.spend(&text));
    }
}
