//! llama-server's own endpoints.

use serde_json::{Value, json};

use super::{TestServer, config, shared};
use ::serve::{Config, Limits};
use scheduler::SchedulerOptions;

fn ask(more: Value) -> Value {
    let mut body = json!({ "prompt": "Once upon a time", "n_predict": 6 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_completion_has_llama_servers_members() {
    let answer = shared().post("/completion", &ask(json!({ "return_tokens": true }))).json();
    assert_eq!(answer["stop"], true);
    assert_eq!((&answer["stop_type"], &answer["truncated"]), (&json!("limit"), &json!(false)));
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(answer["tokens_predicted"], 6);
    assert_eq!(answer["generation_settings"]["n_predict"], 6);
    assert!(answer["generation_settings"]["seed"].is_u64());
    assert!(answer["prompt"].as_str().unwrap().ends_with("Once upon a time"));
    let events = shared().post("/completion", &ask(json!({ "stream": true }))).events();
    let (last, parts) = events.split_last().unwrap();
    let text: String = parts.iter().map(|part| part["content"].as_str().unwrap()).collect();
    assert_eq!(text, answer["content"].as_str().unwrap());
    assert!(parts.iter().all(|part| part["stop"] == false));
    assert_eq!((&last["stop"], &last["timings"]["predicted_n"]), (&json!(true), &json!(6)));
}

#[test]
fn prompts_may_be_lists_and_mixed() {
    let two = json!({ "prompt": ["Once upon a time", { "prompt_string": "Once upon a time" }] });
    let answer = shared().post("/completion", &ask(two)).json();
    assert_eq!(answer[0]["content"], answer[1]["content"]);
    let mixed = json!({ "prompt": [1, 2, "Once", 3] });
    assert!(shared().post("/completion", &ask(mixed)).json()["content"].is_string());
    let image = json!({ "prompt": { "prompt_string": "x", "multimodal_data": ["aGk="] } });
    shared().post("/completion", &ask(image)).error(400);
}

#[test]
fn probabilities_and_selected_fields() {
    let answer = shared().post("/completion", &ask(json!({ "n_probs": 5 }))).json();
    let all = answer["completion_probabilities"].as_array().unwrap();
    assert_eq!(all.len(), 6);
    for token in all {
        assert!(token["id"].is_u64() && token["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 5);
    }
    let fields = json!({ "response_fields": ["content", "generation_settings/n_predict", "no"] });
    let answer = shared().post("/completion", &ask(fields)).json();
    assert_eq!(answer.as_object().unwrap().len(), 2);
    assert_eq!(answer["generation_settings/n_predict"], 6);
}

#[test]
fn probabilities_after_sampling_are_those_of_the_draw() {
    let more = json!({
        "n_probs": 3, "post_sampling_probs": true, "temperature": 1.0, "top_k": 5, "top_p": 1.0,
        "min_p": 0.0, "seed": 7,
    });
    let answer = shared().post("/completion", &ask(more.clone())).json();
    assert_eq!(answer["generation_settings"]["post_sampling_probs"], true);
    let all = answer["completion_probabilities"].as_array().unwrap();
    assert_eq!(all.len(), 6);
    let prob = |token: &Value| token["prob"].as_f64().unwrap();
    for token in all {
        let top = token["top_probs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert!(token["logprob"].is_null() && prob(token) > 0.0);
        let sum: f64 = top.iter().map(prob).sum();
        assert!(sum > 0.6 && sum < 1.0 + 1e-5, "the best three of five: {sum}");
    }
    // A single candidate has a probability of 1.
    let mut greedy = more;
    greedy["top_k"] = 1.into();
    let answer = shared().post("/completion", &ask(greedy)).json();
    for token in answer["completion_probabilities"].as_array().unwrap() {
        assert_eq!((prob(token), token["top_probs"].as_array().unwrap().len()), (1.0, 1));
    }
    let chat =
        json!({ "messages": [{ "role": "user", "content": "x" }], "post_sampling_probs": true });
    assert_eq!(
        shared().post("/v1/chat/completions", &chat).error(400)["param"],
        "post_sampling_probs"
    );
}

#[test]
fn every_sampler_of_a_request_acts() {
    let ask = |more: &Value| {
        let mut body = json!({
            "prompt": "the cat sat, the cat sat, the cat", "n_predict": 1, "n_probs": 30,
            "post_sampling_probs": true, "seed": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0,
            "min_p": 0.0,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = shared().post("/completion", &body).json();
        let settings = answer["generation_settings"].clone();
        for (name, value) in more.as_object().unwrap().iter().filter(|(_, v)| v.is_number()) {
            let reported = settings[name].as_f64().unwrap();
            assert!((reported - value.as_f64().unwrap()).abs() < 1e-6, "{name}: {reported}");
        }
        answer["completion_probabilities"][0]["top_probs"].clone()
    };
    let plain = ask(&json!({}));
    assert_eq!(plain.as_array().unwrap().len(), 30);
    let dry = json!({ "dry_multiplier": 5.0, "dry_allowed_length": 1 });
    for more in [
        dry.clone(),
        json!({ "typical_p": 0.3 }),
        json!({ "top_n_sigma": 0.5 }),
        json!({ "xtc_probability": 1.0, "xtc_threshold": 0.01 }),
        json!({ "dynatemp_range": 0.5, "dynatemp_exponent": 2.0 }),
        json!({ "mirostat": 1, "mirostat_tau": 2.0, "mirostat_eta": 0.2 }),
        json!({ "mirostat": 2, "mirostat_tau": 1.0 }),
        json!({ "adaptive_target": 0.3, "adaptive_decay": 0.5, "samplers": ["top_k", "adaptive_p"] }),
        json!({ "samplers": "k", "top_k": 25 }),
    ] {
        assert_ne!(ask(&more), plain, "{more}");
    }
    let mut broken = dry.clone();
    broken["dry_sequence_breakers"] = json!(["cat"]);
    assert_eq!(ask(&broken), plain, "a breaker ends the repetition");
    let mut unlimited = dry;
    unlimited["dry_penalty_last_n"] = (-1).into();
    assert_ne!(ask(&unlimited), plain);
}

#[test]
fn a_time_limit_ends_the_answer_at_a_line_end() {
    let lines = json!({ "guided_regex": "(a\n)*b", "t_max_predict_ms": 1, "n_predict": 2000, "logit_bias": [["b", false]] });
    let answer = shared().post("/completion", &ask(lines.clone())).json();
    assert_eq!(answer["stop_type"], "limit");
    assert!(answer["tokens_predicted"].as_u64().unwrap() < 2000, "{answer}");
    assert!(answer["content"].as_str().unwrap().ends_with('\n'), "{answer}");
    // The limit ends an answer only at a line end.
    let mut line = lines;
    line["guided_regex"] = "a*b".into();
    line["n_predict"] = 40.into();
    let answer = shared().post("/completion", &ask(line)).json();
    assert_eq!(answer["tokens_predicted"], 40);
    let wrong = json!({ "t_max_predict_ms": "soon" });
    assert_eq!(shared().post("/completion", &ask(wrong)).error(400)["param"], "t_max_predict_ms");
}

#[test]
fn a_bias_bans_words_in_both_forms() {
    let text = |bias: Value| {
        let answer = shared().post("/completion", &ask(json!({ "logit_bias": bias }))).json();
        answer["content"].as_str().unwrap().to_owned()
    };
    let first = text(json!([]));
    let body = ask(json!({ "return_tokens": true }));
    let id = shared().post("/completion", &body).json()["tokens"][0].clone();
    let banned = text(json!([[id, false]]));
    assert_ne!(banned, first);
    assert_eq!(banned, text(json!({ (id.to_string()): -1000 })));
}

#[test]
fn tokens_and_text_convert_both_ways() {
    let text = "A cat, é and 日本.";
    let tokens = shared().post("/tokenize", &json!({ "content": text })).json();
    let back = shared().post("/detokenize", &tokens).json();
    assert_eq!(back["content"].as_str().unwrap().trim_start(), text);
    let pieces = json!({ "content": "é", "with_pieces": true });
    let pieces = shared().post("/tokenize", &pieces).json();
    for token in pieces["tokens"].as_array().unwrap() {
        assert!(token["id"].is_u64());
        assert!(token["piece"].is_string() || token["piece"].is_array());
    }
    shared().post("/detokenize", &json!({ "tokens": [999_999] })).error(400);
    shared().post("/tokenize", &json!({ "content": 5 })).error(400);
}

#[test]
fn properties_and_slots_are_shown() {
    // Other tests occupy the slots of the shared server.
    let server = TestServer::start(config(), SchedulerOptions::default());
    let client = &server.client;
    let props = client.get("/props").json();
    assert_eq!(props["total_slots"], 4);
    assert_eq!(props["default_generation_settings"]["params"]["temperature"], 0.0);
    assert!(props["default_generation_settings"]["n_ctx"].is_u64());
    assert_eq!(client.post("/props", &json!({})).json()["success"], true);
    assert_eq!(client.post("/props", &json!({ "x": 1 })).error(400)["param"], "x");
    assert_eq!(client.get("/lora-adapters").json(), json!([]), "merged adapters are not listed");
    assert_eq!(client.post("/lora-adapters", &json!([])).json()["success"], true);
    let error = client.post("/lora-adapters", &json!([{ "id": 0, "scale": 1 }])).error(501);
    assert!(error["message"].as_str().unwrap().contains("--lora-scaled"), "{error}");
    let slots = client.get("/slots").json();
    assert_eq!(slots.as_array().unwrap().len(), 4);
    assert_eq!(slots[3]["id"], 3);
    assert!(slots[0]["is_processing"].is_boolean());
    assert!(slots[0]["next_token"][0]["n_remain"].is_i64());
    assert_eq!(client.get("/slots?fail_on_no_slot=1").status, 200);
    client.post("/slots/0?action=save", &json!({ "filename": "a" })).error(501);
    client.post("/slots/0?action=fly", &json!({})).error(400);
    client.post("/slots/x?action=erase", &json!({})).error(400);
}

#[test]
fn slots_are_saved_restored_and_erased() {
    let folder = tempfile::tempdir().unwrap();
    let slot_folder = Some(folder.path().to_owned());
    let server = TestServer::start(
        config(),
        SchedulerOptions { slot_folder, ..SchedulerOptions::default() },
    );
    let client = &server.client;
    let body = ask(json!({ "id_slot": 1 }));
    let first = client.post("/completion", &body).json();
    let n = first["tokens_evaluated"].as_u64().unwrap() + 5;
    let name = json!({ "filename": "cat.bin" });
    let saved = client.post("/slots/1?action=save", &name).json();
    assert_eq!(saved["n_saved"], n, "{saved}");
    assert!(folder.path().join("cat.bin").exists());
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    client.post("/slots/1?action=save", &json!({ "filename": "folder" })).error(500);
    let erased = client.post("/slots/1?action=erase", &json!({})).json();
    assert_eq!(erased["n_erased"], n);
    let again = client.post("/completion", &ask(json!({ "cache_prompt": false }))).json();
    assert_eq!(again["timings"]["cache_n"], 0);
    let restored = client.post("/slots/0?action=restore", &name).json();
    assert_eq!(restored["n_restored"], n, "{restored}");
    let answer = client.post("/completion", &body).json();
    assert_eq!(answer["content"], first["content"]);
    assert_eq!(answer["timings"]["prompt_n"], 1, "only the last token is computed");
    for bad in ["../x", "a/b", ".hidden", "", &"n".repeat(300)] {
        client.post("/slots/0?action=save", &json!({ "filename": bad })).error(400);
    }
    client.post("/slots/0?action=restore", &json!({ "filename": "gone" })).error(404);
    std::fs::write(folder.path().join("bad"), b"no state").unwrap();
    client.post("/slots/0?action=restore", &json!({ "filename": "bad" })).error(400);
}

#[test]
fn infill_needs_fim_tokens() {
    let gap = json!({ "input_prefix": "a", "input_suffix": "b" });
    assert_eq!(shared().post("/infill", &gap).error(501)["type"], "not_supported_error");
    shared().post("/infill", &json!({ "input_prefix": "a" })).error(400);
    let extra = json!({ "input_prefix": "a", "input_suffix": "b", "input_extra": [{ "text": 5 }] });
    assert_eq!(shared().post("/infill", &extra).error(400)["param"], "input_extra[0]");
}

#[test]
fn metrics_are_valid_prometheus_text() {
    shared().post("/completion", &ask(json!({})));
    let answer = shared().get("/metrics");
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let mut typed = std::collections::BTreeSet::new();
    for line in answer.text().lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(typed.insert(rest.split(' ').next().unwrap().to_owned()), "{line}");
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let name = name.split('{').next().unwrap();
            let is_prefix = |known: &String| name.strip_prefix(known.as_str()).is_some();
            assert!(typed.iter().any(is_prefix), "{line} has no type");
        }
    }
    let value = |name: &str| {
        let line = answer.text().lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("{name}")).rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert!(value("thermocline:tokens_predicted_total") >= 6.0);
    assert!(value("thermocline:n_decode_total") >= 5.0);
    assert!(value("thermocline:neurons_active_total") >= 0.0);
    assert!(value("thermocline:time_to_first_token_seconds_count") >= 1.0);
}

#[test]
fn embeddings_count_as_prompts_and_steps() {
    let server = TestServer::start(config(), SchedulerOptions::default());
    let texts = json!({ "input": ["hello world", "goodbye world"] });
    let used = server.client.post("/v1/embeddings", &texts).json();
    let answer = server.client.get("/metrics");
    let value = |name: &str| {
        let line = answer.text().lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("{name}")).rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let n_tokens = used["usage"]["prompt_tokens"].as_f64().unwrap();
    assert_eq!(value("thermocline:prompt_tokens_total"), n_tokens);
    assert_eq!(value("thermocline:n_decode_total"), 2.0);
    assert!(value("thermocline:prompt_seconds_total") > 0.0);
    assert!(value("thermocline:n_tokens_max") >= n_tokens / 2.0);
    assert_eq!(value("thermocline:tokens_predicted_total"), 0.0);
}

fn norm(vector: &Value) -> f64 {
    vector.as_array().unwrap().iter().map(|x| x.as_f64().unwrap().powi(2)).sum::<f64>().sqrt()
}

#[test]
fn embeddings_that_take_too_long_get_503() {
    let limits = Limits { timeout: std::time::Duration::from_millis(300), ..Limits::default() };
    let server = TestServer::start(Config { limits, ..config() }, SchedulerOptions::default());
    let texts = vec!["some words ".repeat(100); 256];
    server.client.post("/v1/embeddings", &json!({ "input": texts })).error(503);
}

#[test]
fn embeddings_are_normalised_in_both_encodings() {
    let texts = json!({ "input": ["A cat.", "A cat.", "The king has a ship."] });
    let answer = shared().post("/v1/embeddings", &texts).json();
    assert_eq!(answer["object"], "list");
    let data = answer["data"].as_array().unwrap();
    assert_eq!((data.len(), &data[2]["index"]), (3, &json!(2)));
    assert!(data.iter().all(|item| (norm(&item["embedding"]) - 1.0).abs() < 1e-5));
    assert_eq!(data[0]["embedding"], data[1]["embedding"]);
    assert_ne!(data[0]["embedding"], data[2]["embedding"]);
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 6);
    let coded = json!({ "input": "A cat.", "encoding_format": "base64" });
    let coded = shared().post("/v1/embeddings", &coded).json();
    let width = data[0]["embedding"].as_array().unwrap().len();
    let text = coded["data"][0]["embedding"].as_str().unwrap();
    assert_eq!(text.len(), (4 * width).div_ceil(3) * 4);
    let parts = json!([{ "type": "text", "text": "A " }, { "type": "text", "text": "cat." }]);
    let parts = shared().post("/v1/embeddings", &json!({ "input": { "content": parts } })).json();
    assert_eq!(parts["data"][0]["embedding"], data[0]["embedding"]);
    let llama = shared().post("/embedding", &json!({ "content": "A cat." })).json();
    assert_eq!(llama[0]["embedding"][0], data[0]["embedding"]);
    for (body, param) in [
        (json!({}), "input"),
        (json!({ "input": "x", "encoding_format": "hex" }), "encoding_format"),
        (json!({ "input": "x", "dimensions": 3 }), "dimensions"),
        (json!({ "input": 5 }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": { "content": [{ "type": "image_url" }] } }), "input"),
    ] {
        assert_eq!(shared().post("/v1/embeddings", &body).error(400)["param"], param);
    }
}

#[test]
fn ranking_is_refused_by_name() {
    let answer = shared().post("/rerank", &json!({ "query": "x", "documents": ["y"] }));
    assert_eq!(answer.error(501)["type"], "not_supported_error");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    shared().post("/rerank", &json!({ "query": "x" })).error(400);
}
