//! Settings of the server, as data.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use scheduler::Pooling;
use text::sample::SamplerConfig;

/// Receives one line of the log, without a line break.
pub type LogSink = Arc<dyn Fn(&str) + Send + Sync>;

/// Where the server listens, who may use it, and its limits.
#[derive(Clone)]
pub struct Config {
    /// The address that the server listens on.
    pub address: Address,
    /// Certificate and key for TLS; `None` for plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Accepted API keys; empty accepts every request.
    pub keys: Vec<String>,
    /// Other origins whose web pages may use the server.
    pub cors: Cors,
    /// Names of the model in responses and in `/v1/models`. The first one is its id. If empty, the
    /// file's name is used.
    pub aliases: Vec<String>,
    /// Tags of the model in `/v1/models`.
    pub tags: Vec<String>,
    /// Limits on requests and connections.
    pub limits: Limits,
    /// Optional endpoints.
    pub endpoints: Endpoints,
    /// How requests are logged.
    pub log: LogOptions,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never print API keys.
        let Config { address, limits, endpoints, .. } = self;
        let mut out = f.debug_struct("Config");
        out.field("address", address).field("limits", limits).field("endpoints", endpoints);
        out.finish_non_exhaustive()
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            address: Address::Tcp { host: "127.0.0.1".to_owned(), port: 8080 },
            tls: None,
            keys: Vec::new(),
            cors: Cors::Off,
            aliases: Vec::new(),
            tags: Vec::new(),
            limits: Limits::default(),
            endpoints: Endpoints::default(),
            log: LogOptions { format: LogFormat::Text, verbose: false, sink: Arc::new(|_| {}) },
        }
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP port; port 0 takes a free one.
    Tcp {
        /// Host names or IP addresses, separated by commas.
        host: String,
        /// The port.
        port: u16,
    },
    /// A UNIX socket at this path. A socket without a listener is replaced.
    Unix(PathBuf),
}

/// PEM files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, with the chain after it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The origins whose web pages may send requests (CORS).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cors {
    /// Only the server's own page.
    Off,
    /// Pages served by this machine: `localhost`, `127.0.0.1` and `[::1]` on any port.
    Localhost,
    /// Any page.
    Any,
    /// These origins, such as `https://example.org`.
    Origins(Vec<String>),
}

/// Limits of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a request body, in bytes.
    pub max_body: usize,
    /// Time limit for receiving the body, and for completing the response.
    pub timeout: Duration,
    /// Maximum number of tokens of one answer; `None`: limited only by the context.
    pub n_predict: Option<usize>,
    /// Maximum number of choices of one request.
    pub n_choices: usize,
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Time that open requests get to finish when the server stops. [`crate::ServedModel::stop`] with the same time ends
    /// the others, whose clients then get an error.
    pub grace_period: Duration,
    /// Time without an event after which a stream sends a comment, so that proxies keep the
    /// connection open.
    pub keep_alive: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_body: 16 << 20,
            timeout: Duration::from_secs(600),
            n_predict: None,
            n_choices: 128,
            max_connections: 512,
            grace_period: Duration::from_secs(10),
            keep_alive: Duration::from_secs(15),
        }
    }
}

/// Endpoints that can be turned on and off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// `GET /metrics`.
    pub metrics: bool,
    /// `GET /slots`.
    pub slots: bool,
    /// `POST /props`.
    pub props: bool,
    /// The page at `/`.
    pub page: bool,
}

impl Default for Endpoints {
    fn default() -> Endpoints {
        Endpoints { metrics: false, slots: true, props: false, page: true }
    }
}

/// How requests are logged.
#[derive(Clone)]
pub struct LogOptions {
    /// Text or JSON.
    pub format: LogFormat,
    /// Also log unknown fields of requests, by name.
    pub verbose: bool,
    /// Receives the lines.
    pub sink: LogSink,
}

impl std::fmt::Debug for LogOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LogOptions { format, verbose, .. } = self;
        let mut out = f.debug_struct("LogOptions");
        out.field("format", format).field("verbose", verbose).finish_non_exhaustive()
    }
}

/// Format of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Values of settings that a request does not set.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// The sampler.
    pub sampler: SamplerConfig,
    /// Maximum number of generated tokens; `None`: limited only by the context.
    pub n_predict: Option<usize>,
    /// Continue after end-of-generation tokens.
    pub ignore_eos: bool,
    /// Stop strings, in addition to those of a request.
    pub stops: Vec<String>,
    /// Show special tokens.
    pub special: bool,
    /// Separate reasoning from the answer.
    pub splits_reasoning: bool,
    /// How embeddings are pooled; `None` for the model's default.
    pub pooling: Option<Pooling>,
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults {
            sampler: SamplerConfig::default(),
            n_predict: None,
            ignore_eos: false,
            stops: Vec::new(),
            special: false,
            splits_reasoning: true,
            pooling: None,
        }
    }
}
