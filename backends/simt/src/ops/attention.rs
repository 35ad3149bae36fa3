//! The cache and attention over it.

use hal::op::{Attention, StoreKv};
use hal::{Plan, Result, Tensor, TensorDesc};

use crate::error::driver;
use crate::facts::Facts;
use crate::lowering::Lowering;

pub(crate) fn plan_store(_op: &StoreKv<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::No("there is no kernel for it yet".to_owned())
}

pub(crate) fn lower_store(_op: &StoreKv<Tensor>, _out: &mut Lowering<'_>) -> Result<()> {
    Err(driver("compile", "an op that plan refuses"))
}

pub(crate) fn plan(_op: &Attention<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::No("there is no kernel for it yet".to_owned())
}

pub(crate) fn lower(_op: &Attention<Tensor>, _out: &mut Lowering<'_>) -> Result<()> {
    Err(driver("compile", "an op that plan refuses"))
}
