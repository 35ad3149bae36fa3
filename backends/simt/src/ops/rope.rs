//! Rotary positions.

use hal::op::Rope;
use hal::{Plan, Result, Tensor, TensorDesc};

use crate::error::driver;
use crate::facts::Facts;
use crate::lowering::Lowering;

pub(crate) fn plan(_op: &Rope<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::No("there is no kernel for it yet".to_owned())
}

pub(crate) fn lower(_op: &Rope<Tensor>, _out: &mut Lowering<'_>) -> Result<()> {
    Err(driver("compile", "an op that plan refuses"))
}
