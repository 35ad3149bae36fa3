//! The server over real sockets, with the built-in model.

mod anthropic;
mod chat;
mod client;
mod completions;
mod encoders;
mod http;
mod infill;
mod listen;
mod live_view;
mod llama;
mod malformed;
mod process;
mod rerank;
mod responses;
mod structured;

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;

use ::serve::{Address, Config, Defaults, Endpoints, Handle, Limits, ServedModel, Server};
use hal::Bytes;
use runtime::{Computation, ContextSize, DeviceOptions, Dialogue, Model, Options, SamplerConfig};
use scheduler::SchedulerOptions;
use text::chat::{Template, builtin};
use text::tokenizer::Tokenizer;
use thermocline::engine::Engine;

use client::Client;

/// A server that stops when it is dropped.
struct TestServer {
    handle: Handle,
    served: Option<Arc<ServedModel>>,
    thread: Option<JoinHandle<Result<(), ::serve::Error>>>,
    client: Client,
    grace: std::time::Duration,
}

impl TestServer {
    /// Starts a server without a model on a free port.
    fn loading(config: Config) -> TestServer {
        let address = match config.address {
            Address::Tcp { .. } => Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 },
            other => other,
        };
        let grace = config.limits.grace_period;
        let server = Server::bind(Config { address, ..config }).unwrap();
        let client = Client::new(&server.urls()[0]);
        let handle = server.handle();
        let thread = Some(std::thread::spawn(move || server.run()));
        TestServer { handle, served: None, thread, client, grace }
    }

    /// Starts a server with the built-in model; sampling is greedy by default.
    fn start(config: Config, options: SchedulerOptions) -> TestServer {
        TestServer::with_model(config, options, None)
    }

    /// As [`TestServer::start`]; with a `path`, serves the model in it with a KV cache in F32.
    fn with_model(config: Config, options: SchedulerOptions, path: Option<&Path>) -> TestServer {
        let devices = DeviceOptions { backend: Some("cpu"), ..DeviceOptions::default() };
        let model_options = Options {
            n_parallel: NonZeroU32::new(4).unwrap(),
            // More than the built-in model's training context, so that four long answers fit.
            n_ctx: NonZeroU32::new(8192).map(ContextSize::Tokens),
            computation: Computation { devices, ..Computation::default() },
            ..Options::default()
        };
        let model = match path {
            None => Model::built_in(&model_options),
            Some(path) => {
                let kv_formats = hal::KvCache::both(hal::format::Format::F32);
                Model::open(path, &Options { kv_formats, ..model_options })
            }
        };
        let (engine, tokenizer) = model.unwrap().into_parts();
        TestServer::from_engine(engine, tokenizer, config, options, &[])
    }

    /// Serves a loaded model; `reserves` is the memory of its devices' drivers.
    fn from_engine(
        engine: Engine,
        tokenizer: Tokenizer,
        config: Config,
        options: SchedulerOptions,
        reserves: &[Bytes],
    ) -> TestServer {
        let mut server = TestServer::loading(config);
        let template = Template::compile(builtin("chatml").unwrap()).unwrap();
        let dialogue = Dialogue::with_template(template);
        let dialogue = runtime::dialogue::with_special_tokens(dialogue, &tokenizer);
        let sampler = SamplerConfig { temp: 0.0, ..SamplerConfig::default() };
        let defaults = Defaults { sampler, ..Defaults::default() };
        let tokenizer = Arc::new(tokenizer);
        let served =
            ServedModel::start(engine, tokenizer, dialogue, defaults, options, reserves).unwrap();
        let served = Arc::new(served);
        server.handle.ready(Arc::clone(&served));
        server.served = Some(served);
        server
    }

    /// Stops the server and returns whether it ended without an error.
    fn stop(&mut self) -> bool {
        self.handle.stop();
        if let Some(served) = &self.served {
            served.stop(self.grace);
        }
        self.thread.take().is_some_and(|thread| thread.join().unwrap().is_ok())
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A configuration with all endpoints enabled.
fn config() -> Config {
    let endpoints = Endpoints { metrics: true, props: true, ..Endpoints::default() };
    let limits = Limits { max_body: 1 << 20, ..Limits::default() };
    Config { endpoints, limits, ..Config::default() }
}

/// A client of the server that tests with the default configuration share.
fn shared() -> &'static Client {
    static SERVER: LazyLock<TestServer> =
        LazyLock::new(|| TestServer::start(config(), SchedulerOptions::default()));
    &SERVER.client
}
