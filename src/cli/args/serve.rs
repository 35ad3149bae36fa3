//! `thermocline serve`.

use super::{
    CommonArgs, Length, ModelArgs, SamplingArgs, TemplateArgs, boolish, choice::Choice,
    choice::choice, choice::one_of, run, whole,
};
use crate::cli::failure::{Exit, Failure};
use crate::cli::folders;
use crate::cli::parse;
use crate::cli::texts::read_text;
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, TypedValueParser};
use hal::Bytes;
use runtime::Options;
use scheduler::Pooling;
use serve::{Address, Config, Cors, Defaults, Endpoints, Limits, LogFormat, LogSink, TlsFiles};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum size of a file of API keys.
const MAX_KEYS: Bytes = Bytes(1 << 20);

/// Serve a model over HTTP.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServeArgs {
    /// Address to listen on; a path that ends in .sock is a UNIX socket
    ///
    /// Several addresses are separated by commas.
    #[arg(long, value_name = "HOST", env = "THERMOCLINE_ARG_HOST", default_value = "127.0.0.1")]
    #[arg(value_parser = host)]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", env = "THERMOCLINE_ARG_PORT", default_value = "8080", value_parser = whole::<u16>(0..=65535))]
    pub(crate) port: u16,
    /// Number of slots: answers generated at once (-np)
    ///
    /// Other requests wait. The slots share the context of -c.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_N_PARALLEL", default_value = "4")]
    #[arg(value_parser = parallel())]
    pub(crate) parallel: NonZeroU32,
    /// Maximum number of tokens of an answer; -1: limited only by the context
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        env = "THERMOCLINE_ARG_N_PREDICT",
        default_value = "-1"
    )]
    #[arg(aliases = ["n-predict"], value_parser = whole::<i32>(-2..).map(run::length))]
    pub(crate) predict: Length,
    /// Tags of the model in /v1/models, separated by commas
    ///
    /// They inform clients and have no effect on requests.
    #[arg(long, value_name = "TAGS", env = "THERMOCLINE_ARG_TAGS", value_delimiter = ',')]
    pub(crate) tags: Vec<String>,
    /// API keys, separated by commas; without one, every request is served
    #[arg(long, value_name = "KEY", env = "THERMOCLINE_API_KEY")]
    #[arg(value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub(crate) api_key: Vec<String>,
    /// Read API keys from a file, one per line
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_API_KEY_FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Web pages that may use the server: off, localhost, *, or origins
    ///
    /// Origins such as https://example.org are separated by commas. The server's own page needs
    /// no entry.
    #[arg(long, value_name = "ORIGINS", env = "THERMOCLINE_ARG_CORS_ORIGINS")]
    #[arg(default_value = "off", value_parser = cors)]
    pub(crate) cors_origins: Cors,
    /// Private key for TLS, in PEM form
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_SSL_KEY_FILE")]
    #[arg(requires = "ssl_cert_file")]
    pub(crate) ssl_key_file: Option<PathBuf>,
    /// Certificate for TLS, in PEM form, with its chain
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_SSL_CERT_FILE")]
    #[arg(requires = "ssl_key_file")]
    pub(crate) ssl_cert_file: Option<PathBuf>,
    /// Seconds that a request may take (-to)
    #[arg(long, value_name = "SECONDS", env = "THERMOCLINE_ARG_TIMEOUT", default_value = "600")]
    #[arg(value_parser = whole::<u32>(1..=86_400))]
    pub(crate) timeout: u32,
    /// Seconds that open requests get after SIGTERM; the others then fail with 503
    #[arg(
        long,
        value_name = "SECONDS",
        env = "THERMOCLINE_ARG_GRACE_PERIOD",
        default_value = "10"
    )]
    #[arg(value_parser = whole::<u32>(0..=86_400))]
    pub(crate) grace_period: u32,
    /// Largest body of a request: 16MiB
    #[arg(long, value_name = "SIZE", env = "THERMOCLINE_ARG_MAX_BODY", default_value = "16MiB")]
    #[arg(value_parser = parse::bytes)]
    pub(crate) max_body: Bytes,
    /// Maximum number of requests that wait; further ones get status 429
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_MAX_QUEUED", default_value = "256")]
    #[arg(value_parser = whole::<u32>(0..=1 << 20))]
    pub(crate) max_queued: u32,
    /// Folder for saved slots; without it /slots does not save
    #[arg(long, value_name = "DIR", env = "THERMOCLINE_ARG_SLOT_SAVE_PATH")]
    pub(crate) slot_save_path: Option<PathBuf>,
    /// Keep idle conversations on disk, up to this size: 4GiB
    ///
    /// They are kept in the cache folder, and a restarted server continues them without computing
    /// them again. 0 turns it off.
    #[arg(long, value_name = "SIZE", env = "THERMOCLINE_ARG_CACHE_DISK", default_value = "0")]
    #[arg(value_parser = parse::bytes)]
    pub(crate) cache_disk: Bytes,
    /// Reuse the cached prefix of other requests (--no-cache-prompt)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_CACHE_PROMPT", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) cache_prompt: bool,
    /// How embeddings are pooled; default: as the model file says, else mean
    #[arg(long, value_name = "HOW", env = "THERMOCLINE_ARG_POOLING", value_parser = one_of(&POOLINGS))]
    pub(crate) pooling: Option<Pooling>,
    /// No effect: embeddings are served by default
    #[arg(long, alias = "embedding", env = "THERMOCLINE_ARG_EMBEDDINGS", value_parser = boolish())]
    pub(crate) embeddings: bool,
    /// Require a model that ranks documents, and serve no embeddings
    ///
    /// /rerank needs no flag with such a model.
    #[arg(long, alias = "rerank", env = "THERMOCLINE_ARG_RERANKING", value_parser = boolish())]
    pub(crate) reranking: bool,
    /// Serve /metrics for Prometheus (--no-metrics)
    #[arg(
        long,
        value_name = "on|off",
        env = "THERMOCLINE_ARG_ENDPOINT_METRICS",
        default_value = "off"
    )]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) metrics: bool,
    /// Serve /slots (--no-slots)
    #[arg(
        long,
        value_name = "on|off",
        env = "THERMOCLINE_ARG_ENDPOINT_SLOTS",
        default_value = "on"
    )]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) slots: bool,
    /// Serve POST /props
    #[arg(long, env = "THERMOCLINE_ARG_ENDPOINT_PROPS", value_parser = boolish())]
    pub(crate) props: bool,
    /// Serve the chat page at / (--no-webui)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_WEBUI", default_value = "on")]
    #[arg(alias = "ui", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) webui: bool,
    /// Names of the model in answers, separated by commas
    #[arg(short, long, value_name = "NAMES", env = "THERMOCLINE_ARG_ALIAS")]
    #[arg(value_delimiter = ',')]
    pub(crate) alias: Vec<String>,
    /// Format of the access log on standard error
    #[arg(long, value_name = "FORMAT", env = "THERMOCLINE_ARG_LOG_FORMAT", default_value = "text")]
    #[arg(value_parser = one_of(&LOG_FORMATS))]
    pub(crate) log_format: LogFormat,
    /// Print special tokens as well (-sp)
    #[arg(long, env = "THERMOCLINE_ARG_SPECIAL", value_parser = boolish())]
    pub(crate) special: bool,
    #[command(flatten)]
    pub(crate) template: TemplateArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

static LOG_FORMATS: [Choice<LogFormat>; 2] = [
    choice("text", "Text", LogFormat::Text),
    choice("json", "One JSON object per line", LogFormat::Json),
];

pub(super) static POOLINGS: [Choice<Pooling>; 5] = [
    choice("mean", "The mean over all tokens", Pooling::Mean),
    choice("cls", "The first token", Pooling::First),
    choice("last", "The last token", Pooling::Last),
    choice("rank", "The score of a ranking model (--reranking)", Pooling::Rank),
    choice("none", "A vector for each token, for /embedding", Pooling::None),
];

/// At most 256, because the engine keeps a state slot for each sequence.
pub(super) fn parallel() -> impl TypedValueParser<Value = NonZeroU32> {
    let count = whole::<u32>(1..=256);
    count.map(|n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN))
}

fn cors(text: &str) -> Result<Cors, Failure> {
    match text {
        "off" | "" => return Ok(Cors::Off),
        "localhost" => return Ok(Cors::Localhost),
        "*" => return Ok(Cors::Any),
        _ => {}
    }
    let origins: Vec<String> = text.split(',').map(|origin| origin.trim().to_owned()).collect();
    let is_origin = |origin: &String| {
        let host = origin.split_once("://").map(|(_, host)| host);
        host.is_some_and(|host| !host.is_empty() && !host.contains('/'))
    };
    match origins.iter().find(|origin| !is_origin(origin)) {
        None => Ok(Cors::Origins(origins)),
        Some(wrong) => Err(Failure::usage(format!("'{wrong}' is not an origin"))
            .help("origins look like https://example.org; or use off, localhost or *")),
    }
}

impl ServeArgs {
    /// Reads the files that flags name, and sets the pooling of `--reranking`.
    ///
    /// # Errors
    /// A file that cannot be read or has no API key; another `--pooling` with `--reranking`.
    pub(crate) fn resolve(mut self) -> Result<Self, Failure> {
        self.template = self.template.resolve()?;
        self.sampling = self.sampling.resolve(true)?;
        if self.reranking && self.pooling.replace(Pooling::Rank).is_some_and(|p| p != Pooling::Rank)
        {
            return Err(Failure::usage("--reranking needs --pooling rank")
                .help("remove --reranking or --pooling"));
        }
        if let Some(path) = self.api_key_file.take() {
            let file = std::fs::File::open(&path);
            let keys = file.and_then(|file| read_text(file, MAX_KEYS)).map_err(|e| {
                let message = format!("cannot read the API keys in '{}'", path.display());
                Failure::new(Exit::Failed, message).caused_by(&e)
            })?;
            let keys = keys.lines().map(str::trim).filter(|key| !key.is_empty());
            let before = self.api_key.len();
            self.api_key.extend(keys.map(str::to_owned));
            if self.api_key.len() == before {
                let message = format!("'{}' has no API key", path.display());
                return Err(Failure::usage(message).help("write one key per line"));
            }
        }
        Ok(self)
    }

    pub(crate) fn options(&self) -> Options {
        Options { n_parallel: self.parallel, ..self.model.options() }
    }

    /// The settings of the server; `sink` receives its log.
    pub(crate) fn config(&self, sink: LogSink) -> Config {
        let is_socket = self.host.ends_with(".sock");
        let address = if is_socket {
            Address::Unix(PathBuf::from(&self.host))
        } else {
            Address::Tcp { host: self.host.clone(), port: self.port }
        };
        let tls = self.ssl_cert_file.clone().zip(self.ssl_key_file.clone());
        Config {
            address,
            tls: tls.map(|(certificate, key)| TlsFiles { certificate, key }),
            keys: self.api_key.clone(),
            cors: self.cors_origins.clone(),
            aliases: self.alias.clone(),
            tags: self.tags.clone(),
            limits: Limits {
                max_body: usize::try_from(self.max_body.0).unwrap_or(usize::MAX),
                timeout: Duration::from_secs(u64::from(self.timeout)),
                grace_period: self.grace_period(),
                ..Limits::default()
            },
            endpoints: Endpoints {
                metrics: self.metrics,
                slots: self.slots,
                props: self.props,
                page: self.webui,
            },
            log: serve::LogOptions {
                format: self.log_format,
                verbose: self.common.verbose > 0,
                sink,
            },
        }
    }

    /// The time that open requests get to finish when the server stops.
    pub(crate) fn grace_period(&self) -> Duration {
        Duration::from_secs(u64::from(self.grace_period))
    }

    /// The default settings of requests.
    pub(crate) fn defaults(&self) -> Defaults {
        Defaults {
            sampler: self.sampling.config(),
            n_predict: self.predict.tokens(),
            ignore_eos: self.sampling.ignore_eos,
            stops: Vec::new(),
            special: self.special,
            splits_reasoning: self.template.splits_reasoning(),
            pooling: self.pooling,
        }
    }

    /// The folder and the size of the disk cache.
    ///
    /// # Errors
    /// A size without a cache folder.
    pub(crate) fn disk_cache(&self) -> Result<Option<(PathBuf, Bytes)>, Failure> {
        if self.cache_disk.0 == 0 {
            return Ok(None);
        }
        let folder = folders::cache_folder(self.model.placement.repack_cache.as_deref());
        let folder = folder.map(|folder| folder.path.join("sequences"));
        match folder {
            Some(folder) => Ok(Some((folder, self.cache_disk))),
            None => Err(Failure::usage("--cache-disk needs a cache folder")
                .help("set one with --repack-cache DIR")),
        }
    }
}

/// Rejects ollama's form HOST:PORT. An IPv6 address has several colons.
fn host(text: &str) -> Result<String, String> {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.parse::<u16>().is_ok() => {
            Err(format!("write --host {host} --port {port}"))
        }
        Some(_) | None => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser;

    fn parsed(line: &[&str]) -> Result<ServeArgs, clap::Error> {
        let words = [&["thermocline", "serve"][..], line].concat();
        let Command::Serve(args) = Cli::try_parse_from(words)?.command else {
            panic!("the parsed command is not serve");
        };
        Ok(*args)
    }

    fn config(line: &[&str]) -> Config {
        parsed(line).unwrap().config(std::sync::Arc::new(|_: &str| {}))
    }

    #[test]
    fn a_host_that_ends_in_sock_is_a_socket() {
        let address = |line: &[&str]| config(line).address;
        let tcp = Address::Tcp { host: "127.0.0.1".to_owned(), port: 8080 };
        assert_eq!(address(&[]), tcp);
        let with_port = parsed(&["--host", "0.0.0.0:11434"]).unwrap_err().to_string();
        assert!(with_port.contains("write --host 0.0.0.0 --port 11434"), "{with_port}");
        assert!(parsed(&["--host", "::1"]).is_ok());
        assert_eq!(address(&["--host", "/run/t.sock"]), Address::Unix("/run/t.sock".into()));
    }

    #[test]
    fn cors_is_off_by_default() {
        let cors = |line: &[&str]| config(line).cors;
        assert_eq!(cors(&[]), Cors::Off);
        assert_eq!(cors(&["--cors-origins", "localhost"]), Cors::Localhost);
        let list = Cors::Origins(vec!["https://a.org".to_owned(), "http://b:1".to_owned()]);
        assert_eq!(cors(&["--cors-origins", "https://a.org, http://b:1"]), list);
        assert!(parsed(&["--cors-origins", "a.org"]).is_err());
    }

    #[test]
    fn keys_come_from_the_flag_and_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        std::fs::write(&file, "b\n\n c \n").unwrap();
        let file = file.to_str().unwrap().to_owned();
        let args = parsed(&["--api-key", "a", "--api-key-file", &file]).unwrap();
        assert_eq!(args.resolve().unwrap().api_key, ["a", "b", "c"]);
        std::fs::write(&file, "\n").unwrap();
        assert!(parsed(&["--api-key-file", &file]).unwrap().resolve().is_err());
        // An empty key, such as that of an empty secret, must not open the server.
        for empty in ["", "a,", ","] {
            assert!(parsed(&["--api-key", empty]).is_err(), "{empty:?}");
        }
    }

    #[test]
    fn tls_needs_both_files() {
        assert!(parsed(&["--ssl-key-file", "k"]).is_err());
        let both = config(&["--ssl-key-file", "k", "--ssl-cert-file", "c"]);
        assert_eq!(both.tls.unwrap().key, PathBuf::from("k"));
    }
}
