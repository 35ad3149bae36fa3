//! The table of flags for [`super::llama`], one flag per line.

use super::llama::Arity::{Maybe, Nothing, One, Two};
use super::llama::NeutralValue::{Never, Number, Word};
use super::llama::Treatment::{Hint, Refused, Silent};
use super::llama::{Arity, LlamaFlag, NeutralValue, Treatment};

const PLANNED: &str =
    "the planner places layers and neurons within --vram-budget; `thermocline plan` shows where";
const NO_EXPERTS: &str =
    "the planner places experts like other neurons; --disable-gpu-index keeps them on the CPU";
const NO_REMOTE: &str = "only devices of this machine are supported; --device selects them";
const KV_HERE: &str = "the planner places the KV cache; --no-kv-offload keeps it on the CPU";
const SAME_PINNING: &str = "prefill threads are pinned like decode threads; --cpu-mask sets both";
const NO_DRAFT: &str = "speculative decoding is not supported; the text is the same without it";
const PAGE_CACHE: &str = "the model file is memory-mapped; --mlock and --no-mmap change that";
const NO_DOWNLOAD: &str = "models are not downloaded; download the GGUF file and pass it with -m";
const RAW_TEXT: &str = "raw text cannot be continued interactively; `chat` starts a conversation";
const TEMPLATE: &str = "the chat template formats messages; --chat-template sets another template";
const NO_ADAPTER: &str = "adapters are not supported yet, and the text would differ without them";
const NO_SAMPLER: &str = "this sampler is not supported yet, and the text would differ without it";
const NO_ROPE: &str = "the position encoding is taken from the file and cannot be overridden yet";
const NO_OVERRIDE: &str = "overriding metadata is not supported yet";
const NO_TASK: &str =
    "this benchmark is not supported; `perplexity` measures perplexity and divergence";
const OFF: NeutralValue = Number(0.0..=0.0);
const AT_MOST_0: NeutralValue = Number(f32::MIN..=0.0);
const ONE: NeutralValue = Number(1.0..=1.0);
const AT_LEAST_1: NeutralValue = Number(1.0..=f32::MAX);

const fn flag(names: &'static [&'static str], takes: Arity, verdict: Treatment) -> LlamaFlag {
    LlamaFlag { names, takes, verdict, neutral: Never, env: None }
}

impl LlamaFlag {
    const fn env(self, name: &'static str) -> Self {
        Self { env: Some(name), ..self }
    }

    const fn unless(self, neutral: NeutralValue) -> Self {
        Self { neutral, ..self }
    }
}

#[rustfmt::skip]
pub(super) static KNOWN: [LlamaFlag; 109] = [
    // Placement.
    flag(&["-sm", "--split-mode"], One, Hint(PLANNED)).unless(Word(&["none"])).env("SPLIT_MODE"),
    flag(&["-ts", "--tensor-split"], One, Hint(PLANNED)).env("TENSOR_SPLIT"),
    flag(&["-ot", "--override-tensor"], One, Hint(PLANNED)).env("OVERRIDE_TENSOR"),
    flag(&["-fit", "--fit"], Maybe, Hint(PLANNED)).unless(Word(&["off", "0", "false"])).env("FIT"),
    flag(&["-fitt", "--fit-target"], One, Hint(PLANNED)).env("FIT_TARGET"),
    flag(&["-fitc", "--fit-ctx"], One, Hint(PLANNED)).env("FIT_CTX"),
    flag(&["-nopo", "--no-op-offload"], Maybe, Silent),
    flag(&["-kvo", "--kv-offload"], Maybe, Hint(KV_HERE)).unless(Word(&["", "on", "1", "true"])).env("KV_OFFLOAD"),
    flag(&["--op-offload"], Maybe, Silent),
    flag(&["-rpc", "--rpc"], One, Hint(NO_REMOTE)).env("RPC"),
    flag(&["-cmoe", "--cpu-moe"], Nothing, Hint(NO_EXPERTS)).env("CPU_MOE"),
    flag(&["-ncmoe", "--n-cpu-moe"], One, Hint(NO_EXPERTS)).unless(OFF).env("N_CPU_MOE"),
    flag(&["-Cb", "--cpu-mask-batch"], One, Hint(SAME_PINNING)),
    flag(&["-Crb", "--cpu-range-batch"], One, Hint(SAME_PINNING)),
    flag(&["--cpu-strict-batch"], One, Hint(SAME_PINNING)).unless(OFF),
    flag(&["--prio-batch"], One, Hint(SAME_PINNING)).unless(OFF),
    flag(&["--poll-batch"], One, Silent),
    flag(&["-lm", "--load-mode"], One, Hint(PAGE_CACHE)).unless(Word(&["auto", "mmap"])).env("LOAD_MODE"),
    flag(&["-dio", "--direct-io"], Maybe, Hint(PAGE_CACHE)).env("DIO"),
    flag(&["-ndio", "--no-direct-io"], Nothing, Silent),
    flag(&["--check-tensors"], Nothing, Hint("tensor values are not checked before use; NaN logits end the run")),
    flag(&["-md", "--model-draft"], One, Hint(NO_DRAFT)).env("MODEL_DRAFT"),
    flag(&["--draft", "--draft-n", "--draft-max"], One, Hint(NO_DRAFT)).env("DRAFT_MAX"),
    flag(&["--draft-min", "--draft-n-min"], One, Hint(NO_DRAFT)).env("DRAFT_MIN"),
    flag(&["--draft-p-min"], One, Hint(NO_DRAFT)).env("DRAFT_P_MIN"),
    flag(&["-cd", "--ctx-size-draft"], One, Hint(NO_DRAFT)).env("CTX_SIZE_DRAFT"),
    flag(&["-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"], One, Hint(NO_DRAFT)).env("N_GPU_LAYERS_DRAFT"),
    flag(&["-devd", "--device-draft"], One, Hint(NO_DRAFT)),
    flag(&["-ctkd", "--cache-type-k-draft"], One, Hint(NO_DRAFT)).env("CACHE_TYPE_K_DRAFT"),
    flag(&["-ctvd", "--cache-type-v-draft"], One, Hint(NO_DRAFT)).env("CACHE_TYPE_V_DRAFT"),
    flag(&["-hfd", "-hfrd", "--hf-repo-draft"], One, Hint(NO_DRAFT)).env("HFD_REPO"),
    // No effect here.
    flag(&["-fa", "--flash-attn"], Maybe, Silent).env("FLASH_ATTN"),
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
    flag(&["--offline"], Nothing, Silent).env("OFFLINE"),
    flag(&["-lv", "--verbosity", "--log-verbosity"], One, Silent),
    flag(&["--log-verbose"], Nothing, Silent),
    flag(&["--log-file"], One, Hint("no log file is written; redirect standard error instead")),
    flag(&["--log-colors"], Maybe, Silent),
    flag(&["--log-prefix"], Nothing, Silent),
    flag(&["--log-timestamps"], Nothing, Silent),
    flag(&["-gaw", "--grp-attn-w"], One, Silent).env("GRP_ATTN_W"),
    flag(&["-hft", "--hf-token"], One, Silent),
    flag(&["-a", "--alias"], One, Silent).env("ALIAS"),
    flag(&["--ppl-output-type"], One, Silent),
    // Rejected.
    flag(&["-mu", "--model-url"], One, Refused(NO_DOWNLOAD)).env("MODEL_URL"),
    flag(&["-hf", "-hfr", "--hf-repo"], One, Refused(NO_DOWNLOAD)).env("HF_REPO"),
    flag(&["-hff", "--hf-file"], One, Refused(NO_DOWNLOAD)).env("HF_FILE"),
    flag(&["-dr", "--docker-repo"], One, Refused(NO_DOWNLOAD)).env("DOCKER_REPO"),
    flag(&["-cl", "--cache-list"], Nothing, Refused(NO_DOWNLOAD)),
    flag(&["-i", "--interactive"], Nothing, Refused(RAW_TEXT)),
    flag(&["-if", "--interactive-first"], Nothing, Refused(RAW_TEXT)),
    flag(&["--instruct", "-ins"], Nothing, Refused(RAW_TEXT)),
    flag(&["--in-prefix"], One, Refused(TEMPLATE)).unless(Word(&[""])),
    flag(&["--in-suffix"], One, Refused(TEMPLATE)).unless(Word(&[""])),
    flag(&["-mm", "--mmproj"], One, Refused("images and audio are not supported")).env("MMPROJ"),
    flag(&["--image", "--audio"], One, Refused("images and audio are not supported")),
    flag(&["--lora"], One, Refused(NO_ADAPTER)).env("LORA"),
    flag(&["--lora-scaled"], One, Refused(NO_ADAPTER)),
    flag(&["--control-vector"], One, Refused(NO_ADAPTER)),
    flag(&["--control-vector-scaled"], One, Refused(NO_ADAPTER)),
    flag(&["--control-vector-layer-range"], Two, Refused(NO_ADAPTER)),
    flag(&["--mirostat"], One, Refused(NO_SAMPLER)).unless(OFF),
    flag(&["--mirostat-lr"], One, Silent),
    flag(&["--mirostat-ent"], One, Silent),
    flag(&["--typical", "--typical-p"], One, Refused(NO_SAMPLER)).unless(AT_LEAST_1),
    flag(&["--top-nsigma", "--top-n-sigma"], One, Refused(NO_SAMPLER)).unless(AT_MOST_0),
    flag(&["--xtc-probability"], One, Refused(NO_SAMPLER)).unless(AT_MOST_0),
    flag(&["--xtc-threshold"], One, Silent),
    flag(&["--dynatemp-range"], One, Refused(NO_SAMPLER)).unless(AT_MOST_0),
    flag(&["--dynatemp-exp"], One, Silent),
    flag(&["--dry-multiplier"], One, Refused(NO_SAMPLER)).unless(OFF),
    flag(&["--dry-base"], One, Silent),
    flag(&["--dry-allowed-length"], One, Silent),
    flag(&["--dry-penalty-last-n"], One, Silent),
    flag(&["--dry-sequence-breaker"], One, Silent),
    flag(&["--adaptive-target"], One, Refused(NO_SAMPLER)).unless(Number(f32::MIN..=-f32::MIN_POSITIVE)),
    flag(&["--adaptive-decay"], One, Silent),
    flag(&["--tfs"], One, Refused(NO_SAMPLER)).unless(AT_LEAST_1),
    flag(&["--cfg-scale"], One, Refused(NO_SAMPLER)).unless(ONE),
    flag(&["--cfg-negative-prompt"], One, Silent),
    flag(&["--rope-scaling"], One, Refused(NO_ROPE)).env("ROPE_SCALING_TYPE"),
    flag(&["--rope-scale"], One, Refused(NO_ROPE)).env("ROPE_SCALE"),
    flag(&["--rope-freq-base"], One, Refused(NO_ROPE)).unless(OFF).env("ROPE_FREQ_BASE"),
    flag(&["--rope-freq-scale"], One, Refused(NO_ROPE)).unless(OFF).env("ROPE_FREQ_SCALE"),
    flag(&["--yarn-orig-ctx"], One, Refused(NO_ROPE)).unless(OFF).env("YARN_ORIG_CTX"),
    flag(&["--yarn-ext-factor"], One, Refused(NO_ROPE)).unless(Number(-1.0..=-1.0)).env("YARN_EXT_FACTOR"),
    flag(&["--yarn-attn-factor"], One, Refused(NO_ROPE)).unless(Number(-1.0..=-1.0)).env("YARN_ATTN_FACTOR"),
    flag(&["--yarn-beta-slow"], One, Refused(NO_ROPE)).unless(Number(-1.0..=-1.0)).env("YARN_BETA_SLOW"),
    flag(&["--yarn-beta-fast"], One, Refused(NO_ROPE)).unless(Number(-1.0..=-1.0)).env("YARN_BETA_FAST"),
    flag(&["-gan", "--grp-attn-n"], One, Refused("self-extended attention is not supported")).unless(ONE).env("GRP_ATTN_N"),
    flag(&["--memory-f32"], Nothing, Refused("use -ctk f32 -ctv f32 instead")),
    flag(&["--override-kv"], One, Refused(NO_OVERRIDE)),
    flag(&["--completion-bash"], Nothing, Refused("use `thermocline completions bash` instead")),
    flag(&["-embd", "--embedding", "--embeddings"], Maybe, Refused("embeddings are not supported yet")).unless(Word(&["0"])),
    flag(&["--ppl-stride"], One, Refused("strided perplexity is not supported; chunks do not overlap")).unless(OFF),
    flag(&["--hellaswag", "--winogrande", "--multiple-choice"], Nothing, Refused(NO_TASK)),
];
