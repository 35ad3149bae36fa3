//! A device's share of a feed-forward block: its packs and the op over them.

use std::sync::Arc;

use hal::format::Format;
use hal::op::{Activation, Down, ExpertRanges, FfnKind, Skip, SparseFfn};
use hal::{Bytes, Device, HostRows, Layout, Operand, PackDesc, Rows, Select, Source, TensorDesc};

use model::chooser::Layers;
use model::{self, Affine, Ffn, FfnMatrix, Model};
use placement::{Cut, Neurons};

use super::predict::{PredictorData, vector};
use crate::options::{DenseFrom, EngineOptions, NeuronReads, PagingOptions, Sparsity};

/// How the feed-forward blocks of a model are run; the same for all layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FfnMode {
    pub(crate) kind: FfnKind,
    pub(crate) skip: Skip,
    sparse: bool,
    /// Minimum score of a neuron with the file's predictors.
    threshold: f32,
    predicts: bool,
    /// Whether the predictors come from the side file, which has one for every block.
    from_side_file: bool,
    repack: bool,
    /// Whether rows may be bundled, which copies them.
    bundles: bool,
    /// Whether the rows of a bundle are read from disk alone.
    page_rows: bool,
    dense_from: DenseFrom,
}

impl FfnMode {
    pub(crate) fn new(model: &Model, options: &EngineOptions) -> FfnMode {
        let cut = options.has_thresholds();
        let exact = model.is_exactly_sparse() && options.sparsity != Sparsity::Off;
        let by_neuron = |paging: PagingOptions| paging.neurons == NeuronReads::Bundles;
        FfnMode {
            kind: model.ffn_kind,
            skip: match exact {
                _ if cut => Skip::BelowPerRow,
                true => Skip::NotPositive,
                false => Skip::Never,
            },
            sparse: exact || cut,
            threshold: options.sparse_threshold.unwrap_or(model.predictor_threshold),
            predicts: options.predicts(model),
            from_side_file: options.chooser_layers().is_some(),
            repack: options.repack,
            // Weights on disk are bundled only if single neurons are read, so that less is repacked.
            bundles: options.repack && options.paging.is_none_or(by_neuron),
            page_rows: options.paging.is_some_and(by_neuron),
            dense_from: options.dense_from,
        }
    }

    pub(crate) fn is_sparse(self) -> bool {
        self.sparse
    }

    /// Whether predictors choose neurons in the layers that have a predictor.
    pub(crate) fn predicts(self) -> bool {
        self.predicts
    }

    /// The predictor of block `layer`; `None` if predictors choose no neurons of it.
    pub(crate) fn predictor<'a>(
        self,
        model: &'a Model,
        options: &'a EngineOptions,
        layer: usize,
    ) -> Option<PredictorData<'a>> {
        let ffn = model.layers[layer].ffn.as_ref()?;
        if !self.lists(ffn) {
            return None;
        }
        match (options.sparsity, options.chooser_layers()) {
            (Sparsity::Within(target), Some(Layers::Predictors(layers))) => {
                layers.get(layer).map(|predictor| PredictorData::trained(predictor, target))
            }
            (Sparsity::Predicted, Some(Layers::Imported { layers, threshold })) => {
                let threshold = options.sparse_threshold.unwrap_or(*threshold);
                layers.get(layer).map(|predictor| PredictorData::of_file(predictor, threshold))
            }
            (Sparsity::Predicted, _) => {
                let predictor = ffn.predictor.as_ref();
                predictor.map(|predictor| PredictorData::of_file(predictor, self.threshold))
            }
            (Sparsity::Within(_) | Sparsity::Exact | Sparsity::Off, _) => None,
        }
    }

    /// Whether the engine transposes down into one row per neuron: if rows can be skipped, the file
    /// has the other orientation, and weights may be repacked.
    fn transposes(self, ffn: &Ffn) -> bool {
        self.sparse && self.repack && !ffn.down_by_neuron
    }

    pub(crate) fn orientation(self, ffn: &Ffn) -> Down {
        if self.transposes(ffn) || ffn.down_by_neuron {
            Down::ByNeuron
        } else {
            Down::AcrossNeurons
        }
    }

    /// How the neurons of each layer can be divided. Neurons of a unit must stay together. A unit
    /// is one neuron if down has one row per neuron; otherwise it is an expert or a block of the
    /// format.
    pub(crate) fn cuts(self, model: &Model) -> Vec<Cut> {
        let unit = |ffn: &Ffn| match self.orientation(ffn) {
            Down::ByNeuron => 1,
            Down::AcrossNeurons if ffn.experts.is_some() => ffn.down.w.desc().n_cols,
            Down::AcrossNeurons => ffn.down.w.desc().format.block_values(),
        };
        // The cut-off depends on all neurons.
        let unit = |ffn: &Ffn| ffn.gaussian_cut.map_or_else(|| unit(ffn), |_| ffn.n_ff());
        let layers = model.layers.iter();
        layers.map(|layer| Cut::new(layer.n_ff(), layer.ffn.as_ref().map_or(1, unit))).collect()
    }

    /// Whether a predictor lists the block's neurons.
    fn lists(self, ffn: &Ffn) -> bool {
        let known = self.from_side_file || ffn.predictor.is_some();
        let whole = ffn.gaussian_cut.is_some();
        self.predicts && known && !whole && self.orientation(ffn) == Down::ByNeuron
    }

    /// Number of matrices that are bundled on `device`; 0 for none. If a predictor lists neurons, a
    /// bundle stores the rows of a neuron together, so that the device reads them at once. Rows can
    /// be bundled only if they have one format, and down only if the file has one row per neuron.
    fn n_bundled(self, device: &Device, ffn: &Ffn) -> usize {
        let wanted = self.bundles && device.supports_column_views() && ffn.experts.is_none();
        if !wanted || !self.lists(ffn) {
            return 0;
        }
        let shape = |rows: &HostRows| (rows.desc().n_rows, rows.desc().format);
        let by_neuron = ffn
            .matrices()
            .take_while(|(matrix, _)| *matrix != FfnMatrix::Down || ffn.down_by_neuron);
        match by_neuron.take_while(|(_, rows)| shape(rows) == shape(&ffn.up.w)).count() {
            1 => 0,
            n => n,
        }
    }

    /// The matrices of a share, gate first. To transpose the down matrices of experts, they are
    /// first concatenated by columns.
    pub(crate) fn packs(self, device: &Device, ffn: &Ffn, neurons: &Neurons) -> Vec<PackedFfn> {
        let rows = match neurons {
            Neurons::All => Select::All,
            Neurons::List(list) => Select::Rows(Arc::clone(list)),
        };
        let of = |source: TensorDesc, select: &Select, transpose| PackDesc {
            select: select.clone(),
            transpose,
            ..PackDesc::whole(source)
        };
        let source = match ffn.n_expert() {
            Some(n) if self.transposes(ffn) => {
                model::stacked_to_columns(&ffn.down.w, n).expect("each expert has whole blocks")
            }
            Some(_) | None => ffn.down.w.clone(),
        };
        let down = source.desc();
        let down = match (self.orientation(ffn), neurons) {
            (Down::ByNeuron, _) => of(down, &rows, self.transposes(ffn)),
            (Down::AcrossNeurons, Neurons::All) => of(down, &Select::All, false),
            (Down::AcrossNeurons, Neurons::List(list)) if ffn.experts.is_some() => {
                let (n_ff, n_out) = (down.n_cols as u32, ffn.up.w.desc().n_cols as u32);
                let experts = list.iter().step_by(down.n_cols).map(|&first| first / n_ff);
                let rows = experts.flat_map(|expert| expert * n_out..(expert + 1) * n_out);
                of(down, &Select::Rows(rows.collect()), false)
            }
            (Down::AcrossNeurons, Neurons::List(list)) => {
                let block = down.format.block_values();
                let blocks = list.iter().step_by(block).map(|&n| n / block as u32).collect();
                of(down, &Select::ColumnBlocks(blocks), false)
            }
        };
        let one = |matrix, rows: &HostRows, pack| {
            let cols = vec![rows.desc().n_cols];
            PackedFfn { matrix: PackedMatrix::One(matrix), rows: rows.clone(), pack, cols }
        };
        let mut packs: Vec<PackedFfn> = ffn
            .matrices()
            .map(|(matrix, weights)| match matrix {
                FfnMatrix::Down => one(matrix, &source, down.clone()),
                FfnMatrix::Gate | FfnMatrix::Up => {
                    one(matrix, weights, of(weights.desc(), &rows, false))
                }
            })
            .collect();
        let n = self.n_bundled(device, ffn);
        if n > 0 {
            let rest = packs.split_off(n);
            let cols = packs.iter().map(|part| part.rows.desc().n_cols).collect();
            let parts = packs.into_iter().map(|part| part.rows).collect();
            let bundle = model::bundle(parts).expect("the rows have equal counts and one format");
            let pack = PackDesc { page_rows: self.page_rows, ..of(bundle.desc(), &rows, false) };
            packs = vec![PackedFfn { matrix: PackedMatrix::Bundle, rows: bundle, pack, cols }];
            packs.extend(rest);
        }
        packs
    }

    /// The row ranges of a share's experts; `None` in dense blocks. `n_below(n)` is the number of
    /// the share's neurons with an index below `n`.
    pub(crate) fn expert_ranges(
        self,
        ffn: &Ffn,
        n_below: impl Fn(usize) -> usize,
    ) -> Option<ExpertRanges> {
        let experts = ffn.experts.as_ref()?;
        let n_per_expert = ffn.n_per_expert();
        let starts = (0..=experts.n).map(|expert| n_below(expert * n_per_expert) as u32).collect();
        Some(ExpertRanges { starts, n_used: experts.n_used })
    }

    /// Bytes of a share of `n` neurons on `device`. Packs that a device uses in place cost
    /// nothing.
    pub(crate) fn size(self, device: &Device, ffn: &Ffn, neurons: &Neurons, n: usize) -> Bytes {
        let matrices = self.packs(device, ffn, neurons);
        let matrices = matrices.iter().map(|PackedFfn { rows, pack, .. }| {
            device.pack_size(pack, matches!(rows.source(), Source::Mapped(_)))
        });
        let vector =
            |n| device.pack_size(&PackDesc::whole(TensorDesc::new(1, n, Format::F32)), false);
        let before = ffn.gate.iter().chain([&ffn.up]);
        let before = before.filter(|part| part.bias.is_some()).map(|_| vector(n));
        let cut = (self.skip == Skip::BelowPerRow).then(|| vector(n));
        let down = ffn
            .down
            .bias
            .as_ref()
            .map(|bias| device.pack_size(&PackDesc::whole(bias.desc()), false));
        matrices.chain(before).chain(down).chain(cut).sum()
    }

    /// The op of a share over tensors or, for planning, over shapes.
    pub(crate) fn op<T: Operand>(
        self,
        share: &FfnShare<T>,
        rows: Rows<T>,
        FfnOperands { x, weights, y, active, hits, union, accumulate }: FfnOperands<T>,
    ) -> SparseFfn<T> {
        let share = share.clone();
        SparseFfn {
            gate: share.gate,
            up: share.up,
            down: share.down,
            bias_gate: share.bias_gate,
            bias_up: share.bias_up,
            bias_down: share.bias_down,
            // The shared expert has no thresholds and is computed whole.
            skip: match share.gaussian_cut {
                Some(factor) => Skip::GaussianCut(factor),
                None if self.skip == Skip::BelowPerRow && share.threshold.is_none() => Skip::Never,
                None => self.skip,
            },
            threshold: share.threshold.filter(|_| share.gaussian_cut.is_none()),
            expert_weights: weights,
            rows,
            dense_from: self.dense_from.at(x.desc().n_rows),
            x,
            y,
            active,
            hits,
            union,
            kind: self.kind,
            activation: share.activation,
            orientation: share.orientation,
            experts: share.experts,
            accumulate,
        }
    }

    /// The shapes of a share of `n` of the block's neurons.
    pub(crate) fn shape(self, ffn: &Ffn, n: usize) -> FfnShare<TensorDesc> {
        let TensorDesc { n_cols: n_embd, format, .. } = ffn.up.w.desc();
        let orientation = self.orientation(ffn);
        let down = ffn.down.w.desc();
        let bias =
            |part: &Affine, n| part.bias.as_ref().map(|_| TensorDesc::new(1, n, Format::F32));
        FfnShare {
            gate: ffn.gate.as_ref().map(|gate| TensorDesc::new(n, n_embd, gate.w.desc().format)),
            up: TensorDesc::new(n, n_embd, format),
            down: match orientation {
                Down::ByNeuron if self.transposes(ffn) => TensorDesc {
                    layout: Layout::Transposed { n_source: ffn.up.w.desc().n_rows },
                    ..TensorDesc::new(n, n_embd, down.format)
                },
                Down::ByNeuron => TensorDesc::new(n, n_embd, down.format),
                Down::AcrossNeurons if ffn.experts.is_some() => {
                    TensorDesc::new(n.div_ceil(down.n_cols) * n_embd, down.n_cols, down.format)
                }
                Down::AcrossNeurons => TensorDesc::new(n_embd, n, down.format),
            },
            bias_gate: ffn.gate.as_ref().and_then(|gate| bias(gate, n)),
            bias_up: bias(&ffn.up, n),
            bias_down: ffn.down.bias.as_ref().map(HostRows::desc),
            threshold: (self.skip == Skip::BelowPerRow).then(|| TensorDesc::new(1, n, Format::F32)),
            experts: self.expert_ranges(ffn, |below| below.min(n)),
            activation: ffn.activation,
            gaussian_cut: ffn.gaussian_cut,
            orientation,
        }
    }
}

/// The matrix or matrices of a share in one pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackedMatrix {
    One(FfnMatrix),
    /// Several matrices, concatenated by columns.
    Bundle,
}

impl PackedMatrix {
    /// Label of the tensor within its block; a single matrix is labelled with its name in files.
    pub(crate) fn label(self) -> &'static str {
        match self {
            PackedMatrix::One(FfnMatrix::Gate) => "ffn_gate",
            PackedMatrix::One(FfnMatrix::Up) => "ffn_up",
            PackedMatrix::One(FfnMatrix::Down) => "ffn_down",
            PackedMatrix::Bundle => "ffn_bundle",
        }
    }
}

/// One or more matrices of a share to be packed for a device.
pub(crate) struct PackedFfn {
    pub(crate) matrix: PackedMatrix,
    pub(crate) rows: HostRows,
    pub(crate) pack: PackDesc,
    /// Number of columns of each matrix in the pack.
    pub(crate) cols: Vec<usize>,
}

/// Selects the values of a per-neuron vector for the neurons of a share.
pub(crate) fn select_values(bias: &HostRows, neurons: &Neurons) -> HostRows {
    let Neurons::List(list) = neurons else {
        return bias.clone();
    };
    let bytes = bias.rows(0..1).expect("biases are mapped or in host memory");
    let values = list.iter().flat_map(|&n| &bytes[4 * n as usize..][..4]);
    let bytes: Vec<u8> = values.copied().collect();
    HostRows::new(Source::Owned(Arc::new(bytes)), 1, list.len(), Format::F32)
        .expect("a bias has four bytes per neuron")
}

/// The activation thresholds of a share; `None` if the options select no thresholds.
pub(crate) fn thresholds(
    options: &EngineOptions,
    layer: usize,
    neurons: &Neurons,
) -> Option<HostRows> {
    let (Sparsity::Within(target), Some(Layers::Thresholds(layers))) =
        (options.sparsity, options.chooser_layers())
    else {
        return None;
    };
    let values = layers.get(layer)?.rows(target);
    Some(select_values(&vector(&values), neurons))
}

/// Operands of the op of a share, except its weights.
pub(crate) struct FfnOperands<T> {
    pub(crate) x: T,
    /// The router's weight of each expert for each token; `None` in dense blocks.
    pub(crate) weights: Option<T>,
    pub(crate) y: T,
    pub(crate) active: T,
    /// Counters per row of the tokens for which the row was active; `None` if rows are not counted.
    pub(crate) hits: Option<T>,
    /// Operand for [`hal::op::UnionCounts`]; `None` if the union is not counted.
    pub(crate) union: Option<T>,
    /// Whether to add to `y`.
    pub(crate) accumulate: bool,
}

/// Weights of a share: gate, up and down, with their vectors.
#[derive(Clone, Debug)]
pub(crate) struct FfnShare<T> {
    pub(crate) gate: Option<T>,
    pub(crate) up: T,
    pub(crate) down: T,
    pub(crate) bias_gate: Option<T>,
    pub(crate) bias_up: Option<T>,
    pub(crate) bias_down: Option<T>,
    /// Threshold of each neuron's activation; `None` if neurons are not chosen by thresholds.
    pub(crate) threshold: Option<T>,
    pub(crate) experts: Option<ExpertRanges>,
    pub(crate) activation: Activation,
    /// Factor of the gates' cut-off; `None` without one.
    pub(crate) gaussian_cut: Option<f32>,
    pub(crate) orientation: Down,
}
