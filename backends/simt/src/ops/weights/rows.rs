//! Rows of tables.

use hal::op::{AddPositions, GetRows};
use hal::{Plan, Result, Tensor, TensorDesc};

use crate::error::driver;
use crate::facts::Facts;
use crate::lowering::Lowering;

pub(crate) fn plan_get_rows(_op: &GetRows<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::No("there is no kernel for it yet".to_owned())
}

pub(crate) fn lower_get_rows(_op: &GetRows<Tensor>, _out: &mut Lowering<'_>) -> Result<()> {
    Err(driver("compile", "an op that plan refuses"))
}

pub(crate) fn plan_add_positions(_op: &AddPositions<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::No("there is no kernel for it yet".to_owned())
}

pub(crate) fn lower_add_positions(
    _op: &AddPositions<Tensor>,
    _out: &mut Lowering<'_>,
) -> Result<()> {
    Err(driver("compile", "an op that plan refuses"))
}
