//! The table of flags for [`super::llama`], one flag per line. [`super::llama_other_flags`] has
//! those of llama-server, of speculative decoding, and of llama.cpp in 2023.

use super::arity::Arity;
use super::arity::Arity::{Maybe, Nothing, One, State, Two};
use super::llama::NeutralValue::{Never, Number, Word};
use super::llama::Treatment::{Hint, Refused, RefusedForText, Silent};
use super::llama::{LlamaFlag, NeutralValue, Treatment};

pub(super) const PLANNED: &str =
    "the planner places layers and neurons within --vram-budget; `thermocline plan` shows where";
const NO_REMOTE: &str = "only devices of this machine are supported; --device selects them";
const KV_HERE: &str = "the planner places the KV cache; --no-kv-offload keeps it on the CPU";
const SAME_PINNING: &str = "prefill threads are pinned like decode threads; --cpu-mask sets both";
pub(super) const NO_DRAFT: &str =
    "speculative decoding is not supported; the text is the same without it";
const PAGE_CACHE: &str = "the model file is memory-mapped; --mlock and --no-mmap change that";
pub(super) const NO_PRESET: &str = "presets are not supported; name the model with -hf USER/REPO";
const RAW_TEXT: &str =
    "raw text cannot be continued interactively; -cnv or `chat` starts a conversation";
const TEMPLATE: &str = "the chat template formats messages; --chat-template sets another template";
pub(super) const NO_CONTROL: &str =
    "control vectors are not supported yet, and the text would differ without them";
const NO_SAMPLER: &str = "llama.cpp has removed this sampler; the text would differ without it";
const NO_OVERRIDE: &str =
    "metadata is not overridden here; `quantize --override-kv` writes a file with other values";
const NO_TASK: &str =
    "this benchmark is not supported; `perplexity` measures perplexity and divergence";
pub(super) const NO_IMAGES: &str = "images and audio are not supported";
pub(super) const OFF: NeutralValue = Number(0.0..=0.0);
const ONE: NeutralValue = Number(1.0..=1.0);
const AT_LEAST_1: NeutralValue = Number(1.0..=f32::MAX);

pub(super) const fn flag(
    names: &'static [&'static str],
    takes: Arity,
    verdict: Treatment,
) -> LlamaFlag {
    LlamaFlag { names, takes, verdict, neutral: Never, env: None, server: false }
}

impl LlamaFlag {
    pub(super) const fn env(self, name: &'static str) -> Self {
        Self { env: Some(name), ..self }
    }

    pub(super) const fn unless(self, neutral: NeutralValue) -> Self {
        Self { neutral, ..self }
    }

    /// A flag of llama-server only.
    pub(super) const fn server(self) -> Self {
        Self { server: true, ..self }
    }
}

#[rustfmt::skip]
pub(super) static KNOWN: &[LlamaFlag] = &[
    // Placement.
    flag(&["-sm", "--split-mode"], One, Hint(PLANNED)).unless(Word(&["none"])).env("SPLIT_MODE"),
    flag(&["-ts", "--tensor-split"], One, Hint(PLANNED)).env("TENSOR_SPLIT"),
    flag(&["-fit", "--fit"], Maybe, Hint(PLANNED)).unless(Word(&["off", "0", "false"])).env("FIT"),
    flag(&["-fitt", "--fit-target"], One, Hint(PLANNED)).env("FIT_TARGET"),
    flag(&["-fitc", "--fit-ctx"], One, Hint(PLANNED)).env("FIT_CTX"),
    flag(&["-nopo", "--no-op-offload"], Maybe, Silent),
    flag(&["-kvo", "--kv-offload"], Maybe, Hint(KV_HERE)).unless(Word(&["", "on", "1", "true"])).env("KV_OFFLOAD"),
    flag(&["--op-offload"], Maybe, Silent),
    flag(&["-rpc", "--rpc"], One, Hint(NO_REMOTE)).env("RPC"),
    flag(&["-Cb", "--cpu-mask-batch"], One, Hint(SAME_PINNING)),
    flag(&["-Crb", "--cpu-range-batch"], One, Hint(SAME_PINNING)),
    flag(&["--cpu-strict-batch"], One, Hint(SAME_PINNING)).unless(OFF),
    flag(&["--prio-batch"], One, Hint(SAME_PINNING)).unless(OFF),
    flag(&["--poll-batch"], One, Silent),
    flag(&["-dio", "--direct-io"], Maybe, Hint(PAGE_CACHE)).env("DIO"),
    flag(&["-ndio", "--no-direct-io"], Nothing, Silent),
    flag(&["--check-tensors"], Nothing, Hint("tensor values are not checked before use; NaN logits end the run")),
    flag(&["-md", "--model-draft", "--spec-draft-model"], One, Hint(NO_DRAFT)).env("MODEL_DRAFT"),
    flag(&["--draft", "--draft-n", "--draft-max"], One, Hint(NO_DRAFT)).env("DRAFT_MAX"),
    flag(&["--draft-min", "--draft-n-min"], One, Hint(NO_DRAFT)).env("DRAFT_MIN"),
    flag(&["--spec-draft-p-min", "--draft-p-min"], One, Hint(NO_DRAFT)).env("DRAFT_P_MIN"),
    flag(&["-cd", "--ctx-size-draft"], One, Hint(NO_DRAFT)).env("CTX_SIZE_DRAFT"),
    flag(&["-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"], One, Hint(NO_DRAFT)).env("N_GPU_LAYERS_DRAFT"),
    flag(&["-devd", "--device-draft", "--spec-draft-device"], One, Hint(NO_DRAFT)),
    flag(&["-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"], One, Hint(NO_DRAFT)).env("CACHE_TYPE_K_DRAFT"),
    flag(&["-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"], One, Hint(NO_DRAFT)).env("CACHE_TYPE_V_DRAFT"),
    flag(&["-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"], One, Hint(NO_DRAFT)).env("HFD_REPO"),
    // No effect here.
    flag(&["-fa", "--flash-attn"], State, Silent).env("FLASH_ATTN"),
    flag(&["--warmup"], Maybe, Silent).env("WARMUP"),
    flag(&["--no-warmup"], Nothing, Silent),
    flag(&["--simple-io"], Nothing, Silent),
    flag(&["--jinja"], Nothing, Silent).env("JINJA"),
    flag(&["--no-jinja"], Nothing, Silent),
    flag(&["--in-prefix-bos"], Nothing, Silent),
    flag(&["-np", "--parallel"], One, Silent).env("N_PARALLEL"),
    flag(&["-cb", "--cont-batching"], Nothing, Silent).env("CONT_BATCHING"),
    flag(&["-nocb", "--no-cont-batching"], Nothing, Silent),
    flag(&["--swa-full"], Nothing, Silent).env("SWA_FULL"),
    flag(&["-dt", "--defrag-thold"], One, Silent).env("DEFRAG_THOLD"),
    flag(&["--no-host"], Maybe, Silent).env("NO_HOST"),
    flag(&["-bs", "--backend-sampling"], Nothing, Silent).env("BACKEND_SAMPLING"),
    flag(&["-ptc", "--print-token-count"], One, Silent),
    flag(&["-lv", "--verbosity", "--log-verbosity"], One, Silent),
    flag(&["--log-verbose"], Nothing, Silent),
    flag(&["--log-colors"], Maybe, Silent),
    flag(&["--log-prefix"], Maybe, Silent),
    flag(&["--log-timestamps"], Maybe, Silent),
    flag(&["-gaw", "--grp-attn-w"], One, Silent).env("GRP_ATTN_W"),
    flag(&["-a", "--alias"], One, Silent).env("ALIAS"),
    flag(&["--ppl-output-type"], One, Silent),
    // Rejected.
    flag(&["-dr", "--docker-repo"], One, Refused("Docker registries are not supported; -hf USER/REPO downloads from Hugging Face")).env("DOCKER_REPO"),
    flag(&["-cl", "--cache-list"], Nothing, Refused("use `thermocline list` instead")),
    flag(&["-i", "--interactive"], Nothing, RefusedForText(RAW_TEXT)),
    flag(&["-if", "--interactive-first"], Nothing, RefusedForText(RAW_TEXT)),
    flag(&["--instruct", "-ins"], Nothing, RefusedForText(RAW_TEXT)),
    flag(&["--in-prefix"], One, Refused(TEMPLATE)).unless(Word(&[""])),
    flag(&["--in-suffix"], One, Refused(TEMPLATE)).unless(Word(&[""])),
    flag(&["-mm", "--mmproj"], One, Refused(NO_IMAGES)).env("MMPROJ"),
    flag(&["--image", "--audio", "--video"], One, Refused(NO_IMAGES)),
    flag(&["--control-vector"], One, Refused(NO_CONTROL)),
    flag(&["--control-vector-layer-range"], Two, Refused(NO_CONTROL)),
    flag(&["--tfs"], One, Refused(NO_SAMPLER)).unless(AT_LEAST_1),
    flag(&["--cfg-scale"], One, Refused(NO_SAMPLER)).unless(ONE),
    flag(&["--cfg-negative-prompt"], One, Silent),
    flag(&["-gan", "--grp-attn-n"], One, Refused("self-extended attention is not supported")).unless(ONE).env("GRP_ATTN_N"),
    flag(&["--memory-f32"], Nothing, Refused("use -ctk f32 -ctv f32 instead")),
    flag(&["--override-kv"], One, Refused(NO_OVERRIDE)),
    flag(&["--completion-bash"], Nothing, Refused("use `thermocline completions bash` instead")),
    flag(&["-embd", "--embedding", "--embeddings"], Maybe, Refused("only `embed` and `serve` compute embeddings")).unless(Word(&["0"])),
    flag(&["--ppl-stride"], One, Refused("strided perplexity is not supported; chunks do not overlap")).unless(OFF),
    flag(&["--hellaswag", "--winogrande", "--multiple-choice"], Nothing, Refused(NO_TASK)),
];
