//! Layers with a state.

use hal::op::{GatedDelta, ShortConv, SsmScan};
use hal::{Plan, Result, Tensor, TensorDesc};

use crate::error::driver;
use crate::facts::Facts;
use crate::lowering::Lowering;

pub(crate) fn plan_short_conv(_op: &ShortConv<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::No("there is no kernel for it yet".to_owned())
}

pub(crate) fn short_conv(_op: &ShortConv<Tensor>, _out: &mut Lowering<'_>) -> Result<()> {
    Err(driver("compile", "an op that plan refuses"))
}

pub(crate) fn plan_gated_delta(_op: &GatedDelta<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::No("there is no kernel for it yet".to_owned())
}

pub(crate) fn gated_delta(_op: &GatedDelta<Tensor>, _out: &mut Lowering<'_>) -> Result<()> {
    Err(driver("compile", "an op that plan refuses"))
}

pub(crate) fn plan_ssm_scan(_op: &SsmScan<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::No("there is no kernel for it yet".to_owned())
}

pub(crate) fn ssm_scan(_op: &SsmScan<Tensor>, _out: &mut Lowering<'_>) -> Result<()> {
    Err(driver("compile", "an op that plan refuses"))
}
