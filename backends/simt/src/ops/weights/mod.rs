//! Ops that read weights.

mod down;
mod experts;
mod ffn;
mod ffn_many;
mod matmul;
mod operand;
mod predict;
mod rows;

pub(crate) use ffn::{before_ffn, lower_ffn, plan_ffn};
pub(crate) use matmul::{
    lower_head_matmul, lower_matmul, lower_together, plan_head_matmul, plan_matmul, products,
    quantize, refuse_products,
};
pub(crate) use operand::memory;
pub(crate) use predict::{lower_predict, plan_predict};
pub(crate) use rows::{lower_add_positions, lower_get_rows, plan_add_positions, plan_get_rows};

use hal::{Bytes, Plan};

/// Default number of threads per block.
const BLOCK: u32 = 256;

/// `No` with the refusal, or else `Yes` with this workspace in bytes.
fn plan_of(refusal: Option<String>, workspace: u64) -> Plan {
    match refusal {
        Some(reason) => Plan::No(reason),
        None => Plan::Yes { workspace: Bytes(workspace), slow: None },
    }
}
