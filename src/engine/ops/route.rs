//! Routing: which experts a token uses, and their weights.

use hal::Operand;
use hal::op::{GetRows, Op, Route};

use model::{Affine, Experts, Frame};

use super::layer::LayerOps;
use super::scratch::Role;

/// The router's weights of `x` into `weights`. `small` are the biases for the selection and the groups
/// of experts.
pub(crate) fn routing<T: Operand>(
    router: &Affine<T>,
    small: [&Option<T>; 2],
    experts: &Experts,
    x: &T,
    weights: &T,
) -> Route<T> {
    let [selection, groups] = small.map(Option::clone);
    Route {
        w: router.w.clone(),
        bias: router.bias.clone(),
        selection,
        groups,
        chosen: None,
        x: x.clone(),
        weights: weights.clone(),
        n_used: experts.n_used,
        n_per_chunk: 1,
        n_groups: experts.n_groups,
        scoring: experts.scoring,
        renormalise: experts.renormalise,
        scale: experts.scale,
    }
}

impl<T: Operand> LayerOps<'_, T> {
    /// Selects experts from `x` into `weights`, or takes those that a table lists.
    pub(super) fn routing(
        &self,
        ops: &mut Vec<Op<T>>,
        router: &Affine<T>,
        experts: &Experts,
        [x, weights]: [&T; 2],
    ) {
        let Frame { selection, expert_groups, listed_experts, .. } = self.frame;
        let chosen = listed_experts.as_ref().map(|table| {
            let y = self.scratch.at(Role::ListedExperts, experts.n_used).clone();
            let (table, batch) = (table.clone(), self.batch.clone());
            ops.push(GetRows { table, batch, y: y.clone(), scale: 1.0 }.into());
            y
        });
        let route = routing(router, [selection, expert_groups], experts, x, weights);
        ops.push(Route { chosen, ..route }.into());
    }
}
