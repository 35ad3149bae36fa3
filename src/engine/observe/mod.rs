//! Observes feed-forward blocks, for profiles and predictors, or the inputs of all weight matrices,
//! for importance matrices: layer by layer, with separate programs over the loaded weights.
//! Ordinary programs are not affected.
//!
//! Most engines never observe, so memory for it is not reserved at load. The first observed step
//! makes the programs and reserves their memory in the ledgers of the devices. If a device lacks
//! the memory, that call fails and the engine still works as before.

mod inputs;
mod value;

use std::fmt;
use std::sync::atomic::AtomicBool;

use hal::op::{Activation, MatMul, Op};
use hal::{Operand, Program, Tensor, TensorDesc};

use placement::{DeviceIndex, LayerPlacement, Neurons, Placement};

use crate::error::{Error, Result};
use crate::load::ffn::FfnTensors;
use crate::load::lane::Lane;
use crate::load::{LoadedModel, lane_mut};
use crate::ops::latent::block_operands;
use crate::record::{Recording, view};
use crate::replay::StepProgram;
use crate::replay::arena::{BlockSizes, StepArena};
use crate::step::{StepStats, Stepper};

/// Maximum number of tokens of a step: the values of all neurons are stored for each token.
const MAX_TOKENS: usize = 64;

pub(crate) use inputs::InputWatch;
use inputs::{HeadProgram, Piece, SharedProgram, run_pieces};
pub use inputs::{InputObserver, ObservedInput};

/// The receiver of observed values.
pub(crate) enum Watch<'a> {
    /// A callback for blocks: gets the index of the layer and the values of its block.
    Blocks(&'a mut dyn FnMut(usize, &ObservedBlock<'_>)),
    /// An observer of the inputs of all weight matrices.
    Inputs(InputWatch<'a>),
}

impl<'a> Watch<'a> {
    /// The observer of inputs; `None` if only blocks are observed.
    fn inputs(&mut self) -> Option<&mut InputWatch<'a>> {
        match self {
            Watch::Blocks(_) => None,
            Watch::Inputs(watch) => Some(watch),
        }
    }

    fn block(&mut self, index: usize, block: &ObservedBlock<'_>) {
        match self {
            Watch::Blocks(each) => each(index, block),
            Watch::Inputs(watch) => watch.block(index, block),
        }
    }
}

/// The values of a feed-forward block for some tokens. Rows are tokens.
#[derive(Clone, Copy)]
pub struct ObservedBlock<'a> {
    /// Number of tokens.
    pub n_tokens: usize,
    /// `[n_tokens, n_embd]`: the residual before the block's norm, which PowerInfer's predictors
    /// read.
    pub residual: &'a [f32],
    /// `[n_tokens, width]`: the block's input, normed; of latent experts their input.
    pub x: &'a [f32],
    /// `[n_tokens, n_ff]`: output of the gate projection with bias, before the activation; `None`
    /// in blocks without a gate.
    pub gate: Option<&'a [f32]>,
    /// `[n_tokens, n_ff]`: output of the up projection with bias.
    pub up: &'a [f32],
    /// `[n_tokens, n_expert]`: the router's weight of each expert for each token; 0 for an expert
    /// that the token does not use, whose `gate` and `up` are still computed. `None` in dense
    /// blocks.
    pub weights: Option<&'a [f32]>,
    /// Activation of the block.
    pub activation: Activation,
}

impl fmt::Debug for ObservedBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").field("n_tokens", &self.n_tokens).finish_non_exhaustive()
    }
}

/// Index of the token count whose programs observed steps use: the largest up to [`MAX_TOKENS`].
pub(crate) fn observed_bucket(buckets: &[usize]) -> usize {
    buckets.iter().rposition(|&n| n <= MAX_TOKENS).unwrap_or(0)
}

/// The programs of an observed step, and their outputs.
#[derive(Debug)]
pub(crate) struct Observers {
    bucket: usize,
    /// Number of tokens of a step, padding included.
    n: usize,
    /// Whether the programs are cut for reading the inputs of all matrices.
    inputs: bool,
    embed: Program,
    layers: Vec<LayerPrograms>,
    head: Option<HeadProgram>,
    host: HostBuffers,
}

#[derive(Debug)]
struct LayerPrograms {
    home: DeviceIndex,
    /// The ops up to the input of the block.
    before: Vec<Piece>,
    shares: Vec<ShareProgram>,
    /// Gate and up of the shared expert, if the inputs of its matrices are observed.
    shared: Option<SharedProgram>,
    /// The block; `None` in a layer without one.
    block: Option<Program>,
    /// The ops after the block.
    after: Vec<Piece>,
    /// The file's expert for each column of the router's weights, if whole experts were exchanged.
    experts: Option<Vec<u32>>,
}

/// Computes gate and up of a share on its device.
#[derive(Debug)]
struct ShareProgram {
    device: DeviceIndex,
    neurons: Neurons,
    /// Whether the outputs have all neurons of the layer, in the file's order.
    in_file_order: bool,
    program: Program,
    products: Products,
}

/// Outputs of gate and up, `[n, n_rows]` each.
#[derive(Clone, Debug)]
struct Products {
    gate: Option<Tensor>,
    up: Tensor,
}

/// Host buffers for the observed values, `[n, ...]` each.
#[derive(Debug, Default)]
struct HostBuffers {
    residual: Vec<f32>,
    x: Vec<f32>,
    weights: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// Buffer for the values of one share.
    part: Vec<f32>,
}

impl Observers {
    /// Records the programs for `loaded`, which was placed by `placement`. `experts` returns the
    /// file's expert for each expert number of a layer, if experts were exchanged. `inputs` selects
    /// the inputs of all weight matrices instead of the blocks.
    pub(crate) fn new<'a>(
        recording: &Recording<'_>,
        loaded: &LoadedModel,
        placement: &Placement,
        buckets: &[usize],
        experts: &dyn Fn(usize) -> Option<&'a [u32]>,
        inputs: bool,
    ) -> Result<Observers> {
        let bucket = observed_bucket(buckets);
        let n = buckets[bucket];
        let first = loaded.lane(placement.embed);
        let mut recorder = first.device.record("observed embedding");
        recording.embed(&mut recorder, first, &view(&first.scratch, n))?;
        let embed = recorder.finish()?;
        let mut layer_recorder =
            ProgramRecorder { recording, loaded, bucket, n, inputs, products: Vec::new() };
        let mut layers = Vec::new();
        for (index, placed) in placement.layers.iter().enumerate() {
            let experts = experts(index).map(<[u32]>::to_vec);
            layers.push(LayerPrograms { experts, ..layer_recorder.layer(index, placed)? });
        }
        let head = layer_recorder.head_program()?;
        Ok(Observers { bucket, n, inputs, embed, layers, head, host: HostBuffers::default() })
    }

    /// Whether the programs observe the inputs of all weight matrices.
    pub(crate) fn observes_inputs(&self) -> bool {
        self.inputs
    }
}

/// Programs of an observed step being recorded.
struct ProgramRecorder<'a> {
    recording: &'a Recording<'a>,
    loaded: &'a LoadedModel,
    bucket: usize,
    n: usize,
    inputs: bool,
    /// Buffers allocated so far. Shares of the same size on one device use the same buffers one
    /// after the other.
    products: Vec<(DeviceIndex, Products)>,
}

impl ProgramRecorder<'_> {
    fn layer(&mut self, index: usize, placed: &LayerPlacement) -> Result<LayerPrograms> {
        let ProgramRecorder { recording, loaded, bucket, n, .. } = *self;
        let layer = &loaded.layers[index];
        let home = loaded.lane(placed.home);
        let scratch = view(&home.scratch, n);
        let label = format!("observed layer {index}");
        let ops = recording.layer_ops(home, bucket, &scratch, index, None);
        let before = self.pieces(index, home, &label, ops.before_neurons())?;
        let after = self.pieces(index, home, &label, ops.after_neurons())?;
        let mut block = home.device.record(&format!("neurons of observed layer {index}"));
        let mailbox = layer.mailbox.as_ref().map(|mailbox| block.mailbox(mailbox));
        let mailbox = mailbox.transpose()?;
        let ops: Vec<Op<Tensor>> =
            recording.layer_ops(home, bucket, &scratch, index, mailbox).neurons_alone();
        let has_block = !ops.is_empty();
        ops.into_iter().try_for_each(|op| block.push(op))?;
        let block = has_block.then(|| block.finish()).transpose()?;
        let shares = self.shares(index, placed)?;
        let shared = self.shared_program(index, placed.home)?;
        Ok(LayerPrograms { home: placed.home, before, shares, shared, block, after, experts: None })
    }

    fn shares(&mut self, index: usize, placed: &LayerPlacement) -> Result<Vec<ShareProgram>> {
        let layer = &self.loaded.layers[index];
        let n_ff = self.recording.n_ff(index);
        let mut shares = Vec::new();
        let mut remotes = layer.remotes.iter();
        for share in placed.shares.iter().filter(|s| s.neurons.len(n_ff) > 0) {
            let here = share.device == placed.home;
            let mut remote = || remotes.next().map(|remote| &remote.ffn);
            let ffn = if here { layer.own.as_ref() } else { remote() };
            let ffn = ffn.expect("each placed share is loaded");
            let on = self.loaded.lane(share.device);
            let (width, latent) = (ffn.up.desc().n_cols, self.recording.is_latent(index));
            let [x, _] = block_operands(&on.scratch, width, latent);
            let x = if here || latent { x } else { &on.scratch.handed }.rows(0..self.n);
            let products = self.products(on, share.device, ffn)?;
            let mut recorder = on.device.record(&format!("products of layer {index}"));
            for op in products.ops(ffn, &x) {
                recorder.push(op)?;
            }
            let (device, neurons) = (share.device, share.neurons.clone());
            let (program, in_file_order) = (recorder.finish()?, layer.held_on(device).is_some());
            shares.push(ShareProgram { device, neurons, in_file_order, program, products });
        }
        Ok(shares)
    }

    fn products(&mut self, on: &Lane, device: DeviceIndex, ffn: &FfnTensors) -> Result<Products> {
        let (n, n_rows) = (self.n, ffn.up.desc().n_rows);
        let fits = |(on, products): &&(DeviceIndex, Products)| {
            *on == device && products.up.desc().n_cols == n_rows
        };
        if let Some((_, products)) = self.products.iter().find(fits) {
            return Ok(products.clone());
        }
        let alloc =
            |label| on.device.alloc(label, TensorDesc::new(n, n_rows, hal::format::Format::F32));
        let gate = ffn.gate.as_ref().map(|_| alloc("observed gate")).transpose()?;
        let products = Products { gate, up: alloc("observed up")? };
        self.products.push((device, products.clone()));
        Ok(products)
    }
}

impl Products {
    fn ops(&self, ffn: &FfnTensors, x: &Tensor) -> Vec<MatMul<Tensor>> {
        let product = |w: &Tensor, bias: &Option<Tensor>, y: &Tensor| MatMul {
            w: w.clone(),
            x: x.clone(),
            bias: bias.clone(),
            y: y.clone(),
        };
        let gate = ffn.gate.as_ref().zip(self.gate.as_ref());
        let gate = gate.map(|(w, y)| product(w, &ffn.bias_gate, y));
        gate.into_iter().chain([product(&ffn.up, &ffn.bias_up, &self.up)]).collect()
    }
}

impl Observers {
    /// Updates a layer after an exchange: the neurons of its slots and, if whole experts were
    /// exchanged, the experts that the numbers stand for.
    pub(crate) fn relabel(
        &mut self,
        layer: usize,
        placed: &LayerPlacement,
        experts: Option<Vec<u32>>,
    ) {
        let Some(programs) = self.layers.get_mut(layer) else { return };
        for share in &mut programs.shares {
            if let Some(now) = placed.shares.iter().find(|now| now.device == share.device) {
                share.neurons = now.neurons.clone();
            }
        }
        programs.experts = experts;
    }

    /// Runs a step over `arena.facts` and passes the observed values to `watch`.
    pub(crate) fn step(
        &mut self,
        stepper: &mut Stepper,
        arena: &mut StepArena,
        interrupt: &AtomicBool,
        watch: &mut Watch<'_>,
    ) -> Result<StepStats> {
        let n = arena.facts.tokens.len();
        let mut at = stepper.first_device();
        let mut step = stepper.begin_counted(arena, interrupt, self.bucket)?;
        let run = |device, program| StepProgram { device, program, handed: &[], works: &[] };
        run(at, &self.embed).replay(&mut step)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let device = layer.home;
            step.prepare_all(index)?;
            step.copy_residual(at, device)?;
            step.copy_per_layer_embeddings(at, device)?;
            at = device;
            run_pieces(&layer.before, device, &mut step, watch.inputs())?;
            // A layer without neurons has nothing to observe.
            let sizes = &step.arena.sizes;
            if sizes.blocks[index].n_ff > 0 {
                let at = ObservedLayer { layer, block: sizes.blocks[index], n_embd: sizes.n_embd };
                self.host.read_layer(step.lanes, &at, self.n, sizes.n_expert)?;
                watch.block(index, &self.host.observed(n, &at));
            }
            if let (Some(shared), Some(watch)) = (&layer.shared, watch.inputs()) {
                shared.run(lane_mut(step.lanes, device), n, watch)?;
            }
            step.check_interrupt()?;
            if let Some(program) = &layer.block {
                StepProgram { handed: &[index], ..run(device, program) }.replay(&mut step)?;
            }
            run_pieces(&layer.after, device, &mut step, watch.inputs())?;
        }
        if let (Some(head), Some(watch)) = (&self.head, watch.inputs()) {
            head.run(at, &mut step, watch)?;
        }
        stepper.count(self.bucket, n, arena)
    }
}

#[derive(Clone, Copy)]
struct ObservedLayer<'a> {
    layer: &'a LayerPrograms,
    block: BlockSizes,
    n_embd: usize,
}

impl HostBuffers {
    /// Reads the input of a block from its home device, and computes gate and up on every device
    /// that has neurons of the block.
    fn read_layer(
        &mut self,
        lanes: &mut [Option<Lane>],
        at: &ObservedLayer<'_>,
        n: usize,
        n_expert: usize,
    ) -> Result<()> {
        let ObservedLayer { layer, block, n_embd } = *at;
        let Lane { queue, scratch, .. } = lane_mut(lanes, layer.home);
        let [x, _] = block_operands(scratch, block.width, block.is_latent);
        for (from, to, width) in
            [(&scratch.x, &mut self.residual, n_embd), (x, &mut self.x, block.width)]
        {
            to.resize(n * width, 0.0);
            queue.read_f32(from, to)?;
        }
        if let Some(weights) = &scratch.weights {
            self.weights.resize(n * n_expert, 0.0);
            queue.read_f32(weights, &mut self.weights)?;
            if let Some(experts) = &layer.experts {
                for row in self.weights.chunks_exact_mut(experts.len()) {
                    self.part.clear();
                    self.part.extend_from_slice(row);
                    let weights = experts.iter().zip(&self.part);
                    weights.for_each(|(&expert, &weight)| row[expert as usize] = weight);
                }
            }
        }
        self.gate.resize(n * block.n_ff, 0.0);
        self.up.resize(n * block.n_ff, 0.0);
        for share in &layer.shares {
            let Lane { queue, scratch, .. } = lane_mut(lanes, share.device);
            if share.device != layer.home {
                let [latent, _] = block_operands(scratch, block.width, block.is_latent);
                let x = if block.is_latent { latent } else { &scratch.handed };
                queue.write(x, bytemuck::cast_slice(&self.x))?;
            }
            queue.replay(&share.program)?.wait()?;
            let ShareProgram { products: Products { gate, up }, .. } = share;
            let mut fetch = |from: &Tensor, to: &mut [f32]| {
                self.part.resize(from.desc().n_rows * from.desc().n_cols, 0.0);
                queue.read_f32(from, &mut self.part)?;
                share.scatter(&self.part, to, block.n_ff);
                Ok::<_, Error>(())
            };
            fetch(up, &mut self.up)?;
            if let Some(gate) = gate {
                fetch(gate, &mut self.gate)?;
            }
        }
        if let Some(factor) = block.gaussian_cut {
            self.gate.chunks_exact_mut(block.n_ff.max(1)).for_each(|gate| cut(gate, factor));
        }
        Ok(())
    }

    /// The values of the first `n` tokens.
    fn observed(&self, n: usize, at: &ObservedLayer<'_>) -> ObservedBlock<'_> {
        let ObservedLayer { layer, block, n_embd } = *at;
        let gated = layer.shares.iter().any(|share| share.products.gate.is_some());
        ObservedBlock {
            n_tokens: n,
            residual: &self.residual[..n * n_embd],
            x: &self.x[..n * block.width],
            gate: gated.then_some(&self.gate[..n * block.n_ff]),
            up: &self.up[..n * block.n_ff],
            weights: (block.n_expert > 0).then_some(&self.weights[..n * block.n_expert]),
            activation: block.activation,
        }
    }
}

/// Replaces a token's gates by what exceeds their cut-off ([`hal::op::Skip::GaussianCut`]).
fn cut(gate: &mut [f32], factor: f32) {
    let n = gate.len() as f32;
    let mean = gate.iter().sum::<f32>() / n;
    let variance = gate.iter().map(|gate| (gate - mean).powi(2)).sum::<f32>() / n;
    let cut = mean + factor * variance.sqrt();
    gate.iter_mut().for_each(|gate| *gate = (*gate - cut).max(0.0));
}

impl ShareProgram {
    /// Copies products, token by token, to the indices of their neurons.
    fn scatter(&self, part: &[f32], all: &mut [f32], n_ff: usize) {
        let Neurons::List(list) = &self.neurons else { return all.copy_from_slice(part) };
        let n_rows = if self.in_file_order { n_ff } else { list.len() };
        for (part, all) in part.chunks_exact(n_rows).zip(all.chunks_exact_mut(n_ff)) {
            for (row, &neuron) in list.iter().enumerate() {
                let neuron = neuron as usize;
                all[neuron] = part[if self.in_file_order { neuron } else { row }];
            }
        }
    }
}
