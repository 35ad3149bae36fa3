//! The access log entry of a request, written when its response has been sent, or when its client
//! has disconnected.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use http_body::{Body as _, Frame, SizeHint};

use crate::log::{self, Access, ResponseEnd};
use crate::state::App;

/// nginx's status of a request whose client disconnected before the response began.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// A request that is not in the log yet. Dropping it writes its line.
pub(crate) struct LogEntry {
    app: App,
    id: String,
    method: Method,
    path: String,
    begin: Instant,
    /// Status of the response, and the time until it began.
    head: Option<(StatusCode, Duration)>,
    is_complete: bool,
}

impl LogEntry {
    pub(crate) fn new(app: &App, id: &str, method: &Method, path: &str) -> LogEntry {
        LogEntry {
            app: app.clone(),
            id: id.to_owned(),
            method: method.clone(),
            path: path.to_owned(),
            begin: Instant::now(),
            head: None,
            is_complete: false,
        }
    }

    /// Time since the request arrived.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Keeps the entry until the body of `response` is sent or dropped.
    pub(crate) fn attach(mut self, response: Response) -> Response {
        self.head = Some((response.status(), self.elapsed()));
        // The body of an answer to HEAD is never sent.
        self.is_complete = self.method == Method::HEAD;
        response.map(|body| Body::new(LoggedBody { body, entry: self }))
    }
}

impl Drop for LogEntry {
    fn drop(&mut self) {
        let status = self.head.map_or(CLIENT_CLOSED_REQUEST, |(status, _)| status.as_u16());
        let access = Access {
            id: &self.id,
            method: self.method.as_str(),
            path: &self.path,
            status,
            time: self.elapsed(),
            head: self.head.map(|(_, time)| time),
            end: if self.is_complete {
                ResponseEnd::Complete
            } else if *self.app.stop.borrow() {
                ResponseEnd::ServerStopped
            } else {
                ResponseEnd::ClientLeft
            },
        };
        log::access(&self.app.config.log, &access);
    }
}

/// A body with the log entry of its request.
struct LoggedBody {
    body: Body,
    entry: LogEntry,
}

impl http_body::Body for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.entry.is_complete = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for LoggedBody {
    fn drop(&mut self) {
        // A body of known size is not polled again after its last frame.
        self.entry.is_complete |= self.body.is_end_stream();
    }
}
