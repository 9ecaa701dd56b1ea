//! Watches of the objects of a kind.
//!
//! `kube::runtime::watcher` is not used: it neither falls back to paged lists where the API server
//! refuses streaming ones, nor lists again after an HTTP answer of 410, nor says when it begins a
//! streaming list anew, and one object that it cannot decode fails a whole page.

use crate::api::backoff::Backoff;
use crate::api::object::{BrokenObject, Change, Kind, Object};
use crate::api::wire::{self, Event, MetadataOnly};
use futures_util::future::BoxFuture;
use futures_util::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use kube::api::{GetParams, ListParams, WatchParams};
use kube::core::Request;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

/// How long the API server is asked to keep a watch open; the watch then resumes. Each watch takes
/// a random time from this range, so that not all of them resume at once.
const WATCH_SECONDS: std::ops::Range<u32> = 240..290;
/// Silence after which the connection of a watch counts as lost, and the watch resumes on another
/// one. The API server sends a bookmark about once a minute.
const SILENCE: Duration = Duration::from_secs(80);
/// How long the API server has to begin an answer, and to send a page.
const ANSWER: Duration = Duration::from_secs(60);
/// A watch that lasted so long resumes without a delay.
const STABLE: Duration = Duration::from_secs(1);
/// How often an absent kind is asked for, should its definition not be visible.
const ABSENT: Duration = Duration::from_secs(60);
/// Objects of a page.
const PAGE: u32 = 500;
/// Bytes of one event or page. The API server itself takes no object above 3 MiB.
const MAX_EVENT: u64 = 16 << 20;
const MAX_PAGE: u64 = 512 << 20;

const DEFINITIONS: Kind = Kind {
    group: "apiextensions.k8s.io",
    version: "v1",
    plural: "customresourcedefinitions",
    name: "CustomResourceDefinition",
};

/// The API server of a cluster.
#[derive(Clone)]
pub struct ApiServer {
    client: kube::Client,
    /// It has refused a streaming list, and has answered a paged one.
    pages_only: Arc<AtomicBool>,
}

/// The objects to watch.
#[derive(Clone, Debug)]
pub struct Watch {
    kind: Kind,
    fields: Option<String>,
    metadata_only: bool,
    silence: Duration,
}

impl Watch {
    /// All objects of a kind, in all namespaces.
    pub fn all(kind: Kind) -> Self {
        Self { kind, fields: None, metadata_only: false, silence: SILENCE }
    }

    /// Only objects whose fields match a selector, such as `metadata.name=leno`.
    #[must_use]
    pub fn with_fields(self, selector: impl Into<String>) -> Self {
        Self { fields: Some(selector.into()), ..self }
    }

    /// The API server sends the metadata of the objects, and nothing else.
    #[must_use]
    pub fn metadata_only(self) -> Self {
        Self { metadata_only: true, ..self }
    }

    /// The connection counts as lost after this silence.
    #[must_use]
    pub fn with_silence(self, silence: Duration) -> Self {
        Self { silence, ..self }
    }
}

/// Counts of a watch since its start.
#[derive(Debug, Default)]
pub struct WatchCounts {
    /// Complete lists.
    pub lists: AtomicU64,
    /// Complete lists after the first: the API server no longer had the version at which the watch
    /// had ended.
    pub relists: AtomicU64,
    /// Watches that went on from the last version.
    pub resumed: AtomicU64,
    /// Objects and removals, without those of lists.
    pub events: AtomicU64,
    /// Objects that could not be decoded.
    pub broken: AtomicU64,
}

impl ApiServer {
    /// The API server that a client asks.
    pub fn new(client: kube::Client) -> Self {
        Self { client, pages_only: Arc::default() }
    }

    /// The client.
    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// Watches objects until the future is dropped. `sink` takes each change, and `Replaced` first:
    /// as an empty list while the kind is not defined.
    pub async fn watch<K: Object>(
        &self,
        watch: &Watch,
        counts: &WatchCounts,
        sink: impl FnMut(Change<K>) + Send,
    ) -> Infallible {
        Watcher { server: self, watch, counts, sink, version: None, progress: false, kind: std::marker::PhantomData }
            .run()
            .await
    }

    /// Whether a kind is not defined. A kind of the core group always is.
    async fn is_absent(&self, kind: Kind) -> Result<bool, kube::Error> {
        if kind.group.is_empty() || kind == DEFINITIONS {
            return Ok(false);
        }
        let request = Request::new(DEFINITIONS.path()).get_metadata(&kind.definition(), &GetParams::default());
        match self.client.request_text(request.map_err(kube::Error::BuildRequest)?).await {
            Ok(_) => Ok(false),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Waits until a kind may be defined.
    fn appearance(&self, kind: Kind) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let changed = Notify::new();
            let watch =
                Watch::all(DEFINITIONS).with_fields(format!("metadata.name={}", kind.definition())).metadata_only();
            let counts = WatchCounts::default();
            let definition = self.watch::<MetadataOnly>(&watch, &counts, |change| match change {
                Change::Replaced { objects, .. } if objects.is_empty() => {}
                Change::Gone(_) => {}
                Change::Replaced { .. } | Change::Put(_) | Change::Broken(_) => changed.notify_one(),
            });
            tokio::select! {
                never = definition => match never {},
                () = changed.notified() => {}
                () = sleep(ABSENT.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
            }
        })
    }
}

/// The end of a list or watch.
#[derive(Debug)]
enum End {
    /// The watch has to resume.
    Closed,
    /// The API server no longer has the version.
    Expired(String),
    /// The path of the kind is not served.
    NotFound(String),
    /// The API server does not stream lists.
    PagesOnly(String),
    /// Any other failure, and the least time until the next attempt.
    Failed(String, Duration),
}

impl End {
    fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into(), Duration::ZERO)
    }

    fn of_code(code: u16, message: String) -> Self {
        match code {
            404 => Self::NotFound(message),
            410 => Self::Expired(message),
            _ => Self::Failed(format!("{message} ({code})"), Duration::ZERO),
        }
    }

    /// The end of a request for a streaming list. Servers that lack a part of streaming lists
    /// answer 400, 422 or 500; a paged list then tells whether that was the reason.
    fn of_initial(code: u16, message: String) -> Self {
        if matches!(code, 400 | 422 | 500 | 501) { Self::PagesOnly(message) } else { Self::of_code(code, message) }
    }
}

impl From<kube::Error> for End {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let wait = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                match Self::of_code(status.code, status.message) {
                    Self::Failed(message, _) => Self::Failed(message, Duration::from_secs(u64::from(wait.min(60)))),
                    end => end,
                }
            }
            error => Self::failed(error.to_string()),
        }
    }
}

struct Watcher<'a, K, S> {
    server: &'a ApiServer,
    watch: &'a Watch,
    counts: &'a WatchCounts,
    sink: S,
    /// The version at which the watch resumes; `None`: a list has to come first.
    version: Option<String>,
    /// Something has arrived since the last end.
    progress: bool,
    kind: std::marker::PhantomData<fn(K)>,
}

impl<K: Object, S: FnMut(Change<K>) + Send> Watcher<'_, K, S> {
    async fn run(&mut self) -> Infallible {
        let name = self.watch.kind.name;
        let mut backoff = Backoff::new();
        loop {
            let begun = Instant::now();
            let end = match self.attempt().await {
                Ok(()) => End::Closed,
                Err(end) => end,
            };
            let stable = begun.elapsed() >= STABLE;
            if stable || std::mem::take(&mut self.progress) {
                backoff.reset();
            }
            match end {
                End::Closed if stable => continue,
                End::Closed => sleep(backoff.delay()).await,
                End::Expired(message) => {
                    info!("{name}: the API server no longer has the version of the watch, list again: {message}");
                    self.version = None;
                    sleep(backoff.delay()).await;
                }
                End::NotFound(message) => match self.server.is_absent(self.watch.kind).await {
                    Ok(true) => {
                        info!("{name}: not defined, wait for {}", self.watch.kind.definition());
                        (self.sink)(Change::Replaced { objects: Vec::new(), broken: Vec::new() });
                        self.version = None;
                        self.server.appearance(self.watch.kind).await;
                        sleep(backoff.delay()).await;
                    }
                    Ok(false) => {
                        warn!("{name}: defined, but not served: {message}");
                        sleep(backoff.delay()).await;
                    }
                    Err(error) => {
                        warn!("{name}: not served ({message}), and its definition cannot be read: {error}");
                        sleep(backoff.delay()).await;
                    }
                },
                End::PagesOnly(message) => {
                    warn!("{name}: {message}");
                    sleep(backoff.delay()).await;
                }
                End::Failed(message, least) => {
                    warn!("{name}: {message}");
                    sleep(backoff.delay().max(least)).await;
                }
            }
        }
    }

    /// Lists if there is no version, and watches until the watch ends.
    async fn attempt(&mut self) -> Result<(), End> {
        if let Some(version) = self.version.clone() {
            let events = self.open(&version, false).await?;
            self.counts.resumed.fetch_add(1, Ordering::Relaxed);
            return self.follow(events).await;
        }
        if !self.server.pages_only.load(Ordering::Relaxed) {
            match self.list_stream().await {
                Err(End::PagesOnly(message)) => {
                    self.list_pages().await?;
                    info!("the API server does not stream lists, list pages instead: {message}");
                    self.server.pages_only.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                end => return end,
            }
        }
        self.list_pages().await
    }

    async fn open(&self, version: &str, initial: bool) -> Result<impl AsyncBufRead + Unpin + use<K, S>, End> {
        let parameters = WatchParams {
            field_selector: self.watch.fields.clone(),
            timeout: Some(fastrand::u32(WATCH_SECONDS)),
            send_initial_events: initial,
            ..WatchParams::default()
        };
        let request = Request::new(self.watch.kind.path());
        let request = if self.watch.metadata_only {
            request.watch_metadata(&parameters, version)
        } else {
            request.watch(&parameters, version)
        };
        let request = request.map_err(|error| End::failed(error.to_string()))?;
        match timeout(ANSWER, self.server.client.request_stream(request)).await {
            Ok(Ok(events)) => Ok(Box::pin(events)),
            Ok(Err(kube::Error::Api(status))) if initial => Err(End::of_initial(status.code, status.message)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(End::failed("no answer to a watch")),
        }
    }

    /// Lists as the beginning of a watch, and goes on with the watch.
    async fn list_stream(&mut self) -> Result<(), End> {
        // Without a version the list is as new as the API server's store: after a restart the
        // controller must not act on objects older than those it has acted on.
        let mut events = self.open("", true).await?;
        let (mut objects, mut broken) = (Vec::new(), Vec::new());
        let mut line = Vec::new();
        loop {
            match self.next(&mut events, &mut line).await? {
                None => return Err(End::failed("the connection ended within a list")),
                Some(Event::Put(object)) => objects.push(object),
                Some(Event::Broken(object, _)) => broken.push(self.report(object)),
                Some(Event::Gone(key, _)) => return Err(End::failed(format!("{key} went within a list"))),
                Some(Event::Failure(failure)) => return Err(End::of_initial(failure.code, failure.message)),
                Some(Event::Bookmark { ends_initial: false, .. }) => {}
                Some(Event::Bookmark { version, .. }) => {
                    self.replace(objects, broken, version)?;
                    return self.follow(events).await;
                }
            }
        }
    }

    async fn list_pages(&mut self) -> Result<(), End> {
        let (mut objects, mut broken) = (Vec::new(), Vec::new());
        let mut parameters =
            ListParams { field_selector: self.watch.fields.clone(), limit: Some(PAGE), ..ListParams::default() };
        loop {
            let request = Request::new(self.watch.kind.path());
            let request =
                if self.watch.metadata_only { request.list_metadata(&parameters) } else { request.list(&parameters) };
            let request = request.map_err(|error| End::failed(error.to_string()))?;
            let mut text = Vec::new();
            let answer = async {
                let body = Box::pin(self.server.client.request_stream(request).await?);
                body.take(MAX_PAGE).read_to_end(&mut text).await.map_err(kube::Error::ReadEvents)
            };
            timeout(ANSWER, answer).await.map_err(|_| End::failed("no answer to a list"))??;
            let page = wire::page(self.watch.kind, &text).map_err(|error| End::failed(format!("a list: {error}")))?;
            objects.extend(page.objects);
            broken.extend(page.broken.into_iter().map(|object| self.report(object)));
            if page.next.is_empty() {
                return self.replace(objects, broken, page.version);
            }
            parameters.continue_token = Some(page.next);
        }
    }

    fn replace(&mut self, objects: Vec<K>, broken: Vec<BrokenObject>, version: String) -> Result<(), End> {
        self.advance(version)?;
        if self.counts.lists.fetch_add(1, Ordering::Relaxed) > 0 {
            self.counts.relists.fetch_add(1, Ordering::Relaxed);
        }
        (self.sink)(Change::Replaced { objects, broken });
        Ok(())
    }

    /// Takes events until the watch ends.
    async fn follow(&mut self, mut events: impl AsyncBufRead + Send + Unpin) -> Result<(), End> {
        let mut line = Vec::new();
        loop {
            let Some(event) = self.next(&mut events, &mut line).await? else { return Ok(()) };
            let (version, change) = match event {
                Event::Put(object) => (object.metadata().resource_version.clone(), Change::Put(object)),
                Event::Broken(object, version) => (version, Change::Broken(self.report(object))),
                Event::Gone(key, version) => (version, Change::Gone(key)),
                Event::Failure(failure) => return Err(End::of_code(failure.code, failure.message)),
                Event::Bookmark { version, .. } => {
                    self.advance(version)?;
                    continue;
                }
            };
            // A version counts as seen only once the sink has the change.
            self.counts.events.fetch_add(1, Ordering::Relaxed);
            (self.sink)(change);
            self.advance(version)?;
        }
    }

    /// The next event; `None`: the connection ended.
    async fn next(
        &self,
        events: &mut (impl AsyncBufRead + Send + Unpin),
        line: &mut Vec<u8>,
    ) -> Result<Option<Event<K>>, End> {
        let (name, silence) = (self.watch.kind.name, self.watch.silence);
        line.clear();
        match timeout(silence, events.take(MAX_EVENT).read_until(b'\n', line)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                debug!("{name}: the connection of the watch broke: {error}");
                return Ok(None);
            }
            Err(_) => {
                debug!("{name}: the connection of the watch was silent for {silence:?}, and counts as lost");
                return Ok(None);
            }
        }
        match line.last() {
            Some(b'\n') => {}
            _ if line.len() as u64 == MAX_EVENT => {
                return Err(End::Expired(format!("an event of more than {MAX_EVENT} bytes")));
            }
            // The end, perhaps within a line.
            _ => return Ok(None),
        }
        // To resume would bring the same line again, so a list has to replace it.
        wire::event(self.watch.kind, line).map(Some).map_err(|error| End::Expired(format!("no event: {error}")))
    }

    fn advance(&mut self, version: String) -> Result<(), End> {
        if version.is_empty() {
            return Err(End::Expired("an event without metadata.resourceVersion".to_owned()));
        }
        self.progress = true;
        self.version = Some(version);
        Ok(())
    }

    fn report(&self, broken: BrokenObject) -> BrokenObject {
        self.counts.broken.fetch_add(1, Ordering::Relaxed);
        warn!("{broken}; an earlier version stays in force, if there is one");
        broken
    }
}
