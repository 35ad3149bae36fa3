//! State shared by all requests.

use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

use crate::auth::Keys;
use crate::config::Config;
use crate::error::{ApiError, Result};
use crate::metrics::Metrics;
use crate::served::ServedModel;

/// The shared state of a server. Clones are cheap and share the state.
pub(crate) type App = Arc<State>;

/// Settings, counters, and the model once it is loaded.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) keys: Keys,
    pub(crate) metrics: Metrics,
    /// When the server started, in seconds since 1970.
    pub(crate) started: u64,
    /// Becomes true when the server stops.
    pub(crate) stop: watch::Sender<bool>,
    phase: RwLock<Phase>,
}

#[derive(Debug)]
enum Phase {
    Loading,
    Ready(Arc<ServedModel>),
    Failed(String),
}

impl State {
    pub(crate) fn new(config: Config) -> State {
        State {
            keys: Keys::new(config.keys.clone()),
            config,
            metrics: Metrics::default(),
            started: crate::clock::unix_seconds(),
            stop: watch::Sender::new(false),
            phase: RwLock::new(Phase::Loading),
        }
    }

    /// The loaded model.
    ///
    /// # Errors
    /// 503 while the model loads; 500 if loading failed.
    pub(crate) fn served(&self) -> Result<Arc<ServedModel>> {
        match &*self.phase.read().unwrap_or_else(PoisonError::into_inner) {
            Phase::Ready(served) => Ok(Arc::clone(served)),
            Phase::Loading => Err(ApiError::loading()),
            Phase::Failed(reason) => {
                Err(ApiError::server(format!("the model cannot be loaded: {reason}")).no_retry())
            }
        }
    }

    fn set(&self, phase: Phase) {
        *self.phase.write().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    pub(crate) fn ready(&self, served: Arc<ServedModel>) {
        self.set(Phase::Ready(served));
    }

    pub(crate) fn failed(&self, reason: &str) {
        self.set(Phase::Failed(reason.to_owned()));
    }

    /// The id of the model: the first alias, else the name of its file.
    pub(crate) fn model_id<'a>(&'a self, served: &'a ServedModel) -> &'a str {
        self.config.aliases.first().map_or(&served.facts.name, |alias| alias)
    }
}
