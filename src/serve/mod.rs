//! An HTTP server for one loaded model, with the interfaces of OpenAI, Anthropic and llama-server.
//!
//! [`Server::bind`] listens at once; until [`Handle::ready`] hands over a model, requests are
//! answered with 503. Generations run in the `scheduler`, which batches them.
//!
//! This crate handles HTTP, requests and responses. The crates `scheduler` and `engine` compute;
//! the command line parses flags and prints.
//!
//! The modules: `listen` (sockets, TLS), `router` (routes, keys, log), `fields` and `params`
//! (fields of requests), `job` (generations of a request), `openai`, `anthropic`, `llama` (the
//! interfaces), `thermocline` and `page` (the live view).

mod access;
mod anthropic;
mod auth;
mod clock;
mod config;
mod cors;
mod error;
mod fields;
mod job;
mod json;
mod limits;
mod listen;
mod llama;
mod log;
mod messages;
mod metrics;
mod openai;
mod openapi;
mod page;
mod params;
mod prompts;
mod reply;
mod router;
mod served;
mod state;
mod stream;
mod structure;
mod thermocline;
mod tools;

use std::io;
use std::sync::Arc;

pub use config::{
    Address, Config, Cors, Defaults, Endpoints, Limits, LogFormat, LogOptions, LogSink, TlsFiles,
};
pub use served::ServedModel;

use listen::{Listener, Tls};
use state::{App, State};

/// Why a server cannot start or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be used.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        #[source]
        reason: io::Error,
    },
    /// A certificate or a key cannot be used.
    #[error("cannot use '{file}' for TLS: {reason}")]
    Tls {
        /// The file.
        file: String,
        /// The problem.
        reason: String,
    },
    /// Threads or sockets cannot be created.
    #[error("cannot create the server's threads or sockets")]
    Serve(#[source] io::Error),
}

/// A server that listens. It answers requests once [`Server::run`] is called.
pub struct Server {
    app: App,
    listener: Listener,
    tls: Option<Tls>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("urls", &self.urls()).finish_non_exhaustive()
    }
}

impl Server {
    /// Reads the certificate, if there is one, and listens.
    ///
    /// # Errors
    /// [`Error::Listen`], [`Error::Tls`].
    pub fn bind(config: Config) -> Result<Server, Error> {
        let tls = config.tls.as_ref().map(Tls::load).transpose()?;
        let listener = Listener::bind(&config.address).map_err(|reason| Error::Listen {
            address: match &config.address {
                Address::Tcp { host, port } => format!("{host}:{port}"),
                Address::Unix(path) => path.display().to_string(),
            },
            reason,
        })?;
        Ok(Server { app: Arc::new(State::new(config)), listener, tls })
    }

    /// The URLs of the server, such as `http://127.0.0.1:8080` or `unix:/run/thermocline.sock`.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.listener.urls(self.tls.is_some())
    }

    /// Whether other machines can connect.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.listener.is_public()
    }

    /// A handle to pass the model to the server and to stop it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle { app: Arc::clone(&self.app) }
    }

    /// Answers requests until [`Handle::stop`]. Open requests then get [`Limits::grace_period`] to
    /// finish.
    ///
    /// # Errors
    /// [`Error::Serve`].
    pub fn run(self) -> Result<(), Error> {
        // Two threads are enough, because the model runs on its own threads. tokio panics if the
        // system refuses one; this thread alone serves too.
        let mut runtime = if can_start_threads(4) {
            tokio::runtime::Builder::new_multi_thread()
        } else {
            tokio::runtime::Builder::new_current_thread()
        };
        let runtime = runtime.worker_threads(2).thread_name("http").enable_all().build();
        let runtime = runtime.map_err(Error::Serve)?;
        let Server { app, listener, tls } = self;
        let router = router::router(Arc::clone(&app));
        let serve = listen::serve(listener, tls, router, &app.config, app.stop.subscribe());
        let result = runtime.block_on(serve).map_err(Error::Serve);
        // Do not wait for blocked threads, such as one that renders a template.
        runtime.shutdown_background();
        result
    }
}

/// Controls a server from other threads.
#[derive(Clone)]
pub struct Handle {
    app: App,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Passes the loaded model to the server, which then answers requests.
    pub fn ready(&self, served: Arc<ServedModel>) {
        self.app.ready(served);
    }

    /// Reports that the model cannot be loaded. Requests fail with this reason.
    pub fn failed(&self, reason: &str) {
        self.app.failed(reason);
    }

    /// Stops the server: it accepts no further connections, and open requests get
    /// [`Limits::grace_period`] to finish.
    pub fn stop(&self) {
        self.app.stop.send_replace(true);
    }
}

/// Whether the system starts `n` more threads.
fn can_start_threads(n: usize) -> bool {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let start = |_| {
        let held = Arc::clone(&held);
        let wait = move || drop(held.lock().map(|held| held.recv()));
        std::thread::Builder::new().spawn(wait).ok()
    };
    let threads: Vec<_> = (0..n).map_while(start).collect();
    drop(hold);
    let n_started = threads.len();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    n_started == n
}
