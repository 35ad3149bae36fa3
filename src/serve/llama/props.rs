//! `/props`: properties of the server.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::openai::fingerprint;
use crate::params::sampler_json;
use crate::state::App;
use crate::{json, limits};

/// The default settings of requests, and facts about the model.
pub(crate) async fn show(State(app): State<App>) -> Result<Response> {
    let served = app.served()?;
    let mut params = sampler_json(&served.defaults.sampler);
    let n_predict = served.defaults.n_predict.or(app.config.limits.n_predict);
    let n_predict = n_predict.map_or(json!(-1), Value::from);
    params.insert("n_predict".to_owned(), n_predict.clone());
    params.insert("max_tokens".to_owned(), n_predict);
    params.insert("stop".to_owned(), json!(served.defaults.stops));
    params.insert("ignore_eos".to_owned(), served.defaults.ignore_eos.into());
    let special = |id: Option<u32>| {
        let bytes = id.map(|id| served.bytes(id)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    Ok(json::answer(&json!({
        "default_generation_settings": {
            "id": 0,
            "id_task": -1,
            "n_ctx": served.facts.n_ctx,
            "speculative": false,
            "is_processing": false,
            "params": params,
        },
        "total_slots": served.n_slots(),
        "model_alias": app.model_id(&served),
        "model_path": served.facts.path,
        "modalities": { "vision": false, "audio": false },
        "endpoint_slots": app.config.endpoints.slots,
        "endpoint_props": app.config.endpoints.props,
        "endpoint_metrics": app.config.endpoints.metrics,
        "webui": app.config.endpoints.page,
        "chat_template": served.dialogue.source().unwrap_or_default(),
        "bos_token": special(served.tokenizer.bos()),
        "eos_token": special(served.tokenizer.eos()),
        "build_info": fingerprint(),
    })))
}

/// No property can be changed yet, as in llama-server.
pub(crate) async fn change(State(app): State<App>, request: Request) -> Result<Response> {
    if !app.config.endpoints.props {
        let message = "this server does not change its properties; start it with --props";
        return Err(ApiError::not_supported(message));
    }
    let fields = limits::optional_fields(&app, request).await?;
    match fields.unknown().first() {
        None => Ok(json::answer(&json!({ "success": true }))),
        Some(name) => Err(ApiError::field(name, "cannot be changed")),
    }
}
