//! Ops that read weights.

mod down;
mod experts;
mod ffn;
mod ffn_many;
mod matmul;
mod operand;
mod predict;
mod rows;
mod scratch;

pub(crate) use ffn::{before_ffn, lower_ffn, plan_ffn};
pub(crate) use matmul::{
    Clear, lower_beside, lower_matmul, plan_matmul, products, products_workspace, refuse_products,
    rounded_for_matmul,
};
pub(crate) use operand::takes_q8;
pub(crate) use predict::{lower_predict, plan_predict};
pub(crate) use rows::{lower_add_positions, lower_get_rows, plan_add_positions, plan_get_rows};

use hal::{Bytes, Plan};

/// Maximum number of tokens whose products go row by row: up to this number, a token's bits do not
/// depend on its neighbours.
const FEW: usize = 16;

/// Default number of threads per block.
const BLOCK: u32 = 256;

/// `Yes` with this workspace, unless there is a refusal.
fn plan_of(refusal: Option<String>, workspace: u64) -> Plan {
    match refusal {
        Some(reason) => Plan::No(reason),
        None => Plan::Yes { workspace: Bytes(workspace), slow: None },
    }
}
