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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use clock::timestamp;
pub use config::{
    Address, Config, Cors, Defaults, Endpoints, Limits, LogFormat, LogOptions, LogSink, TlsFiles,
};
pub use served::ServedModel;

use listen::{Listener, Tls};
use state::{App, State};

/// Threads for [`limits::blocking`]. They wait for templates, tokenizers and slot files, not for models.
const MAX_BLOCKING_THREADS: usize = 64;

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
        let runtime = runtime().map_err(Error::Serve)?;
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

/// The runtime of the HTTP server. The thread that calls it answers, which is enough, because the
/// model and [`limits::blocking`] have threads of their own.
///
/// tokio panics if the system refuses the first thread for blocking tasks, so that one starts here
/// and stays. If the system refuses further ones, the tasks wait for those that it has started.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().thread_name("http").max_blocking_threads(MAX_BLOCKING_THREADS);
    let runtime = builder.thread_keep_alive(std::time::Duration::MAX).build()?;
    // The standard library reports as an error what tokio panics at.
    drop(std::thread::Builder::new().spawn(|| ())?.join());
    let first = AssertUnwindSafe(|| drop(runtime.spawn_blocking(|| ())));
    catch_unwind(first).map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
    Ok(runtime)
}
