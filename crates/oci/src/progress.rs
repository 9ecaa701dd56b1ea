use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The progress of a pull. The caller that started the pull keeps a clone, and may look at it at
/// any time.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    layers: Vec<Arc<LayerProgress>>,
}

/// The progress of a pull at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The current stage.
    pub stage: Stage,
    /// Compressed bytes of layers that have arrived, including those that were there before.
    pub bytes: u64,
    /// Compressed bytes of all layers; 0 until the manifest is there.
    pub bytes_total: u64,
    /// Layers that are unpacked and verified.
    pub layers: usize,
    /// Layers of the image; 0 until the manifest is there.
    pub layers_total: usize,
}

/// A stage of a pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It fetches manifest and configuration.
    #[default]
    Manifest,
    /// It fetches, verifies and unpacks layers, all at once.
    Layers,
    /// It flushes the unpacked files to the disk.
    Sync,
    /// The image is in the store.
    Done,
}

/// One layer, which several pulls may wait for.
#[derive(Debug)]
pub(crate) struct LayerProgress {
    bytes: AtomicU64,
    total: u64,
    done: AtomicBool,
}

impl LayerProgress {
    pub(crate) fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(0), total, done: AtomicBool::new(false) })
    }

    /// Sets the number of bytes that have arrived. It falls if another source starts from the
    /// beginning.
    pub(crate) fn at(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn done(&self) {
        self.at(self.total);
        self.done.store(true, Ordering::Relaxed);
    }
}

impl Progress {
    /// The progress now.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut snapshot = Snapshot { stage: state.stage, layers_total: state.layers.len(), ..Snapshot::default() };
        for layer in &state.layers {
            snapshot.bytes += layer.bytes.load(Ordering::Relaxed);
            snapshot.bytes_total += layer.total;
            snapshot.layers += usize::from(layer.done.load(Ordering::Relaxed));
        }
        snapshot
    }

    pub(crate) fn stage(&self, stage: Stage) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).stage = stage;
    }

    pub(crate) fn layers(&self, layers: Vec<Arc<LayerProgress>>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.stage, state.layers) = (Stage::Layers, layers);
    }
}
