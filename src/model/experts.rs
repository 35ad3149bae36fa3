//! The experts of a model's layers, and how a token selects them.

use hal::HostRows;
use hal::op::Scoring;

use super::hyper::{Keys, MAX_SIZE};
use super::reader::f32_matrix;
use super::{ArchSpec, Error};

/// Experts of a layer, and how a token selects them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts.
    pub n: usize,
    /// Number of experts that a token uses.
    pub n_used: usize,
    /// Number of neurons of an expert.
    pub n_ff: usize,
    /// Number of groups of experts, and number of groups that a token uses; 1 without groups.
    pub n_groups: [usize; 2],
    /// How the router's logits become scores.
    pub scoring: Scoring,
    /// Whether the weights of the selected experts are divided by their sum.
    pub renormalise: bool,
    /// Factor on the experts' weights.
    pub scale: f32,
}

impl Experts {
    /// `[1, n]`, F32: the group of each expert; `None` without groups. Groups are consecutive
    /// experts.
    pub(super) fn groups(&self) -> Option<HostRows> {
        let [n_group, _] = self.n_groups;
        let group = |expert| (expert * n_group / self.n) as f32;
        let all: Vec<f32> = (0..self.n).map(group).collect();
        (n_group > 1).then(|| f32_matrix(1, &all))
    }
}

/// Maximum number of experts whose input is scaled.
const MAX_SCALED: usize = 1024;

/// What the file says about the experts of all its layers.
pub(super) struct ExpertKeys {
    n: usize,
    n_used: usize,
    /// Number of neurons of an expert in each layer; 0 if the file does not say.
    n_ff: Vec<usize>,
    n_groups: [usize; 2],
    scoring: Scoring,
    renormalise: bool,
    scale: f32,
    /// Whether the outputs of experts and shared expert are averaged.
    averages: bool,
}

impl ExpertKeys {
    /// Reads number and routing of the experts; `None` in a dense model. The file has `n_listed`
    /// layers.
    pub(super) fn read(
        keys: &Keys<'_>,
        spec: &ArchSpec,
        n_listed: usize,
    ) -> Result<Option<ExpertKeys>, Error> {
        let Some(n) = keys.positive("expert_count")? else { return Ok(None) };
        let n_used = keys.need("expert_used_count", "the number of experts per token")?;
        let routing = spec.routing;
        // The reader makes a square matrix of this size.
        if routing.scales_input && n > MAX_SCALED {
            return Err(keys.wrong_key("expert_count", format!("at most {MAX_SCALED}"), n));
        }
        let most = if routing.scales_input { 1 } else { n };
        if n_used > most {
            return Err(keys.wrong_key("expert_used_count", format!("at most {most}"), n_used));
        }
        let scoring = if routing.keys.scoring() {
            match keys.metadata.u32(&keys.name("expert_gating_func"))? {
                None | Some(0) => routing.scoring,
                Some(1) => Scoring::Softmax,
                Some(2) => Scoring::Sigmoid,
                Some(3) => Scoring::SoftmaxChosen,
                Some(4) => Scoring::SqrtSoftplus,
                Some(other) => return Err(keys.wrong_key("expert_gating_func", "0 to 4", other)),
            }
        } else {
            routing.scoring
        };
        let norm = if routing.keys.norm() {
            keys.metadata.bool(&keys.name("expert_weights_norm"))?
        } else {
            None
        };
        Ok(Some(ExpertKeys {
            n,
            n_used,
            n_ff: n_ff(keys, n_listed)?,
            n_groups: n_groups(keys, n, n_used)?,
            scoring,
            renormalise: norm.unwrap_or(routing.renormalise),
            averages: routing.averages,
            scale: match keys.non_negative("expert_weights_scale", 1.0)? {
                // Some files state 0 when there is no scale.
                0.0 => 1.0,
                scale => scale,
            },
        }))
    }

    /// The experts of layer `index`. `n_rows` reads the number of neurons from a tensor, for files
    /// without the key.
    pub(super) fn of_layer(
        &self,
        keys: &Keys<'_>,
        index: usize,
        has_shared: bool,
        n_rows: impl FnOnce() -> Result<usize, Error>,
    ) -> Result<Experts, Error> {
        let &ExpertKeys { n, n_used, n_groups, scoring, renormalise, averages, .. } = self;
        let scale = if averages && has_shared { 0.5 * self.scale } else { self.scale };
        let n_ff = match self.n_ff[index] {
            0 => n_rows()?,
            n_ff => n_ff,
        };
        if n.saturating_mul(n_ff) > MAX_SIZE as usize {
            let expected = format!("at most {MAX_SIZE} neurons in a layer");
            return Err(keys.wrong_key("expert_count", expected, format!("{n} experts of {n_ff}")));
        }
        Ok(Experts { n, n_used, n_ff, n_groups, scoring, renormalise, scale })
    }
}

/// Number of neurons of an expert in each of `n_listed` layers. Some files state 0, and mean that
/// the tensors say it.
fn n_ff(keys: &Keys<'_>, n_listed: usize) -> Result<Vec<usize>, Error> {
    const KEY: &str = "expert_feed_forward_length";
    match keys.metadata.u32(&keys.name(KEY)) {
        Ok(Some(0)) => Ok(vec![0; n_listed]),
        _ => Ok(keys.per_layer(KEY, n_listed)?.unwrap_or_else(|| vec![0; n_listed])),
    }
}

/// Number of groups of `n` experts and number of groups that a token uses.
fn n_groups(keys: &Keys<'_>, n: usize, n_used: usize) -> Result<[usize; 2], Error> {
    const COUNT: &str = "expert_group_count";
    const USED: &str = "expert_group_used_count";
    let n_group = match keys.positive(COUNT)? {
        None | Some(1) => return Ok([1, 1]),
        Some(n_group) => n_group,
    };
    if !n.is_multiple_of(n_group) {
        return Err(keys.wrong_key(COUNT, format!("a divisor of the {n} experts"), n_group));
    }
    let n_group_used = keys.need(USED, "the number of groups of experts per token")?;
    let least = n_used.div_ceil(n / n_group);
    if !(least..=n_group).contains(&n_group_used) {
        let expected = format!("{least} to {n_group}, for {n_used} experts per token");
        return Err(keys.wrong_key(USED, expected, n_group_used));
    }
    Ok([n_group, n_group_used])
}
