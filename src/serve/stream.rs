//! Server-sent events.
//!
//! Each stream has a task that writes into a small channel, from which the connection reads. When
//! the client disconnects, the connection drops the channel. The task then ends and drops its
//! generation, which cancels it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body::Frame;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::error::ApiError;

/// Maximum number of events that are buffered for a slow client.
const MAX_BUFFERED: usize = 64;

#[derive(Debug)]
pub(crate) struct Disconnected;

/// Writes the events of one stream.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    sender: mpsc::Sender<Bytes>,
    keep_alive: Option<Duration>,
}

impl Events {
    /// Sends `data: {value}`.
    pub(crate) async fn send(&self, value: &Value) -> Result<(), Disconnected> {
        self.raw(format!("data: {value}\n\n")).await
    }

    /// Sends `event: {name}` and its data.
    pub(crate) async fn send_named(&self, name: &str, value: &Value) -> Result<(), Disconnected> {
        self.raw(format!("event: {name}\ndata: {value}\n\n")).await
    }

    /// Sends `data: [DONE]`, which ends OpenAI's streams.
    pub(crate) async fn send_done(&self) -> Result<(), Disconnected> {
        self.raw("data: [DONE]\n\n".to_owned()).await
    }

    /// Sends an error in the middle of a stream. The official clients raise it as an exception.
    pub(crate) async fn send_error(&self, error: &ApiError) -> Result<(), Disconnected> {
        self.send(&error.openai()).await
    }

    async fn raw(&self, text: String) -> Result<(), Disconnected> {
        self.sender.send(text.into()).await.map_err(|_| Disconnected)
    }

    /// Waits for `next`, and sends comments while waiting. Fails if the client disconnects.
    pub(crate) async fn wait<T>(&self, next: impl Future<Output = T>) -> Result<T, Disconnected> {
        let mut next = std::pin::pin!(next);
        loop {
            let silence = async {
                match self.keep_alive {
                    Some(time) => tokio::time::sleep(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.sender.closed() => return Err(Disconnected),
                value = &mut next => return Ok(value),
                () = silence => self.raw(": keep-alive\n\n".to_owned()).await?,
            }
        }
    }
}

/// A response whose events `write` sends. `keep_alive` is the time without events after which a
/// comment is sent; `None` for no comments.
pub(crate) fn response<W>(keep_alive: Option<Duration>, write: impl FnOnce(Events) -> W) -> Response
where
    W: Future<Output = Result<(), Disconnected>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(MAX_BUFFERED);
    let write = write(Events { sender, keep_alive });
    tokio::spawn(async move {
        // An error only means that the client has disconnected.
        let _ = write.await;
    });
    let mut response = Response::new(Body::new(Channel(receiver)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Makes nginx forward events without buffering.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Channel(mpsc::Receiver<Bytes>);

impl http_body::Body for Channel {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
