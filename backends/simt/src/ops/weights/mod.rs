//! Ops that read weights.

mod ffn;
mod matmul;
mod operand;
mod predict;
mod rows;

pub(crate) use ffn::{lower_ffn, plan_ffn};
pub(crate) use matmul::{lower_matmul, plan_matmul};
pub(crate) use predict::{lower_predict, plan_predict};
pub(crate) use rows::{lower_add_positions, lower_get_rows, plan_add_positions, plan_get_rows};
