//! Flags for [`super::llama`] of llama-server, of speculative decoding, and of llama.cpp and
//! PowerInfer as they were in 2023. [`super::llama_flags`] has all others.

use super::arity::Arity::{Maybe, Nothing, One, Scaled, Two};
use super::llama::LlamaFlag;
use super::llama::NeutralValue::{Number, Word};
use super::llama::Treatment::{Hint, Refused, Silent};
use super::llama_flags::{NO_CONTROL, NO_DRAFT, NO_IMAGES, NO_PRESET, OFF, PLANNED, flag};

const NO_FILES: &str =
    "the server has its own page and serves no other files; --no-webui turns it off";
const NO_TOOLS: &str = "the server runs no tools; clients run the tools that they send";
const NO_UI_CONFIG: &str = "users change the page's settings in the page itself";
const ONE_MODEL: &str = "a server runs one model, given with -m";
const CORS: &str =
    "--cors-origins sets the pages that may use the server, with all methods and headers";
const NO_LOG_FILE: &str = "--log-file writes one log file";
const MERGED: &str =
    "adapters are merged when the model is loaded, so their scales cannot change later";
const NEUTRAL: &[&str] = &["off", "0", "false"];

/// Flags that only llama-server has. Other commands than `serve` reject them.
#[rustfmt::skip]
pub(super) static SERVER: &[LlamaFlag] = &[
    flag(&["--threads-http"], One, Silent).env("THREADS_HTTP").server(),
    flag(&["--sse-ping-interval"], One, Silent).env("SSE_PING_INTERVAL").server(),
    flag(&["-sps", "--slot-prompt-similarity"], One, Silent).server(),
    flag(&["--reuse-port"], Nothing, Silent).env("REUSE_PORT").server(),
    flag(&["--cache-idle-slots"], Maybe, Silent).env("CACHE_IDLE_SLOTS").server(),
    flag(&["--kv-unified-per-slot"], One, Silent).env("KV_UNIFIED_PER_SLOT").server(),
    flag(&["-cms", "--checkpoint-min-step"], One, Silent).env("CHECKPOINT_MIN_SPACING_NT").server(),
    flag(&["--cache-reuse"], One, Silent).env("CACHE_REUSE").server(),
    flag(&["--lora-init-without-apply"], Nothing, Refused(MERGED)).server(),
    flag(&["--prefill-assistant"], Maybe, Refused("a final assistant message is always continued")).unless(Word(&["", "on", "1", "true"])).env("PREFILL_ASSISTANT").server(),
    flag(&["--sleep-idle-seconds"], One, Hint("the model stays loaded while the server runs")).unless(Number(-1.0..=-1.0)).server(),
    flag(&["--cors-methods", "--cors-headers"], One, Hint(CORS)).server(),
    flag(&["--cors-credentials"], Maybe, Hint(CORS)).server(),
    flag(&["--path"], One, Refused(NO_FILES)).env("STATIC_PATH").server(),
    flag(&["--media-path"], One, Refused(NO_IMAGES)).server(),
    flag(&["--api-prefix"], One, Refused("endpoints have no prefix; a proxy can add one")).unless(Word(&[""])).env("API_PREFIX").server(),
    flag(&["--ui-config", "--webui-config"], One, Refused(NO_UI_CONFIG)).env("UI_CONFIG").server(),
    flag(&["--ui-config-file", "--webui-config-file"], One, Refused(NO_UI_CONFIG)).env("UI_CONFIG_FILE").server(),
    flag(&["--ui-mcp-proxy", "--webui-mcp-proxy"], Maybe, Refused(NO_TOOLS)).unless(Word(NEUTRAL)).env("UI_MCP_PROXY").server(),
    flag(&["--prompt-cache-all", "--prompt-cache-ro"], Nothing, Silent).server(),
    flag(&["-p", "--prompt"], One, Hint("each request has its own prompt")).server(),
    flag(&["--tools"], One, Refused(NO_TOOLS)).env("TOOLS").server(),
    flag(&["--tools-runtime"], One, Refused(NO_TOOLS)).env("TOOLS_RUNTIME").server(),
    flag(&["--mcp-servers-config"], One, Refused(NO_TOOLS)).env("MCP_SERVERS_CONFIG").server(),
    flag(&["--mcp-servers-json"], One, Refused(NO_TOOLS)).env("MCP_SERVERS_JSON").server(),
    flag(&["-ag", "--agent"], Maybe, Refused(NO_TOOLS)).unless(Word(NEUTRAL)).env("AGENT").server(),
    flag(&["-no-ag"], Nothing, Silent).server(),
    flag(&["--models-dir"], One, Refused(ONE_MODEL)).env("MODELS_DIR").server(),
    flag(&["--models-preset"], One, Refused(ONE_MODEL)).env("MODELS_PRESET").server(),
    flag(&["--models-max"], One, Silent).env("MODELS_MAX").server(),
    flag(&["--models-autoload"], Maybe, Silent).env("MODELS_AUTOLOAD").server(),
    flag(&["--spm-infill"], Nothing, Refused("the model file defines the order of an infill prompt")).server(),
    flag(&["--embd-normalize"], One, Refused("embeddings are normalised to length 1; requests may set embd_normalize")).unless(Number(2.0..=2.0)).server(),
    flag(&["--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default", "--fim-qwen-7b-spec", "--fim-qwen-14b-spec", "--fim-qwen-30b-default", "--embd-gemma-default"], Nothing, Refused(NO_PRESET)).server(),
];

/// Speculative decoding, images and caches: flags of 2025 and 2026.
#[rustfmt::skip]
pub(super) static RECENT: &[LlamaFlag] = &[
    flag(&["--spec-type"], One, Hint(NO_DRAFT)).unless(Word(&["none"])).env("SPEC_TYPE"),
    flag(&["--spec-default", "--mtp", "--eagle3", "--dflash"], Nothing, Hint(NO_DRAFT)),
    flag(&["--spec-draft-n-max"], One, Hint(NO_DRAFT)).env("SPEC_DRAFT_N_MAX"),
    flag(&["--spec-draft-n-min"], One, Hint(NO_DRAFT)).env("SPEC_DRAFT_N_MIN"),
    flag(&["--spec-draft-p-split", "--draft-p-split"], One, Hint(NO_DRAFT)).env("SPEC_DRAFT_P_SPLIT"),
    flag(&["--spec-draft-backend-sampling"], Maybe, Silent).env("SPEC_DRAFT_BACKEND_SAMPLING"),
    flag(&["--spec-synth-len", "--spec-synth-rates"], One, Hint(NO_DRAFT)),
    flag(&["--spec-draft-threads", "-td", "--threads-draft", "--spec-draft-threads-batch", "-tbd", "--threads-batch-draft"], One, Hint(NO_DRAFT)),
    flag(&["--spec-draft-cpu-mask", "-Cd", "--cpu-mask-draft", "--spec-draft-cpu-range", "-Crd", "--cpu-range-draft", "--spec-draft-cpu-strict", "--cpu-strict-draft"], One, Hint(NO_DRAFT)),
    flag(&["--spec-draft-prio", "--prio-draft", "--spec-draft-poll", "--poll-draft"], One, Hint(NO_DRAFT)),
    flag(&["--spec-draft-cpu-mask-batch", "-Cbd", "--cpu-mask-batch-draft", "--spec-draft-cpu-range-batch", "-Crbd", "--cpu-range-batch-draft"], One, Hint(NO_DRAFT)),
    flag(&["--spec-draft-cpu-strict-batch", "--cpu-strict-batch-draft", "--spec-draft-prio-batch", "--prio-batch-draft", "--spec-draft-poll-batch", "--poll-batch-draft"], One, Hint(NO_DRAFT)),
    flag(&["--spec-draft-override-tensor", "-otd", "--override-tensor-draft"], One, Hint(NO_DRAFT)),
    flag(&["--spec-draft-cpu-moe", "-cmoed", "--cpu-moe-draft"], Nothing, Hint(NO_DRAFT)).env("SPEC_DRAFT_CPU_MOE"),
    flag(&["--spec-draft-n-cpu-moe", "--spec-draft-ncmoe", "-ncmoed", "--n-cpu-moe-draft"], One, Hint(NO_DRAFT)).env("SPEC_DRAFT_N_CPU_MOE"),
    flag(&["--spec-ngram-mod-n-min", "--spec-ngram-mod-n-max", "--spec-ngram-mod-n-match", "--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m", "--spec-ngram-simple-min-hits"], One, Hint(NO_DRAFT)),
    flag(&["--spec-ngram-map-k-size-n", "--spec-ngram-map-k-size-m", "--spec-ngram-map-k-min-hits", "--spec-ngram-map-k4v-size-n", "--spec-ngram-map-k4v-size-m", "--spec-ngram-map-k4v-min-hits"], One, Hint(NO_DRAFT)),
    flag(&["--spec-ngram-size-n", "--spec-ngram-size-m", "--spec-ngram-min-hits"], One, Hint(NO_DRAFT)),
    flag(&["--spec-replace"], Two, Hint(NO_DRAFT)),
    flag(&["-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"], One, Hint(NO_DRAFT)),
    flag(&["-cram", "--cache-ram"], One, Silent).env("CACHE_RAM"),
    flag(&["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"], One, Silent).env("CTX_CHECKPOINTS"),
    flag(&["-kvu", "--kv-unified"], Maybe, Silent).env("KV_UNIFIED"),
    flag(&["-no-kvu"], Nothing, Silent),
    flag(&["-ncffn", "--n-cpu-ffn"], One, Hint(PLANNED)).unless(OFF).env("N_CPU_FFN"),
    flag(&["--moe-cache-mib"], One, Hint(PLANNED)).unless(OFF).env("MOE_CACHE_MIB"),
    flag(&["-lzm", "--lazy-mode"], One, Silent).env("LAZY_MODE"),
    flag(&["--mmproj-auto"], Maybe, Silent).env("MMPROJ_AUTO"),
    flag(&["--no-mmproj"], Nothing, Silent),
    flag(&["--mmproj-offload"], Maybe, Silent).env("MMPROJ_OFFLOAD"),
    flag(&["-mmu", "--mmproj-url"], One, Refused(NO_IMAGES)).env("MMPROJ_URL"),
    flag(&["--image-min-tokens", "--image-max-tokens", "--mtmd-batch-max-tokens", "--video-fps", "--video-timestamp-interval", "--video-ffmpeg-dir"], One, Silent),
    flag(&["--log-jsonl"], Maybe, Hint("the log is text; `serve` has --log-format json")).unless(Word(NEUTRAL)).env("LOG_JSONL"),
    flag(&["--log-prompts-dir"], One, Hint("prompts are not logged")),
    flag(&["--reasoning-budget-message"], One, Silent).env("THINK_BUDGET_MESSAGE"),
    flag(&["--reasoning-preserve"], Maybe, Refused("reasoning is not sent back to the model")).unless(Word(NEUTRAL)).env("REASONING_PRESERVE"),
    flag(&["--skip-chat-parsing"], Maybe, Refused("--reasoning-format none leaves reasoning in the answer")).unless(Word(NEUTRAL)).env("SKIP_CHAT_PARSING"),
    flag(&["--attention"], One, Refused("the model file decides which tokens attend to which")).unless(Word(&["causal"])),
    flag(&["--server-base"], One, Refused("the model runs in this process; no server is used")),
    flag(&["-o", "--output", "--output-file"], One, Refused("text goes to standard output: redirect it with > FILE; `profile` and `predictor` have --out FILE")),
    flag(&["--gpt-oss-20b-default", "--gpt-oss-120b-default", "--vision-gemma-4b-default", "--vision-gemma-12b-default"], Nothing, Refused(NO_PRESET)),
    flag(&["--control-vector-scaled"], Scaled, Refused(NO_CONTROL)),
    flag(&["--perf", "--no-perf", "-e", "--escape", "--no-escape", "--no-context-shift", "--verbose-prompt"], Nothing, Silent),
    flag(&["--context-shift"], Maybe, Refused("only `run` and `chat` drop old text when the context is full")).unless(Word(NEUTRAL)),
    flag(&["--hellaswag-tasks", "--winogrande-tasks", "--multiple-choice-tasks"], One, Silent),
];

/// Flags of the fork ik_llama.cpp.
#[rustfmt::skip]
pub(super) static IK_LLAMA: &[LlamaFlag] = &[
    flag(&["-rtr", "--run-time-repack", "-fmoe", "--fused-moe", "-no-fmoe", "--no-fused-moe", "-mqkv", "--merge-qkv", "-muge", "--merge-up-gate-experts", "-gr", "--graph-reuse", "-ngr", "--no-graph-reuse"], Maybe, Silent),
    flag(&["-mla", "--mla-use", "-amb", "--attention-max-batch"], One, Silent),
    flag(&["-ser", "--smart-expert-reduction"], One, Refused("all experts that the model selects are computed")),
];

/// A flag about sampling or text, given to a command that generates no text.
pub(super) static NO_TEXT: LlamaFlag = flag(&[], One, Hint("this command generates no text"));

/// Flags that llama.cpp or PowerInfer had in 2023.
#[rustfmt::skip]
pub(super) static OLD: &[LlamaFlag] = &[
    flag(&["-ld", "--logdir"], One, Hint(NO_LOG_FILE)),
    flag(&["--log-test", "--log-new", "--log-enable", "--log-append"], Nothing, Silent),
    flag(&["--low-vram"], Nothing, Hint(PLANNED)),
    flag(&["-mmq", "--mul-mat-q", "-nommq", "--no-mul-mat-q"], Nothing, Silent),
    flag(&["-gqa", "--gqa", "-eps", "--rms-norm-eps", "--n-parts"], One, Silent),
    flag(&["--lora-base"], One, Hint("adapters are merged into the model that is loaded")),
    flag(&["-nl", "--no-penalize-nl"], Nothing, Hint("--repeat-penalty counts line breaks like other tokens; 1 disables it")),
    flag(&["--penalize-nl"], Nothing, Silent),
    flag(&["--random-prompt"], Nothing, Hint("the text begins with the prompt of -p, not with a random word")),
    flag(&["--logits-all", "--all-logits", "--perplexity", "--memory-f16", "--mtest"], Nothing, Silent),
    flag(&["--tensor-buft-overrides"], One, Hint(PLANNED)),
    flag(&["--gpu-index"], One, Hint("the planner computes the split; `thermocline profile --import` reads PowerInfer's activation counts")),
];
