//! TCP sockets.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::time::Duration;

use super::Server;

/// Listens on each host name; the names are separated by commas.
pub(super) fn bind(hosts: &str, port: u16) -> io::Result<Vec<TcpListener>> {
    let mut listeners: Vec<TcpListener> = Vec::new();
    for host in hosts.split(',').map(str::trim).filter(|host| !host.is_empty()) {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
        // A name such as `localhost` may have several addresses. Listening on one of them is
        // enough.
        let listener = TcpListener::bind(addresses.as_slice())?;
        listener.set_nonblocking(true)?;
        listeners.push(listener);
    }
    if listeners.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no host to listen on; expected a name or an IP address",
        ));
    }
    Ok(listeners)
}

pub(super) async fn serve(
    listeners: Vec<TcpListener>,
    mut server: Server,
    grace: Duration,
) -> io::Result<()> {
    let listeners = listeners.into_iter().map(tokio::net::TcpListener::from_std);
    let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
    let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
    let mut tasks = tokio::task::JoinSet::new();
    for listener in listeners {
        let sender = sender.clone();
        tasks.spawn(async move {
            loop {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                if sender.send(accepted).await.is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let accept = async || {
        let stream = receiver.recv().await;
        let stream = stream.unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()))?;
        // Disable Nagle's algorithm, which would delay small events.
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    server.accept_all(accept).await;
    // The tasks own the sockets, so this closes them.
    tasks.shutdown().await;
    server.finish(grace).await;
    Ok(())
}
