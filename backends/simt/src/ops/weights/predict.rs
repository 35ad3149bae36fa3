//! Predictors.

use hal::op::Predict;
use hal::{Plan, Result, Tensor, TensorDesc};

use crate::error::driver;
use crate::facts::Facts;
use crate::lowering::Lowering;

pub(crate) fn plan_predict(_op: &Predict<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::No("there is no kernel for it yet".to_owned())
}

pub(crate) fn lower_predict(_op: &Predict<Tensor>, _out: &mut Lowering<'_>) -> Result<()> {
    Err(driver("compile", "an op that plan refuses"))
}
