"""Malformed requests of many kinds, as bytes, with the status that each must get."""

import json
import random
import time
from dataclasses import dataclass

KEY = "sk-malformed"
MAX_BODY = 1 << 20
CHAT, COMPLETION, OPENAI, MESSAGES = "/v1/chat/completions", "/completion", "/v1/completions", "/v1/messages"
RESPONSES, EMBEDDINGS, TOKENIZE, DETOKENIZE = "/v1/responses", "/v1/embeddings", "/tokenize", "/detokenize"

VALID = {
    CHAT: {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 2},
    COMPLETION: {"prompt": "Once", "n_predict": 2},
    OPENAI: {"prompt": "Once", "max_tokens": 2},
    MESSAGES: {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 2},
    RESPONSES: {"input": "Once", "max_output_tokens": 2},
    EMBEDDINGS: {"input": "Once"},
    TOKENIZE: {"content": "Once"},
    DETOKENIZE: {"tokens": [1, 2, 3]},
    "/apply-template": {"messages": [{"role": "user", "content": "Once"}]},
}

# Values of a wrong type or size, by path and field. Numbers that turn a sampler off, such as a temperature below 0, are valid.
WRONG = {
    CHAT: {
        "messages": ["text", 7, [], [7], [{}], [{"role": 7}], [{"role": "user", "content": 7}], {"role": "user"},
                     [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                     [{"role": "user", "content": [{"type": "odd"}]}]],
        "temperature": ["hot", [1], {}, True],
        "top_p": ["x", {}, [0.5]], "top_k": ["x", 1.5, {}], "min_p": ["x", True],
        "max_tokens": ["x", 1.5, {}, -7, [3]], "n": [0, -1, 1.5, "x", 10**9], "seed": ["x", 1.5, {}],
        "stop": [7, {}, [7], [["x"]]], "stream": ["yes", 1, {}], "stream_options": [7, "x", []],
        "logit_bias": [7, "x", {"word": {}}], "logprobs": ["x", {}], "top_logprobs": ["x", -1, 10**9],
        "response_format": [{"type": "odd"}, 7, {"type": "json_schema", "json_schema": 7}],
        "presence_penalty": ["x", {}], "tools": [7, "x", [7]], "id_slot": ["x", 10**6, 1.5],
        "grammar": ["root ::= (", 7], "chat_template_kwargs": [7, "x", []],
    },
    COMPLETION: {
        "prompt": [7.5, {}, True, [[]], [-1], [10**9], ["x", True]], "n_predict": ["x", 1.5, -7, {}],
        "temperature": ["x", {}], "samplers": [{}, 7, ["odd"], [7]], "repeat_last_n": ["x", -7],
        "repeat_penalty": ["x", 0], "n_probs": ["x", -1, 10**9], "json_schema": [7, {"type": "odd"}],
        "cache_prompt": ["x", 7], "id_slot": [10**6, "x"], "logit_bias": [[[1]], [["x", {}]], 7], "stop": [7, [7]],
    },
    OPENAI: {
        "prompt": [7.5, {}, [True], [[{}]]], "max_tokens": ["x", -7, {}], "echo": ["x", 7], "logprobs": ["x", -1, 10**9],
        "best_of": ["x", 0, 1.5], "n": [0, "x", 10**9], "stop": [7, {}], "temperature": ["x"], "seed": [{}],
    },
    MESSAGES: {
        "messages": ["x", 7, [], [7], [{"role": "robot"}], [{"role": "user", "content": [{"type": "odd"}]}]],
        "max_tokens": ["x", -1, {}, 1.5], "system": [7, {}, [7]], "temperature": ["x", {}], "stop_sequences": [7, [7], {}],
        "stream": ["x", 7], "tools": [7, [7]],
    },
    RESPONSES: {
        "input": [7, {}, [7], True], "max_output_tokens": ["x", -1, {}], "instructions": [7, {}],
        "temperature": ["x"], "stream": ["x", 7], "previous_response_id": ["resp_1"], "store": ["x"],
    },
    EMBEDDINGS: {"input": [{}, True, [True], [[{}]], []], "encoding_format": ["odd", 7]},
    TOKENIZE: {"content": [{}, 7.5], "add_special": ["x"], "with_pieces": ["x"]},
    DETOKENIZE: {"tokens": ["x", 7, ["x"], [-1], [10**9], [1.5], {}]},
    "/apply-template": {"messages": [7, "x", [7], [{}]]},
}


@dataclass
class MalformedRequest:
    """One request, and the accepted statuses. Status 0 means that the server closes the connection."""

    kind: str
    data: bytes
    statuses: tuple
    # Seconds between pieces of `size` bytes.
    pause: float = 0.0
    size: int = 0
    # Close the sending side after the data.
    half_close: bool = False
    # Close at once, without reading an answer.
    leave: bool = False

    def send(self, connection):
        if self.pause == 0.0:
            connection.sendall(self.data)
            return
        for at in range(0, len(self.data), self.size):
            connection.sendall(self.data[at : at + self.size])
            time.sleep(self.pause)


def head(method, path, **headers):
    lines = {"host": "localhost", "authorization": f"Bearer {KEY}", "content-type": "application/json"}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"{method} {path} HTTP/1.1\r\n{text}".encode()


def post(path, body, **headers):
    headers.setdefault("content_length", len(body))
    return head("POST", path, **headers) + b"\r\n" + body


def encoded(value):
    return json.dumps(value).encode()


class Generator:
    """Makes the same requests for the same seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.kinds = [name for name in dir(self) if name.startswith("make_")]

    def all(self, n):
        """`n` requests of all kinds. Wrong types and broken JSON are more frequent."""
        weights = [6 if name in ("make_wrong_type", "make_cut_json", "make_mutated_json") else 1 for name in self.kinds]
        names = self.kinds + self.random.choices(self.kinds, weights, k=n - len(self.kinds))
        self.random.shuffle(names)
        return [getattr(self, name)() for name in names]

    def path(self):
        return self.random.choice(list(VALID))

    def malformed(self, kind, data, *statuses, **more):
        return MalformedRequest(kind, data, statuses, **more)

    def make_cut_json(self):
        path = self.path()
        body = encoded(VALID[path])
        return self.malformed("JSON cut short", post(path, body[: self.random.randrange(1, len(body))]), 400)

    def make_mutated_json(self):
        """A structural character is replaced, so that the text is never valid."""
        path = self.path()
        body = bytearray(encoded(VALID[path]))
        places = [i for i, byte in enumerate(body) if byte in b'{}[]":,']
        body[self.random.choice(places)] = self.random.choice(b"\x00\x01\x7f!;\\")
        return self.malformed("JSON with a wrong character", post(path, bytes(body)), 400)

    def make_not_an_object(self):
        body = self.random.choice([b"", b"null", b"7", b'"text"', b"[]", b"true", b"NaN", b"{}{}", b"\xef\xbb\xbf{}"])
        return self.malformed("body is not a JSON object", post(self.path(), body), 400)

    def make_wrong_type(self):
        path = self.random.choice(list(WRONG))
        name = self.random.choice(list(WRONG[path]))
        value = self.random.choice(WRONG[path][name])
        kind = "field of a wrong type or size"
        return self.malformed(kind, post(path, encoded({**VALID[path], name: value})), 400)

    def make_missing_field(self):
        body = self.random.choice([b"{}", b'{"unknown": 1}'])
        path = self.random.choice([CHAT, COMPLETION, OPENAI, MESSAGES, RESPONSES, EMBEDDINGS])
        return self.malformed("required field missing", post(path, body), 400)

    def make_long_prompt(self):
        body = encoded({"prompt": "word " * self.random.randrange(5_000, 50_000), "n_predict": 2})
        return self.malformed("prompt beyond the context", post(COMPLETION, body), 400)

    def make_deep(self):
        depth = self.random.choice([200, 10_000, 100_000])
        inside = self.random.choice([b"[" * depth, b'{"a":' * depth, b"[" * depth + b"]" * depth])
        body = self.random.choice([inside, b'{"messages":' + inside + b"}", b'{"prompt":' + inside + b"}"])
        return self.malformed("deep nesting", post(self.path(), body), 400)

    def make_big_numbers(self):
        number = self.random.choice([b"1e999", b"-1e999", b"9" * 400, b"0x10", b"01", b"1e", b"--1"])
        return self.malformed("number out of range", post(COMPLETION, b'{"prompt":"x","n_predict":' + number + b"}"), 400)

    def make_invalid_utf8(self):
        bad = self.random.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"])
        where = self.random.choice([b'{"prompt":"x%s"}', b'{"%s":1}', b'{"prompt":"x"}%s'])
        return self.malformed("invalid UTF-8", post(COMPLETION, where.replace(b"%s", bad)), 400)

    def make_surrogates(self):
        body = self.random.choice([rb'{"prompt":"\ud800"}', rb'{"prompt":"\udc00\ud800"}', rb'{"prompt":"\u12"}', rb'{"prompt":"\x"}'])
        return self.malformed("invalid escape in a string", post(COMPLETION, body), 400)

    def make_unknown_path(self):
        path = self.random.choice(["/v1/unknown", "/v2/chat/completions", "/page/../../etc/passwd", "/page/%2e%2e/%2e%2e/etc/passwd",
                                   "/%ff%fe", "//", "/v1/models/no-such-model", "/.git/config", "/" + "a" * 4000])
        return self.malformed("unknown path", head("GET", path) + b"\r\n", 404)

    def make_wrong_method(self):
        method = self.random.choice(["GET", "PUT", "DELETE", "PATCH", "TRACE", "BREW", "X" * 50])
        return self.malformed("wrong method", head(method, self.path(), content_length=0) + b"\r\n", 405)

    def make_content_type(self):
        kind = self.random.choice(["text/plain", "application/xml", "multipart/form-data; boundary=x", "image/png", "json", "",
                                   "application/jsonx", "a" * 500])
        path = self.path()
        return self.malformed("wrong content type", post(path, encoded(VALID[path]), content_type=kind), 415)

    def make_large_body(self):
        body = b'{"prompt":"' + b"a" * MAX_BODY + b'"}'
        if self.random.random() < 0.5:
            # Sends only the header: the server must answer without waiting for the body.
            data = head("POST", COMPLETION, content_length=self.random.choice([MAX_BODY + 1, 1 << 40, (1 << 63) - 1])) + b"\r\n{"
            return self.malformed("body too large", data, 413)
        pieces = [body[i : i + 65536] for i in range(0, len(body), 65536)]
        chunked = b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"
        return self.malformed("body too large", head("POST", COMPLETION, transfer_encoding="chunked") + b"\r\n" + chunked, 413)

    def make_key(self):
        key = self.random.choice([None, "", "Bearer", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer " + "k" * 5000])
        path = self.path()
        return self.malformed("missing or wrong key", post(path, encoded(VALID[path]), authorization=key), 401)

    def make_huge_headers(self):
        if self.random.random() < 0.5:
            more = {"x_huge": "a" * 1_000_000}
        else:
            more = {f"x_{i}": "a" for i in range(500)}
        return self.malformed("huge headers", head("GET", "/health", **more) + b"\r\n", 431)

    def make_bad_head(self):
        data = self.random.choice([
            b"GARBAGE\r\n\r\n", b"GET /health\r\n\r\n", b"GET /health HTTP/9.9\r\n\r\n", b"GET  /health HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
            b"GET /health HTTP/1.1\r\nno colon\r\n\r\n", b"GET /health HTTP/1.1\r\nx: a\x00b\r\n\r\n",
            b"GET /health HTTP/1.1\r\n: empty\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ])
        return self.malformed("invalid HTTP head", data, 400, 0, half_close=True)

    def make_bad_length(self):
        length = self.random.choice(["-1", "x", "1, 2", "99999999999999999999999", "+5", "1e3"])
        return self.malformed("invalid content-length", head("POST", COMPLETION, content_length=length) + b"\r\n{}", 400)

    def make_bad_chunks(self):
        body = self.random.choice([b"zz\r\n{}\r\n", b"-1\r\n{}\r\n", b"5\r\n{}\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n{}"])
        data = head("POST", COMPLETION, transfer_encoding="chunked") + b"\r\n" + body
        return self.malformed("invalid chunks of a body", data, 400, 0, half_close=True)

    def make_cut_body(self):
        path = self.path()
        body = encoded(VALID[path])
        data = post(path, body[:-3], content_length=len(body))
        return self.malformed("client that leaves within the body", data, leave=True)

    def make_half_closed(self):
        path = self.path()
        body = encoded(VALID[path])
        data = post(path, body[:-3], content_length=len(body))
        return self.malformed("body that ends early", data, 400, 0, half_close=True)

    def make_client_that_leaves(self):
        body = encoded({"prompt": "Once upon a time", "n_predict": 400, "stream": True, "ignore_eos": True})
        return self.malformed("client that leaves within the answer", post(COMPLETION, body), leave=True)

    def make_slot(self):
        path = self.random.choice(["/slots/999?action=save", "/slots/-1?action=erase", "/slots/x?action=erase", "/slots/0?action=odd",
                                   "/slots/0", "/slots/0?action=%00", "/slots/99999999999999999999?action=erase"])
        return self.malformed("invalid slot action", post(path, b'{"filename":"a"}'), 400)

    def make_slot_file(self):
        name = self.random.choice(["../escape", "/etc/passwd", "a/b", "..", "", "a\x00b", "\\\\x", "n" * 5000])
        data = post("/slots/0?action=restore", encoded({"filename": name}))
        # 503 while the slot computes.
        return self.malformed("invalid name of a slot's file", data, 400, 503)

    def make_unsupported(self):
        path = self.random.choice(["/rerank", "/v1/rerank"])
        body = encoded({"query": "x", "documents": ["a"]})
        return self.malformed("not supported by the model", post(path, body), 501)

    def make_infill(self):
        body = encoded({"input_prefix": "a", "input_suffix": "b"})
        return self.malformed("not supported by the model", post("/infill", body), 501)


def slow_requests(n, seconds):
    """Requests whose bodies take longer than the server's limit of `seconds`: the part sent at once, and the slow rest."""
    requests = []
    for i in range(n):
        path = list(VALID)[i % len(VALID)]
        data = post(path, encoded(VALID[path]) + b" " * 400)
        # The body alone is slow: the last bytes take three times the limit.
        at = data.index(b"\r\n\r\n") + 5
        size = max(1, (len(data) - at) // 30)
        request = MalformedRequest("slow body", data[at:], (408,), pause=seconds / 10, size=size)
        requests.append((data[:at], request))
    return requests
