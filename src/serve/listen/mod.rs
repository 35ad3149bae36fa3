//! Listens, serves connections, and shuts down.

mod tcp;
mod tls;
#[cfg(unix)]
mod unix;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::config::{Address, Config};
pub(crate) use tls::Tls;

/// Time limit for receiving a request's headers, and for a TLS handshake.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after the grace period for the errors of requests that did not finish.
const ERROR_TIME: Duration = Duration::from_secs(2);
/// Pause after a failed `accept`, for example without free file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// A TCP socket for each host name, or a UNIX socket.
pub(crate) enum Listener {
    Tcp(Vec<std::net::TcpListener>),
    #[cfg(unix)]
    Unix(unix::BoundSocket),
}

impl Listener {
    /// Listens on the address.
    ///
    /// # Errors
    /// The system's error, such as a port in use or a name without an address.
    pub(crate) fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp { host, port } => tcp::bind(host, *port).map(Listener::Tcp),
            #[cfg(unix)]
            Address::Unix(path) => unix::BoundSocket::bind(path).map(Listener::Unix),
            #[cfg(not(unix))]
            Address::Unix(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "UNIX sockets are not supported on this system",
            )),
        }
    }

    pub(crate) fn urls(&self, tls: bool) -> Vec<String> {
        let scheme = if tls { "https" } else { "http" };
        match self {
            Listener::Tcp(listeners) => {
                let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok());
                addresses.map(|address| format!("{scheme}://{address}")).collect()
            }
            #[cfg(unix)]
            Listener::Unix(bound) => vec![format!("unix:{}", bound.path().display())],
        }
    }

    pub(crate) fn is_public(&self) -> bool {
        match self {
            Listener::Tcp(listeners) => listeners.iter().any(|listener| {
                listener.local_addr().is_ok_and(|address| !address.ip().is_loopback())
            }),
            #[cfg(unix)]
            Listener::Unix(_) => false,
        }
    }
}

/// Serves connections until `stop` becomes true. Open requests then get the grace period to finish.
///
/// # Errors
/// The system's error for a socket that cannot be used.
pub(crate) async fn serve(
    listener: Listener,
    tls: Option<Tls>,
    router: Router,
    config: &Config,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let limits = &config.limits;
    let grace = limits.grace_period + ERROR_TIME;
    let server = Server {
        router,
        tls,
        stop,
        open: Arc::new(Semaphore::new(limits.max_connections)),
        connections: JoinSet::new(),
    };
    match listener {
        Listener::Tcp(listeners) => tcp::serve(listeners, server, grace).await,
        #[cfg(unix)]
        Listener::Unix(bound) => bound.serve(server, grace).await,
    }
}

/// Serves connections and keeps the tasks of the open ones.
pub(crate) struct Server {
    router: Router,
    tls: Option<Tls>,
    stop: watch::Receiver<bool>,
    open: Arc<Semaphore>,
    connections: JoinSet<()>,
}

impl Server {
    /// Accepts connections with `accept` until the server stops. At the limit of open connections,
    /// further connections wait.
    async fn accept_all<S>(&mut self, mut accept: impl AsyncFnMut() -> io::Result<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut stop = self.stop.clone();
        loop {
            let next = async {
                let permit = Arc::clone(&self.open).acquire_owned().await;
                (permit, accept().await)
            };
            let (permit, stream) = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                next = next => next,
            };
            while self.connections.try_join_next().is_some() {}
            match stream {
                Ok(stream) => {
                    let (tls, router) = (self.tls.clone(), self.router.clone());
                    let stop = self.stop.clone();
                    self.connections.spawn(async move {
                        let _permit = permit;
                        match tls {
                            None => connection(stream, router, stop).await,
                            Some(tls) => {
                                let handshake =
                                    tokio::time::timeout(HEADER_TIMEOUT, tls.accept(stream));
                                if let Ok(Ok(stream)) = handshake.await {
                                    connection(stream, router, stop).await;
                                }
                            }
                        }
                    });
                }
                Err(_) => tokio::time::sleep(RETRY_DELAY).await,
            }
        }
    }

    /// Waits for open connections to finish, and closes the remaining ones after the grace period.
    async fn finish(mut self, grace: Duration) {
        let finished = async { while self.connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(grace, finished).await;
        self.connections.shutdown().await;
    }
}

async fn connection<S>(stream: S, router: Router, mut stop: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let router = router.clone();
        async move { router.oneshot(request.map(Body::new)).await }
    });
    let mut http = http1::Builder::new();
    // Write header names in title case like llama-server, because some clients compare them
    // case-sensitively.
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).title_case_headers(true);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // Ignore the error: the client or its network caused it.
        _ = connection.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
