//! Reads the feed-forward block of a layer: dense block, experts, shared expert, router's norm,
//! predictor.

use hal::op::FfnKind;

use super::layer::{Ffn, LatentExperts, Predictor, SharedExpert, SharedNorms};
use super::layers::{LayerReader, Layers};
use super::reader::{MatrixStack, f32_matrix};
use super::{Affine, DenseBeside, Error, Experts, RouterInput};

/// Gate and up of all experts in one tensor.
pub(super) const JOINT: &str = "ffn_gate_up_exps.weight";

/// Names of the projections around latent experts, and of the key of their width.
struct LatentNames {
    down: &'static str,
    norm: &'static str,
    up: &'static str,
    width: &'static str,
}

/// The names in files of Kimi K3 and of Nemotron 3 Super.
const LATENT: [LatentNames; 2] = [
    LatentNames {
        down: "ffn_routed_down",
        norm: "ffn_routed_norm",
        up: "ffn_routed_up",
        width: "expert_latent_length",
    },
    LatentNames {
        down: "ffn_latent_down",
        norm: "ffn_latent_norm",
        up: "ffn_latent_up",
        width: "moe_latent_size",
    },
];

impl LayerReader<'_> {
    /// Reads the shared expert, or the dense block in parallel with the experts; `None` if the
    /// layer has neither.
    pub(super) fn shared(&self) -> Result<Option<SharedExpert>, Error> {
        let n_embd = self.n_embd();
        let spec = self.layers.spec;
        let suffix = if spec.dense_beside == DenseBeside::None { "_shexp" } else { "" };
        let part = |part: &str| format!("ffn_{part}{suffix}");
        let up = format!("{}.weight", part("up"));
        let is_needed =
            matches!(spec.dense_beside, DenseBeside::Normed | DenseBeside::EarlyExperts);
        if !self.has_experts() || !(is_needed || self.has(&up)) {
            return Ok(None);
        }
        let norm = |part: &str| self.norm(part, n_embd);
        let norms = match spec.dense_beside {
            DenseBeside::Normed => Some(SharedNorms {
                before: norm(spec.ffn_norm)?,
                after: Some([norm("post_ffw_norm_1")?, norm("post_ffw_norm_2")?]),
            }),
            DenseBeside::EarlyExperts => {
                Some(SharedNorms { before: norm(spec.ffn_norm)?, after: None })
            }
            // The experts' input is scaled, that of the shared expert is not.
            DenseBeside::None if spec.routing.scales_input => {
                Some(SharedNorms { before: norm(spec.ffn_norm)?, after: None })
            }
            DenseBeside::None | DenseBeside::Plain => None,
        };
        let n_ff = self.layers.reader.n_rows(&self.tensor(&up), n_embd, "neurons")?;
        let weight = "ffn_gate_inp_shexp";
        let weight = self.has(&format!("{weight}.weight")).then_some(weight);
        Ok(Some(SharedExpert {
            norms,
            weight: match weight {
                Some(weight) => Some(self.affine(weight, 1, n_embd)?),
                // The sigmoid of 0 is the weight of one of two.
                None if spec.routing.averages => {
                    Some(Affine { w: self.constant(0.0, n_embd), bias: None })
                }
                None => None,
            },
            gate: match self.layers.ffn_kind {
                FfnKind::Plain => None,
                FfnKind::Gated | FfnKind::GatedBoth => {
                    Some(self.affine(&part("gate"), n_ff, n_embd)?)
                }
            },
            up: self.affine(&part("up"), n_ff, n_embd)?,
            down: self.affine(&part("down"), n_embd, n_ff)?,
            activation: self.activation(false),
        }))
    }

    /// Reads the norm of the router's input, whose weight includes `1 / sqrt(n_embd)`; `None` if
    /// the router has no norm of its own.
    pub(super) fn router_norm(&self) -> Result<Option<Affine>, Error> {
        let Layers { spec, reader, .. } = self.layers;
        if !self.has_experts() || spec.routing.input != RouterInput::Residual {
            return Ok(None);
        }
        let n_embd = self.n_embd();
        let factors = reader.floats(&self.tensor("ffn_gate_inp.scale"), 1, n_embd)?;
        let root = (n_embd as f32).sqrt();
        let factors: Vec<f32> = factors.iter().map(|factor| factor / root).collect();
        Ok(Some(Affine { w: f32_matrix(1, &factors), bias: None }))
    }

    pub(super) fn ffn(&self, experts: Option<&Experts>) -> Result<Option<Ffn>, Error> {
        match experts {
            Some(experts) => self.experts(experts).map(Some),
            None if self.n_ff() == 0 => Ok(None),
            None => self.dense().map(Some),
        }
    }

    /// The names of the projections around latent experts, in a layer with such experts.
    fn latent_names(&self) -> Option<&'static LatentNames> {
        LATENT.iter().find(|names| self.has(&format!("{}.weight", names.down)))
    }

    /// Width of the experts' input and output.
    pub(super) fn expert_width(&self) -> Result<usize, Error> {
        let Some(names) = self.latent_names() else { return Ok(self.n_embd()) };
        match self.keys().positive(names.width)? {
            Some(width) => Ok(width),
            None => self.n_rows(&format!("{}.weight", names.down), self.n_embd()),
        }
    }

    /// Reads the projections to the width of the experts and back; `None` if they have the width of the
    /// residual.
    pub(super) fn latent_experts(&self, has_experts: bool) -> Result<Option<LatentExperts>, Error> {
        let Some(names) = self.latent_names().filter(|_| has_experts) else { return Ok(None) };
        let (n_embd, width) = (self.n_embd(), self.expert_width()?);
        let has_norm = self.has(&format!("{}.weight", names.norm));
        Ok(Some(LatentExperts {
            down: self.affine(names.down, width, n_embd)?,
            norm: has_norm.then(|| self.norm(names.norm, width)).transpose()?,
            up: self.affine(names.up, n_embd, width)?,
        }))
    }

    fn experts(&self, experts: &Experts) -> Result<Ffn, Error> {
        let Layers { reader, ffn_kind, .. } = *self.layers;
        let (n_embd, blk) = (self.expert_width()?, format!("blk.{}", self.index()));
        let stack = |rows, cols| MatrixStack { n: experts.n, rows, cols };
        let joint = self.tensor(JOINT);
        let joint = Some(joint).filter(|joint| reader.has(joint) && ffn_kind != FfnKind::Plain);
        let part = |part: &str| match (&joint, part) {
            (Some(joint), "ffn_gate") => reader.expert_half(joint, stack(experts.n_ff, n_embd), 0),
            (Some(joint), _) => reader.expert_half(joint, stack(experts.n_ff, n_embd), 1),
            (None, part) => reader.experts(&blk, part, stack(experts.n_ff, n_embd), 1),
        };
        Ok(Ffn {
            gate: match ffn_kind {
                FfnKind::Plain => None,
                FfnKind::Gated | FfnKind::GatedBoth => Some(part("ffn_gate")?),
            },
            up: part("ffn_up")?,
            down: reader.experts(&blk, "ffn_down", stack(n_embd, experts.n_ff), experts.n)?,
            experts: Some(*experts),
            activation: self.activation(true),
            gaussian_cut: None,
            down_by_neuron: false,
            predictor: None,
        })
    }

    fn dense(&self) -> Result<Ffn, Error> {
        let Layers { reader, ffn_kind, spec, .. } = *self.layers;
        let [up_name, down_name] = spec.ffn_names;
        let (n_embd, n_ff) = (self.n_embd(), self.n_ff());
        let half = |first: usize| self.affine_rows("ffn_up", 2 * n_ff, n_embd, first..first + n_ff);
        let (gate, up) = match ffn_kind {
            FfnKind::Plain => (None, self.affine(up_name, n_ff, n_embd)?),
            FfnKind::Gated | FfnKind::GatedBoth => {
                // Phi 3 stores the gate as the first half of `ffn_up` and has no `ffn_gate`.
                let up = self.tensor("ffn_up.weight");
                let joined = !self.has("ffn_gate.weight")
                    && reader.n_rows(&up, n_embd, "neurons")? == 2 * n_ff;
                if joined {
                    (Some(half(0)?), half(n_ff)?)
                } else {
                    let gate = self.affine("ffn_gate", n_ff, n_embd)?;
                    (Some(gate), self.affine("ffn_up", n_ff, n_embd)?)
                }
            }
        };
        let down_by_neuron = self.has("ffn_down_t.weight");
        let down = if down_by_neuron {
            Affine {
                w: reader.matrix(&self.tensor("ffn_down_t.weight"), n_ff, n_embd)?,
                bias: reader.optional_vector(&self.tensor("ffn_down_t.bias"), n_embd)?,
            }
        } else {
            self.affine(down_name, n_embd, n_ff)?
        };
        let predictor = self.predictor(n_ff)?;
        let (activation, gaussian_cut) = (self.activation(false), self.gaussian_cut(n_ff)?);
        let experts = None;
        Ok(Ffn { gate, up, down, experts, activation, gaussian_cut, down_by_neuron, predictor })
    }

    /// The factor of the gates' cut-off in a layer of `n_ff` neurons. llama.cpp divides the variance by
    /// `n_ff - 1`; [`hal::op::Skip::GaussianCut`] divides by `n_ff`, as PyTorch's Gemma 3n does
    /// (`unbiased=False`). Files run as in llama.cpp: the published models have 8192 and 16384 neurons, so
    /// that the two cut-offs differ by 6e-5 and 3e-5 of a standard deviation's factor.
    fn gaussian_cut(&self, n_ff: usize) -> Result<Option<f32>, Error> {
        const KEY: &str = "activation_sparsity_scale";
        let (keys, Some(default)) = (self.keys(), self.layers.spec.gaussian_cut) else {
            return Ok(None);
        };
        let (index, n_listed) = (self.index(), self.n_listed());
        let factor = match keys.metadata.f32_array(&keys.name(KEY))? {
            Some(list) if list.len() != n_listed => {
                let expected = format!("a number for each of the {n_listed} layers");
                return Err(keys.wrong_key(KEY, expected, format!("{} numbers", list.len())));
            }
            Some(list) if list[index].is_nan() => {
                return Err(keys.wrong_key(KEY, "numbers", list[index]));
            }
            // Layers without a cut-off have the value of no neurons: minus infinity.
            Some(list) => Some(list[index]).filter(|factor| factor.is_finite()),
            None => (index < default.n_layers).then_some(default.factor),
        };
        let as_llama_cpp = (n_ff as f32 / (n_ff as f32 - 1.0).max(1.0)).sqrt();
        Ok(factor.map(|factor| factor * as_llama_cpp))
    }

    /// Reads the layer's predictor, which may have any rank. `None` without a predictor and for an
    /// unsupported format, since the model also runs without it.
    fn predictor(&self, n_ff: usize) -> Result<Option<Predictor>, Error> {
        let Layers { reader, hyper, .. } = *self.layers;
        let [fc1, fc2] = ["fc1", "fc2"].map(|part| self.tensor(&format!("{part}.weight")));
        let found = [&fc1, &fc2].map(|name| reader.has(name));
        let supported = [&fc1, &fc2].map(|name| reader.has_supported(name));
        if found == [false; 2] || found != supported {
            return Ok(None);
        }
        // If only the second matrix exists, the first is reported as missing below.
        let rank = reader.n_rows(&fc1, hyper.n_embd, "any rank")?;
        Ok(Some(Predictor {
            fc1: reader.matrix(&fc1, rank, hyper.n_embd)?,
            fc2: reader.matrix(&fc2, n_ff, rank)?,
        }))
    }
}
