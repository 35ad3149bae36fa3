//! Records the programs of a step, once, at load: the layers of the model become ops.
//!
//! `load/` loads the tensors, `replay/` replays the programs.

mod segments;

use hal::op::{GateActivation, Gather, MatMul, Mul, SoftCap};
use hal::{Operand, Program, Recorder, Rows, Tensor};

use model::Model;
use placement::{CPU, DeviceIndex, Placement};

use crate::error::Result;
use crate::load::ffn::FfnTensors;
use crate::load::lane::Lane;
use crate::load::lists::ChunkLists;
use crate::load::{LoadedModel, RemoteShare};
use crate::ops::ffn::{FfnMode, FfnOperands};
use crate::ops::latent::{block_operands, copy_columns};
use crate::ops::layer::{LayerOps, predictor_input};
use crate::ops::low_rank_hyper::output_norm;
use crate::ops::predict::Predictor;
use crate::ops::route::routing;
use crate::ops::scratch::Scratch;
use crate::options::EngineOptions;
use crate::paging::Stop;
use crate::size::Sizing;
use crate::timeline::Work;

/// Programs for the same work, one for each token count, ascending.
#[derive(Debug, Default)]
pub(crate) struct BucketPrograms {
    programs: Vec<(usize, Program)>,
}

impl BucketPrograms {
    /// The smallest program for at least `n` tokens; `None` if all are for fewer.
    pub(crate) fn at_least(&self, n: usize) -> Option<&Program> {
        self.programs.iter().find(|(size, _)| *size >= n).map(|(_, program)| program)
    }

    pub(crate) fn slow_reasons(&self) -> impl Iterator<Item = &String> {
        self.programs.iter().flat_map(|(_, program)| program.slow_reasons())
    }
}

/// The programs of consecutive layers with one home.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) device: DeviceIndex,
    /// The layer of each mailbox of the programs, in order.
    pub(crate) handed: Vec<usize>,
    /// The work of each timed span of the programs.
    pub(crate) works: Vec<Work>,
    pub(crate) programs: BucketPrograms,
    /// For each token count at which weights are streamed: the legs that replace the program.
    pub(crate) legs: Vec<(usize, Vec<Leg>)>,
    /// For each token count, the legs that replace the program if weights are partly on disk; else
    /// empty.
    pub(crate) paged: Vec<(usize, Vec<PagedLeg>)>,
    /// The device that weights are streamed to between legs.
    pub(crate) via: DeviceIndex,
}

/// The program of a segment up to, between or after its streamed layers.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) program: Program,
    /// The layer of each mailbox of the program, in order.
    pub(crate) handed: Vec<usize>,
    /// The work of each timed span of the program.
    pub(crate) works: Vec<Work>,
    /// The layer whose chunks run after this leg; `None` after the last leg.
    pub(crate) then: Option<usize>,
}

/// The program of a segment from one stop to the next.
#[derive(Debug)]
pub(crate) struct PagedLeg {
    /// The stop before the program: its layer, and where in the layer it is; `None` for a first leg
    /// without one.
    pub(crate) before: Option<(usize, Stop)>,
    pub(crate) program: Program,
    /// The work of each timed span of the program.
    pub(crate) works: Vec<Work>,
}

/// The programs of a step.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(crate) segments: Vec<Segment>,
    /// For each layer, the programs of its shares on other devices.
    pub(crate) remotes: Vec<Vec<BucketPrograms>>,
    /// For each layer, the programs that guess the next layer's experts on the CPU, from `y`; empty
    /// where it does not guess.
    pub(crate) guesses: Vec<BucketPrograms>,
    /// Programs by number of outputs.
    pub(crate) head: BucketPrograms,
}

impl Programs {
    /// All programs except the legs.
    pub(crate) fn bucket_programs(&self) -> impl Iterator<Item = &BucketPrograms> {
        let segments = self.segments.iter().map(|segment| &segment.programs);
        let shares = self.remotes.iter().flatten().chain(&self.guesses);
        segments.chain([&self.head]).chain(shares)
    }

    pub(crate) fn legs(&self) -> impl Iterator<Item = &Leg> {
        self.segments.iter().flat_map(|segment| segment.legs.iter().flat_map(|(_, legs)| legs))
    }

    pub(crate) fn paged_legs(&self) -> impl Iterator<Item = &PagedLeg> {
        self.segments.iter().flat_map(|segment| segment.paged.iter().flat_map(|(_, legs)| legs))
    }
}

/// Which neurons of a layer are streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamedNeurons {
    /// Neurons on other devices; their weights go to the layer's home.
    Absent,
    /// All neurons of a layer whose home is the CPU: its input is uploaded, and its output
    /// downloaded.
    Whole,
}

/// Layers whose weights are streamed to a device: their segments are cut into legs.
#[derive(Debug)]
pub(crate) struct StreamedLayers {
    pub(crate) device: DeviceIndex,
    /// The smallest recorded token count whose segments are cut into legs.
    pub(crate) from: usize,
    /// Layers in order; `None` for a layer that is not streamed.
    pub(crate) layers: Vec<Option<StreamedNeurons>>,
}

impl StreamedLayers {
    fn has(&self, layer: usize) -> bool {
        self.layers.get(layer).is_some_and(Option::is_some)
    }

    fn is_whole(&self, layer: usize) -> bool {
        self.layers.get(layer) == Some(&Some(StreamedNeurons::Whole))
    }
}

/// Everything needed to record programs.
pub(crate) struct Recording<'a> {
    model: &'a Model,
    mode: FfnMode,
    options: &'a EngineOptions,
    /// Token counts that programs are recorded for, ascending.
    buckets: &'a [usize],
    loaded: &'a LoadedModel,
}

/// The first `n` rows of every scratch tensor.
pub(crate) fn view(scratch: &Scratch<Tensor>, n: usize) -> Scratch<Tensor> {
    scratch.map(&mut |tensor| tensor.rows(0..n))
}

impl<'a> Recording<'a> {
    pub(crate) fn new(
        sizing: &Sizing<'a>,
        buckets: &'a [usize],
        loaded: &'a LoadedModel,
    ) -> Recording<'a> {
        let Sizing { model, mode, options, .. } = *sizing;
        Recording { model, mode, options, buckets, loaded }
    }

    pub(crate) fn model(&self) -> &'a Model {
        self.model
    }

    /// Whether the experts of a layer have another width than the residual.
    pub(crate) fn is_latent(&self, layer: usize) -> bool {
        self.model.layers[layer].frame.latent.is_some()
    }

    pub(crate) fn n_ff(&self, layer: usize) -> usize {
        self.model.layers[layer].n_ff()
    }

    /// Records all programs of a step. Segments are cut into legs at the layers in `streamed`.
    pub(crate) fn programs(
        &self,
        placement: &Placement,
        streamed: &[StreamedLayers],
    ) -> Result<Programs> {
        let layers = self.layer_programs(placement, streamed)?;
        Ok(Programs { head: self.head()?, ..layers })
    }

    /// Records the programs of a step without its head.
    pub(crate) fn layer_programs(
        &self,
        placement: &Placement,
        streamed: &[StreamedLayers],
    ) -> Result<Programs> {
        let segments = self.segments(placement, streamed)?;
        let mut remotes = Vec::new();
        for (index, layer) in self.loaded.layers.iter().enumerate() {
            let listed = layer.predictor.is_some();
            let shares = layer.remotes.iter().map(|remote| self.remote(index, remote, listed));
            remotes.push(shares.collect::<Result<_>>()?);
        }
        let guesses = (0..self.loaded.layers.len()).map(|index| self.guess_next(index));
        let guesses = guesses.collect::<Result<_>>()?;
        Ok(Programs { segments, remotes, guesses, head: BucketPrograms::default() })
    }

    /// Records a program for each token count, the largest first, so that the largest workspace is
    /// allocated first and shared.
    fn record_buckets(
        &self,
        buckets: &[usize],
        mut record: impl FnMut(usize, usize) -> Result<Program>,
    ) -> Result<BucketPrograms> {
        let mut recorded = BucketPrograms::default();
        for (index, &n) in buckets.iter().enumerate().rev() {
            recorded.programs.push((n, record(index, n)?));
        }
        recorded.programs.reverse();
        Ok(recorded)
    }

    /// The recorded token counts of at least `from`.
    pub(crate) fn buckets_from(&self, from: usize) -> &[usize] {
        &self.buckets[self.buckets.partition_point(|&n| n < from)..]
    }

    /// Records the programs over a chunk in the slots of `share`, for token counts of at least
    /// `from`. A program computes the contribution of the chunk to the output of the block, and
    /// writes it to y or, if `adds` is set, adds it to y. With a predictor, only the selected
    /// neurons are computed.
    pub(crate) fn chunk(
        &self,
        lane: &Lane,
        from: usize,
        share: &FfnTensors,
        listed: Option<(&Predictor<Tensor>, &ChunkLists)>,
        adds: bool,
    ) -> Result<BucketPrograms> {
        let buckets = self.buckets_from(from);
        let first = self.buckets.len() - buckets.len();
        let model = self.model;
        let n_layer = model.hyper.n_layer;
        self.record_buckets(buckets, |bucket, n| {
            let mut recorder = lane.device.record(&format!("chunk x {n}"));
            let s = view(&lane.scratch, n);
            let mut rows = Rows::All;
            if let Some((predictor, lists)) = listed {
                let (x, set) = (predictor_input(model, predictor, &s).clone(), lists.set(bucket));
                recorder.push(predictor.op(x, set.clone(), None))?;
                rows = Rows::Active(set);
            }
            let place = FfnOperands {
                x: s.h,
                weights: s.weights.filter(|_| share.experts.is_some()),
                y: s.y,
                active: lane.active[first + bucket].rows(n_layer..n_layer + 1),
                hits: None,
                union: None,
                accumulate: adds,
            };
            recorder.push(self.mode.op(share, rows, place))?;
            Ok(recorder.finish()?)
        })
    }

    pub(crate) fn embed(
        &self,
        recorder: &mut Recorder,
        lane: &Lane,
        scratch: &Scratch<Tensor>,
    ) -> Result<()> {
        let ops = self.loaded.embed.ops(self.model, scratch, &lane.batch);
        ops.into_iter().try_for_each(|op| Ok(recorder.push(op)?))
    }

    /// The ops of a layer with the tensors of `lane`, over the rows of `scratch`.
    pub(crate) fn layer_ops<'b>(
        &self,
        lane: &'b Lane,
        bucket: usize,
        scratch: &'b Scratch<Tensor>,
        index: usize,
        mailbox: Option<usize>,
    ) -> LayerOps<'b, Tensor>
    where
        'a: 'b,
    {
        let layer = &self.loaded.layers[index];
        let lists = lane.lists.as_ref();
        LayerOps {
            model: self.model,
            mode: self.mode,
            index,
            facts: &self.model.layers[index],
            frame: &layer.frame,
            freqs: layer.freqs.as_ref(),
            memory: &layer.memory,
            predictor: layer.predictor.as_ref(),
            own: layer.own.as_ref(),
            scratch,
            batch: &lane.batch,
            active: lane.active[bucket].rows(index..index + 1),
            hits: lane.hits(index, self.buckets[bucket]),
            union: lane.union(index, self.buckets[bucket]),
            resident: lists.map(|lists| lists.resident(index, bucket)),
            absent: lists.filter(|_| !layer.remotes.is_empty()).and_then(|l| l.absent(bucket)),
            mailbox,
        }
    }

    /// Records the programs of a share on a device other than the home: from its input `handed` to
    /// its output `y`.
    fn remote(&self, layer: usize, remote: &RemoteShare, listed: bool) -> Result<BucketPrograms> {
        let lane = self.loaded.lane(remote.device);
        let lists = lane.lists.as_ref().filter(|_| listed);
        self.record_buckets(self.buckets, |bucket, n| {
            let mut recorder = lane.device.record(&format!("share of layer {layer} x {n}"));
            let s = view(&lane.scratch, n);
            let active = lane.active[bucket].rows(layer..layer + 1);
            let rows = lists.map_or(Rows::All, |lists| Rows::Active(lists.resident(layer, bucket)));
            let (width, latent) = (remote.ffn.up.desc().n_cols, self.is_latent(layer));
            let [x, y] = if latent { block_operands(&s, width, latent) } else { [&s.handed, &s.y] };
            if latent {
                recorder.push(copy_columns(&s.handed, x, width))?;
            }
            let weights = s.weights.clone().filter(|_| remote.ffn.experts.is_some());
            let (hits, union) = (lane.hits(layer, n), lane.union(layer, n));
            let (x, out) = (x.clone(), y.clone());
            let place = FfnOperands { x, weights, y: out, active, hits, union, accumulate: false };
            recorder.push(self.mode.op(&remote.ffn, rows, place))?;
            if latent {
                recorder.push(copy_columns(y, &s.y, width))?;
            }
            Ok(recorder.finish()?)
        })
    }

    /// Records the programs with which the CPU guesses the experts of the layer after `index`. `y` has
    /// what the home of layer `index` posted.
    fn guess_next(&self, index: usize) -> Result<BucketPrograms> {
        let facts = self.model.layers.get(index + 1).and_then(|next| next.experts());
        let (Some(by), Some(guess), Some(experts)) =
            (&self.loaded.layers[index].next_router, &self.loaded.guess, facts)
        else {
            return Ok(BucketPrograms::default());
        };
        let lane = self.loaded.lane(CPU);
        self.record_buckets(self.buckets, |_, n| {
            let mut recorder = lane.device.record(&format!("guess of layer {} x {n}", index + 1));
            let (x, weights) = (lane.scratch.y.rows(0..n), guess.rows(0..n));
            let (g, activation) = (by.factors.clone(), GateActivation::None);
            recorder.push(Mul { g, x: x.clone(), activation })?;
            recorder.push(routing(
                &by.router,
                [&by.selection, &by.groups],
                experts,
                &x,
                &weights,
            ))?;
            Ok(recorder.finish()?)
        })
    }

    /// Records the head (gather, norm, logits) for several numbers of outputs.
    fn head(&self) -> Result<BucketPrograms> {
        let head = &self.loaded.head;
        let lane = self.loaded.lane(head.device);
        let max_out = self.options.max_out();
        let mut buckets: Vec<usize> =
            self.buckets.iter().copied().filter(|&n| n < max_out).collect();
        buckets.push(max_out);
        self.record_buckets(&buckets, |_, n| {
            let mut recorder = lane.device.record(&format!("head x {n}"));
            let s = &head.scratch;
            let (chosen, normed) = (s.chosen.rows(0..n), s.normed.rows(0..n));
            recorder.push(Gather {
                x: lane.scratch.x.clone(),
                batch: lane.batch.clone(),
                y: chosen.clone(),
            })?;
            recorder.push(output_norm(self.model, &chosen, head.norm.as_ref(), &normed))?;
            let Some(w) = head.output.clone() else { return Ok(recorder.finish()?) };
            let (logits, bias) = (s.logits.rows(0..n), head.bias.clone());
            recorder.push(MatMul { w, x: normed, bias, y: logits.clone() })?;
            let cap = self.model.hyper.logit_softcap;
            if cap > 0.0 {
                recorder.push(SoftCap { x: logits, cap, hard: false })?;
            }
            Ok(recorder.finish()?)
        })
    }
}
