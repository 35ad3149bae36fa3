//! `/v1/models`.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::json;
use crate::state::App;

/// The list of models: only the served model.
pub(crate) async fn list(State(app): State<App>) -> Result<Response> {
    let model = model(&app)?;
    let details = json!({
        "name": model["id"], "model": model["id"], "type": "model",
        "capabilities": ["completion"],
    });
    Ok(json::answer(&json!({ "object": "list", "data": [model], "models": [details] })))
}

pub(crate) async fn retrieve(State(app): State<App>, Path(id): Path<String>) -> Result<Response> {
    let model = model(&app)?;
    let names = model["aliases"].as_array().into_iter().flatten();
    let is_known = model["id"] == *id || names.into_iter().any(|name| *name == *id);
    if is_known {
        Ok(json::answer(&model).into_response())
    } else {
        let help = "GET /v1/models lists the model of this server";
        Err(ApiError::not_found(format!("the model '{id}' does not exist; {help}")))
    }
}

fn model(app: &App) -> Result<Value> {
    let served = app.served()?;
    Ok(json!({
        "id": app.model_id(&served),
        "aliases": app.config.aliases,
        "tags": app.config.tags,
        "object": "model",
        "created": served.facts.created,
        "owned_by": "thermocline",
        "meta": served.facts.meta,
    }))
}
