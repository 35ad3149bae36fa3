//! Computes the values of every tensor, a row at a time.

use super::{
    Rope,
    metadata::{N_SPECIAL, llama3_factors},
    plan::{NORM_DEVIATION, Plan, TensorRole},
    plant::PlantedLayer,
    random::Stream,
};

/// The weights of one layer at a time. Any thread may request rows.
#[derive(Debug)]
pub(super) struct Weights<'a> {
    plan: &'a Plan<'a>,
    layer: Layer,
}

#[derive(Debug)]
struct Layer {
    number: usize,
    ffn_norm: Vec<f32>,
    /// `None` if the gate weights are random like those of other tensors.
    planted: Option<PlantedLayer>,
}

impl Layer {
    fn new(plan: &Plan<'_>, number: usize) -> Layer {
        let planted = plan.spec.density.map(|_| PlantedLayer::new(plan, number));
        Layer { number, ffn_norm: norm(plan, TensorRole::FfnNorm, number), planted }
    }
}

fn norm(plan: &Plan<'_>, role: TensorRole, layer: usize) -> Vec<f32> {
    let stream = Stream::new(plan.spec.seed, role as u64, layer as u64);
    let weight = |i: usize| {
        if i < plan.n_const { 1.0 } else { 1.0 + NORM_DEVIATION * stream.normal(i as u64) }
    };
    (0..plan.spec.shape.n_embd).map(weight).collect()
}

impl Weights<'_> {
    pub(super) fn new<'a>(plan: &'a Plan<'a>) -> Weights<'a> {
        Weights { plan, layer: Layer::new(plan, 0) }
    }

    pub(super) fn set_layer(&mut self, layer: usize) {
        if layer != self.layer.number {
            self.layer = Layer::new(self.plan, layer);
        }
    }

    /// Computes one row of a tensor of the layer or of the whole model.
    pub(super) fn row(
        &self,
        role: TensorRole,
        row: usize,
        scratch: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        let Layer { number: layer, ffn_norm, planted } = &self.layer;
        let (plan, layer) = (self.plan, *layer);
        let n_embd = plan.spec.shape.n_embd;
        match (role, planted) {
            (TensorRole::TokenEmbd, _) => self.embedding(row, out),
            (TensorRole::OutputNorm, _) => self.output_norm(out),
            (TensorRole::Output, _) if row < N_SPECIAL => out.fill(0.0),
            (TensorRole::Output, _) => self.free_row(role, row, plan.deviation_output(), out),
            (TensorRole::RopeFreqs, _) => {
                if let Rope::Llama3 { factor } = plan.spec.rope {
                    let factors = llama3_factors(factor, out.len());
                    out.iter_mut().zip(factors).for_each(|(out, factor)| *out = factor);
                }
            }
            (TensorRole::AttnNorm, _) => out.copy_from_slice(&norm(plan, role, layer)),
            (TensorRole::FfnNorm, _) => out.copy_from_slice(ffn_norm),
            (TensorRole::Q | TensorRole::K, _) => {
                self.free_row(role, row, plan.deviation_qk(layer), out)
            }
            (TensorRole::V, _) => self.free_row(role, row, plan.deviation_v(layer), out),
            (TensorRole::O | TensorRole::Down, _) if row < plan.n_const => out.fill(0.0),
            (TensorRole::O, _) => {
                let first = (row * out.len()) as u64;
                self.stream(role).fill(first, plan.deviation_o(), out);
            }
            (TensorRole::Gate, Some(planted)) => planted.gate(row, ffn_norm, out),
            (TensorRole::Gate | TensorRole::Up | TensorRole::Router, _) => {
                self.free_row(role, row, plan.deviation_ffn(layer), out);
            }
            (TensorRole::Down, _) => {
                let (stream, deviation) = (self.stream(role), plan.deviation_down());
                for (neuron, out) in out.iter_mut().enumerate() {
                    *out = deviation * stream.normal((neuron * n_embd + row) as u64);
                }
            }
            (TensorRole::DownByNeuron, _) => {
                self.free_row(TensorRole::Down, row, plan.deviation_down(), out);
            }
            (TensorRole::Fc1, Some(planted)) => planted.fc1(row, ffn_norm, out),
            (TensorRole::Fc2, Some(planted)) => {
                scratch.resize(n_embd, 0.0);
                planted.fc2(row, ffn_norm, scratch, out);
            }
            (TensorRole::Fc1 | TensorRole::Fc2, None) => {
                unreachable!("only models with a set density have predictors")
            }
        }
    }

    fn stream(&self, role: TensorRole) -> Stream {
        Stream::new(self.plan.spec.seed, role as u64, self.layer.number as u64)
    }

    /// Fills a row with random weights, 0 on the constant channels.
    fn free_row(&self, role: TensorRole, row: usize, deviation: f32, out: &mut [f32]) {
        self.stream(role).fill((row * out.len()) as u64, deviation, out);
        out[..self.plan.n_const].fill(0.0);
    }

    fn embedding(&self, token: usize, out: &mut [f32]) {
        // A tied embedding is also an output row: a small one gives a small logit, so that the
        // model prefers text to byte and EOS tokens.
        let deviation = if self.plan.spec.tied && token < N_SPECIAL { 0.01 } else { 1.0 };
        self.stream(TensorRole::TokenEmbd).fill((token * out.len()) as u64, deviation, out);
        out[..self.plan.n_const].fill(1.0);
    }

    /// Fills the output norm. With a tied embedding, random signs prevent each token from being its
    /// own likeliest successor.
    fn output_norm(&self, out: &mut [f32]) {
        out.fill(1.0);
        if self.plan.spec.tied {
            let stream = self.stream(TensorRole::OutputNorm);
            let deviation = self.plan.deviation_output();
            for (i, out) in out.iter_mut().enumerate() {
                *out = if stream.bits(i as u64) & 1 == 0 { deviation } else { -deviation };
            }
            out[..self.plan.n_const].fill(0.0);
        }
    }
}
