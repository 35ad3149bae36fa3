//! Commands and flags of other programs, and what to write here instead.

/// Commands of ollama, llama.cpp and similar programs, and what to write here.
pub(super) const FOREIGN_COMMANDS: [(&[&str], &str); 21] = [
    (
        &["llama-cli", "main", "llama-completion", "generate", "complete", "cli"],
        "`thermocline run` continues a prompt, `thermocline chat` starts a conversation",
    ),
    (&["llama-server", "server", "start"], "`thermocline serve` answers HTTP requests"),
    (&["llama-bench", "benchmark", "batched-bench"], "`thermocline bench` measures speed"),
    (&["llama-quantize"], "`thermocline quantize` converts weights to another type"),
    (&["llama-perplexity", "ppl", "eval", "evaluate"], "`thermocline perplexity` measures quality"),
    (&["llama-imatrix"], "`thermocline imatrix` collects an importance matrix"),
    (&["llama-tokenize", "tokens", "tokenise"], "`thermocline tokenize` shows token ids"),
    (
        &["llama-gguf-split", "gguf-split"],
        "`thermocline split` and `thermocline merge` change the number of files",
    ),
    (
        &["create", "import"],
        "`thermocline convert` converts a Hugging Face folder to GGUF; a Modelfile is not supported: pass flags instead",
    ),
    (&["inspect", "gguf"], "`thermocline info` shows what a model file contains"),
    (&["get", "fetch", "install"], "`thermocline pull USER/REPO` downloads a model"),
    (
        &["push", "login", "signin", "auth"],
        "models are not uploaded; HF_TOKEN gives access to private and gated models",
    ),
    (&["models"], "`thermocline list` lists the downloaded models"),
    (&["cp", "copy"], "a model needs no copy: run it with other flags"),
    (&["delete", "uninstall"], "`thermocline rm USER/REPO` deletes a downloaded model"),
    (
        &["ps", "stop", "load", "unload"],
        "a model is loaded only while a command runs; `thermocline devices` shows the memory that is free",
    ),
    (&["version"], "`thermocline --version` prints the version"),
    (
        &["tune", "fit", "llama-fit-params", "estimate"],
        "`thermocline plan` shows where a model would be placed",
    ),
    (&["gpus", "list-devices"], "`thermocline devices` lists the devices"),
    (
        &["embedding", "llama-embedding", "rerank"],
        "`thermocline embed` prints embeddings and ranking scores; `serve` has /v1/embeddings and /rerank",
    ),
    (
        &["export-lora", "finetune"],
        "merged LoRA files and fine-tuning are not supported; --lora merges adapters at load",
    ),
];

/// Flags of llama-quantize and llama-gguf-split that are not supported, and why.
pub(super) const FOREIGN_FLAGS: [(&str, &[&str], &str); 5] = [
    ("quantize", &["--custom-q"], "use --tensor-type NAME=TYPE instead, once for each pattern"),
    ("quantize", &["--prune-layers"], "layers cannot be removed"),
    ("imatrix", &["--show-statistics"], "statistics of an importance matrix are not printed"),
    (
        "quantize",
        &["--max-buffer-size"],
        "weights are converted a few megabytes at a time; no buffer needs a limit",
    ),
    ("split", &["--delete-splits"], "files are never deleted; remove them after the merge"),
];

/// Flags of ollama, koboldcpp, vLLM, mlx-lm, LM Studio and Hugging Face's tools, and what to write
/// here.
pub(super) const OTHER_FLAGS: [(&[&str], &str); 24] = [
    (&["--gpulayers", "--ngl", "--gpu"], "write -ngl N, or -ngl all"),
    (
        &[
            "--contextsize",
            "--context-length",
            "--context-size",
            "--max-model-len",
            "--num-ctx",
            "--n-ctx",
        ],
        "write -c N",
    ),
    (&["--max-tokens", "--max-new-tokens", "--max-token", "--num-predict"], "write -n N"),
    (
        &["--usecublas", "--usecuda", "--usevulkan", "--usehipblas", "--useclblast", "--usecpu"],
        "GPUs are used without a flag; --device selects some, `thermocline devices` lists them",
    ),
    (
        &["--flashattention", "--nowordwrap", "--insecure", "--trust-remote-code"],
        "leave it out: it has no equivalent",
    ),
    (&["--quantkv"], "write -ctk q8_0 -ctv q8_0"),
    (&["--multiuser", "--max-num-seqs"], "write -np N"),
    (&["--blasbatchsize"], "write -b N"),
    (&["--blasthreads"], "write -tb N"),
    (&["--usemmap", "--nommap"], "write --mmap or --no-mmap"),
    (&["--usemlock"], "write --mlock"),
    (&["--moecpu"], "write -ncmoe N"),
    (&["--overridetensors"], "write -ot PATTERN=DEVICE"),
    (&["--ropeconfig"], "write --rope-freq-scale N --rope-freq-base N"),
    (&["--gpu-memory-utilization"], "write --vram-budget 90%"),
    (&["--served-model-name"], "write -a NAME"),
    (&["--system"], "write -sys TEXT"),
    (&["--keepalive"], "a model is loaded only while a command runs"),
    (&["--format"], "write -j '{}' for any JSON, or -j SCHEMA"),
    (&["--think"], "write --reasoning on, --reasoning off or --reasoning-effort low"),
    (&["--hidethinking"], "write 2>/dev/null: in a pipe, reasoning goes to standard error"),
    (&["--adapter-path"], "write --lora FILE"),
    (&["--include"], "name the quantisation, as USER/REPO:Q4_K_M, or one file with -hff FILE"),
    (
        &["--local-dir", "--local-dir-use-symlinks", "--cache-dir"],
        "models go to Hugging Face's cache, which HF_HUB_CACHE moves; `thermocline list` shows it",
    ),
];

/// Flags of llama.cpp's programs that have no equivalent here, and why they are rejected.
pub(super) const UNSUPPORTED: [(&[&str], &str); 10] = [
    (
        &["--embd-output-format", "--embd-separator", "--cls-separator"],
        "only `embed` prints embeddings",
    ),
    (
        &["--context-file", "--chunk-size", "--chunk-separator"],
        "documents are not searched; `embed` computes embeddings",
    ),
    (
        &["--junk", "--pos", "-ns", "--sequences", "-pps", "-tgs", "-npp", "-ntg", "-npl"],
        "`bench -p N -n N -np 1,2,4` decodes several sequences at once",
    ),
    (&["-fitp", "--fit-print"], "use `thermocline plan` instead"),
    (
        &["--positive-file", "--negative-file", "--pca-batch", "--pca-iter", "--method"],
        "control vectors are not supported",
    ),
    (&["--tts-lang", "--tts-speaker-file"], "speech is not supported"),
    (
        &[
            "--diffusion-steps",
            "--diffusion-visual",
            "--diffusion-eps",
            "--diffusion-algorithm",
            "--diffusion-alg-temp",
            "--diffusion-block-length",
            "--diffusion-cfg-scale",
            "--diffusion-add-gumbel-noise",
        ],
        "diffusion models are not supported",
    ),
    (
        &[
            "-lr",
            "--learning-rate",
            "-lr-min",
            "--learning-rate-min",
            "-decay-epochs",
            "--learning-rate-decay-epochs",
            "-wd",
            "--weight-decay",
            "-val-split",
            "--val-split",
            "-epochs",
            "--epochs",
            "-opt",
            "--optimizer",
        ],
        "models are not trained",
    ),
    (
        &["--check", "--save-logits", "--logits-output-dir"],
        "`perplexity --save-all-logits` stores logits, --kl-divergence compares them",
    ),
    (&["--tensor-filter"], "single tensors are not printed"),
];
