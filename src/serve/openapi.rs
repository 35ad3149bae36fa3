//! `/openapi.json`: an OpenAPI description, generated from the list of routes.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::json;
use crate::router::ROUTES;
use crate::state::App;

pub(crate) async fn show(State(app): State<App>) -> Result<Response> {
    let locked = !app.config.keys.is_empty();
    Ok(json::answer(&document(locked)))
}

/// The OpenAPI 3.1 document. `locked` says whether requests need an API key.
pub(crate) fn document(locked: bool) -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        // OpenAPI has no catch-all parameters.
        let path = route.path.replace("{*", "{");
        let mut operation = json!({
            "summary": route.summary,
            "responses": {
                "200": { "description": "The answer" },
                "default": {
                    "description": "An error",
                    "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
                },
            },
        });
        if let Some(name) = parameter(&path) {
            operation["parameters"] = json!([
                { "name": name, "in": "path", "required": true, "schema": { "type": "string" } },
            ]);
        }
        if route.method == "post" {
            let schema = body(route.path);
            operation["requestBody"] = json!({
                "required": true, "content": { "application/json": { "schema": schema } },
            });
        }
        if locked && !route.public {
            operation["security"] = json!([{ "bearer": [] }, { "key": [] }]);
        }
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[route.method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Thermocline", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
            "schemas": { "Error": {
                "type": "object",
                "required": ["error"],
                "properties": { "error": {
                    "type": "object",
                    "required": ["message", "type"],
                    "properties": {
                        "message": { "type": "string" },
                        "type": { "type": "string" },
                        "code": { "type": "integer" },
                        "param": { "type": ["string", "null"] },
                    },
                } },
            } },
        },
    })
}

fn parameter(path: &str) -> Option<&str> {
    let (_, rest) = path.split_once('{')?;
    rest.split_once('}').map(|(name, _)| name)
}

/// The schema of a body: its required fields. Other fields are allowed; docs/server.md lists them.
fn body(path: &str) -> Value {
    let messages = json!({ "type": "array", "items": { "type": "object" } });
    let prompt = json!({ "type": ["string", "array", "object"] });
    let text = json!({ "type": "string" });
    let required: Vec<(&str, Value)> = match path.rsplit('/').next().unwrap_or_default() {
        "messages" if path.starts_with("/v1") => {
            vec![("messages", messages), ("max_tokens", json!({ "type": "integer" }))]
        }
        "input_tokens" | "count_tokens" | "apply-template" => vec![("messages", messages)],
        "completions" if path.contains("/chat/") => vec![("messages", messages)],
        "completions" | "completion" => vec![("prompt", prompt)],
        "responses" => vec![("input", json!({ "type": ["string", "array"] }))],
        "infill" => vec![("input_prefix", text.clone()), ("input_suffix", text)],
        "tokenize" => vec![("content", json!({ "type": ["string", "array"] }))],
        "detokenize" => {
            vec![("tokens", json!({ "type": "array", "items": { "type": "integer" } }))]
        }
        "embeddings" => vec![("input", json!({ "type": ["string", "array"] }))],
        "rerank" | "reranking" => {
            let documents = json!({ "type": "array", "maxItems": 1024 });
            return json!({
                "type": "object",
                "properties": {
                    "query": text, "documents": documents, "texts": documents,
                    "top_n": { "type": "integer", "minimum": 1 },
                    "return_documents": { "type": "boolean" }, "return_text": { "type": "boolean" },
                },
                "required": ["query"],
                "oneOf": [{ "required": ["documents"] }, { "required": ["texts"] }],
            });
        }
        _ => Vec::new(),
    };
    let names: Vec<&str> = required.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> =
        required.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({ "type": "object", "required": names, "properties": properties })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described() {
        let document = document(true);
        for route in ROUTES {
            let path = route.path.replace("{*", "{");
            let operation = &document["paths"][&path][route.method];
            assert_eq!(operation["summary"], route.summary, "{path}");
            assert_eq!(operation["security"].is_null(), route.public, "{path}");
            assert_eq!(operation["parameters"].is_null(), !path.contains('{'), "{path}");
        }
        let chat = &document["paths"]["/v1/chat/completions"]["post"];
        let schema = &chat["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(schema["required"], json!(["messages"]));
        let rank = &document["paths"]["/rerank"]["post"]["requestBody"]["content"];
        assert!(rank["application/json"]["schema"]["properties"]["top_n"].is_object());
    }
}
