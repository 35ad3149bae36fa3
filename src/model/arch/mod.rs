//! The supported families, one [`ArchSpec`] each. To add a family, define its value in a file of
//! this folder and list it in [`ALL`].

mod bamboo;
mod falcon;
mod gemma;
mod gemma4;
mod gpt_oss;
mod granite;
mod lfm2;
mod llama;
mod mamba2;
mod nemotron_h;
mod opt;
mod phi3;
mod qwen;
mod qwen35;
mod relu2;
mod smallthinker;

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
    qwen::QWEN2,
    qwen::QWEN3,
    qwen::QWEN2MOE,
    qwen::QWEN3MOE,
    qwen35::QWEN35,
    lfm2::LFM2,
    mamba2::MAMBA2,
    granite::GRANITE,
    granite::GRANITEMOE,
    granite::GRANITEHYBRID,
    nemotron_h::NEMOTRON_H,
    gpt_oss::GPT_OSS,
    smallthinker::SMALLTHINKER,
    phi3::PHI3,
    gemma::GEMMA,
    gemma::GEMMA2,
    gemma::GEMMA3,
    gemma4::GEMMA4,
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
