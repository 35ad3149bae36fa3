//! Routes, and the middleware of all requests: id, log, metrics, API keys, CORS.

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::access::LogEntry;
use crate::clock::id;
use crate::error::ApiError;
use crate::state::App;
use crate::{anthropic, cors, llama, openai, openapi, page, thermocline};

/// An endpoint of `/openapi.json`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) method: &'static str,
    /// The path, with parameters in braces: `{id}`.
    pub(crate) path: &'static str,
    /// Whether the endpoint needs no API key.
    pub(crate) public: bool,
    pub(crate) summary: &'static str,
}

const fn route(
    method: &'static str,
    path: &'static str,
    public: bool,
    summary: &'static str,
) -> Route {
    Route { method, path, public, summary }
}

#[rustfmt::skip]
pub(crate) const ROUTES: &[Route] = &[
    route("get", "/", true, "The chat page"),
    route("get", "/page/{*file}", true, "Files of the chat page"),
    route("get", "/health", true, "Whether the model is loaded"),
    route("get", "/v1/health", true, "Whether the model is loaded"),
    route("get", "/models", true, "The model that is served"),
    route("get", "/v1/models", true, "The model that is served"),
    route("get", "/v1/models/{*id}", true, "The model with this id"),
    route("post", "/v1/chat/completions", false, "Answer a conversation (OpenAI)"),
    route("post", "/chat/completions", false, "Answer a conversation (OpenAI)"),
    route("post", "/v1/chat/completions/input_tokens", false, "Count the tokens of a conversation"),
    route("post", "/chat/completions/input_tokens", false, "Count the tokens of a conversation"),
    route("post", "/v1/completions", false, "Complete a prompt (OpenAI)"),
    route("post", "/v1/responses", false, "Answer an input, without stored state (OpenAI)"),
    route("post", "/responses", false, "Answer an input, without stored state (OpenAI)"),
    route("post", "/v1/embeddings", false, "Embeddings of texts (OpenAI)"),
    route("post", "/embeddings", false, "Embeddings of texts (llama-server)"),
    route("post", "/embedding", false, "Embeddings of texts (llama-server)"),
    route("post", "/rerank", false, "Rerank documents by relevance to a query, with a reranker model"),
    route("post", "/v1/rerank", false, "Rerank documents by relevance to a query, with a reranker model"),
    route("post", "/reranking", false, "Rerank documents by relevance to a query, with a reranker model"),
    route("post", "/v1/reranking", false, "Rerank documents by relevance to a query, with a reranker model"),
    route("post", "/v1/messages", false, "Answer a conversation (Anthropic)"),
    route("post", "/v1/messages/count_tokens", false, "Count the tokens of a conversation (Anthropic)"),
    route("post", "/completion", false, "Complete a prompt (llama-server)"),
    route("post", "/completions", false, "Complete a prompt (llama-server)"),
    route("post", "/infill", false, "Fill a gap in code (llama-server)"),
    route("post", "/tokenize", false, "Tokenize a text"),
    route("post", "/detokenize", false, "Detokenize tokens"),
    route("post", "/apply-template", false, "Format a conversation with the chat template"),
    route("get", "/props", false, "Properties of the server"),
    route("post", "/props", false, "Change properties of the server"),
    route("get", "/lora-adapters", false, "An empty list: adapters are merged when the model is loaded"),
    route("post", "/lora-adapters", false, "Refused: the scales of adapters cannot change"),
    route("get", "/slots", false, "State of the slots"),
    route("post", "/slots/{id}", false, "Save, restore or erase a slot"),
    route("get", "/metrics", false, "Metrics for Prometheus"),
    route("get", "/thermocline", false, "Layers, devices and plan"),
    route("get", "/thermocline/events", false, "Activity per step, as events"),
    route("get", "/openapi.json", true, "This description"),
];

pub(crate) fn router(app: App) -> Router {
    let router = Router::new()
        .route("/", get(page::index))
        .route("/page/{*file}", get(page::file))
        .route("/health", get(llama::health))
        .route("/v1/health", get(llama::health))
        .route("/models", get(openai::models::list))
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*id}", get(openai::models::retrieve))
        .route("/v1/chat/completions", post(openai::chat::complete))
        .route("/chat/completions", post(openai::chat::complete))
        .route("/v1/chat/completions/input_tokens", post(openai::chat::count))
        .route("/chat/completions/input_tokens", post(openai::chat::count))
        .route("/v1/completions", post(openai::completions::complete))
        .route("/v1/responses", post(openai::responses::respond))
        .route("/responses", post(openai::responses::respond))
        .route("/v1/messages", post(anthropic::message))
        .route("/v1/messages/count_tokens", post(anthropic::count))
        .route("/completion", post(llama::completion::complete))
        .route("/completions", post(llama::completion::complete))
        .route("/infill", post(llama::infill::fill))
        .route("/tokenize", post(llama::tokenize::tokenize))
        .route("/detokenize", post(llama::tokenize::detokenize))
        .route("/apply-template", post(llama::tokenize::apply_template))
        .route("/props", get(llama::props::show).post(llama::props::change))
        .route("/lora-adapters", get(llama::list_adapters).post(llama::change_adapters))
        .route("/slots", get(llama::slots::list))
        .route("/slots/{id}", post(llama::slots::run_action))
        .route("/metrics", get(llama::metrics))
        .route("/thermocline", get(thermocline::show))
        .route("/thermocline/events", get(thermocline::events))
        .route("/openapi.json", get(openapi::show));
    let router = ["/v1/embeddings", "/embeddings", "/embedding"]
        .iter()
        .fold(router, |router, path| router.route(path, post(openai::embeddings::embed)));
    let router = ["/rerank", "/v1/rerank", "/reranking", "/v1/reranking"]
        .iter()
        .fold(router, |router, path| router.route(path, post(openai::rerank::rerank)));
    router
        .fallback(async || ApiError::not_found("no such path; OpenAI's API is below /v1, ollama's is not supported, /openapi.json lists all paths"))
        .method_not_allowed_fallback(async |method: Method| ApiError::method_not_allowed(&method))
        .layer(middleware::from_fn_with_state(app.clone(), handle_request))
        .with_state(app)
}

async fn handle_request(State(app): State<App>, request: Request, next: Next) -> Response {
    let in_flight = InFlight::begin(&app);
    let request_id = request_id(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let entry = LogEntry::new(&app, &request_id, &method, &path);
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("unmatched", MatchedPath::as_str).to_owned();
    let origin = cors::allowed(&app.config.cors, request.headers());
    let headers = request.headers().clone();
    let preflight = cors::is_preflight(&method, &headers);
    let mut response = if preflight {
        StatusCode::OK.into_response()
    } else if app.keys.is_empty()
        && method == Method::POST
        && !cors::trusts(&app.config.cors, &headers)
    {
        let message =
            "requests of web pages from other origins are refused; --cors-origins allows them";
        ApiError::forbidden(message).into_response()
    } else if is_public(&method, &route) || app.keys.admit(&headers) {
        next.run(request).await
    } else {
        ApiError::unauthorized().into_response()
    };
    if path.starts_with("/v1/messages")
        && let Some(error) = response.extensions_mut().remove::<ApiError>()
    {
        let mut body = error.anthropic();
        body["request_id"] = request_id.clone().into();
        response = error.response(&body);
    }
    if let Some(origin) = origin {
        cors::allow(origin, response.headers_mut());
        if preflight {
            cors::answer_preflight(&headers, response.headers_mut());
        }
    }
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert("x-request-id", value.clone());
        response.headers_mut().insert("request-id", value);
    }
    let status = response.status().as_u16();
    let method = if is_known(&method) { method.as_str() } else { "other" };
    app.metrics.record_request(&route, method, status, entry.elapsed());
    drop(in_flight);
    entry.attach(response)
}

/// Counts a request as in flight until its handler returns or the client disconnects.
struct InFlight(App);

impl InFlight {
    fn begin(app: &App) -> InFlight {
        app.metrics.begin();
        InFlight(app.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.metrics.end();
    }
}

fn is_public(method: &Method, route: &str) -> bool {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let same =
        |known: &&Route| known.path == route && known.method.eq_ignore_ascii_case(method.as_str());
    ROUTES.iter().find(same).is_some_and(|route| route.public)
}

/// Whether the method may be a label. Others are not, so that clients cannot create new metrics.
fn is_known(method: &Method) -> bool {
    let known = [Method::GET, Method::POST, Method::OPTIONS, Method::HEAD];
    known.contains(method) || [Method::PUT, Method::DELETE, Method::PATCH].contains(method)
}

/// The client's request id if it has 1 to 64 letters, digits, `-`, `_` or `.`, else a new id.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let given = given.filter(|text| (1..=64).contains(&text.len()) && text.chars().all(plain));
    given.map_or_else(|| id("req_"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_id_is_kept_if_it_is_plain() {
        let id_for = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-request-id", value.parse().unwrap());
            request_id(&headers)
        };
        assert_eq!(id_for("abc-1"), "abc-1");
        assert!(id_for("a b").starts_with("req_"));
        assert!(id_for(&"x".repeat(65)).starts_with("req_"));
    }

    #[test]
    fn routes_are_listed_once_and_few_are_public() {
        for (i, route) in ROUTES.iter().enumerate() {
            let twice = |other: &&Route| other.path == route.path && other.method == route.method;
            assert_eq!(ROUTES.iter().filter(twice).count(), 1, "{i}: {}", route.path);
        }
        assert!(is_public(&Method::GET, "/health") && is_public(&Method::HEAD, "/"));
        assert!(!is_public(&Method::POST, "/v1/chat/completions"));
        assert!(!is_public(&Method::GET, "/metrics") && !is_public(&Method::GET, "unmatched"));
    }
}
