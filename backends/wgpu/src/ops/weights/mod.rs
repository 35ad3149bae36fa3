//! Ops that read weights: one shader per op, into which the file of the weight's format is
//! included.

mod down;
mod experts;
mod ffn;
mod ffn_many;
mod matmul;
mod operand;
mod predict;
mod rows;
mod scratch;
#[cfg(test)]
mod tests;

pub(super) use ffn::{before_ffn, lower_ffn, plan_ffn};
pub(super) use matmul::{
    WordFill, is_one_binding, lower_matmul, lower_together, plan_matmul, products,
    products_workspace, quantized_for_matmul, refuse_products,
};
pub(super) use predict::{lower_predict, plan_predict};
pub(super) use rows::{lower_add_positions, lower_get_rows, plan_add_positions, plan_get_rows};

use hal::Plan;

/// Maximum number of tokens for the row-by-row shaders. Up to this number, a token's result does
/// not depend on the other tokens, bit for bit.
const FEW_TOKENS: usize = 16;

/// `No` with the refusal, or else `Yes` with this workspace in bytes.
fn plan_of(refusal: Option<String>, workspace: u64, slow: Option<&str>) -> Plan {
    match refusal {
        Some(reason) => Plan::No(reason),
        None => Plan::Yes { workspace: hal::Bytes(workspace), slow: slow.map(str::to_owned) },
    }
}
