//! The supported families: a table of names, and the rule for each tensor.
//!
//! To add a family, add a [`Family`] to the file of its kind, with shared rules where possible, the
//! settings that become keys, and a function that sets the other keys.

mod custom;
mod deepseek4;
mod dense;
mod embeddings;
mod encoders;
mod experts;
mod gemma;
mod glm5_next;
mod granite;
mod hrm;
mod hybrid;
mod kda;
mod keys;
mod kimi_k3;
mod latent;
mod llama_like;
mod mamba;
mod modules;
mod nemotron;
mod older;
mod plamo;
mod qwen4exp;
mod ranking;
mod rope;
mod rule;
mod rules;
mod rwkv;
mod sparse;
mod table;
mod talkie;
mod window;
mod windowed;

pub(super) use keys::{Build, Setting};
pub(super) use modules::folders_of;
pub(super) use rule::{On, Part, Reshape, Rule, Scale, Transform};

use super::Error;
use super::config::Json;

/// A family of models, in Hugging Face's and in GGUF's terms.
pub(super) struct Family {
    /// `general.architecture`.
    pub(super) arch: &'static str,
    /// Names in `architectures` of `config.json`.
    pub(super) classes: &'static [&'static str],
    /// Whether a model of one of these classes belongs to the family.
    pub(super) when: fn(&Json) -> bool,
    /// The default activation of a file with this architecture; empty if there is none.
    pub(super) activation: &'static str,
    /// The rule for each tensor, in groups that families share.
    pub(super) rules: &'static [&'static [Rule]],
    /// Rules for some layers only.
    pub(super) some: &'static [(On, &'static [Rule])],
    /// The settings that become keys unchanged.
    pub(super) settings: &'static [Setting],
    /// Sets the other keys that depend on `config.json`.
    pub(super) keys: fn(&mut Build<'_>) -> Result<(), Error>,
    /// Whether a SentencePiece (`llama`) vocabulary prepends a space to a text; `None` if the
    /// tokenizer files decide.
    pub(super) space_prefix: Option<bool>,
    /// `tokenizer.ggml.model` of a BPE vocabulary with byte tokens, if it is not `llama`.
    pub(super) vocab: Option<&'static str>,
    /// Whether PowerInfer's container supports this architecture.
    pub(super) power_infer: bool,
    /// Defaults of `transformers` for settings missing in `config.json`.
    pub(super) defaults: &'static [(&'static str, u32)],
}

impl Family {
    /// The keys and tensors that follow from `config`, in which `defaults` are filled in.
    pub(super) fn build<'a>(&'static self, config: &'a Json) -> Result<Build<'a>, Error> {
        let mut build = Build::new(config, self.arch);
        (self.keys)(&mut build)?;
        build.copy(self.settings)?;
        encoders::set_pooling(&mut build)?;
        Ok(build)
    }

    /// All rules, each with the layers that it applies to; `None` for all layers.
    pub(super) fn all_rules(&self) -> impl Iterator<Item = (Option<On>, &'static Rule)> {
        let everywhere = self.rules.iter().copied().flatten().map(|rule| (None, rule));
        let some = self.some.iter().copied();
        everywhere
            .chain(some.flat_map(|(on, rules)| rules.iter().map(move |rule| (Some(on), rule))))
    }
}

fn all() -> impl Iterator<Item = &'static Family> {
    table::ALL.iter().copied().flatten()
}

/// Class names of all supported models, in order.
#[must_use]
pub fn classes() -> Vec<&'static str> {
    let mut classes: Vec<&str> = all().flat_map(|family| family.classes).copied().collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

/// `general.architecture` and the class names of each supported family; an architecture may have several.
pub fn families() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    all().map(|family| (family.arch, family.classes))
}

pub(super) fn find(config: &Json) -> Result<&'static Family, Error> {
    let named = config.list("architectures")?.and_then(|list| list.first()?.as_str());
    let Some(found) = named else {
        return Err(config.missing("architectures", "a list with the name of the model's class"));
    };
    all().find(|family| family.classes.contains(&found) && (family.when)(config)).ok_or_else(|| {
        Error::Architecture {
            file: config.file().to_owned(),
            found: found.to_owned(),
            known: classes(),
        }
    })
}

#[cfg(test)]
mod refused;
#[cfg(test)]
mod tests;
