//! Ops that read weights: one shader per op, into which the file of the weight's format is
//! included.

mod down;
mod experts;
mod ffn;
mod ffn_dense;
mod ffn_many;
mod matmul;
mod operand;
mod predict;
mod rows;
#[cfg(test)]
mod tests;

pub(super) use ffn::{before_ffn, lower_ffn, plan_ffn};
pub(super) use matmul::{
    is_one_binding, lower_head_matmul, lower_matmul, lower_together, plan_head_matmul, plan_matmul,
    products, quantize, refuse_products,
};
pub(super) use predict::{lower_predict, plan_predict};
pub(super) use rows::{lower_add_positions, lower_get_rows, plan_add_positions, plan_get_rows};
#[cfg(all(test, target_os = "linux"))]
pub(super) use tests::products_of;

use hal::{Bytes, Plan};
use lower::Scratch;

use crate::facts::Facts;

/// Why the largest range of the workspace cannot be bound; `None` if it can.
fn scratch_refusal(scratch: &Scratch, facts: &Facts) -> Option<String> {
    let (largest, limit) = (Bytes(scratch.largest()), Bytes(facts.max_binding()));
    (largest > limit).then(|| {
        format!("it needs a scratch buffer of {largest}; a binding covers at most {limit}")
    })
}

/// `No` with the refusal, or else `Yes` with this workspace in bytes.
fn plan_of(refusal: Option<String>, workspace: u64, slow: Option<&str>) -> Plan {
    match refusal {
        Some(reason) => Plan::No(reason),
        None => Plan::Yes { workspace: Bytes(workspace), slow: slow.map(str::to_owned) },
    }
}
