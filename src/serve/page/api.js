// Requests to the server of the page. Paths are relative to the page, so that it works behind a proxy
// that adds a prefix.

let key = "";

export function setKey(value) {
  key = value.trim();
}

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server does not answer. Check that `thermocline serve` is running.");
  }
  if (!response.ok) throw new ServerError(response.status, await errorText(response));
  return response;
}

async function errorText(response) {
  let message = "";
  try {
    message = (await response.json())?.error?.message ?? "";
  } catch {
    // Without a readable body, the HTTP status is the message.
  }
  if (response.status === 401) return "The server requires an API key. Enter it in the settings.";
  if (response.status === 503 && !message) return "The model is still loading.";
  return message || `The server answered with status ${response.status}.`;
}

export async function getJson(path, signal) {
  const response = await request(path, { signal });
  return response.json();
}

/**
 * Calls `take` with the JSON of each `data:` line of an event stream, until it ends, sends `[DONE]`,
 * or `options.signal` aborts it.
 */
export async function events(path, options, take) {
  const response = await request(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        take(JSON.parse(data));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Streams an answer; `take` gets each chunk. Throws a ServerError for an error in mid-stream. */
export function chat(body, signal, take) {
  const options = {
    method: "POST",
    signal,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      ...body,
      stream: true,
      stream_options: { include_usage: true },
      timings_per_token: true,
      return_progress: true,
    }),
  };
  return events("v1/chat/completions", options, (chunk) => {
    if (chunk.error) throw new ServerError(500, chunk.error.message ?? "The server stopped with an error.");
    take(chunk);
  });
}

/** The models: `id`, and the context size `nCtx` if the server reports it. */
export async function models() {
  const list = await getJson("v1/models");
  if (!Array.isArray(list.data)) return [];
  return list.data.map((model) => ({ id: String(model.id), nCtx: model.meta?.n_ctx ?? null }));
}

/** The server's default sampling parameters; empty if it does not report them. */
export async function defaults() {
  try {
    return (await getJson("props")).default_generation_settings?.params ?? {};
  } catch {
    return {};
  }
}
