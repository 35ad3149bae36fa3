//! `/slots`: state of the slots; saving, restoring and erasing their caches.

use axum::extract::{Path, Request, State};
use axum::response::Response;
use scheduler::{SlotError, SlotPhase, SlotStatus};
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::state::App;
use crate::{json, limits};

/// The state of each slot, without its prompt and answer.
pub(crate) async fn list(State(app): State<App>, request: Request) -> Result<Response> {
    if !app.config.endpoints.slots {
        let message = "this server does not show its slots; start it without --no-slots";
        return Err(ApiError::not_supported(message));
    }
    let served = app.served()?;
    let status = served.status();
    let is_idle = |slot: &SlotStatus| slot.phase == SlotPhase::Idle;
    let query = request.uri().query().unwrap_or_default();
    if query.split('&').any(|pair| pair == "fail_on_no_slot=1") && !status.slots.iter().any(is_idle)
    {
        return Err(ApiError::unavailable("no slot is available"));
    }
    let slot = |slot: &SlotStatus| {
        // An idle slot does not report the generated tokens of its last request. -1: no limit.
        let busy = !is_idle(slot);
        let n_decoded = if busy { slot.n_generated } else { 0 };
        let n_remain = slot.n_left.filter(|_| busy).map_or(json!(-1), Into::into);
        json!({
            "id": slot.id,
            "id_task": slot.task,
            "n_ctx": served.facts.n_ctx,
            "speculative": false,
            "is_processing": busy,
            "n_prompt_tokens": slot.n_prompt,
            "n_prompt_tokens_cache": slot.n_cached,
            "n_tokens": slot.n_tokens,
            "next_token": [{ "has_next_token": busy, "n_remain": n_remain, "n_decoded": n_decoded }],
        })
    };
    let slots: Value = status.slots.iter().map(slot).collect();
    Ok(json::answer(&slots))
}

/// `?action=save`, `restore` (with a file name in the body) or `erase`.
pub(crate) async fn run_action(
    State(app): State<App>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let action = query.split('&').find_map(|pair| pair.strip_prefix("action="));
    let action = action.unwrap_or_default().to_owned();
    let mut fields = limits::optional_fields(&app, request).await?;
    let slot: usize = id.parse().map_err(|_| ApiError::field("id", "must be a number"))?;
    let name = fields.string("filename")?;
    let served = app.served()?;
    let needs_name = || ApiError::field("filename", "is missing");
    let task = move || {
        let scheduler = &served.scheduler;
        let millis = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        let body = match action.as_str() {
            "save" => {
                let name = name.ok_or_else(needs_name)?;
                let result = scheduler.save_slot(slot, &name).map_err(|e| slot_error(&e))?;
                json!({
                    "id_slot": slot, "filename": name, "n_saved": result.n_tokens,
                    "n_written": result.n_bytes, "timings": { "save_ms": millis(result.time) },
                })
            }
            "restore" => {
                let name = name.ok_or_else(needs_name)?;
                let result = scheduler.restore_slot(slot, &name).map_err(|e| slot_error(&e))?;
                json!({
                    "id_slot": slot, "filename": name, "n_restored": result.n_tokens,
                    "n_read": result.n_bytes, "timings": { "restore_ms": millis(result.time) },
                })
            }
            "erase" => {
                let result = scheduler.erase_slot(slot).map_err(|e| slot_error(&e))?;
                json!({ "id_slot": slot, "n_erased": result.n_tokens })
            }
            other => {
                let problem = format!("is \"{other}\", expected save, restore or erase");
                return Err(ApiError::field("action", problem));
            }
        };
        Ok(json::answer(&body))
    };
    limits::blocking(task).await
}

fn slot_error(error: &SlotError) -> ApiError {
    match error {
        SlotError::NoFolder => {
            let message = "this server does not save slots; start it with --slot-save-path";
            ApiError::not_supported(message)
        }
        SlotError::NoSuchSlot { .. } => ApiError::field("id", format!("is invalid: {error}")),
        SlotError::BadName { .. } => ApiError::field("filename", format!("is invalid: {error}")),
        SlotError::File { reason, .. } if reason.kind() == std::io::ErrorKind::NotFound => {
            ApiError::not_found("this slot file does not exist").with_param("filename")
        }
        SlotError::Busy { .. } => ApiError::unavailable(error.to_string()),
        SlotError::NoRoom { .. } | SlotError::Stopped => ApiError::unavailable(error.to_string()),
        SlotError::Engine(engine) if crate::job::lacks_memory(engine) => {
            ApiError::unavailable(error.to_string())
        }
        // The file is damaged or belongs to another model.
        SlotError::Engine(_) => ApiError::field("filename", format!("cannot be used: {error}")),
        SlotError::File { reason, .. } if reason.kind() == std::io::ErrorKind::InvalidFilename => {
            ApiError::field("filename", format!("is invalid: {reason}"))
        }
        SlotError::File { .. } => ApiError::server(error.to_string()),
        SlotError::Empty { .. } | _ => ApiError::invalid(error.to_string()),
    }
}
