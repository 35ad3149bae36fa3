//! The chat page, embedded in the program.

mod files;

use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, Result};
use crate::state::App;
use files::FILES;

/// The page loads nothing from other hosts, has no inline scripts, and cannot be framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
     font-src 'none'; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

pub(crate) async fn index(State(app): State<App>) -> Result<Response> {
    find(&app, "index.html")
}

pub(crate) async fn file(State(app): State<App>, Path(name): Path<String>) -> Result<Response> {
    find(&app, &name)
}

fn find(app: &App, name: &str) -> Result<Response> {
    let file = FILES.iter().find(|(known, ..)| *known == name);
    let Some((_, kind, contents)) = file.filter(|_| app.config.endpoints.page) else {
        return Err(ApiError::not_found("no such page; /openapi.json lists all paths"));
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, *contents).into_response())
}
