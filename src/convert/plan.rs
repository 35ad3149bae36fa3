//! Plans the tensors of the file and their sources in the checkpoint.

use std::collections::BTreeMap;

use hal::format::Format;

use super::change::{Change, RowMap, Values};
use super::complete;
use super::family::{Build, Family, Part, Reshape, Rule, Scale, Transform};
use super::output::{Content, Output, SourceMatrices};
use super::source::{Checkpoint, Encoding, Tensor};
use super::{Error, OutType};
use gguf::TensorType;

/// Prefixes that are removed from a tensor's name before its rule is looked up.
const PREFIXES: &[&str] = &[
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
    "transformer.",
    "bert.",
    "roberta.",
    "backbone.",
    "gpt_neox.",
];
/// Tensors that are not converted: vision encoders (prefixes), and tables that readers compute
/// themselves (suffixes).
const DROPPED_PREFIXES: &[&str] = &[
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "audio_tower.",
    "model.audio_tower.",
    "embed_audio.",
    "embed_vision.",
    "model.embed_audio.",
    "model.embed_vision.",
    "visual.",
    "model.visual.",
    "vision_model.",
    "mtp.",
    "model.mtp.",
    "model.mtp_",
];
const DROPPED_SUFFIXES: &[&str] = &["rotary_emb.inv_freq", ".masked_bias", ".attn.bias"];

/// Matrices by expert number; 0 in tensors without experts.
type Pieces = BTreeMap<usize, SourceMatrices>;

/// The tensors of a file, and notes about omitted tensors.
pub(super) type PlannedTensors = (Vec<Output>, Vec<String>);

/// What a tensor of a checkpoint becomes.
struct Target {
    /// Name in the file.
    name: String,
    /// The number of the expert, in a matrix that has all experts.
    expert: Option<usize>,
    rule: &'static Rule,
}

/// Everything that determines the tensors of the output file: model family, source and options.
pub(super) struct Plan<'a> {
    pub(super) family: &'static Family,
    pub(super) build: &'a Build<'a>,
    pub(super) out_type: OutType,
    /// Down matrices are written transposed, with one row per neuron.
    pub(super) transpose_down: bool,
}

impl Plan<'_> {
    /// The tensors of the file, in the order of use, and notes.
    pub(super) fn outputs(&self, checkpoint: &Checkpoint) -> Result<PlannedTensors, Error> {
        let mut stacked: BTreeMap<SortKey, (Pieces, bool)> = BTreeMap::new();
        let mut outputs: BTreeMap<SortKey, Output> = BTreeMap::new();
        let mut left_out: BTreeMap<&str, usize> = BTreeMap::new();
        let mut notes = Vec::new();
        for tensor in checkpoint.tensors.values() {
            let dropped = DROPPED_PREFIXES.iter().find(|start| tensor.name.starts_with(**start));
            if let Some(start) = dropped {
                *left_out.entry(start).or_default() += 1;
                continue;
            }
            if self.is_extra(&tensor.name) {
                *left_out.entry("multi-token prediction").or_default() += 1;
                continue;
            }
            for Target { name, expert, rule } in self.targets(&tensor.name)? {
                let transform = rule.transform;
                if let Transform::Mxfp4 | Transform::Mxfp4Even | Transform::Mxfp4Odd = transform {
                    let output = mxfp4(tensor, checkpoint, &name, transform)?;
                    outputs.insert(SortKey::new(&name), output);
                    continue;
                }
                if matches!(transform, Transform::Tied)
                    && self.is_tied(tensor, checkpoint, &mut notes)?
                {
                    continue;
                }
                let tensor = self.reshape(tensor, rule)?;
                let piece = SourceMatrices::new(&tensor, self.change(rule, &name, &tensor.shape)?)?;
                let (pieces, is_stack) = stacked.entry(SortKey::new(&name)).or_default();
                *is_stack |= expert.is_some();
                if pieces.insert(expert.unwrap_or(0), piece).is_some() {
                    return Err(Error::DuplicateTensor { file: tensor.name.clone(), tensor: name });
                }
            }
        }
        for (key, (pieces, is_stack)) in stacked {
            let output = self.stack(&key.name, pieces, is_stack)?;
            outputs.insert(key, output);
        }
        let outputs: Vec<Output> = outputs.into_values().collect();
        complete::check(self, &outputs)?;
        for (start, n) in left_out {
            notes.push(match start.strip_suffix('.') {
                Some(_) if !start.contains("mtp") => {
                    format!("skipped: {n} tensors outside the text model, `{start}*`")
                }
                Some(_) | None => format!("skipped: {n} tensors for multi-token prediction"),
            });
        }
        Ok((outputs, notes))
    }

    /// Whether the output matrix `head` is dropped because it is tied to the embedding. Adds a
    /// note if they differ.
    fn is_tied(
        &self,
        head: &Tensor,
        checkpoint: &Checkpoint,
        notes: &mut Vec<String>,
    ) -> Result<bool, Error> {
        let is_embedding = |name: &str| {
            self.targets(name).is_ok_and(|to| to.iter().any(|to| to.name == "token_embd.weight"))
        };
        let embedding = checkpoint.tensors.values().find(|tensor| is_embedding(&tensor.name));
        let is_same = embedding.is_some_and(|embedding| {
            (embedding.encoding, &embedding.shape, embedding.transposed)
                == (head.encoding, &head.shape, head.transposed)
                && embedding.bytes[..] == head.bytes[..]
        });
        if is_same {
            return Ok(true);
        }
        let is_tied = self.build.config.bool(&["tie_word_embeddings"])?.unwrap_or(true);
        if is_tied {
            notes.push(format!(
                "skipped: `{}`, which differs from the embedding although tie_word_embeddings is set",
                head.name
            ));
        }
        Ok(is_tied)
    }

    /// Whether a tensor is of a layer for multi-token prediction, after the last layer.
    fn is_extra(&self, name: &str) -> bool {
        let mut parts = bare(name).split('.');
        let layer = parts.find(|part| *part == "layers").and_then(|_| parts.next()?.parse().ok());
        let n_layer = self.build.n_layer().unwrap_or(u32::MAX);
        layer.is_some_and(|layer: u32| {
            layer >= n_layer && layer - n_layer < self.build.n_extra_layer
        })
    }

    /// The outputs made from checkpoint tensor `name`.
    fn targets(&self, name: &str) -> Result<Vec<Target>, Error> {
        if DROPPED_SUFFIXES.iter().any(|end| name.ends_with(end)) {
            return Ok(Vec::new());
        }
        let bare = bare(name);
        let (base, ending) = match bare.rsplit_once('.') {
            Some((base, ending @ ("weight" | "bias"))) => (base, ending),
            // Names of older checkpoints of BERT.
            Some((base, "gamma")) => (base, "weight"),
            Some((base, "beta")) if base.ends_with("LayerNorm") => (base, "bias"),
            Some(_) | None if bare.ends_with("_bias") => (bare, "bias"),
            Some(_) | None => (bare, "weight"),
        };
        let mut targets = Vec::new();
        let mut is_known = false;
        for (on, rule) in self.family.all_rules() {
            let Some(numbers) = matches(rule.from, base) else { continue };
            let is_on = numbers.first().is_none_or(|&layer| self.build.applies(on, layer));
            if !is_on {
                continue;
            }
            is_known = true;
            if rule.is_dropped() {
                continue;
            }
            let layer = numbers.first().map(usize::to_string).unwrap_or_default();
            let mut name = rule.to.replace('*', &layer);
            if self.transpose_down && name.ends_with(".ffn_down") {
                name.push_str("_t");
            }
            let whole = name.strip_suffix('=').map(str::to_owned);
            let name = whole.unwrap_or_else(|| format!("{name}.{ending}"));
            // Without a layer in the file's name, the first number is that of a stacked matrix.
            let stacked = usize::from(rule.to.contains('*'));
            targets.push(Target { name, expert: numbers.get(stacked).copied(), rule });
        }
        if !is_known {
            return Err(Error::UnknownTensor { tensor: name.to_owned(), arch: self.family.arch });
        }
        Ok(targets)
    }

    fn reshape(&self, tensor: &Tensor, rule: &Rule) -> Result<Tensor, Error> {
        let shape = &tensor.shape;
        let groups = |n: u32| {
            let is_vector = shape.len() == 1 && n > 0 && shape[0].is_multiple_of(u64::from(n));
            let groups = is_vector.then(|| vec![u64::from(n), shape[0] / u64::from(n)]);
            groups.ok_or_else(|| Error::Shape {
                tensor: tensor.name.clone(),
                expected: format!("a vector of {n} equal groups"),
                found: shape.clone(),
            })
        };
        let shape = match rule.reshape {
            Reshape::Same => shape.clone(),
            Reshape::Squeeze => shape.iter().copied().filter(|&n| n != 1).collect(),
            Reshape::Column => shape.iter().copied().chain([1]).collect(),
            Reshape::Groups(n) => groups(n(self.build)?)?,
        };
        Ok(Tensor { shape, ..tensor.clone() })
    }

    fn change(&self, rule: &Rule, name: &str, shape: &[u64]) -> Result<Change, Error> {
        let is_vector = name.ends_with(".bias");
        let rows = |map: RowMap| Change { map, is_vector, ..Change::default() };
        let transposed = |map: RowMap| Change { transpose: true, ..rows(map) };
        let plain = || rows(RowMap::Same);
        let half = |second: bool| RowMap::Half { second };
        let every = |first: usize| RowMap::Every { first };
        let d_head = || Ok::<_, Error>(self.build.d_head()? as usize);
        let change = match rule.transform {
            Transform::Same if name.ends_with(".ffn_down_t.weight") => transposed(RowMap::Same),
            Transform::Same
            | Transform::Tied
            | Transform::Drop
            | Transform::Mxfp4
            | Transform::Mxfp4Even
            | Transform::Mxfp4Odd => plain(),
            Transform::Rope => rows(RowMap::Rope { d_head: d_head()? }),
            Transform::PlusOne if is_vector => plain(),
            Transform::PlusOne => Change { values: Values::Plus(1.0), ..plain() },
            Transform::FalconQkv => {
                let (n_head, n_head_kv) =
                    (self.build.n_head()? as usize, self.build.n_head_kv()? as usize);
                rows(RowMap::FalconQkv { n_head, n_head_kv, d_head: d_head()? })
            }
            Transform::AfterPadding => {
                rows(RowMap::From { first: self.build.first_position()? as usize })
            }
            Transform::FirstHalf => rows(half(false)),
            Transform::SecondHalf => rows(half(true)),
            Transform::Even => rows(every(0)),
            Transform::Odd => rows(every(1)),
            Transform::FirstHalfColumns => transposed(half(false)),
            Transform::SecondHalfColumns => transposed(half(true)),
            Transform::EvenColumns => transposed(every(0)),
            Transform::OddColumns => transposed(every(1)),
            Transform::Columns => transposed(RowMap::Same),
            Transform::EitherWay(part) => self.expert_either_way(part, shape)?,
            Transform::PadRows(n) => rows(RowMap::Pad { n: n(self.build)? as usize }),
            Transform::Rows(list) => rows(RowMap::List(list(self.build)?)),
            Transform::ReorderColumns(list) => {
                Change { columns: Some(list(self.build)?), ..plain() }
            }
        };
        let values = match rule.scale {
            Scale::Same => change.values,
            Scale::NegExp => Values::NegExp,
            Scale::Times(number) => Values::Times(number(self.build)?),
            Scale::RowTimes(numbers) => Values::RowTimes(numbers(self.build)?.into()),
        };
        Ok(Change { values, ..change })
    }

    /// The change of experts that are stored transposed, unless only the other way fits the width of
    /// the model.
    fn expert_either_way(&self, part: Part, shape: &[u64]) -> Result<Change, Error> {
        let n_embd = u64::from(self.build.n_embd()?);
        let is_width = |axis: Option<&u64>| axis == Some(&n_embd);
        let mut axes = shape.iter().rev();
        let (last, before) = (is_width(axes.next()), is_width(axes.next()));
        let (map, transpose) = match part {
            Part::Gate => (RowMap::Half { second: false }, before || !last),
            Part::Up => (RowMap::Half { second: true }, before || !last),
            Part::Down => (RowMap::Same, last),
        };
        Ok(Change { map, transpose, ..Change::default() })
    }

    /// Stacks the matrices of all experts in one tensor. Returns an error if an expert is missing
    /// or has another shape.
    fn stack(&self, name: &str, pieces: Pieces, is_stack: bool) -> Result<Output, Error> {
        let missing = (0..pieces.len()).find(|n| !pieces.contains_key(n));
        if let Some(expert) = missing {
            return Err(Error::MissingTensor { tensor: format!("{name}, expert {expert}") });
        }
        let pieces: Vec<SourceMatrices> = pieces.into_values().collect();
        let first = &pieces[0];
        if let Some(other) = pieces.iter().find(|piece| !piece.is_like(first)) {
            let expected = format!("{:?}, as for the first expert", first.shape(None));
            return Err(Error::Shape {
                tensor: name.to_owned(),
                expected,
                found: other.shape(None),
            });
        }
        let shape = first.shape(is_stack.then_some(pieces.len()));
        if shape.len() > 4 {
            return Err(Error::Shape {
                tensor: name.to_owned(),
                expected: "at most four axes".into(),
                found: shape,
            });
        }
        let ty = self.out_type.tensor_type(name, &shape, first.encoding());
        Ok(Output { name: name.to_owned(), shape, ty, content: Content::Rows(pieces) })
    }
}

/// Order in the file: tensors outside of the layers (embeddings, RoPE factors), layers by number,
/// output tensors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SortKey {
    group: u8,
    layer: usize,
    name: String,
}

impl SortKey {
    fn new(name: &str) -> SortKey {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse().ok());
        let group = if layer.is_some() { 1 } else { u8::from(name.starts_with("output")) * 2 };
        SortKey { group, layer: layer.unwrap_or(0), name: name.to_owned() }
    }
}

/// `name` without the prefix of its model.
fn bare(name: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// The numbers in `name` at the positions of `*` in `pattern`, or `None` if the name does not
/// match.
fn matches(pattern: &str, name: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    let (mut pattern, mut name) = (pattern.split('.'), name.split('.'));
    loop {
        match (pattern.next(), name.next()) {
            (None, None) => return Some(numbers),
            // Rejects layer and expert numbers far above those of any real model.
            (Some("*"), Some(part)) => numbers.push(part.parse().ok().filter(|&n| n < 100_000)?),
            (Some(expected), Some(part)) if expected == part => {}
            (_, _) => return None,
        }
    }
}

/// The output of MXFP4 experts with codes `[experts, rows, blocks, 16]` and scales `[experts,
/// rows, blocks]`.
fn mxfp4(
    tensor: &Tensor,
    checkpoint: &Checkpoint,
    name: &str,
    transform: Transform,
) -> Result<Output, Error> {
    let scales_name = tensor.name.replace("_blocks", "_scales");
    let scales =
        checkpoint.tensors.get(&scales_name).ok_or(Error::MissingTensor { tensor: scales_name })?;
    for tensor in [tensor, scales] {
        if tensor.encoding != Encoding::U8 {
            let (tensor, found) = (tensor.name.clone(), tensor.encoding.name().to_owned());
            return Err(Error::Encoding { tensor, expected: "bytes", found });
        }
    }
    let &[experts, rows, blocks, 16] = tensor.shape.as_slice() else {
        let expected = "[experts, rows, blocks, 16]".to_owned();
        return Err(Error::Shape {
            tensor: tensor.name.clone(),
            expected,
            found: tensor.shape.clone(),
        });
    };
    if scales.shape != [experts, rows, blocks] || tensor.bytes.is_empty() {
        let expected = format!("[{experts}, {rows}, {blocks}]");
        return Err(Error::Shape {
            tensor: scales.name.clone(),
            expected,
            found: scales.shape.clone(),
        });
    }
    let map = if matches!(transform, Transform::Mxfp4) {
        RowMap::Same
    } else {
        RowMap::Every { first: usize::from(matches!(transform, Transform::Mxfp4Odd)) }
    };
    let (n_source, n_rows) = (rows as usize, map.n_rows(rows as usize));
    let content = Content::Mxfp4 {
        blocks: tensor.bytes.clone(),
        scales: scales.bytes.clone(),
        map,
        n_source,
        n_rows,
    };
    let shape = vec![blocks * 32, n_rows as u64, experts];
    Ok(Output { name: name.replace("_blocks", ""), shape, ty: Format::MXFP4.into(), content })
}

impl OutType {
    /// A tensor's type in the file: F32 for vectors and small sensitive matrices, F16 if rows do
    /// not fit the type.
    pub(super) fn tensor_type(self, name: &str, shape: &[u64], source: Encoding) -> TensorType {
        let sensitive = [
            "_norm.weight",
            "ffn_gate_inp.weight",
            "ffn_gate_inp_shexp.weight",
            "position_embd.weight",
            "token_types.weight",
            "conv1d.weight",
            "shortconv.conv.weight",
            "altup_correct_coef.weight",
            "altup_predict_coef.weight",
        ];
        if shape.len() < 2
            || !name.ends_with(".weight")
            || sensitive.iter().any(|end| name.ends_with(end))
        {
            return TensorType::F32;
        }
        let format = match self {
            OutType::F32 => Format::F32,
            OutType::F16 => Format::F16,
            OutType::Bf16 => Format::BF16,
            OutType::Q8_0 => Format::Q8_0,
            OutType::Auto if source == Encoding::Plain(Format::BF16) => Format::BF16,
            OutType::Auto => Format::F16,
        };
        let fits = shape[0].is_multiple_of(format.block_values() as u64);
        if fits { format.into() } else { TensorType::F16 }
    }

    /// Notes about tensors whose rows do not fit the type.
    pub(super) fn misfit_notes(self, outputs: &[Output]) -> Vec<String> {
        if self != OutType::Q8_0 {
            return Vec::new();
        }
        let mut misfits: BTreeMap<u64, usize> = BTreeMap::new();
        for output in outputs.iter().filter(|output| output.ty == TensorType::F16) {
            *misfits.entry(output.shape[0]).or_default() += 1;
        }
        let note =
            |(len, n)| format!("rows of {len} values do not fit Q8_0; using F16 for {n} tensors");
        misfits.into_iter().map(note).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_capture_numbers() {
        assert_eq!(matches("layers.*.experts.*.w1", "layers.3.experts.12.w1"), Some(vec![3, 12]));
        assert_eq!(matches("norm", "norm"), Some(vec![]));
        assert_eq!(matches("layers.*.w", "layers.x.w"), None);
        assert_eq!(matches("layers.*.w", "layers.3.w.more"), None);
        assert_eq!(matches("layers.*.w", "layers.99999999999999999999.w"), None);
    }

    #[test]
    fn layers_come_after_the_embeddings_and_before_the_output() {
        let mut names =
            ["output.weight", "blk.10.x", "rope_freqs.weight", "blk.2.x", "token_embd.weight"];
        names.sort_by_key(|name| SortKey::new(name));
        assert_eq!(
            names,
            ["rope_freqs.weight", "token_embd.weight", "blk.2.x", "blk.10.x", "output.weight"]
        );
    }
}
