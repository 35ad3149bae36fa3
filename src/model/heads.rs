//! Sizes of the attention heads of each layer, and the RoPE tables, from the metadata.

use std::sync::Arc;

use hal::op::{Pairing, Window};

use super::attention::{AttentionSizes, Temperature};
use super::hyper::{self, Keys};
use super::reader::Reader;
use super::rope::{Factors, RopeTable};
use super::rope_scaling::{Scaling, is_positive};
use super::{
    ArchSpec, Error, GateKind, Hyper, KvKind, LocalRope, Positions, ScoreScale, TemperatureKeys,
    YarnLog,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeadSizes {
    /// Number of values of a query or key head.
    d_head: usize,
    /// Number of values of a value head.
    d_value: usize,
    /// Number of values per head that RoPE is applied to.
    n_rot: usize,
}

/// Sizes of attention in all layers; all 0 in families without attention.
#[derive(Default)]
pub(super) struct Heads {
    n_head: Vec<usize>,
    n_head_kv: Vec<usize>,
    windowed: Vec<bool>,
    /// Size of the sliding window in tokens; `None` if no layer has a window.
    pub(super) window: Option<Window>,
    /// Head sizes in layers with global attention.
    global: HeadSizes,
    /// Head sizes in layers with a sliding window.
    local: HeadSizes,
    /// Number of leading layers with a KV cache of their own. The layers after them share an
    /// earlier cache.
    n_own_kv: usize,
    /// Width of the latent vector of keys and values; 0 without MLA.
    pub(super) d_latent: usize,
    /// Whether values are keys ([`KvKind::Single`]).
    is_single: bool,
    /// Factor on the scores; `None` for `1 / sqrt(d_head)`.
    scale: Option<f32>,
    /// Factor on the scores in addition to `scale`.
    score_factor: f32,
    softcap: f32,
    clamp: Option<f32>,
    temperature: Option<Temperature>,
}

/// RoPE tables for layers with global attention and for layers with a sliding window.
pub(super) struct Ropes {
    pub(super) global: Arc<RopeTable>,
    pub(super) local: Arc<RopeTable>,
}

impl HeadSizes {
    /// Reads the keys with this `suffix`. A missing size comes from `default`, or, without a
    /// suffix, from `attention.key_length` if the file has it.
    fn read(
        keys: &Keys<'_>,
        spec: &ArchSpec,
        suffix: &str,
        default: impl FnOnce() -> Result<HeadSizes, Error>,
    ) -> Result<HeadSizes, Error> {
        let key = |key: &str| format!("{key}{suffix}");
        // Files of latent attention for the absorbed form have the sizes of that form in the usual
        // keys.
        let size = |usual: &str| match keys.positive(&key(&format!("{usual}_mla")))? {
            Some(size) if spec.kv == KvKind::Latent => Ok(Some(size)),
            _ => keys.count(&key(usual)),
        };
        let own = size("attention.key_length")?;
        let default = match own {
            Some(d_head) if suffix.is_empty() => {
                HeadSizes { d_head, d_value: d_head, n_rot: d_head }
            }
            Some(_) | None => default()?,
        };
        let d_head = own.unwrap_or(default.d_head);
        let n_rot_key = key("rope.dimension_count");
        // Latent attention without RoPE may have no columns for it.
        let may_lack = spec.kv == KvKind::Latent && spec.positions == Positions::None;
        let n_rot = match keys.metadata.u32(&keys.name(&n_rot_key)) {
            Ok(Some(0)) if may_lack => 0,
            _ => keys.count(&n_rot_key)?.unwrap_or(default.n_rot),
        };
        if n_rot > d_head || n_rot % 2 != 0 {
            let expected = format!("an even number up to {d_head}");
            return Err(keys.wrong_key(&n_rot_key, expected, n_rot));
        }
        let d_value = size("attention.value_length")?.unwrap_or(default.d_value);
        Ok(HeadSizes { d_head, d_value, n_rot })
    }
}

impl ScoreScale {
    /// The factor for heads of `d_head` values; `None` for `1 / sqrt(d_head)`.
    fn of_heads(self, d_head: usize) -> Option<f32> {
        match self {
            ScoreScale::PerRootHeadSize => None,
            ScoreScale::PerHeadSize => Some((d_head as f32).recip()),
            ScoreScale::Number(scale) | ScoreScale::OutputKey(scale) => Some(scale),
        }
    }
}

/// The factor on the scores that the file states; 0 without one.
fn scale(keys: &Keys<'_>, spec: &ArchSpec) -> Result<f32, Error> {
    let key = match spec.attn_scale {
        ScoreScale::OutputKey(_) => "attention.output_scale",
        ScoreScale::PerRootHeadSize | ScoreScale::PerHeadSize | ScoreScale::Number(_) => {
            "attention.scale"
        }
    };
    keys.non_negative(key, 0.0)
}

/// Limit of the values of queries, keys and values; `None` without a limit.
fn clamp(keys: &Keys<'_>, spec: &ArchSpec) -> Result<Option<f32>, Error> {
    if !spec.clamps {
        return Ok(None);
    }
    Ok(Some(keys.non_negative("attention.clamp_kqv", 0.0)?).filter(|&most| most > 0.0))
}

/// The sliding window of the layers that have one, in tokens.
fn window(keys: &Keys<'_>, spec: &ArchSpec) -> Result<Option<Window>, Error> {
    const KEY: &str = "attention.sliding_window";
    match keys.metadata.u32(&keys.name(KEY)) {
        _ if !spec.windows => Ok(None),
        // Some files state 0 for no window.
        Ok(Some(0)) => Ok(None),
        // Files of Llama 4 do not state the length of a chunk.
        _ if spec.chunk.is_some() => Ok(spec.chunk.map(Window::Chunk)),
        _ => Ok(keys.count(KEY)?.or(spec.window).map(Window::Sliding)),
    }
}

/// The window of an encoder, whose length counts both sides of the token.
pub(super) fn around(window: Option<Window>) -> Window {
    Window::Around(window.map_or(usize::MAX, |window| window.size() / 2))
}

/// The numbers of heads and of KV heads of each layer.
fn head_counts(keys: &Keys<'_>, spec: &ArchSpec, n_layer: usize) -> Result<[Vec<usize>; 2], Error> {
    let n_head = keys.per_layer("attention.head_count", n_layer)?;
    let n_head =
        n_head.ok_or_else(|| keys.missing("attention.head_count", "the number of heads"))?;
    let n_head_kv = keys.per_layer("attention.head_count_kv", n_layer)?;
    // Files of latent attention for the absorbed form state one KV head, others as many as
    // query heads. Layers without attention have none.
    let n_head_kv = match (spec.kv, n_head_kv) {
        (KvKind::Latent, Some(n_head_kv)) if n_head_kv.contains(&1) => {
            let per_layer = n_head_kv.iter().zip(&n_head);
            per_layer.map(|(&kv, &heads)| if kv == 0 { 0 } else { heads }).collect()
        }
        (_, Some(n_head_kv)) => n_head_kv,
        (_, None) => n_head.clone(),
    };
    for (&heads, &kv) in n_head.iter().zip(&n_head_kv) {
        if kv > 0 && !heads.is_multiple_of(kv) {
            let expected = format!("a divisor of the {heads} heads");
            return Err(keys.wrong_key("attention.head_count_kv", expected, kv));
        }
    }
    Ok([n_head, n_head_kv])
}

impl Heads {
    pub(super) fn read(
        keys: &Keys<'_>,
        spec: &ArchSpec,
        hyper: &Hyper,
        scaling: &Scaling,
    ) -> Result<Heads, Error> {
        let Hyper { n_embd, n_layer, n_nextn, .. } = *hyper;
        let lists = n_layer + n_nextn;
        if !spec.attention {
            let none = || vec![0; lists];
            let n_own_kv = n_layer;
            return Ok(Heads { n_head: none(), n_head_kv: none(), n_own_kv, ..Heads::default() });
        }
        let [n_head, n_head_kv] = head_counts(keys, spec, lists)?;
        let most = n_head.iter().copied().max().unwrap_or(0);
        let global = HeadSizes::read(keys, spec, "", || match n_embd.checked_div(most) {
            Some(d_head) if n_embd.is_multiple_of(most) => {
                Ok(HeadSizes { d_head, d_value: d_head, n_rot: d_head })
            }
            _ => {
                let expected = format!("a divisor of the embedding size {n_embd}");
                Err(keys.wrong_key("attention.head_count", expected, most))
            }
        })?;
        let local = HeadSizes::read(keys, spec, "_swa", || Ok(global))?;
        let global = if spec.half_rotary {
            // The numbers of values stay even.
            HeadSizes { n_rot: global.n_rot / 4 * 2, ..global }
        } else {
            global
        };
        let d_latent = match spec.kv {
            KvKind::Direct | KvKind::Single => 0,
            KvKind::Latent if n_head_kv.iter().zip(&n_head).any(|(&kv, &n)| kv != 0 && kv != n) => {
                let expected = "the same as attention.head_count";
                return Err(keys.wrong_key("attention.head_count_kv", expected, "different"));
            }
            KvKind::Latent => {
                keys.need("attention.kv_lora_rank", "the rank of the latent keys and values")?
            }
        };
        for (sizes, suffix) in [(global, ""), (local, "_swa")] {
            let HeadSizes { d_head, d_value, .. } = sizes;
            let equal = spec.qk_norm.is_some() || spec.gate == GateKind::Joint;
            if equal && d_value != d_head {
                let key = format!("attention.value_length{suffix}");
                return Err(keys.wrong_key(&key, d_head, d_value));
            }
        }
        Ok(Heads {
            windowed: hyper::windowed_layers(keys, spec, lists)?,
            window: window(keys, spec)?,
            global,
            local,
            n_own_kv: n_own_kv(keys, n_layer)?,
            d_latent,
            is_single: spec.kv == KvKind::Single,
            scale: match scale(keys, spec)? {
                0.0 if spec.width_scaled == Some(n_layer) => {
                    Some((n_embd as f32 / most as f32).sqrt().recip())
                }
                0.0 => spec.attn_scale.of_heads(global.d_head),
                scale => Some(scale),
            },
            score_factor: match spec.yarn_log {
                YarnLog::Scores => scaling.score_factor(),
                YarnLog::Ignored | YarnLog::Ratio => 1.0,
            },
            clamp: clamp(keys, spec)?,
            temperature: temperature(keys, spec.temperature)?,
            softcap: keys.non_negative("attn_logit_softcapping", spec.attn_softcap)?,
            n_head,
            n_head_kv,
        })
    }

    /// The sliding window of layer `index`, in tokens; `None` for global attention.
    pub(super) fn window(&self, index: usize) -> Option<Window> {
        self.window.filter(|_| self.windowed[index])
    }

    pub(super) fn sizes(&self, index: usize) -> AttentionSizes {
        let window = self.window(index);
        let HeadSizes { d_head, d_value, n_rot } = match window {
            Some(_) => self.local,
            None => self.global,
        };
        AttentionSizes {
            n_head: self.n_head[index],
            n_head_kv: match self.d_latent {
                0 => self.n_head_kv[index],
                // All heads read the same rows.
                _ => self.n_head_kv[index].min(1),
            },
            d_head,
            d_value,
            n_rot,
            d_latent: self.d_latent,
            is_single: self.is_single,
            window,
            scale: self.scale.unwrap_or_else(|| (d_head as f32).sqrt().recip()) * self.score_factor,
            softcap: self.softcap,
            clamp: self.clamp,
            temperature: self.temperature,
        }
    }

    /// The earlier layer whose KV cache layer `index` shares: the last layer that has its own cache
    /// and the same kind of attention (sliding or global). `None` if layer `index` has its own
    /// cache.
    ///
    /// # Errors
    /// [`Error::Key`] if no earlier layer qualifies, or if its heads have other sizes.
    pub(super) fn kv_source(&self, keys: &Keys<'_>, index: usize) -> Result<Option<usize>, Error> {
        if index < self.n_own_kv {
            return Ok(None);
        }
        let sizes = self.sizes(index);
        let mut earlier = (0..self.n_own_kv).rev();
        let same = |&layer: &usize| self.window(layer) == sizes.window;
        let found = earlier.find(same).filter(|&layer| {
            let (a, b) = (self.sizes(layer), &sizes);
            a.n_head > 0 && (a.n_head_kv, a.d_head, a.d_value) == (b.n_head_kv, b.d_head, b.d_value)
        });
        found.map(Some).ok_or_else(|| self.no_source(keys, index))
    }

    /// The error if no earlier layer has a KV cache that layer `index` can share.
    pub(super) fn no_source(&self, keys: &Keys<'_>, index: usize) -> Error {
        let expected = format!("an earlier layer whose KV cache layer {index} can share");
        let n_shared = keys.metadata.u32(&keys.name(SHARED_KV)).ok().flatten();
        keys.wrong_key(SHARED_KV, expected, n_shared.unwrap_or_default())
    }
}

/// Key for the number of layers at the end that share an earlier layer's KV cache.
const SHARED_KV: &str = "attention.shared_kv_layers";

fn n_own_kv(keys: &Keys<'_>, n_layer: usize) -> Result<usize, Error> {
    let n_shared = keys.metadata.u32(&keys.name(SHARED_KV))?.unwrap_or(0) as usize;
    match n_layer.checked_sub(n_shared) {
        Some(n_own) if n_own > 0 => Ok(n_own),
        _ => Err(keys.wrong_key(SHARED_KV, format!("fewer than the {n_layer} layers"), n_shared)),
    }
}

fn temperature(keys: &Keys<'_>, rule: TemperatureKeys) -> Result<Option<Temperature>, Error> {
    const LENGTH: &str = "rope.scaling.original_context_length";
    if rule == TemperatureKeys::None {
        return Ok(None);
    }
    let factor = keys.non_negative("attention.temperature_scale", 0.0)?;
    if factor == 0.0 {
        return Ok(None);
    }
    let own = match rule {
        TemperatureKeys::Length => keys.positive("attention.temperature_length")?,
        TemperatureKeys::None | TemperatureKeys::Context => None,
    };
    let length = match own {
        Some(length) => length,
        None => keys.need(LENGTH, "the context size of the original training")?,
    };
    Ok(Some(Temperature { factor, length: length as u32, offset: 0 }))
}

/// The base of RoPE in layers with compressed keys; `None` in families without them.
fn compressed_base(keys: &Keys<'_>, spec: &ArchSpec) -> Result<Option<f32>, Error> {
    const KEY: &str = "attention.compress_rope_freq_base";
    if spec.kv != KvKind::Single {
        return Ok(None);
    }
    match keys.f32(KEY)? {
        None => Err(keys.missing(KEY, "the base of RoPE in layers with compressed keys")),
        Some(base) if is_positive(base) => Ok(Some(base)),
        Some(base) => Err(keys.wrong_key(KEY, "a positive number", base)),
    }
}

impl Ropes {
    pub(super) fn read(
        reader: &Reader<'_>,
        keys: &Keys<'_>,
        spec: &ArchSpec,
        heads: &Heads,
        scaling: &Scaling,
    ) -> Result<Ropes, Error> {
        let Heads { global, local, .. } = heads;
        let factors = |tensor: &str| {
            let n = global.n_rot / 2;
            // The file has factors for the values of other layers too; only the first ones apply.
            let n_listed = if spec.half_rotary { local.n_rot / 2 } else { n };
            let mut list = reader.optional_floats(tensor, n_listed)?;
            list.iter_mut().for_each(|list| list.truncate(n));
            match list.iter().flatten().find(|&&factor| !is_positive(factor)) {
                Some(wrong) => Err(Error::Values {
                    file: keys.file.to_owned(),
                    tensor: tensor.to_owned(),
                    expected: "positive numbers",
                    found: wrong.to_string(),
                }),
                None => Ok(list),
            }
        };
        let short = match factors("rope_freqs.weight")? {
            Some(factors) => Some(factors),
            None => factors("rope_factors_short.weight")?,
        };
        let factors = Factors { short, long: factors("rope_factors_long.weight")? };
        let has_factors = factors.short.is_some() || factors.long.is_some();
        if has_factors && spec.local_rope == LocalRope::Scaled && local.n_rot != global.n_rot {
            // Both RoPE tables would use the factors, so their lengths must agree.
            let expected = format!("{}, as in the other layers", global.n_rot);
            return Err(keys.wrong_key("rope.dimension_count_swa", expected, local.n_rot));
        }
        let pairing = match spec.positions {
            Positions::Rotary(pairing) => pairing,
            Positions::Learned { .. } | Positions::None => Pairing::Adjacent,
        };
        let compressed = compressed_base(keys, spec)?;
        let scaling = &match compressed {
            Some(base) => scaling.with_global_base(base),
            None => scaling.clone(),
        };
        let mut global_table = RopeTable::global(keys, scaling, global.n_rot, &factors)?;
        let mut local_table =
            RopeTable::local_rope(keys, scaling, local.n_rot, &factors, spec.local_rope)?;
        if compressed.is_some() {
            // This family has YaRN's frequencies without its factor on the rotated values.
            (global_table.scale, local_table.scale) = (1.0, 1.0);
        }
        Ok(Ropes {
            global: Arc::new(global_table.paired(pairing)),
            local: Arc::new(local_table.paired(pairing)),
        })
    }
}
