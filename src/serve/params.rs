//! Fields shared by all endpoints that generate text: sampling, length, stop strings, and
//! llama.cpp's extensions. An unsupported field is rejected by name unless its value has no effect.

use std::time::Duration;

use serde_json::{Map, Value, json};
use text::sample::{self, INTEGERS, NUMBERS, SamplerConfig, Stage};
use text::tokenizer::Tokenizer;

use crate::config::Limits;
use crate::error::{ApiError, Result};
use crate::fields::{Fields, integer, is_empty};
use crate::served::ServedModel;
use crate::structure::{self, Structure};

/// Maximum number of stop strings of a request, and their maximum total size in bytes.
const MAX_STOPS: usize = 128;
const MAX_STOP_BYTES: usize = 1 << 16;
/// Maximum number of entries of `logit_bias`.
const MAX_BIASES: usize = 1 << 16;
/// Maximum number of tokens per position whose log-probabilities are returned.
pub(crate) const MAX_PROBS: usize = 1000;

/// Maximum number of entries of `dry_sequence_breakers`: each is searched in the whole vocabulary.
const MAX_BREAKERS: usize = 64;

const NO_SAMPLER: &str = "llama.cpp has removed this sampler; the text would differ without it";

/// Settings of one request.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub(crate) sampler: SamplerConfig,
    /// Maximum number of tokens to generate; `None`: limited only by the context.
    pub(crate) n_predict: Option<usize>,
    pub(crate) stops: Vec<String>,
    pub(crate) ignore_eos: bool,
    /// Choices per prompt.
    pub(crate) n: usize,
    /// Reuse a cached prefix of the prompt.
    pub(crate) cache_prompt: bool,
    /// The slot that the client requests, if any.
    pub(crate) slot: Option<usize>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) timings_per_token: bool,
    pub(crate) return_progress: bool,
    /// Whether to include llama.cpp's debug output in the response.
    pub(crate) verbose: bool,
    pub(crate) keep_alive: Option<Duration>,
    /// Time after the first token from which the answer ends at the next line end.
    pub(crate) max_time: Option<Duration>,
    /// Schema or grammar of the answer.
    pub(crate) structure: Option<Structure>,
}

impl Params {
    /// Reads the shared fields.
    ///
    /// # Errors
    /// 400 for the first field that is invalid or not supported.
    pub(crate) fn read(
        fields: &mut Fields,
        served: &ServedModel,
        limits: &Limits,
    ) -> Result<Params> {
        refuse_unsupported(fields)?;
        let structure = structure::read(fields)?;
        let defaults = &served.defaults;
        let options = fields.object("stream_options")?.unwrap_or_default();
        let include_usage = Fields::from_map(options).bool("include_usage")?.unwrap_or(false);
        let stream = fields.bool("stream")?.unwrap_or(false);
        let n = fields.integer("n", [1, count(limits.n_choices)])?;
        let n_cmpl = fields.integer("n_cmpl", [1, count(limits.n_choices)])?;
        let slot = fields.integer("id_slot", [-1, count(served.n_slots()) - 1])?;
        let ignore_eos = fields.bool("ignore_eos")?.unwrap_or(defaults.ignore_eos);
        let ping = fields.integer("sse_ping_interval", [-1, 3600])?;
        let keep_alive = match ping {
            None => Some(limits.keep_alive),
            Some(seconds) => u64::try_from(seconds).ok().map(Duration::from_secs),
        };
        let mut stops = stops(fields)?;
        stops.extend(defaults.stops.iter().cloned());
        // These fields only affect a context shift, which this server never performs.
        fields.integer("n_keep", [-1, i64::MAX])?;
        fields.integer("n_discard", [0, i64::MAX])?;
        // These fields name the caller or the model, or are hints for a prompt cache.
        fields.ignore(&["user", "safety_identifier", "metadata", "prompt_cache_key", "model"]);
        Ok(Params {
            sampler: sampler(fields, &defaults.sampler, served.tokenizer.as_ref())?,
            n_predict: length(fields, defaults.n_predict, limits.n_predict)?,
            stops,
            ignore_eos,
            n: n.or(n_cmpl).and_then(|n| usize::try_from(n).ok()).unwrap_or(1),
            cache_prompt: fields.bool("cache_prompt")?.unwrap_or(true),
            slot: slot.and_then(|id| usize::try_from(id).ok()),
            stream,
            include_usage,
            timings_per_token: fields.bool("timings_per_token")?.unwrap_or(false),
            return_progress: fields.bool("return_progress")?.unwrap_or(false),
            verbose: fields.bool("verbose")?.unwrap_or(false),
            keep_alive: keep_alive.filter(|time| !time.is_zero()),
            max_time: milliseconds(fields, "t_max_predict_ms")?,
            structure,
        })
    }

    /// The settings as llama-server reports them in `generation_settings`.
    pub(crate) fn report(&self, n_probs: usize, tokenizer: &Tokenizer) -> Value {
        let mut settings = sampler_json(&self.sampler);
        let n_predict = self.n_predict.map_or(json!(-1), Into::into);
        let eog = tokenizer.eog().iter().filter(|_| self.ignore_eos);
        // JSON has no minus infinity, so a banned token has a null bias.
        let banned = eog.map(|id| json!({ "bias": null, "token": id }));
        let biases = self.sampler.logit_bias.iter();
        let biases = biases.map(|(id, bias)| json!({ "bias": finite(*bias), "token": id }));
        let biases: Vec<Value> = biases.chain(banned).collect();
        settings.extend(object(json!({
            "n_predict": n_predict,
            "max_tokens": n_predict,
            "stop": self.stops,
            "ignore_eos": self.ignore_eos,
            "stream": self.stream,
            "n_probs": n_probs,
            "logit_bias": biases,
            "n_keep": 0,
            "n_discard": 0,
            "grammar": "",
            "timings_per_token": self.timings_per_token,
            "t_max_predict_ms": self.max_time.map_or(0, |time| time.as_millis()),
        })));
        Value::Object(settings)
    }
}

/// The sampler's settings under llama-server's names, including samplers that are off.
pub(crate) fn sampler_json(config: &SamplerConfig) -> Map<String, Value> {
    let chain: Vec<&str> = config.chain.iter().map(|stage| stage.name()).collect();
    let mut all = object(json!({
        "seed": config.seed.unwrap_or(u32::MAX),
        "dry_sequence_breakers": config.dry_sequence_breakers,
        "samplers": chain,
    }));
    let numbers = NUMBERS.iter().map(|s| (s.name.to_owned(), Value::from((s.get)(config))));
    let integers = INTEGERS.iter().map(|s| (s.name.to_owned(), Value::from((s.get)(config))));
    all.extend(numbers.chain(integers));
    all
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(map) = value { map } else { Map::new() }
}

/// `None` for infinity and NaN, which JSON lacks.
fn finite(number: f32) -> Option<f32> {
    Some(number).filter(|number| number.is_finite())
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Rejects unsupported fields that would change the answer.
fn refuse_unsupported(fields: &mut Fields) -> Result<()> {
    let number = |value: &Value| value.as_f64();
    let at_least_1 = |value: &Value| number(value).is_some_and(|n| n >= 1.0);
    let at_most_0 = |value: &Value| number(value).is_some_and(|n| n <= 0.0);
    fields.refuse("tfs_z", NO_SAMPLER, at_least_1)?;
    let merged =
        "adapters are merged when the model is loaded; start the server with --lora-scaled";
    fields.refuse("lora", merged, is_empty)?;
    fields.refuse("n_indent", "a minimum indentation is not implemented", is_empty)?;
    fields.refuse("n_cache_reuse", "only a prefix of the prompt is reused", is_empty)?;
    fields.refuse("t_max_prompt_ms", "prefill has no time limit", at_most_0)?;
    let sampled = "only /completion and /infill report probabilities after sampling";
    fields.refuse("post_sampling_probs", sampled, is_empty)?;
    fields.refuse("store", "answers are not stored", is_empty)?;
    fields.refuse("audio", "only text is generated", is_empty)?;
    fields.refuse("prediction", "predicted outputs are not implemented", is_empty)?;
    fields.refuse("web_search_options", "this server does not search", is_empty)?;
    let tier = |value: &Value| matches!(value.as_str(), Some("auto" | "default"));
    fields.refuse("service_tier", "this server has only one tier", tier)?;
    let text = |value: &Value| *value == json!(["text"]);
    fields.refuse("modalities", "only text is generated", text)?;
    let medium = |value: &Value| value.as_str() == Some("medium");
    fields.refuse("verbosity", "ask for a short answer in a message instead", medium)
}

/// A duration in milliseconds; `None` for 0 and negative numbers.
fn milliseconds(fields: &mut Fields, name: &str) -> Result<Option<Duration>> {
    let most = fields.integer(name, [i64::MIN, i64::MAX])?;
    let most = most.and_then(|most| u64::try_from(most).ok()).filter(|most| *most > 0);
    Ok(most.map(Duration::from_millis))
}

/// Maximum number of tokens to generate, at most `limit`. The newest of the field names wins, and
/// a negative number means `limit`.
fn length(
    fields: &mut Fields,
    default: Option<usize>,
    limit: Option<usize>,
) -> Result<Option<usize>> {
    let mut requested = None;
    for name in ["n_predict", "max_tokens", "max_completion_tokens"] {
        requested = fields.integer(name, [-2, i64::MAX])?.or(requested);
    }
    let requested = match requested {
        None => default,
        Some(n) => usize::try_from(n).ok(),
    };
    Ok(match (requested, limit) {
        (Some(requested), Some(limit)) => Some(requested.min(limit)),
        (requested, limit) => requested.or(limit),
    })
}

fn stops(fields: &mut Fields) -> Result<Vec<String>> {
    let stops = fields.strings("stop")?.unwrap_or_default();
    let bytes: usize = stops.iter().map(String::len).sum();
    if stops.len() > MAX_STOPS || bytes > MAX_STOP_BYTES {
        let problem = format!(
            "has {} strings of {bytes} bytes, expected at most {MAX_STOPS} of {MAX_STOP_BYTES} bytes in all",
            stops.len()
        );
        return Err(ApiError::field("stop", problem));
    }
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}

fn sampler(
    fields: &mut Fields,
    default: &SamplerConfig,
    tokenizer: &Tokenizer,
) -> Result<SamplerConfig> {
    let mut config = default.clone();
    let wants_target = fields.has("adaptive_target");
    for setting in &NUMBERS {
        if let Some(value) = fields.number(setting.name, setting.range)? {
            (setting.set)(&mut config, value);
        }
    }
    // vLLM's name of the repeat penalty.
    if let Some(penalty) = fields.number("repetition_penalty", [f32::MIN_POSITIVE, f32::MAX])? {
        config.repeat_penalty = penalty;
    }
    if let Some(n) = fields.integer("penalty_last_n", [-1, i32::MAX.into()])? {
        config.repeat_last_n = usize::try_from(n).unwrap_or(usize::MAX);
    }
    for setting in &INTEGERS {
        if let Some(value) = fields.integer(setting.name, setting.range)? {
            (setting.set)(&mut config, value);
        }
    }
    if let Some(breakers) = fields.take("dry_sequence_breakers") {
        config.dry_sequence_breakers = self::breakers(&breakers)?;
    }
    if let Some(seed) = fields.integer("seed", [i64::MIN, i64::MAX])? {
        config.seed = self::seed(seed);
    }
    if let Some(chain) = fields.take("samplers") {
        config.chain = self::chain(&chain)?;
    }
    if wants_target && config.adaptive_target >= 0.0 && !config.chain.contains(&Stage::AdaptiveP) {
        return Err(ApiError::field("adaptive_target", "needs `adaptive_p` in `samplers`"));
    }
    if let Some(biases) = fields.take("logit_bias") {
        config.logit_bias = self::biases(&biases, tokenizer)?;
    }
    Ok(config)
}

/// Parses the sequence breakers of DRY: a list of texts, which may be empty.
fn breakers(value: &Value) -> Result<Vec<String>> {
    let field = |problem: String| ApiError::field("dry_sequence_breakers", problem);
    let texts = value.as_array().map(|texts| texts.iter().map(Value::as_str));
    let texts = texts.and_then(Iterator::collect::<Option<Vec<&str>>>);
    let texts = texts.ok_or_else(|| field("must be a list of strings".into()))?;
    if texts.len() > MAX_BREAKERS {
        return Err(field(format!("has {} entries, expected at most {MAX_BREAKERS}", texts.len())));
    }
    Ok(texts.into_iter().map(str::to_owned).collect())
}

/// Folds OpenAI's 64-bit seed to 32 bits. `None` (a random seed) for a negative seed, and if the
/// result is 0xffffffff, which means a random seed in llama.cpp.
fn seed(seed: i64) -> Option<u32> {
    let seed = u64::try_from(seed).ok()?;
    let [a, b, c, d, e, f, g, h] = seed.to_le_bytes();
    let folded = u32::from_le_bytes([a, b, c, d]) ^ u32::from_le_bytes([e, f, g, h]);
    Some(folded).filter(|seed| *seed != u32::MAX)
}

/// Parses the sampler chain: a list of names, or a string of letters, as in llama-server.
fn chain(value: &Value) -> Result<Vec<Stage>> {
    let wrong = |error: sample::Error| ApiError::field("samplers", format!("is invalid: {error}"));
    if let Some(letters) = value.as_str() {
        return Stage::parse_letters(letters).map_err(wrong);
    }
    let names = value.as_array().map(|names| names.iter().map(Value::as_str));
    let names: Option<Option<Vec<&str>>> = names.map(Iterator::collect);
    match names.flatten() {
        Some(names) => Stage::parse_names(&names.join(";")).map_err(wrong),
        None => Err(ApiError::field("samplers", "must be a list of names or a string of letters")),
    }
}

/// Parses `{"15043": 1.0}` or `[[15043, 1.0], [" the", false]]`. A bias of a text applies to each
/// of its tokens, and false bans a token.
fn biases(value: &Value, tokenizer: &Tokenizer) -> Result<Vec<(u32, f32)>> {
    let field = |problem: &str| ApiError::field("logit_bias", problem);
    let shape = "must be an object of token ids, or a list of [token, bias]";
    let mut biases = Vec::new();
    let mut add = |token: &Value, bias: &Value| -> Result<()> {
        #[allow(clippy::cast_possible_truncation)] // logits are in single precision
        let bias = match bias.as_f64() {
            Some(bias) => bias as f32,
            None if *bias == Value::Bool(false) => f32::NEG_INFINITY,
            None => return Err(field(shape)),
        };
        if let Some(text) = token.as_str() {
            let ids = tokenizer.encode(text, false, true);
            let ids = ids.map_err(|e| field(&format!("cannot be tokenized: {e}")))?;
            biases.extend(ids.into_iter().map(|id| (id, bias)));
        } else {
            let id = integer(token).and_then(|id| u32::try_from(id).ok());
            let id = id.filter(|id| (*id as usize) < tokenizer.n_vocab());
            let outside = || field(&format!("has the token {token}, not in the vocabulary"));
            biases.push((id.ok_or_else(outside)?, bias));
        }
        if biases.len() > MAX_BIASES {
            Err(field(&format!("has more than {MAX_BIASES} entries")))
        } else {
            Ok(())
        }
    };
    if let Some(map) = value.as_object() {
        map.iter().try_for_each(|(key, bias)| add(&token_or_text(key), bias))?;
        return Ok(biases);
    }
    for item in value.as_array().ok_or_else(|| field(shape))? {
        let Some([token, bias]) = item.as_array().map(Vec::as_slice) else {
            return Err(field(shape));
        };
        add(token, bias)?;
    }
    Ok(biases)
}

/// Converts a key of `logit_bias` to a token id if it is a number, otherwise to a text.
fn token_or_text(key: &str) -> Value {
    key.parse::<u32>().map_or_else(|_| key.into(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_folded_and_negative_ones_are_random() {
        assert_eq!(seed(42), Some(42));
        assert_eq!(seed(-1), None);
        assert_eq!(seed(i64::from(u32::MAX)), None);
        assert_eq!(seed(1 << 32), Some(1));
    }

    #[test]
    fn samplers_come_by_name_or_letter() {
        let stages = [Stage::TopK, Stage::Temperature];
        assert_eq!(chain(&json!(["top_k", "temperature"])), Ok(stages.to_vec()));
        assert_eq!(chain(&json!("kt")), Ok(stages.to_vec()));
        for wrong in [json!(["nope"]), json!([1]), json!(3)] {
            assert_eq!(chain(&wrong).unwrap_err().param.as_deref(), Some("samplers"), "{wrong}");
        }
    }

    #[test]
    fn breakers_are_a_list_of_texts() {
        assert_eq!(breakers(&json!(["\n", "x"])), Ok(vec!["\n".to_owned(), "x".to_owned()]));
        assert_eq!(breakers(&json!([])), Ok(vec![]));
        for wrong in [json!("x"), json!([1]), json!(vec!["x"; 65])] {
            let error = breakers(&wrong).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("dry_sequence_breakers"), "{wrong}");
        }
    }

    #[test]
    fn unsupported_fields_are_refused_unless_neutral() {
        let refused = |text: &str| {
            let mut fields = Fields::parse(text.as_bytes()).unwrap();
            refuse_unsupported(&mut fields).err()
        };
        for neutral in [
            r#"{"tfs_z": 1.0, "n_indent": 0}"#,
            r#"{"lora": [], "service_tier": "auto", "modalities": ["text"]}"#,
            r#"{"store": false}"#,
        ] {
            assert_eq!(refused(neutral), None, "{neutral}");
        }
        for (name, value) in
            [("tfs_z", "0.5"), ("lora", r#"[{"id": 0}]"#), ("post_sampling_probs", "true")]
        {
            let error = refused(&format!("{{\"{name}\": {value}}}")).unwrap();
            assert_eq!(error.param.as_deref(), Some(name));
            assert_eq!(error.status, 400);
        }
    }

    #[test]
    fn the_newest_name_of_a_length_wins() {
        let read = |text: &str, limit| {
            length(&mut Fields::parse(text.as_bytes()).unwrap(), Some(7), limit).unwrap()
        };
        assert_eq!(read("{}", None), Some(7));
        assert_eq!(read(r#"{"max_tokens": 3, "n_predict": 9}"#, None), Some(3));
        assert_eq!(read(r#"{"max_tokens": 3, "max_completion_tokens": 5}"#, None), Some(5));
        assert_eq!(read(r#"{"max_tokens": -1}"#, None), None);
        assert_eq!(read(r#"{"max_tokens": 90}"#, Some(20)), Some(20));
        assert_eq!(read(r#"{"max_tokens": -1}"#, Some(20)), Some(20));
    }
}
