//! Plans the tensors of the file and their sources in the checkpoint.

use std::collections::BTreeMap;

use hal::format::Format;

use super::change::{Change, RowMap, Values};
use super::complete;
use super::family::{Build, Family, Part, Reshape, Rule, Scale, Transform};
use super::mxfp4::mxfp4;
use super::output::{Content, Output, SourceMatrices};
use super::source::{Checkpoint, Tensor};
use super::{Error, OutType};

/// Prefixes that are removed from a tensor's name before its rule is looked up.
const PREFIXES: &[&str] = &[
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
    "distilbert.transformer.",
    "distilbert.",
    "transformer.",
    "bert.",
    "roberta.",
    "backbone.",
    "gpt_neox.",
    "rwkv.",
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
    "mm_projector.",
    "model.vision_adapter.",
    "model.vision_projection.",
    "visual.",
    "model.visual.",
    "vision_model.",
    "mtp.",
    "model.mtp.",
    "model.mtp_",
    // DeepSeek V4 with images.
    "vision.",
    "aligner.",
    "image_",
];
const DROPPED_SUFFIXES: &[&str] = &["rotary_emb.inv_freq", ".masked_bias", ".attn.bias"];
/// Part of the names of weights that adapters change; `original` or the matrix of an adapter
/// follows.
const ADAPTED: &str = ".parametrizations.weight.";

/// Matrices by expert number; 0 in tensors without experts.
type Pieces = BTreeMap<usize, SourceMatrices>;

/// How the matrices of a tensor lie in it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Layout {
    #[default]
    One,
    /// A matrix for each expert.
    Stack,
    /// Rows of one matrix after those of another.
    Joined,
}

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
        let mut stacked: BTreeMap<SortKey, (Pieces, Layout)> = BTreeMap::new();
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
                let (pieces, layout) = stacked.entry(SortKey::new(&name)).or_default();
                if matches!(transform, Transform::Joined) {
                    *layout = Layout::Joined;
                } else if expert.is_some() {
                    *layout = Layout::Stack;
                }
                if pieces.insert(expert.unwrap_or(0), piece).is_some() {
                    return Err(Error::DuplicateTensor { file: tensor.name.clone(), tensor: name });
                }
            }
        }
        for (key, (pieces, layout)) in stacked {
            let output = self.stack(&key.name, pieces, layout)?;
            outputs.insert(key, output);
        }
        let outputs: Vec<Output> = outputs.into_values().collect();
        complete::check(self, &outputs)?;
        for (start, n) in left_out {
            notes.push(if start.ends_with(['.', '_']) && !start.contains("mtp") {
                format!("skipped: {n} tensors outside the text model, `{start}*`")
            } else {
                format!("skipped: {n} tensors for multi-token prediction")
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

    /// Whether a tensor belongs to a layer for multi-token prediction, after the last layer.
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
        let bare = match bare.split_once(ADAPTED).filter(|_| self.family.arch == "jina-bert-v3") {
            Some((weight, "original")) => weight,
            Some(_) => return Ok(Vec::new()),
            None => bare,
        };
        let is_whole =
            |rule: &Rule| rule.from.ends_with(".bias") && matches(rule.from, bare).is_some();
        let (base, ending) = match bare.rsplit_once('.') {
            // A bias that becomes a tensor of its own.
            Some(_) if self.family.all_rules().any(|(_, rule)| is_whole(rule)) => (bare, "weight"),
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
            let before = rule.after.map_or(Ok(0), |after| after(self.build))? as usize;
            let layer = numbers.first().map(|n| (n + before).to_string()).unwrap_or_default();
            let mut name = rule.to.replace('*', &layer);
            if self.transpose_down && name.ends_with(".ffn_down") {
                name.push_str("_t");
            }
            let whole = name.strip_suffix('=').map(str::to_owned);
            let name = whole.unwrap_or_else(|| format!("{name}.{ending}"));
            // Without a layer in the file's name, the first number is that of a stacked matrix.
            let is_part = matches!(rule.transform, Transform::Joined);
            let stacked = usize::from(is_part || rule.to.contains('*'));
            let expert = rule.place.or(numbers.get(stacked).copied());
            targets.push(Target { name, expert, rule });
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
            Reshape::Column => shape.iter().copied().filter(|&n| n != 1).chain([1]).collect(),
            Reshape::Filters => match shape[..] {
                [n, width] | [n, 1, width] => vec![n, 1, width],
                _ => {
                    return Err(Error::Shape {
                        tensor: tensor.name.clone(),
                        expected: "a filter for each channel".to_owned(),
                        found: shape.clone(),
                    });
                }
            },
            Reshape::Groups(n) => groups(n(self.build)?)?,
            Reshape::Flat => vec![shape.iter().product()],
            Reshape::Stack(n) => stack_of(tensor, n(self.build)?)?,
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
            | Transform::Joined
            | Transform::Mxfp4
            | Transform::Mxfp4Even
            | Transform::Mxfp4Odd => plain(),
            Transform::Rope => rows(RowMap::Rope { d_head: d_head()?, n_rot: d_head()? }),
            Transform::RopeFirst(n) => {
                let n_rot = n(self.build)? as usize;
                rows(RowMap::Rope { d_head: d_head()?, n_rot })
            }
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
            Transform::FirstRowsTransposed(n) => {
                Change { n_cols: Some(n(self.build)? as usize), ..transposed(RowMap::Same) }
            }
            Transform::EitherWay(part) => self.expert_either_way(part, shape)?,
            Transform::PadRows(n) => rows(RowMap::Pad { n: n(self.build)? as usize }),
            Transform::FirstRows(n) => rows(RowMap::First { n: n(self.build)? as usize }),
            Transform::Rows(list) => rows(RowMap::List(list(self.build)?)),
            Transform::ReorderColumns(list) => {
                Change { columns: Some(list(self.build)?), ..plain() }
            }
        };
        let values = match rule.scale {
            Scale::Same => change.values,
            Scale::NegExp => Values::NegExp,
            Scale::Exp => Values::Exp,
            Scale::Plus(number) => Values::Plus(number),
            Scale::UnitRows(is_on) if is_on(self.build)? => Values::UnitRows,
            Scale::UnitRows(_) => change.values,
            Scale::Times(number) => Values::Times(number(self.build)?),
            Scale::RowTimes(numbers) => Values::RowTimes(numbers(self.build)?.into()),
        };
        Ok(Change { values, ..change })
    }

    /// The transposition of experts that are stored transposed, unless only the untransposed shape
    /// fits the width of the model.
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
    fn stack(&self, name: &str, pieces: Pieces, layout: Layout) -> Result<Output, Error> {
        let missing = (0..pieces.len()).find(|n| !pieces.contains_key(n));
        if let Some(expert) = missing {
            return Err(Error::MissingTensor { tensor: format!("{name}, expert {expert}") });
        }
        let pieces: Vec<SourceMatrices> = pieces.into_values().collect();
        let first = &pieces[0];
        let last = pieces.len() - 1;
        // The last part of a joined matrix may have fewer rows.
        let fits = |(i, piece): &(usize, &SourceMatrices)| {
            piece.is_like(first)
                || (layout == Layout::Joined && *i == last && piece.is_shorter_than(first))
        };
        if let Some((_, other)) = pieces.iter().enumerate().find(|piece| !fits(piece)) {
            let expected = format!("{:?}, as for the first expert", first.shape(None));
            return Err(Error::Shape {
                tensor: name.to_owned(),
                expected,
                found: other.shape(None),
            });
        }
        let is_stack = layout == Layout::Stack;
        let mut shape = first.shape(is_stack.then_some(pieces.len()));
        if layout == Layout::Joined {
            let rows = |piece: &SourceMatrices| piece.shape(None).get(1).copied().unwrap_or(1);
            shape = vec![shape[0], pieces.iter().map(rows).sum()];
        }
        if name.ends_with(".time_mix_lerp_fused.weight") {
            // llama.cpp's shape of the token shifts.
            let n = shape[1..].iter().product();
            shape = vec![shape[0], 1, 1, n];
        }
        if shape.len() > 4 {
            return Err(Error::Shape {
                tensor: name.to_owned(),
                expected: "at most four axes".into(),
                found: shape,
            });
        }
        let ty = if pieces.iter().all(SourceMatrices::is_mxfp4) {
            Format::MXFP4.into()
        } else {
            self.out_type.tensor_type(name, &shape, first.encoding())
        };
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

/// The shape of `n` matrices that are stored as one.
fn stack_of(tensor: &Tensor, n: u32) -> Result<Vec<u64>, Error> {
    match *tensor.shape.as_slice() {
        [rows, cols] if n > 0 && rows.is_multiple_of(u64::from(n)) => {
            Ok(vec![u64::from(n), rows / u64::from(n), cols])
        }
        _ => Err(Error::Shape {
            tensor: tensor.name.clone(),
            expected: format!("a matrix with the rows of {n} matrices"),
            found: tensor.shape.clone(),
        }),
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
            (Some(start), Some(part)) if start.ends_with("_*") => {
                let number = part.strip_prefix(start.trim_end_matches('*'))?;
                numbers.push(number.parse().ok().filter(|&n| n < 100_000)?);
            }
            (Some("*"), Some(part)) => numbers.push(part.parse().ok().filter(|&n| n < 100_000)?),
            (Some(expected), Some(part)) if expected == part => {}
            (_, _) => return None,
        }
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
        assert_eq!(matches("t.shard_*.w", "t.shard_12.w"), Some(vec![12]));
        assert_eq!(matches("t.shard_*.w", "t.shar_12.w"), None);
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
