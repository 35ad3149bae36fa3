//! Reads request bodies within limits on type, size and time; runs long tasks on other threads.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use http_body::Body as _;
use http_body_util::LengthLimitError;

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::state::App;

/// The fields of a request's JSON body.
///
/// # Errors
/// 415 for another content type, 413 for a body that is too large, 408 for a body that is too slow,
/// 400 for invalid JSON.
pub(crate) async fn fields(app: &App, request: Request) -> Result<Fields> {
    check_type(request.headers())?;
    let body = body(app, request.into_body()).await?;
    blocking(move || Fields::parse(&body)).await
}

/// As [`fields`], but the body may be empty.
pub(crate) async fn optional_fields(app: &App, request: Request) -> Result<Fields> {
    if request.body().is_end_stream() { Ok(Fields::default()) } else { fields(app, request).await }
}

/// Accepts JSON, a missing content type, and the default content type of `curl -d`.
fn check_type(headers: &HeaderMap) -> Result<()> {
    let Some(found) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let found = String::from_utf8_lossy(found.as_bytes());
    let essence = found.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_curl_default = essence == "application/x-www-form-urlencoded";
    let is_json = essence == "application/json" || essence.ends_with("+json") || is_curl_default;
    if is_json { Ok(()) } else { Err(ApiError::not_json(&essence)) }
}

async fn body(app: &App, body: Body) -> Result<Bytes> {
    let limits = &app.config.limits;
    let too_large = || ApiError::too_large(limits.max_body);
    let announced = body.size_hint().lower();
    if announced > limits.max_body as u64 {
        return Err(too_large());
    }
    let read = axum::body::to_bytes(body, limits.max_body);
    match tokio::time::timeout(limits.timeout, read).await {
        Err(_) => Err(ApiError::slow_body(limits.timeout.as_secs())),
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_too_large(&error) => Err(too_large()),
        Ok(Err(_)) => Err(ApiError::invalid("the body of the request is incomplete or malformed")),
    }
}

/// Whether the body exceeded the size limit. Otherwise the client closed the connection early, or
/// the chunks of the body are invalid.
fn is_too_large(error: &axum::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// Runs `task` on a thread for blocking tasks, such as rendering a template or tokenizing.
///
/// # Errors
/// Errors of `task`; 500 if it panics.
pub(crate) async fn blocking<T: Send + 'static>(
    task: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let result = tokio::task::spawn_blocking(task).await;
    result
        .unwrap_or_else(|_| Err(ApiError::server("an internal error; please report it").no_retry()))
}
