//! Formats of tool calls, and their detection from chat templates.

/// The format in which a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallFormat {
    /// Hermes, Qwen 2.5 and 3: `<tool_call>{"name": .., "arguments": {..}}</tool_call>`.
    Hermes,
    /// Qwen3-Coder: `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`.
    QwenXml,
    /// Llama 3: `{"name": .., "parameters": {..}}`, also after `<|python_tag|>`.
    Llama3,
    /// Mistral up to Small 3: `[TOOL_CALLS][{"name": .., "arguments": {..}}]`.
    Mistral,
    /// Newer Mistral: `[TOOL_CALLS]NAME[ARGS]{..}`.
    MistralArgs,
    /// gpt-oss: `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{..}<|call|>`.
    Harmony,
    /// DeepSeek V2.5, V3 and R1: `function<｜tool▁sep｜>NAME` and the arguments in a JSON block.
    DeepSeek,
    /// DeepSeek V3.1: `NAME<｜tool▁sep｜>{..}`.
    DeepSeekPlain,
    /// Gemma: a `tool_code` block with a JSON object, or a call in Python.
    Gemma,
    /// Any other model: `{"tool_calls": [{"name": .., "arguments": {..}}]}`, or a single object
    /// with name and arguments.
    Generic,
}

pub(super) const TOOL_CALL: &str = "<tool_call>";
pub(super) const TOOL_CALL_END: &str = "</tool_call>";
pub(super) const FUNCTION: &str = "<function=";
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";
pub(super) const TOOL_CALLS: &str = "[TOOL_CALLS]";
pub(super) const ARGS: &str = "[ARGS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";
pub(super) const COMMENTARY: &str = "<|channel|>commentary to=functions.";
pub(super) const ANALYSIS: &str = "<|channel|>analysis to=functions.";
pub(super) const RECIPIENT: &str = "to=functions.";
pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const CALL: &str = "<|call|>";
pub(super) const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CALLS_END: &str = "<｜tool▁calls▁end｜>";
pub(super) const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
pub(super) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(super) const CALL_SEP: &str = "<｜tool▁sep｜>";
pub(super) const TOOL_CODE: &str = "```tool_code";

/// Markers of gpt-oss between the messages of one answer.
const HARMONY_HEADERS: [&str; 4] = [
    "<|start|>assistant",
    "<|end|>",
    "<|channel|>final<|message|>",
    "<|channel|>commentary<|message|>",
];

/// The meaning of a marker in content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Begins a call, anywhere in the text.
    Call(&'static str),
    /// Begins a call at the start of the answer or after another call.
    Leading(&'static str),
    /// Part of the format, not of the content.
    Header(&'static str),
}

impl Mark {
    pub(super) fn text(self) -> &'static str {
        match self {
            Mark::Call(text) | Mark::Leading(text) | Mark::Header(text) => text,
        }
    }
}

impl CallFormat {
    /// All formats.
    pub const ALL: [CallFormat; 10] = [
        CallFormat::Hermes,
        CallFormat::QwenXml,
        CallFormat::Llama3,
        CallFormat::Mistral,
        CallFormat::MistralArgs,
        CallFormat::Harmony,
        CallFormat::DeepSeek,
        CallFormat::DeepSeekPlain,
        CallFormat::Gemma,
        CallFormat::Generic,
    ];

    /// The format whose markers occur in the source of a chat template; [`CallFormat::Generic`] if
    /// none do.
    #[must_use]
    pub fn detect(template: &str) -> CallFormat {
        let has = |mark: &str| template.contains(mark);
        if has("<|channel|>") && has("functions.") {
            CallFormat::Harmony
        } else if has(CALLS_BEGIN) || has(CALL_BEGIN) {
            if has("```json") { CallFormat::DeepSeek } else { CallFormat::DeepSeekPlain }
        } else if has(TOOL_CALLS) {
            if has(ARGS) { CallFormat::MistralArgs } else { CallFormat::Mistral }
        } else if has(FUNCTION) {
            CallFormat::QwenXml
        } else if has(TOOL_CALL) {
            CallFormat::Hermes
        } else if has(PYTHON_TAG) || has("<|start_header_id|>") && has("parameters") {
            CallFormat::Llama3
        } else if has("tool_code") || has("<start_of_turn>") {
            CallFormat::Gemma
        } else {
            CallFormat::Generic
        }
    }

    /// Markers that the parser needs. If a marker is a control token of the vocabulary, the
    /// detokenizer must output it.
    #[must_use]
    pub fn marks(self) -> Vec<&'static str> {
        match self {
            CallFormat::Hermes | CallFormat::QwenXml => vec![TOOL_CALL, TOOL_CALL_END],
            CallFormat::Llama3 => vec![PYTHON_TAG],
            CallFormat::Mistral | CallFormat::MistralArgs => vec![TOOL_CALLS, ARGS, CALL_ID],
            CallFormat::Harmony => {
                vec!["<|start|>", "<|channel|>", "<|constrain|>", MESSAGE, "<|end|>"]
            }
            CallFormat::DeepSeek | CallFormat::DeepSeekPlain => {
                vec![CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, CALL_SEP]
            }
            CallFormat::Gemma | CallFormat::Generic => Vec::new(),
        }
    }

    /// Markers that the parser searches for in content.
    pub(super) fn content_marks(self) -> Vec<Mark> {
        match self {
            CallFormat::Hermes | CallFormat::QwenXml => {
                vec![Mark::Call(TOOL_CALL), Mark::Call(FUNCTION)]
            }
            CallFormat::Llama3 => vec![Mark::Call(PYTHON_TAG), Mark::Leading("{")],
            CallFormat::Mistral | CallFormat::MistralArgs => vec![Mark::Call(TOOL_CALLS)],
            CallFormat::Harmony => {
                let calls =
                    [Mark::Call(COMMENTARY), Mark::Call(ANALYSIS), Mark::Leading(RECIPIENT)];
                calls.into_iter().chain(HARMONY_HEADERS.map(Mark::Header)).collect()
            }
            CallFormat::DeepSeek | CallFormat::DeepSeekPlain => {
                vec![Mark::Call(CALLS_BEGIN), Mark::Call(CALL_BEGIN)]
            }
            CallFormat::Gemma => vec![Mark::Call(TOOL_CODE)],
            CallFormat::Generic => vec![Mark::Leading("{")],
        }
    }

    /// Whether call ids must be nine letters and digits, as Mistral's templates require.
    pub(super) fn has_short_ids(self) -> bool {
        matches!(self, CallFormat::Mistral | CallFormat::MistralArgs)
    }
}
