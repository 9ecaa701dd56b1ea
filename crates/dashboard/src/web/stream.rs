//! Streams of server-sent events.

use super::Dashboard;
use super::answers::{checked_function, checked_window};
use super::error::WebError;
use super::sessions::Session;
use crate::filter::FlowFilter;
use crate::source::Failure;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use futures_util::stream::poll_fn;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Events that wait for a slow reader, and how long one may wait.
const WAITING: usize = 8;
const SLOWEST: Duration = Duration::from_secs(30);
/// Pause between two events of a topic.
const GRAPH: Duration = Duration::from_secs(2);
const ALERTS: Duration = Duration::from_secs(5);
const LOGS: Duration = Duration::from_secs(1);
/// Pause after a failure.
const AGAIN: Duration = Duration::from_secs(2);
/// Interval of checks whether the session goes on, and of comments that keep the connection open.
const SESSION: Duration = Duration::from_secs(1);
const COMMENT: Duration = Duration::from_secs(15);
/// Most functions whose output one stream has.
const MOST_LOGS: usize = 4;

const TOO_MANY: &str = "there are too many open pages; close one";

/// The topics of a stream, separated by commas.
#[derive(Deserialize)]
pub(super) struct Topics {
    topics: String,
}

/// A part of a stream.
enum Topic {
    /// The graph, with the traffic of so many seconds.
    Graph(u64),
    Flows,
    Alerts,
    /// The output of a function's instances.
    Logs(String),
}

/// The reader does not read.
struct SlowReader;

/// The open end of a stream.
struct Feed {
    session: Session,
    filter: FlowFilter,
    events: mpsc::Sender<Bytes>,
}

/// Sends events until the reader leaves or the session is over.
pub(super) async fn stream(
    State(dashboard): State<Arc<Dashboard>>,
    session: Session,
    topics: Result<Query<Topics>, QueryRejection>,
    filter: Result<Query<FlowFilter>, QueryRejection>,
) -> Result<Response, WebError> {
    let bad = |rejection: QueryRejection| WebError::Bad(rejection.body_text());
    let (Query(Topics { topics }), Query(filter)) = (topics.map_err(bad)?, filter.map_err(bad)?);
    let topics: Vec<Topic> = topics.split(',').map(Topic::read).collect::<Result<_, _>>()?;
    if topics.len() > MOST_LOGS + 3 {
        return Err(WebError::Bad(format!("a stream has at most {} topics", MOST_LOGS + 3)));
    }
    let permit = session.viewer.streams.clone().try_acquire_owned().ok();
    let place = permit.and_then(|permit| Some((permit, dashboard.streams.open(&session.viewer.tenant)?)));
    let (permit, mut place) = place.ok_or(WebError::TooMany(TOO_MANY))?;
    let (events, mut waiting) = mpsc::channel(WAITING);
    let feed = Feed { session, filter, events };
    tokio::spawn(async move {
        let _permit = permit;
        let topics = try_join_all(topics.iter().map(|topic| feed.follow(topic)));
        tokio::select! {
            _ = topics => {}
            _ = feed.comments() => {}
            () = feed.events.closed() => {}
            // A reader that does not read keeps nothing from others.
            () = place.lost() => drop(feed.events.try_send(problem(TOO_MANY))),
            () = feed.session_ends(&dashboard) => drop(feed.send("ended", "{}").await),
        }
    });
    let body = Body::from_stream(poll_fn(move |context| {
        waiting.poll_recv(context).map(|event| event.map(Ok::<_, Infallible>))
    }));
    Ok(([(CONTENT_TYPE, "text/event-stream")], body).into_response())
}

/// JSON in the order of the fields. It has no failing types.
fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// JSON has no line breaks outside of escapes, so it is one line of an event.
fn framed(event: &str, json: &str) -> Bytes {
    format!("event: {event}\ndata: {json}\n\n").into()
}

fn problem(error: &str) -> Bytes {
    framed("problem", &json!({ "error": error }).to_string())
}

impl Topic {
    /// `graph`, `graph:60`, `flows`, `alerts` or `logs:NAMESPACE/NAME`.
    fn read(text: &str) -> Result<Self, WebError> {
        let bad = || WebError::Bad(format!("`{}` is no topic", text.escape_debug()));
        match text.split_once(':').unwrap_or((text, "")) {
            ("graph", "") => Ok(Self::Graph(0)),
            ("graph", window) => Ok(Self::Graph(checked_window(window.parse().map_err(|_| bad())?)?)),
            ("flows", "") => Ok(Self::Flows),
            ("alerts", "") => Ok(Self::Alerts),
            ("logs", function) => {
                let (namespace, name) = function.split_once('/').ok_or_else(bad)?;
                checked_function(namespace, name).map(Self::Logs)
            }
            _ => Err(bad()),
        }
    }
}

impl Feed {
    async fn follow(&self, topic: &Topic) -> Result<(), SlowReader> {
        match topic {
            Topic::Graph(window) => self.graph(*window).await,
            Topic::Flows => self.flows().await,
            Topic::Alerts => self.alerts().await,
            Topic::Logs(function) => self.logs(function).await,
        }
    }

    async fn graph(&self, window: u64) -> Result<(), SlowReader> {
        loop {
            match self.session.viewer.graph(window).await {
                Ok(graph) => self.send("graph", &graph).await?,
                Err(failure) => self.fail(&failure).await?,
            }
            sleep(GRAPH).await;
        }
    }

    async fn flows(&self) -> Result<(), SlowReader> {
        let viewer = &self.session.viewer;
        let (log, mut position) = (viewer.follow(&self.filter), None);
        loop {
            match viewer.flows(&log, position).await {
                Ok((batch, next)) => {
                    if let Some(batch) = batch {
                        self.send("flows", &batch).await?;
                    }
                    position = Some(next);
                }
                Err(failure) => self.fail(&failure).await?,
            }
            sleep(viewer.flow_pause()).await;
        }
    }

    /// Alerts, each time that they change.
    async fn alerts(&self) -> Result<(), SlowReader> {
        let mut last = None;
        loop {
            match self.session.viewer.rows("alerts").await {
                Ok(rows) => {
                    if last.as_ref() != Some(&rows) {
                        self.send("alerts", &text(&rows)).await?;
                    }
                    last = Some(rows);
                }
                // A source without alerts gets none while the stream is open.
                Err(Failure::Refused { status: StatusCode::NOT_FOUND, .. }) => pending().await,
                Err(failure) => self.fail(&failure).await?,
            }
            sleep(ALERTS).await;
        }
    }

    async fn logs(&self, function: &str) -> Result<(), SlowReader> {
        let mut after: Option<String> = None;
        loop {
            match self.session.viewer.source.logs(function, after.as_deref()).await {
                Ok(mut page) => {
                    let is_empty = page["lines"].as_array().is_none_or(Vec::is_empty);
                    if after.is_none() || !is_empty || page["dropped"] != 0 {
                        page["function"] = function.into();
                        self.send("logs", &page.to_string()).await?;
                    }
                    after = page["after"].as_str().map(str::to_owned);
                    if page["more"] == true {
                        continue;
                    }
                }
                Err(failure) => self.fail(&failure).await?,
            }
            sleep(LOGS).await;
        }
    }

    async fn fail(&self, failure: &Failure) -> Result<(), SlowReader> {
        self.write(problem(&failure.to_string())).await?;
        sleep(AGAIN).await;
        Ok(())
    }

    async fn send(&self, event: &str, json: &str) -> Result<(), SlowReader> {
        self.write(framed(event, json)).await
    }

    async fn write(&self, event: Bytes) -> Result<(), SlowReader> {
        self.events.send_timeout(event, SLOWEST).await.map_err(|_| SlowReader)
    }

    async fn comments(&self) -> Result<Infallible, SlowReader> {
        loop {
            self.write(Bytes::from_static(b":\n\n")).await?;
            sleep(COMMENT).await;
        }
    }

    async fn session_ends(&self, dashboard: &Dashboard) {
        while dashboard.sessions.goes_on(&self.session) {
            sleep(SESSION).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_the_mesh_ends_its_event() {
        let hostile = json!({ "lines": ["a\n\nevent: ended\ndata: {}\r\r: x\u{0}"] });
        let line = text(&hostile);
        assert!(
            !line.contains(['\n', '\r', '\0']) && serde_json::from_str::<serde_json::Value>(&line).unwrap() == hostile
        );
    }

    #[test]
    fn topics_are_read_as_they_are_written() {
        for good in ["graph", "graph:60", "flows", "alerts", "logs:demo/shop"] {
            assert!(Topic::read(good).is_ok(), "{good}");
        }
        for bad in
            ["", "graph:61", "graph:x", "flows:1", "logs:demo", "logs:../shop", "logs:demo/a?tail=1", "logs:demo/a/b"]
        {
            assert!(matches!(Topic::read(bad), Err(WebError::Bad(_))), "{bad}");
        }
    }
}
