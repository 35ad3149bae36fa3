//! Observes the inputs of all weight matrices, for importance matrices: between the ops of a layer,
//! the input of the next matrix is read.

use std::fmt;

use hal::op::{Activation, MatMul, Op, Route, SoftCap};
use hal::{HostRows, Operand, Program, Recorder, Tensor};

use model::{Ffn, Model, SharedExpert};
use placement::DeviceIndex;

use super::{ObservedBlock, Products, ProgramRecorder};
use crate::error::Result;
use crate::load::lane::Lane;
use crate::load::lane_mut;
use crate::ops::layer::{residual_norm, shared_share};
use crate::ops::low_rank_hyper::output_norm;
use crate::ops::scratch::{Role, Scratch};
use crate::record::{Recording, view};
use crate::replay::{StepProgram, StepState};

/// The input of weight matrices for some tokens. Rows are tokens.
#[derive(Clone, Copy)]
pub struct ObservedInput<'a> {
    /// The matrices that are multiplied with the input. They have the same number of columns.
    pub matrices: &'a [HostRows],
    /// Number of tokens.
    pub n_tokens: usize,
    /// `[n_tokens, n_cols]`, or `[n_tokens, n_expert, n_cols]` if each expert has its own input.
    pub x: &'a [f32],
    /// `[n_tokens, n_expert]`: the router's weight of each expert for each token; 0 for an expert
    /// that the token does not use. `None` for matrices without experts.
    pub weights: Option<&'a [f32]>,
}

impl fmt::Debug for ObservedInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObservedInput").field("n_tokens", &self.n_tokens).finish_non_exhaustive()
    }
}

/// Receives the inputs of all weight matrices of a step, and the logits that it asks for.
pub trait InputObserver {
    /// Receives an input.
    fn input(&mut self, input: &ObservedInput<'_>);

    /// Whether to compute the logits of the tokens from `first` to before `end` of the sequence.
    fn wants_logits(&self, first: usize, end: usize) -> bool;

    /// Receives the logits of the token at `position` of the sequence.
    fn logits(&mut self, position: usize, logits: &[f32]);
}

/// The observer of a step, and what it has to know.
pub(crate) struct InputWatch<'a> {
    pub(crate) model: &'a Model,
    pub(crate) observer: &'a mut dyn InputObserver,
    /// Position of the step's first token in the sequence.
    pub(crate) position: usize,
}

/// Consecutive ops of a layer, and the input that is read before them.
#[derive(Debug)]
pub(super) struct Piece {
    read: Option<InputRead>,
    program: Program,
}

/// An input, and the matrices that are multiplied with it.
#[derive(Debug)]
struct InputRead {
    x: Tensor,
    matrices: Vec<HostRows>,
}

/// Computes gate and up of a shared expert.
#[derive(Debug)]
pub(super) struct SharedProgram {
    program: Program,
    input: InputRead,
    products: Products,
    down: HostRows,
    activation: Activation,
}

/// Computes the input of the output matrix, and the logits.
#[derive(Debug)]
pub(super) struct HeadProgram {
    device: DeviceIndex,
    norm: Program,
    logits: Program,
    input: InputRead,
    output: Tensor,
}

/// The matrix and the input of an op; `None` for an op without a matrix, and for the neurons, which
/// are observed separately.
fn operands(op: &Op<Tensor>) -> Option<(&Tensor, &Tensor)> {
    if let Op::MatMul(MatMul { w, x, .. }) | Op::Route(Route { w, x, .. }) = op {
        Some((w, x))
    } else {
        None
    }
}

fn writes(op: &Op<Tensor>, x: &Tensor) -> bool {
    let mut found = false;
    op.visit(&mut |_, how, tensor| found |= how.writes() && tensor.overlaps(x));
    found
}

impl ProgramRecorder<'_> {
    /// The ops as programs, cut where an input has to be read if inputs are observed.
    pub(super) fn pieces(
        &self,
        index: usize,
        home: &Lane,
        label: &str,
        ops: Vec<Op<Tensor>>,
    ) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut read: Option<InputRead> = None;
        let mut recorder: Option<Recorder> = None;
        // Whether the piece's input is overwritten by its ops.
        let mut changed = false;
        for op in ops {
            if let Some((w, x)) = operands(&op).filter(|_| self.inputs) {
                let matrices = self.matrices_of(index, w);
                match &mut read {
                    Some(read) if !changed && read.x.overlaps(x) => read.matrices.extend(matrices),
                    _ => {
                        if let Some(recorder) = recorder.take() {
                            let program = recorder.finish()?;
                            pieces.push(Piece { read: read.take(), program });
                        }
                        read = Some(InputRead { x: x.clone(), matrices });
                        changed = false;
                    }
                }
            }
            changed |= read.as_ref().is_some_and(|read| writes(&op, &read.x));
            recorder.get_or_insert_with(|| home.device.record(label)).push(op)?;
        }
        if let Some(recorder) = recorder {
            pieces.push(Piece { read, program: recorder.finish()? });
        }
        Ok(pieces)
    }

    /// The rows in the file of a layer's weight; empty for a matrix of the neurons.
    fn matrices_of(&self, index: usize, w: &Tensor) -> Vec<HostRows> {
        let mut rows = Vec::new();
        let model = self.recording.model();
        model.layers[index].frame.for_each(&mut |_, part| rows.push(part.clone()));
        let mut tensors = Vec::new();
        self.loaded.layers[index].frame.for_each(&mut |_, part| tensors.push(part.clone()));
        let found = tensors.iter().position(|tensor| tensor.overlaps(w));
        found.and_then(|at| rows.get(at).cloned()).into_iter().collect()
    }

    /// Records gate and up of a layer's shared expert; `None` for a layer without one.
    pub(super) fn shared_program(
        &mut self,
        index: usize,
        device: DeviceIndex,
    ) -> Result<Option<SharedProgram>> {
        let ProgramRecorder { recording, loaded, n, inputs, .. } = *self;
        let model = recording.model();
        let facts = model.layers[index].frame.shared.as_ref().filter(|_| inputs);
        let (Some(facts), Some(shared)) = (facts, &loaded.layers[index].frame.shared) else {
            return Ok(None);
        };
        let home = loaded.lane(device);
        let scratch: Scratch<Tensor> = view(&home.scratch, n);
        let mut recorder = home.device.record(&format!("products of shared expert {index}"));
        let x = match &shared.norms {
            Some(norms) => {
                let x = scratch.at(Role::DenseInput, model.hyper.n_embd).clone();
                recorder.push(residual_norm(model, &scratch.x, &norms.before, &x))?;
                x
            }
            None => scratch.h.clone(),
        };
        let share = shared_share(shared);
        let products = self.products(home, device, &share)?;
        for op in products.ops(&share, &x) {
            recorder.push(op)?;
        }
        let SharedExpert { weight, gate, up, down, .. } = facts;
        let parts = weight.iter().chain(gate).chain([up]);
        let matrices = parts.map(|part| part.w.clone()).collect();
        let program = recorder.finish()?;
        let input = InputRead { x, matrices };
        let (down, activation) = (down.w.clone(), facts.activation);
        Ok(Some(SharedProgram { program, input, products, down, activation }))
    }

    /// Records the output norm and the logits of all tokens of a step; `None` if inputs are not
    /// observed.
    pub(super) fn head_program(&self) -> Result<Option<HeadProgram>> {
        let ProgramRecorder { recording, loaded, n, inputs, .. } = *self;
        let (model, head) = (recording.model(), &loaded.head);
        let (Some(w), Some(matrix), true) = (head.output.clone(), model.output.clone(), inputs)
        else {
            return Ok(None);
        };
        let lane = loaded.lane(head.device);
        let scratch = view(&lane.scratch, n);
        let mut norm = lane.device.record("observed output norm");
        norm.push(output_norm(model, &scratch.x, head.norm.as_ref(), &scratch.h))?;
        let mut recorder = lane.device.record("observed logits");
        let output = head.scratch.logits.rows(0..n);
        let bias = head.bias.clone();
        recorder.push(MatMul { w, x: scratch.h.clone(), bias, y: output.clone() })?;
        let cap = model.hyper.logit_softcap;
        if cap > 0.0 {
            recorder.push(SoftCap { x: output.clone(), cap, hard: false })?;
        }
        Ok(Some(HeadProgram {
            device: head.device,
            norm: norm.finish()?,
            logits: recorder.finish()?,
            input: InputRead { x: scratch.h, matrices: vec![matrix] },
            output,
        }))
    }
}

impl Recording<'_> {
    /// The blocks' matrices that are multiplied with the block's input.
    fn block_matrices(ffn: &Ffn) -> Vec<HostRows> {
        ffn.gate.iter().chain([&ffn.up]).map(|part| part.w.clone()).collect()
    }
}

impl InputRead {
    /// Passes the values of the first `n` tokens to `watch`.
    fn pass(&self, lane: &mut Lane, n: usize, watch: &mut InputWatch<'_>) -> Result<()> {
        let desc = self.x.desc();
        let mut x = vec![0.0; desc.n_rows * desc.n_cols];
        lane.queue.read_f32(&self.x, &mut x)?;
        let (matrices, x) = (&self.matrices[..], &x[..n * desc.n_cols]);
        watch.observer.input(&ObservedInput { matrices, n_tokens: n, x, weights: None });
        Ok(())
    }
}

/// Runs the pieces of a layer and passes the inputs between them to `watch`.
pub(super) fn run_pieces(
    pieces: &[Piece],
    device: DeviceIndex,
    step: &mut StepState<'_>,
    mut watch: Option<&mut InputWatch<'_>>,
) -> Result<()> {
    for piece in pieces {
        if let (Some(read), Some(watch)) = (&piece.read, &mut watch) {
            read.pass(lane_mut(step.lanes, device), step.n, watch)?;
        }
        let program = &piece.program;
        StepProgram { device, program, handed: &[], works: &[] }.replay(step)?;
    }
    Ok(())
}

impl InputWatch<'_> {
    /// Passes the inputs of the matrices of block `index`.
    pub(super) fn block(&mut self, index: usize, block: &ObservedBlock<'_>) {
        let Some(ffn) = &self.model.layers[index].ffn else { return };
        let ObservedBlock { n_tokens, x, weights, .. } = *block;
        let matrices = Recording::block_matrices(ffn);
        self.observer.input(&ObservedInput { matrices: &matrices, n_tokens, x, weights });
        // A row of a transposed down matrix is multiplied with a single value.
        if !ffn.down_by_neuron {
            let mut x = Vec::new();
            block.down_inputs(self.model, &mut x);
            let matrices = [ffn.down.w.clone()];
            self.observer.input(&ObservedInput { matrices: &matrices, n_tokens, x: &x, weights });
        }
    }
}

impl SharedProgram {
    /// Computes gate and up, and passes the inputs of the shared expert's matrices to `watch`.
    pub(super) fn run(&self, lane: &mut Lane, n: usize, watch: &mut InputWatch<'_>) -> Result<()> {
        lane.queue.replay(&self.program)?.wait()?;
        self.input.pass(lane, n, watch)?;
        let mut read = |from: &Tensor| {
            let desc = from.desc();
            let mut values = vec![0.0; desc.n_rows * desc.n_cols];
            lane.queue.read_f32(from, &mut values)?;
            values.truncate(n * desc.n_cols);
            Ok::<_, crate::error::Error>(values)
        };
        let up = read(&self.products.up)?;
        let gate = self.products.gate.as_ref().map(&mut read).transpose()?;
        let block = ObservedBlock {
            n_tokens: n,
            residual: &[],
            x: &[],
            gate: gate.as_deref(),
            up: &up,
            weights: None,
            activation: self.activation,
        };
        let mut x = Vec::new();
        block.down_inputs(watch.model, &mut x);
        let matrices = [self.down.clone()];
        watch.observer.input(&ObservedInput {
            matrices: &matrices,
            n_tokens: n,
            x: &x,
            weights: None,
        });
        Ok(())
    }
}

impl HeadProgram {
    /// Passes the input of the output matrix and the wanted logits to `watch`. The residual is on
    /// device `from`.
    pub(super) fn run(
        &self,
        from: DeviceIndex,
        step: &mut StepState<'_>,
        watch: &mut InputWatch<'_>,
    ) -> Result<()> {
        step.copy_residual(from, self.device)?;
        let (n, n_vocab) = (step.n, step.arena.sizes.n_vocab);
        let lane = lane_mut(step.lanes, self.device);
        lane.queue.replay(&self.norm)?.wait()?;
        self.input.pass(lane, n, watch)?;
        if !watch.observer.wants_logits(watch.position, watch.position + n) {
            return Ok(());
        }
        lane.queue.replay(&self.logits)?.wait()?;
        let mut row = vec![0.0; n_vocab];
        for token in 0..n {
            lane.queue.read_f32(&self.output.rows(token..token + 1), &mut row)?;
            watch.observer.logits(watch.position + token, &row);
        }
        Ok(())
    }
}
