//! One image pull to this node. It runs as its own task, so it continues when a waiter gives up.

use super::{ImageError, Images, Namer};
use backon::{BackoffBuilder, ExponentialBuilder};
use leno_namespaces::Namespace;
use leno_oci::{Image, Progress, Snapshot, Stage};
use leno_supervisor::{ImageLease, ImageSource, ImageState, ImageUnavailable, LocalImage, PullProgress};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval_at, sleep};

/// Interval between log messages about the progress of a pull.
const TELL: Duration = Duration::from_secs(5);
/// Longest pause between tries ahead of the first start, before jitter.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Jitter adds up to the same time again, so that nodes do not contact a registry at the same
/// moment.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(LONGEST_PAUSE)
    .with_factor(2.0)
    .with_jitter()
    .without_max_times();

/// A pull of an image, under way or complete. While this exists, the image stays on the disk.
pub(super) struct Pull {
    inner: Arc<Inner>,
    task: Mutex<Option<AbortHandle>>,
}

struct Inner {
    images: Arc<Images>,
    share: Arc<Namespace>,
    image: String,
    digest: Option<String>,
    namer: Namer,
    state: watch::Sender<State>,
    /// The pull is retried although no request waits for it.
    ahead: AtomicBool,
    /// A request waits, so the next try is due.
    asked: Notify,
}

enum State {
    Absent,
    Pulling(Progress),
    /// With a description of the parts of the image that are left out.
    Here(LocalImage, Option<String>),
    Failed(String),
}

impl Pull {
    pub(super) fn new(
        images: Arc<Images>,
        (share, namer): (Arc<Namespace>, Namer),
        image: String,
        digest: Option<String>,
    ) -> Self {
        let state = watch::Sender::new(State::Absent);
        let (ahead, asked) = (AtomicBool::new(false), Notify::new());
        let inner = Inner { images, share, image, digest, namer, state, ahead, asked };
        Self { inner: Arc::new(inner), task: Mutex::default() }
    }

    /// Whether the image is on this node.
    pub(super) fn is_here(&self) -> bool {
        matches!(*self.inner.state.borrow(), State::Here(..))
    }

    /// Begins the pull, and retries it until the image is here.
    pub(super) fn begin_ahead(&self) {
        self.inner.ahead.store(true, Ordering::Relaxed);
        self.begin();
    }

    /// Begins the pull, unless that is under way or done.
    fn begin(&self) {
        let begins = self.inner.state.send_if_modified(|state| match state {
            State::Absent | State::Failed(_) => {
                *state = State::Pulling(Progress::default());
                true
            }
            State::Pulling(_) | State::Here(..) => false,
        });
        if !begins {
            return;
        }
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        match &*task {
            Some(_) => self.inner.asked.notify_one(),
            None => *task = Some(tokio::spawn(self.inner.clone().run()).abort_handle()),
        }
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        if let Some(task) = &*self.task.lock().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

impl ImageSource for Pull {
    fn image(&self) -> Pin<Box<dyn Future<Output = Result<LocalImage, ImageUnavailable>> + Send + '_>> {
        Box::pin(async {
            self.begin();
            let mut state = self.inner.state.subscribe();
            let ended = state.wait_for(|state| matches!(state, State::Here(..) | State::Failed(_))).await;
            match ended.as_deref() {
                Ok(State::Here(unpacked, _)) => Ok(unpacked.clone()),
                Ok(State::Failed(reason)) => Err(ImageUnavailable::Pull(reason.clone())),
                Ok(State::Absent | State::Pulling(_)) | Err(_) => Err(ImageUnavailable::Stopping),
            }
        })
    }

    fn state(&self) -> ImageState {
        match &*self.inner.state.borrow() {
            State::Absent => ImageState::Elsewhere,
            State::Pulling(progress) => {
                let now @ Snapshot { bytes, bytes_total, .. } = progress.snapshot();
                ImageState::Pulling(PullProgress { words: words(now), bytes, bytes_total })
            }
            State::Here(_, omitted) => ImageState::Here(omitted.clone()),
            State::Failed(reason) => ImageState::Failed(reason.clone()),
        }
    }
}

impl Inner {
    /// Retries until the image is here.
    async fn run(self: Arc<Self>) {
        let mut pauses = PAUSES.build();
        loop {
            let progress = Progress::default();
            self.state.send_replace(State::Pulling(progress.clone()));
            let begin = Instant::now();
            match self.try_once(&progress).await {
                Ok(image) => {
                    let (bytes, milliseconds) = (image.bytes(), begin.elapsed().as_millis());
                    tracing::info!(image = self.image, digest = %image.digest(), bytes, milliseconds, "the image is here");
                    let omitted = Some(image.omissions()).filter(|omitted| !omitted.is_empty());
                    let omitted = omitted.map(|omitted| format!("left out of the image: {omitted}"));
                    if let Some(omitted) = &omitted {
                        tracing::warn!(image = self.image, "{omitted}");
                    }
                    self.state.send_replace(State::Here(unpacked(image), omitted));
                    return;
                }
                Err(error) => {
                    tracing::warn!(image = self.image, "the image is not here: {error}");
                    self.state.send_replace(State::Failed(error.to_string()));
                }
            }
            let pause = pauses.next().unwrap_or(LONGEST_PAUSE);
            tokio::select! {
                () = sleep(pause), if self.ahead.load(Ordering::Relaxed) => {}
                () = self.asked.notified() => {}
            }
        }
    }

    async fn try_once(&self, progress: &Progress) -> Result<Image, ImageError> {
        let mut tell = interval_at(Instant::now() + TELL, TELL);
        let whose = (&self.share, &self.namer);
        let mut pull = pin!(self.images.bring(whose, &self.image, self.digest.as_deref(), progress));
        loop {
            tokio::select! {
                pulled = &mut pull => return pulled,
                _ = tell.tick() => tracing::info!(image = self.image, "pulling: {}", words(progress.snapshot())),
            }
        }
    }
}

/// The image in the form that a jail takes. It is also its own lease.
fn unpacked(image: Image) -> LocalImage {
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let of_jail = leno_jail::Image {
        layers: image.layers(),
        user: text(image.user()),
        environment: image.env().to_vec(),
        entrypoint: image.entrypoint().to_vec(),
        command: image.cmd().to_vec(),
        directory: text(image.working_dir()),
        stop_signal: text(image.stop_signal()),
    };
    LocalImage { image: of_jail, lease: ImageLease::new(image) }
}

/// `34/200 MiB`
fn words(now: Snapshot) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match now.stage {
        Stage::Manifest => "asking the registry".to_owned(),
        Stage::Layers if now.bytes_total < MIB => {
            format!("{}/{} KiB", now.bytes / KIB, now.bytes_total.div_ceil(KIB))
        }
        Stage::Layers => format!("{}/{} MiB", now.bytes / MIB, now.bytes_total.div_ceil(MIB)),
        Stage::Sync | Stage::Done => "writing it to the disk".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_in_units_that_fit() {
        let at = |stage, bytes, bytes_total| words(Snapshot { stage, bytes, bytes_total, ..Snapshot::default() });
        assert_eq!(at(Stage::Manifest, 0, 0), "asking the registry");
        assert_eq!(at(Stage::Layers, 35 << 20, (199 << 20) + 1), "35/200 MiB");
        assert_eq!(at(Stage::Layers, 1500, 2500), "1/3 KiB");
        assert_eq!(at(Stage::Sync, 1, 1), "writing it to the disk");
    }
}
