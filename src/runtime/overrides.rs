//! llama.cpp's overrides of tensor buffers (`-ot`) as rules for the planner.
//!
//! The planner places attention, neurons, embedding and output matrix. So the matrices of a layer
//! fall into three groups: the neurons (`ffn_gate`, `ffn_up` and `ffn_down`, or the experts'
//! `_exps`), the attention (all others that do not begin with `ffn_`), and those that follow the
//! attention: the router and shared experts. Vectors, such as norms, follow the rest of their
//! layer. An override has to match all matrices of attention or neurons, or the error says what to
//! write instead.

use std::collections::{BTreeMap, BTreeSet};

use gguf::TensorInfo;
use model::Model;
use placement::{CPU, DeviceIndex, LayerRule, PlacementRules, UnmetRule};
use regex::Regex;

use crate::error::DeviceError;
use crate::machine::Machine;
use crate::options::DeviceOptions;

/// An override of tensor buffers: the user places tensors on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorOverride {
    /// A regular expression that may match anywhere in a tensor's name.
    pub pattern: String,
    /// `CPU`, a name that ends in `_Host` (the CPU too), or the name of a device.
    pub buffer: String,
}

/// The largest number of layers for which [`TensorOverride::experts_on_cpu`] makes patterns. No
/// model has more layers.
const MAX_LAYERS: usize = 1024;

/// The experts' matrices in the names of tensors. Source: llama.cpp.
const EXPERTS: &str = r"ffn_(up|down|gate|gate_up)_(ch|)exps";

impl TensorOverride {
    /// Overrides that keep experts on the CPU: of the first `n` layers, or of all for `None`.
    #[must_use]
    pub fn experts_on_cpu(n: Option<usize>) -> Vec<TensorOverride> {
        let on_cpu = |pattern| TensorOverride { pattern, buffer: "CPU".to_owned() };
        match n {
            None => vec![on_cpu(format!(r"\.{EXPERTS}"))],
            Some(n) => (0..n.min(MAX_LAYERS))
                .map(|layer| on_cpu(format!(r"blk\.{layer}\.{EXPERTS}")))
                .collect(),
        }
    }
}

/// A part of a layer that an override must match as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LayerPart {
    Attention,
    Neurons,
}

/// For each part of a layer, the index of the override that matches each of its matrices.
type Matches = BTreeMap<(usize, LayerPart), Vec<Option<usize>>>;

/// The rules that follow from `overrides`; the first override that matches a tensor counts. No
/// rules if the CPU is the only device.
pub(crate) fn rules(
    model: &Model,
    overrides: &[TensorOverride],
    machine: &Machine,
) -> Result<PlacementRules, DeviceError> {
    let mut rules = PlacementRules::default();
    let patterns = overrides.iter().map(pattern).collect::<Result<Vec<_>, _>>()?;
    if overrides.is_empty() || machine.others.is_empty() {
        return Ok(rules);
    }
    let devices: Vec<&str> = machine.others.iter().map(|o| o.candidate.name.as_str()).collect();
    let compiled = overrides.iter().zip(patterns);
    let compiled = compiled.map(|(wanted, pattern)| Ok((pattern, buffer(wanted, &devices)?)));
    let compiled: Vec<(Regex, DeviceIndex)> = compiled.collect::<Result<_, _>>()?;
    let matched = |name: &str| compiled.iter().position(|(pattern, _)| pattern.is_match(name));
    let mut matches = Matches::new();
    let names = model.file.tensors().iter().map(|tensor| tensor.name.as_str());
    let with_experts: BTreeSet<usize> = names.filter_map(experts_layer).collect();
    for tensor in model.file.tensors().iter().filter(|tensor| is_matrix(tensor)) {
        let found = matched(&tensor.name);
        match part(&tensor.name, &with_experts) {
            Some(part) => matches.entry(part).or_default().push(found),
            None => {
                // Routers and shared experts have no rule.
                let device = found.map(|index| compiled[index].1);
                match tensor.name.as_str() {
                    "token_embd.weight" => rules.embed = device,
                    "output.weight" => rules.head = device,
                    _ => {}
                }
            }
        }
    }
    rules.layers = vec![LayerRule::default(); model.hyper.n_layer];
    for (layer, rule) in rules.layers.iter_mut().enumerate() {
        let device = |part: LayerPart| -> Result<Option<DeviceIndex>, DeviceError> {
            let indices = matches.get(&(layer, part)).map_or(&[][..], Vec::as_slice);
            let Some(index) = indices.iter().flatten().next() else { return Ok(None) };
            let device = compiled[*index].1;
            let agrees = |other: &Option<usize>| other.is_some_and(|o| compiled[o].1 == device);
            if indices.iter().all(agrees) {
                return Ok(Some(device));
            }
            let experts = with_experts.contains(&layer);
            Err(refused(&overrides[*index], layer, part, experts))
        };
        let attention = device(LayerPart::Attention)?;
        let neurons = device(LayerPart::Neurons)?;
        let has_neurons = matches.contains_key(&(layer, LayerPart::Neurons));
        *rule = match (attention, neurons) {
            (None, None) => LayerRule::default(),
            (Some(home), _) if !has_neurons => {
                LayerRule { home: Some(home), neurons_on_cpu: false }
            }
            (Some(CPU), Some(CPU)) => LayerRule { home: Some(CPU), neurons_on_cpu: true },
            (home, Some(CPU)) => LayerRule { home, neurons_on_cpu: true },
            (Some(home), Some(other)) if home == other => {
                LayerRule { home: Some(home), neurons_on_cpu: false }
            }
            // Neurons on a device need the attention of their layer there.
            (None, Some(home)) => LayerRule { home: Some(home), neurons_on_cpu: false },
            (Some(_), _) => {
                let first = matches[&(layer, LayerPart::Attention)].iter().flatten().next();
                let index = first.copied().unwrap_or_default();
                return Err(attention_refused(&overrides[index], layer));
            }
        };
    }
    Ok(rules)
}

/// What to tell the user about overrides that match no tensor of `model`.
pub(crate) fn unused(model: &Model, options: &DeviceOptions) -> Option<String> {
    let names = || model.file.tensors().iter().map(|tensor| tensor.name.as_str());
    // `rules` reports the errors of patterns.
    let is_unused = |wanted: &&TensorOverride| {
        pattern(wanted).is_ok_and(|pattern| !names().any(|name| pattern.is_match(name)))
    };
    let unused: Vec<String> = options
        .overrides
        .iter()
        .filter(is_unused)
        .map(|wanted| format!("'{}={}'", wanted.pattern, wanted.buffer))
        .collect();
    if unused.is_empty() {
        let wants_experts = options.experts_on_cpu.is_some_and(|n| n > 0);
        let message = "the model has no experts, so none are kept on the CPU";
        return (wants_experts && model.experts().is_none()).then(|| message.to_owned());
    }
    let example = names().find(|name| layer_of(name).is_some());
    let example = example.map_or(String::new(), |name| format!("; its names are such as {name}"));
    Some(format!("no tensor of the model matches {}{example}", unused.join(" or ")))
}

fn pattern(wanted: &TensorOverride) -> Result<Regex, DeviceError> {
    Regex::new(&wanted.pattern).map_err(|error| DeviceError::Override {
        what: format!("'{}' is not a regular expression: {error}", wanted.pattern),
        help: r"write a pattern such as blk\.[0-3]\.ffn_.*_exps".to_owned(),
    })
}

/// The device of an override's buffer. `devices` are the names of the devices after the CPU.
fn buffer(wanted: &TensorOverride, devices: &[&str]) -> Result<DeviceIndex, DeviceError> {
    let name = wanted.buffer.trim();
    let is_host = name.eq_ignore_ascii_case("cpu") || name.ends_with("_Host");
    let found = devices.iter().position(|device| device.eq_ignore_ascii_case(name));
    match found.filter(|_| !is_host) {
        Some(index) => Ok(CPU + 1 + index),
        None if is_host => Ok(CPU),
        None => Err(DeviceError::Override {
            what: format!("'{}={name}' names an unknown buffer", wanted.pattern),
            help: format!(
                "write {0}=CPU or {0}=DEVICE; devices: {1}",
                wanted.pattern,
                devices.join(", ")
            ),
        }),
    }
}

fn is_matrix(tensor: &TensorInfo) -> bool {
    tensor.shape.iter().filter(|n| **n > 1).count() > 1
}

/// The layer of a tensor and the rest of its name.
fn layer_of(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest.trim_end_matches(".weight")))
}

/// The matrix of experts that `rest` names: `up` for `ffn_up_exps`, or for `ffn_up.7` (expert 7) in
/// older files.
fn experts(rest: &str) -> Option<&str> {
    let ffn = rest.strip_prefix("ffn_")?;
    let numbered = ffn.rsplit_once('.').filter(|(_, expert)| expert.parse::<u32>().is_ok());
    ffn.strip_suffix("_exps").or(numbered.map(|(matrix, _)| matrix))
}

/// The layer of a tensor with experts; `None` for other tensors.
fn experts_layer(name: &str) -> Option<usize> {
    layer_of(name).filter(|(_, rest)| experts(rest).is_some()).map(|(layer, _)| layer)
}

/// The layer and the part of it that a tensor belongs to; `None` for a tensor outside of the
/// layers, for a predictor, and for a router or shared expert. In a layer with experts, a dense
/// block is a shared expert.
fn part(name: &str, with_experts: &BTreeSet<usize>) -> Option<(usize, LayerPart)> {
    let (layer, rest) = layer_of(name)?;
    if rest.starts_with("fc1") || rest.starts_with("fc2") {
        return None;
    }
    let Some(ffn) = rest.strip_prefix("ffn_") else { return Some((layer, LayerPart::Attention)) };
    let dense = Some(ffn).filter(|_| !with_experts.contains(&layer));
    let matrix = experts(rest).or(dense)?;
    let is_neurons = ["gate", "up", "down", "gate_up", "down_t"].contains(&matrix);
    is_neurons.then_some((layer, LayerPart::Neurons))
}

fn refused(
    wanted: &TensorOverride,
    layer: usize,
    part: LayerPart,
    has_experts: bool,
) -> DeviceError {
    let TensorOverride { pattern, buffer } = wanted;
    let (what, write) = match part {
        LayerPart::Attention => ("attention", format!(r"blk\.{layer}\.={buffer}")),
        LayerPart::Neurons if has_experts => {
            ("experts", format!(r"blk\.{layer}\.ffn_.*_exps={buffer}"))
        }
        LayerPart::Neurons => ("feed-forward block", format!(r"blk\.{layer}\.ffn_={buffer}")),
    };
    DeviceError::Override {
        what: format!("'{pattern}' moves only some matrices of the {what} of layer {layer}"),
        help: format!("they are placed together: write {write}"),
    }
}

fn attention_refused(wanted: &TensorOverride, layer: usize) -> DeviceError {
    let TensorOverride { pattern, buffer } = wanted;
    DeviceError::Override {
        what: format!(
            "'{pattern}' moves the attention of layer {layer} without its feed-forward block"
        ),
        help: format!(
            r"write blk\.{layer}\.={buffer} for the whole layer, or add blk\.{layer}\.ffn_=CPU"
        ),
    }
}

/// A sentence about a rule that a placement does not follow.
pub(crate) fn unmet_sentence(unmet: UnmetRule, machine: &Machine) -> String {
    let name = |device: DeviceIndex| match device.checked_sub(CPU + 1) {
        None => "CPU",
        Some(index) => machine.others.get(index).map_or("?", |other| &other.candidate.name),
    };
    match unmet {
        UnmetRule::Layer(layer, device) => {
            format!("layer {layer} is not on {}, where an override puts it", name(device))
        }
        UnmetRule::Embed(device) => {
            format!("the embedding is not on {}, where an override puts it", name(device))
        }
        UnmetRule::Head(device) => {
            format!("the output matrix is not on {}, where an override puts it", name(device))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::notice::SilentObserver;
    use crate::{AssumedDevice, Options, Runtime};

    fn rules(overrides: &[(&str, &str)]) -> Result<PlacementRules, DeviceError> {
        let (name, memory) = (Some("card".to_owned()), Some(8 << 30));
        let card = AssumedDevice { name, memory, ..AssumedDevice::default() };
        let runtime = Runtime::assume(Options::default(), &[card], Arc::new(SilentObserver));
        let runtime = runtime.unwrap();
        let model = runtime.open(None).unwrap().model;
        let overrides = overrides.iter().map(|(pattern, buffer)| TensorOverride {
            pattern: (*pattern).to_owned(),
            buffer: (*buffer).to_owned(),
        });
        super::rules(&model, &overrides.collect::<Vec<_>>(), runtime.machine())
    }

    const FREE: LayerRule = LayerRule { home: None, neurons_on_cpu: false };

    #[test]
    fn the_first_override_that_matches_counts() {
        let found = rules(&[(r"blk\.[01]\.ffn_", "card"), ("ffn_", "CPU")]).unwrap().layers;
        let [on_card, on_cpu] = [
            LayerRule { home: Some(1), neurons_on_cpu: false },
            LayerRule { home: None, neurons_on_cpu: true },
        ];
        assert_eq!(found[..3], [on_card, on_card, on_cpu]);
        let found = rules(&[(r"blk\.1\.", "CPU"), ("token_embd", "CARD")]).unwrap();
        assert_eq!(found.layers[0], FREE);
        assert_eq!(found.layers[1], LayerRule { home: Some(CPU), neurons_on_cpu: true });
        assert_eq!(found.embed, Some(1));
        assert_eq!(rules(&[]).unwrap(), PlacementRules::default());
        let experts = TensorOverride::experts_on_cpu(Some(2));
        assert_eq!(experts.len(), 2);
        assert!(Regex::new(&experts[1].pattern).unwrap().is_match("blk.1.ffn_up_exps.weight"));
    }

    #[test]
    fn single_matrices_and_unknown_buffers_are_refused_with_what_to_write() {
        let refused = |pattern, buffer| match rules(&[(pattern, buffer)]) {
            Err(DeviceError::Override { what, help }) => format!("{what}; {help}"),
            other => panic!("{other:?}"),
        };
        assert!(refused("ffn_up", "CPU").contains(r"write blk\.0\.ffn_=CPU"));
        assert!(refused("attn_q", "card").contains(r"write blk\.0\.=card"));
        assert!(refused("attn_", "CPU").contains("without its feed-forward block"));
        assert!(refused("ffn_", "CUDA7").contains("write ffn_=CPU or ffn_=DEVICE; devices: card"));
        assert!(refused("(", "CPU").contains("not a regular expression"));
    }

    #[test]
    fn patterns_without_a_match_are_reported() {
        let runtime = Runtime::cpu(Options::default(), Arc::new(SilentObserver));
        let model = runtime.open(None).unwrap().model;
        let unused = |patterns: &[&str], experts_on_cpu| {
            let on_cpu = |pattern: &&str| TensorOverride {
                pattern: (*pattern).to_owned(),
                buffer: "CPU".to_owned(),
            };
            let overrides = patterns.iter().map(on_cpu).collect();
            super::unused(
                &model,
                &DeviceOptions { overrides, experts_on_cpu, ..Default::default() },
            )
        };
        assert_eq!(unused(&["ffn_", r"blk\.0\."], Some(0)), None);
        let told = unused(&["ffn_", "attn_output_norms", "exps"], None).unwrap();
        assert!(told.contains("'attn_output_norms=CPU' or 'exps=CPU'"), "{told}");
        assert!(told.contains("such as blk.0."), "{told}");
        assert!(unused(&[], Some(3)).unwrap().contains("no experts"));
        // Errors do not depend on the devices of this machine.
        let wrong = [TensorOverride { pattern: "(".to_owned(), buffer: "CPU".to_owned() }];
        assert!(super::rules(&model, &wrong, runtime.machine()).is_err());
    }

    #[test]
    fn routers_and_shared_experts_follow_the_attention() {
        let part = |name| super::part(name, &[3].into());
        assert_eq!(part("blk.3.ffn_gate_inp.weight"), None);
        assert_eq!(part("blk.3.ffn_up_shexp.weight"), None);
        assert_eq!(part("blk.3.ffn_up.weight"), None);
        assert_eq!(part("blk.4.ffn_up.weight"), Some((4, LayerPart::Neurons)));
        assert_eq!(part("blk.3.ffn_up_exps.weight"), Some((3, LayerPart::Neurons)));
        assert_eq!(part("blk.3.ffn_down.7.weight"), Some((3, LayerPart::Neurons)));
        assert_eq!(part("blk.12.attn_q.weight"), Some((12, LayerPart::Attention)));
        assert_eq!(part("output.weight"), None);
    }
}
