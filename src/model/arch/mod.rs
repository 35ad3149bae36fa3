//! The supported families, one [`ArchSpec`] each. To add a family, define its value in a file of
//! this folder and list it in [`ALL`].

mod afmoe;
mod apertus;
mod arctic;
mod bailing;
mod bamboo;
mod bert;
mod cohere;
mod dbrx;
mod deepseek;
mod deepseek4;
mod encoder;
mod ernie;
mod exaone;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma3n;
mod gemma4;
mod glm;
mod gpt;
mod gpt_oss;
mod granite;
mod grok;
mod grovemoe;
mod hrm;
mod hunyuan;
mod kda;
mod lfm2;
mod llama;
mod llama4;
mod llama_like;
mod mamba;
mod mamba2;
mod mellum;
mod minicpm;
mod mistral;
mod moe;
mod muse;
mod nemotron_h;
mod olmo;
mod opt;
mod phi3;
mod plamo;
mod qwen;
mod qwen35;
mod qwen4exp;
mod relu2;
mod rwkv6;
mod rwkv7;
mod sections;
mod smallthinker;
mod stablelm;
mod talkie;

use super::ArchSpec;

/// All supported families.
pub const ALL: &[ArchSpec] = &[
    llama::LLAMA,
    bamboo::BAMBOO,
    falcon::FALCON,
    opt::OPT,
    relu2::ARCEE,
    relu2::NEMOTRON,
    relu2::JAIS2,
    relu2::PLM,
    qwen::QWEN,
    qwen::QWEN2,
    qwen::QWEN3,
    qwen::QWEN2MOE,
    qwen::QWEN3MOE,
    qwen::QWEN2VL,
    qwen::QWEN3VL,
    qwen::QWEN3VLMOE,
    qwen35::QWEN3NEXT,
    qwen35::QWEN35,
    qwen35::QWEN35MOE,
    qwen4exp::QWEN4EXP,
    kda::KIMI_LINEAR,
    kda::KIMI_K3,
    kda::BAILINGMOE3,
    kda::GLM5_NEXT,
    lfm2::LFM2,
    lfm2::LFM2MOE,
    mamba::MAMBA,
    mamba2::MAMBA2,
    rwkv6::RWKV6,
    rwkv6::RWKV6QWEN2,
    rwkv7::RWKV7,
    mamba::JAMBA,
    falcon_h1::FALCON_H1,
    granite::GRANITE,
    granite::GRANITEMOE,
    granite::GRANITEHYBRID,
    granite::GRANITE_SWA,
    nemotron_h::NEMOTRON_H,
    nemotron_h::NEMOTRON_H_MOE,
    llama4::LLAMA4,
    gpt_oss::GPT_OSS,
    smallthinker::SMALLTHINKER,
    apertus::APERTUS,
    gpt::PHI2,
    phi3::PHI3,
    phi3::PHIMOE,
    gemma::GEMMA,
    gemma::GEMMA2,
    gemma::GEMMA3,
    gemma3n::GEMMA3N,
    gemma4::GEMMA4,
    glm::CHATGLM,
    glm::GLM4,
    glm::GLM4MOE,
    dbrx::DBRX,
    arctic::ARCTIC,
    deepseek::DEEPSEEK,
    deepseek::DEEPSEEK2,
    deepseek::DEEPSEEK32,
    deepseek::GLM_DSA,
    deepseek4::DEEPSEEK4,
    mistral::MISTRAL3,
    mistral::MISTRAL4,
    moe::MINIMAX_M2,
    moe::MIMO2,
    moe::DOTS1,
    moe::LAGUNA,
    moe::STEP35,
    moe::MAPLE,
    afmoe::AFMOE,
    bailing::BAILINGMOE,
    bailing::BAILINGMOE2,
    ernie::ERNIE4_5,
    ernie::ERNIE4_5_MOE,
    ernie::PADDLEOCR,
    hunyuan::HUNYUAN_DENSE,
    hunyuan::HUNYUAN_VL,
    hunyuan::HUNYUAN_MOE,
    hunyuan::HY_V3,
    exaone::EXAONE,
    exaone::EXAONE4,
    exaone::EXAONE_MOE,
    olmo::OLMO,
    olmo::OLMO2,
    olmo::OLMOE,
    cohere::COMMAND_R,
    cohere::COHERE2,
    cohere::COHERE2MOE,
    llama_like::SMOLLM3,
    llama_like::SEED_OSS,
    llama_like::DECI,
    llama_like::INTERNLM2,
    llama_like::XVERSE,
    llama_like::BAICHUAN,
    llama_like::REFACT,
    llama_like::SPARK2_5,
    llama_like::ORION,
    llama_like::PANGU,
    llama_like::MAINCODER,
    llama_like::NANBEIGE,
    llama_like::OPENELM,
    llama_like::COGVLM,
    talkie::TALKIE,
    hrm::HRM_TEXT,
    mellum::MELLUM,
    grok::GROK,
    grovemoe::GROVEMOE,
    muse::MUSE_GLIMMER,
    minicpm::MINICPM,
    minicpm::MINICPM3,
    plamo::PLAMO,
    plamo::PLAMO2,
    plamo::PLAMO3,
    stablelm::STABLELM,
    gpt::GPT2,
    gpt::GPTNEOX,
    gpt::STARCODER,
    gpt::STARCODER2,
    gpt::CODESHELL,
    gpt::MPT,
    gpt::BLOOM,
    gpt::JAIS,
    bert::BERT,
    bert::NOMIC_BERT,
    bert::NOMIC_BERT_MOE,
    bert::JINA_BERT_V2,
    bert::JINA_BERT_V3,
    encoder::MODERN_BERT,
    encoder::NEO_BERT,
    encoder::EUROBERT,
    encoder::LLAMA_EMBED,
    gemma::GEMMA_EMBEDDING,
];

/// The family with this `general.architecture`; `None` if it is not supported.
#[must_use]
pub fn find(name: &str) -> Option<&'static ArchSpec> {
    ALL.iter().find(|spec| spec.name == name)
}

/// [`ALL`] as the Markdown table of `docs/models.md`.
#[must_use]
pub fn table() -> String {
    let mut out = "| architecture | models | skips neurons |\n| --- | --- | --- |\n".to_owned();
    for ArchSpec { name, models, activation, feed_forward, .. } in ALL {
        let skips = match (feed_forward, activation.is_exactly_sparse()) {
            (false, _) => "never (no neurons)",
            (true, true) => "always",
            (true, false) => "where a file has a ReLU",
        };
        out += &format!("| `{name}` | {models} | {skips} |\n");
    }
    out
}
