//! Errors of requests, in the formats of OpenAI, Anthropic and llama-server.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

/// An error of one request: status, type, message, the field at fault, and whether to retry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// llama-server's name of the error type.
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    /// The field of the request that is at fault.
    pub(crate) param: Option<String>,
    /// Seconds after which the client may try again.
    pub(crate) retry_after: Option<u32>,
    /// False if a retry would fail in the same way.
    pub(crate) can_retry: bool,
    /// Further members of the error object, such as the number of prompt tokens.
    pub(crate) details: Box<Map<String, Value>>,
}

pub(crate) type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            kind,
            message: message.into(),
            param: None,
            retry_after: None,
            can_retry: true,
            details: Box::default(),
        }
    }

    /// 400: the request is invalid.
    pub(crate) fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: the field `name` is invalid.
    pub(crate) fn field(name: &str, problem: impl std::fmt::Display) -> ApiError {
        ApiError::invalid(format!("`{name}` {problem}")).with_param(name)
    }

    /// 400: the field `name` has a value that this server does not support yet.
    pub(crate) fn unsupported_field(name: &str, reason: &str) -> ApiError {
        ApiError::invalid(format!("`{name}` is not supported: {reason}")).with_param(name)
    }

    /// 400: the prompt does not fit.
    pub(crate) fn too_long(n_prompt: usize, n_ctx: usize) -> ApiError {
        let message = format!(
            "the prompt is too large: {n_prompt} tokens, which exceeds the available context size of {n_ctx} tokens; \
             shorten it or start the server with a larger --ctx-size"
        );
        let mut error =
            ApiError::new(StatusCode::BAD_REQUEST, "exceed_context_size_error", message);
        error.details.insert("n_prompt_tokens".to_owned(), n_prompt.into());
        error.details.insert("n_ctx".to_owned(), n_ctx.into());
        error
    }

    /// 401: the API key is missing or wrong.
    pub(crate) fn unauthorized() -> ApiError {
        let message = "invalid or missing API key; send `Authorization: Bearer KEY`";
        ApiError::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
    }

    /// 403: the request is understood but not allowed.
    pub(crate) fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 404: the path, model or file does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// 405: the path does not support this method.
    pub(crate) fn method_not_allowed(method: &Method) -> ApiError {
        let message =
            format!("this path does not accept {method}; /openapi.json lists its methods");
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    pub(crate) fn slow_body(seconds: u64) -> ApiError {
        let message =
            format!("the body of the request did not arrive within {seconds} s (--timeout)");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    pub(crate) fn too_large(limit: usize) -> ApiError {
        let message = format!("the body of the request is larger than {limit} bytes (--max-body)");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    pub(crate) fn not_json(found: &str) -> ApiError {
        let message = format!("expected content-type application/json, found {found}");
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// 422: the value is well formed but cannot be processed.
    pub(crate) fn unprocessable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request_error", message)
    }

    pub(crate) fn queue_full(n_waiting: usize) -> ApiError {
        let message = format!("the queue is full ({n_waiting} waiting); try again later");
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        ApiError { retry_after: Some(1), ..error }
    }

    /// 500: the engine failed.
    pub(crate) fn server(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// 501: the model or the server does not support the endpoint.
    pub(crate) fn not_supported(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message).no_retry()
    }

    /// 503: temporarily unavailable.
    pub(crate) fn unavailable(message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        ApiError { retry_after: Some(1), ..error }
    }

    pub(crate) fn loading() -> ApiError {
        ApiError::unavailable("Loading model")
    }

    /// 503: the request took longer than the server's limit.
    pub(crate) fn timeout(seconds: u64) -> ApiError {
        let message = format!("the request took longer than the limit of {seconds} s (--timeout)");
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        error.no_retry()
    }

    pub(crate) fn with_param(mut self, name: &str) -> ApiError {
        self.param = Some(name.to_owned());
        self
    }

    /// Marks the error as final: a retry would fail in the same way.
    pub(crate) fn no_retry(self) -> ApiError {
        ApiError { can_retry: false, retry_after: None, ..self }
    }

    /// The error object of OpenAI and llama-server, without the enclosing object.
    pub(crate) fn object(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind,
            "code": self.status.as_u16(),
            "param": self.param,
        });
        if let Some(object) = error.as_object_mut() {
            object.extend((*self.details).clone());
        }
        error
    }

    /// The response body in the format of OpenAI and llama-server.
    pub(crate) fn openai(&self) -> Value {
        json!({ "error": self.object() })
    }

    pub(crate) fn anthropic(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.message } })
    }

    pub(crate) fn response(&self, body: &Value) -> Response {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if !self.can_retry {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        (self.status, headers, body.to_string()).into_response()
    }
}

impl IntoResponse for ApiError {
    /// Responds with OpenAI's body. The error itself is attached to the response, so that the
    /// middleware can convert it to Anthropic's format.
    fn into_response(self) -> Response {
        let mut response = self.response(&self.openai());
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_the_members_that_clients_read() {
        let error = ApiError::field("top_p", "must be a number");
        let body = error.openai();
        assert_eq!(body["error"]["message"], "`top_p` must be a number");
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert_eq!(body["error"]["code"], 400);
        assert_eq!(body["error"]["param"], "top_p");
        assert_eq!(error.anthropic()["error"]["type"], "invalid_request_error");
        assert_eq!(error.anthropic()["type"], "error");
    }

    #[test]
    fn retries_are_announced_or_forbidden() {
        let headers = |error: ApiError| error.into_response().headers().clone();
        let full = headers(ApiError::queue_full(3));
        assert_eq!(full[header::RETRY_AFTER], "1");
        assert!(!full.contains_key("x-should-retry"));
        let never = headers(ApiError::not_supported("no head"));
        assert_eq!(never["x-should-retry"], "false");
        assert!(!never.contains_key(header::RETRY_AFTER));
    }

    #[test]
    fn a_long_prompt_reports_its_numbers() {
        let body = ApiError::too_long(900, 512).openai();
        assert_eq!(body["error"]["n_prompt_tokens"], 900);
        assert_eq!(body["error"]["n_ctx"], 512);
        assert_eq!(body["error"]["type"], "exceed_context_size_error");
    }
}
