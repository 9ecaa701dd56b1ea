//! Takes completed records of a worker into a queue, and passes them to metrics, access log, spans
//! and ring.
//!
//! That happens after the turn of the task that ended an exchange, because this task has a response
//! to send.

use super::exchange::ExchangeRecord;
use super::{Telemetry, access_log, metrics, ring, span};
use leno_runtime::schedule;
use std::cell::{OnceCell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Where the records of one worker go. It has its own shard of each sink, so that workers do not
/// wait for each other.
#[derive(Debug)]
pub struct Recorder {
    metrics: Arc<metrics::Shard>,
    ring: Arc<ring::Shard>,
    log: Option<access_log::Lines>,
    spans: Option<span::Sender>,
    /// Completed exchanges that are not reported yet.
    completed: RefCell<Vec<ExchangeRecord>>,
    /// Waker of the task that reports. Without it, records are reported at once.
    reporter_waker: RefCell<Option<Waker>>,
    task: OnceCell<schedule::OwnedTask>,
}

impl Recorder {
    /// The recorder of one worker. Create it inside [`schedule::run`]; elsewhere it reports records
    /// at once.
    pub fn new(telemetry: &Telemetry) -> Rc<Self> {
        let recorder = Rc::new(Self {
            metrics: telemetry.metrics.shard(),
            ring: telemetry.ring.shard(),
            log: telemetry.log.as_ref().map(|log| log.lines(&telemetry.namespaces)),
            spans: telemetry.spans.as_ref().map(span::Spans::sender),
            completed: RefCell::default(),
            reporter_waker: RefCell::default(),
            task: OnceCell::new(),
        });
        let mut report_task = ReportTask(Rc::downgrade(&recorder));
        if let Some(task) = schedule::spawn_own(poll_fn(move |cx| report_task.poll(cx))) {
            let _ = recorder.task.set(task);
        }
        recorder
    }

    /// This worker's metrics.
    #[inline]
    pub fn metrics(&self) -> &metrics::Shard {
        &self.metrics
    }

    /// Takes a completed record.
    pub fn finish(&self, observed: ExchangeRecord) {
        self.completed.borrow_mut().push(observed);
        match &*self.reporter_waker.borrow() {
            Some(reporter_waker) => reporter_waker.wake_by_ref(),
            None => self.report_all(),
        }
    }

    fn report_all(&self) {
        // Taken out first, so that nothing is borrowed while the code of other modules runs.
        let mut completed = self.completed.take();
        completed.drain(..).for_each(|observed| self.report(&observed));
        if self.completed.borrow().is_empty() {
            self.completed.replace(completed);
        }
    }

    fn report(&self, observed: &ExchangeRecord) {
        self.metrics.observe(observed);
        if let Some(stats) = observed.revision.as_ref().and_then(|revision| revision.stats.get()) {
            stats.count(observed.status, observed.grpc_status, observed.flag, observed.upstream_time());
        }
        if let Some(lines) = &self.log {
            lines.write(observed);
        }
        if let Some(spans) = &self.spans {
            spans.send(observed);
        }
        self.ring.push(observed);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.report_all();
    }
}

/// The task that reports, as long as its worker runs tasks.
struct ReportTask(Weak<Recorder>);

impl ReportTask {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        let Some(recorder) = self.0.upgrade() else { return Poll::Ready(()) };
        recorder.reporter_waker.borrow_mut().get_or_insert_with(|| cx.waker().clone());
        recorder.report_all();
        Poll::Pending
    }
}

impl Drop for ReportTask {
    fn drop(&mut self) {
        if let Some(recorder) = self.0.upgrade() {
            recorder.reporter_waker.take();
            recorder.report_all();
        }
    }
}
