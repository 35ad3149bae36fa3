//! Reads the attention of a layer.

use std::sync::Arc;

use hal::HostRows;

use super::attention::{Attention, AttentionSizes, HeadNorm, Kv, Latent, LowRank, OutputGate};
use super::layers::{LayerReader, Layers};
use super::reader::{MatrixStack, f32_matrix};
use super::rope::RopeTable;
use super::{
    Affine, Alibi, Error, GateKind, KvKind, Mixer, NormSpan, Positions, RotaryLayers, join,
};

impl LayerReader<'_> {
    /// Reads attention as the family's spec describes it. A layer without heads has no mixer.
    ///
    /// # Errors
    /// [`Error`]: missing or wrong keys and tensors.
    pub fn attention(&self) -> Result<Mixer, Error> {
        let sizes = self.sizes();
        match (sizes.n_head, sizes.n_head_kv) {
            (0, _) => return Ok(Mixer::None),
            (_, 0) => {
                let key = "attention.head_count_kv";
                return Err(self.keys().wrong_key(key, "at least 1 in a layer with heads", 0));
            }
            _ => {}
        }
        let spec = self.layers.spec;
        let source = self.layers.heads.kv_source(self.keys(), self.index())?;
        let mut q_a = None;
        let (q, kv) = match (source, spec.kv) {
            (Some(layer), _) => (self.shared_kv(&sizes)?, Kv::Shared { layer }),
            (None, KvKind::Direct | KvKind::Single) => self.direct(&sizes)?,
            (None, KvKind::Latent) => {
                q_a = self.low_rank_queries()?;
                let q = match &q_a {
                    Some(by) => self.affine("attn_q_b", sizes.n_q(), by.a.w.desc().n_rows)?,
                    None => self.affine("attn_q", sizes.n_q(), self.n_embd())?,
                };
                (q, self.latent(&sizes)?)
            }
        };
        let k_norm = match source {
            Some(_) => None,
            None => self.head_norm("attn_k_norm", sizes.n_head_kv, sizes.d_head)?,
        };
        Ok(Mixer::Attention(Attention {
            rope: self.rope(),
            q_a,
            q,
            gate: self.gate(&sizes)?,
            q_norm: self.head_norm("attn_q_norm", sizes.n_head, sizes.d_head)?,
            kv,
            sparse: None,
            k_norm,
            norms_after_rope: spec.qk_norm.is_some_and(|norm| norm.after_rope),
            v_normed: spec.v_norm,
            slopes: self.slopes(sizes.n_head)?,
            sinks: self
                .layers
                .reader
                .optional_vector(&self.tensor("attn_sinks.weight"), sizes.n_head)?,
            o: self.affine("attn_output", self.n_embd(), sizes.n_out())?,
            sizes,
        }))
    }

    /// Reads the norm of the queries or keys of `n_head` heads; `None` in families without it.
    fn head_norm(
        &self,
        part: &str,
        n_head: usize,
        d_head: usize,
    ) -> Result<Option<HeadNorm>, Error> {
        let weight = format!("{part}.weight");
        let rule = self.layers.spec.qk_norm;
        let Some(rule) = rule.filter(|rule| !rule.optional || self.has(&weight)) else {
            return Ok(None);
        };
        let (by, width) = match rule.over {
            NormSpan::Head => (self.norm(part, d_head)?, d_head),
            NormSpan::Row => (self.norm(part, n_head * d_head)?, n_head * d_head),
            NormSpan::HeadWeights => {
                (Affine { w: self.f32_row(&weight, n_head, d_head)?, bias: None }, d_head)
            }
            NormSpan::QueryFactors if part == "attn_k_norm" => {
                (Affine { w: self.constant(1.0, d_head), bias: None }, d_head)
            }
            NormSpan::QueryFactors => {
                let factors = self.flat(&weight, n_head)?;
                let each = factors.iter().flat_map(|factor| std::iter::repeat_n(*factor, d_head));
                let w = f32_matrix(1, &each.collect::<Vec<f32>>());
                (Affine { w, bias: None }, d_head)
            }
        };
        Ok(Some(HeadNorm { by, width }))
    }

    fn gate(&self, sizes: &AttentionSizes) -> Result<OutputGate, Error> {
        match self.layers.spec.gate {
            GateKind::None => Ok(OutputGate::None),
            GateKind::Joint => Ok(OutputGate::Joint),
            GateKind::Matrix { optional: true, .. } if !self.has("attn_gate.weight") => {
                Ok(OutputGate::None)
            }
            GateKind::Matrix { activation, .. } => {
                let (n_head, n_embd) = (sizes.n_head, self.n_embd());
                let tensor = self.tensor("attn_gate.weight");
                let reader = &self.layers.reader;
                let per_head = n_head == 1 && reader.is_vector(&tensor)
                    || reader.n_rows(&tensor, n_embd, "gates")? == n_head;
                let rows = if per_head { n_head } else { sizes.n_out() };
                Ok(OutputGate::Matrix { by: self.affine("attn_gate", rows, n_embd)?, activation })
            }
        }
    }

    /// The slopes of ALiBi for `n_head` heads; `None` in families without it, and in files with a
    /// largest bias of 0.
    fn slopes(&self, n_head: usize) -> Result<Option<HostRows>, Error> {
        const BIAS: &str = "attention.max_alibi_bias";
        let most = match self.layers.spec.alibi {
            Alibi::None => return Ok(None),
            Alibi::Fixed(most) => most,
            Alibi::Key => self.keys().non_negative(BIAS, 0.0)?,
        };
        if most == 0.0 {
            return Ok(None);
        }
        Ok(Some(alibi_slopes(most, n_head)))
    }

    fn rope(&self) -> Option<Arc<RopeTable>> {
        let Layers { spec, heads, ropes, .. } = self.layers;
        let window = heads.window(self.index());
        let rotates = match spec.rotary {
            RotaryLayers::All => true,
            RotaryLayers::Windowed => window.is_some() || heads.window.is_none(),
            RotaryLayers::AllBut { period } => !(self.index() + 1).is_multiple_of(period),
        };
        match (spec.positions, window) {
            (Positions::Learned { .. } | Positions::None, _) => None,
            (Positions::Rotary(_), _) if !rotates => None,
            (Positions::Rotary(_), Some(_)) => Some(Arc::clone(&ropes.local)),
            (Positions::Rotary(_), None) => Some(Arc::clone(&ropes.global)),
        }
    }

    /// Reads the query weights of a layer that uses another layer's KV cache. The layer's own K and
    /// V weights, if the file has them, are not used.
    fn shared_kv(&self, sizes: &AttentionSizes) -> Result<Affine, Error> {
        for part in ["attn_k.weight", "attn_k_norm.weight", "attn_v.weight"] {
            self.layers.reader.skip(&self.tensor(part));
        }
        self.affine("attn_q", self.n_queries(sizes), self.n_embd())
    }

    /// Number of rows of the query matrix, including the rows of the gates if it computes them.
    fn n_queries(&self, sizes: &AttentionSizes) -> usize {
        sizes.n_q() * if self.layers.spec.gate == GateKind::Joint { 2 } else { 1 }
    }

    /// Reads the matrices of queries, keys and values, which are separate or joined (`attn_qkv`).
    fn direct(&self, sizes: &AttentionSizes) -> Result<(Affine, Kv), Error> {
        let n_q = self.n_queries(sizes);
        let (n_k, n_v) = (sizes.n_k(), sizes.n_v());
        let joined = self.has("attn_qkv.weight");
        let one = |part: &str, first: usize, rows: usize| {
            if joined {
                let (all, range) = (n_q + n_k + n_v, first..first + rows);
                self.affine_rows("attn_qkv", all, self.n_embd(), range)
            } else {
                self.affine(part, rows, self.n_embd())
            }
        };
        let k = one("attn_k", n_q, n_k)?;
        let from_keys = self.layers.spec.keys_as_values && !self.has("attn_v.weight");
        let no_v = from_keys && !joined && n_k == n_v;
        let v = if no_v { None } else { Some(one("attn_v", n_q + n_k, n_v)?) };
        Ok((one("attn_q", 0, n_q)?, Kv::Direct { k, v }))
    }

    /// Reads the matrix before the query matrix; `None` if the file has none.
    fn low_rank_queries(&self) -> Result<Option<LowRank>, Error> {
        if !self.has("attn_q_a.weight") {
            return Ok(None);
        }
        let n_embd = self.n_embd();
        let tensor = self.tensor("attn_q_a.weight");
        let rank = self.layers.reader.n_rows(&tensor, n_embd, "any rank")?;
        let norm = self.norm("attn_q_a_norm", rank)?;
        Ok(Some(LowRank { a: self.affine("attn_q_a", rank, n_embd)?, norm }))
    }

    fn latent(&self, sizes: &AttentionSizes) -> Result<Kv, Error> {
        let AttentionSizes { n_rot, d_latent, .. } = *sizes;
        let all = d_latent + n_rot;
        let kv_a = |range| self.affine_rows("attn_kv_a_mqa", all, self.n_embd(), range);
        // Read first: these tensors of the file bound the sizes of what is made below.
        let kv_a_proj = kv_a(0..d_latent)?;
        let [k_b, v_b] = if self.has("attn_k_b.weight") && sizes.n_rot < sizes.d_head {
            self.absorbed(sizes)?
        } else {
            self.absorbed_from_joined(sizes)?
        };
        Ok(Kv::Latent(Latent {
            kv_a_proj,
            kv_a_norm: self.norm("attn_kv_a_norm", d_latent)?,
            k_rope: if n_rot > 0 { Some(kv_a(d_latent..all)?) } else { None },
            k_b,
            v_b,
        }))
    }

    /// The matrices of keys and values of files for the absorbed form, a matrix per head.
    fn absorbed(&self, sizes: &AttentionSizes) -> Result<[HostRows; 2], Error> {
        let AttentionSizes { n_head, n_rot, d_head, d_value, d_latent, .. } = *sizes;
        let read = |part: &str, rows, cols| {
            let stack = MatrixStack { n: n_head, rows, cols };
            let tensor = self.tensor(&format!("{part}.weight"));
            self.layers.reader.rows_of(&tensor, stack, 0..n_head * rows)
        };
        Ok([read("attn_k_b", d_latent, d_head - n_rot)?, read("attn_v_b", d_value, d_latent)?])
    }

    /// The same matrices of files that have one matrix for keys and values, `attn_kv_b`. That of the
    /// keys is transposed for each head; transposed blocks of quantised weights become F32.
    fn absorbed_from_joined(&self, sizes: &AttentionSizes) -> Result<[HostRows; 2], Error> {
        let AttentionSizes { n_head, n_rot, d_head, d_value, d_latent, .. } = *sizes;
        let n_key = d_head - n_rot;
        let per_head = n_key + d_value;
        let all = n_head * per_head;
        let keys = |head: usize| head * per_head..head * per_head + n_key;
        let values = |head: usize| head * per_head + n_key..(head + 1) * per_head;
        let v_b = self.affine_parts("attn_kv_b", all, d_latent, (0..n_head).map(values))?;
        let k_b = if n_key > 0 {
            let parts = (0..n_head)
                .map(|head| Ok(self.affine_rows("attn_kv_b", all, d_latent, keys(head))?.w))
                .collect::<Result<Vec<HostRows>, Error>>()?;
            join::stack_transposed(parts).expect("the parts have one shape and format")
        } else {
            // RoPE is applied to whole keys: the latent vector is not a part of any score.
            f32_matrix(n_head * d_latent, &vec![0.0; n_head * d_latent])
        };
        Ok([k_b, v_b.w])
    }
}

/// `[1, n_head]`, F32: the slopes of ALiBi for a largest bias of `most`. Source: Press et al. 2022.
pub(super) fn alibi_slopes(most: f32, n_head: usize) -> HostRows {
    // Heads beyond a power of two have slopes between those of the others.
    let n_power = 1usize << n_head.ilog2();
    let slope = |head: usize| match head.checked_sub(n_power) {
        None => (-most / n_power as f32).exp2().powi(head as i32 + 1),
        Some(over) => (-most / (2 * n_power) as f32).exp2().powi(2 * over as i32 + 1),
    };
    f32_matrix(1, &(0..n_head).map(slope).collect::<Vec<_>>())
}
