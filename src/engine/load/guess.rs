//! Loads the routers with which the CPU guesses the experts of the next layer of another device.

use hal::{HostRows, Tensor};

use model::Affine;
use placement::{CPU, Placement};

use super::Loader;
use crate::error::Result;
use crate::paging::Owner;

/// The router of the next layer on the CPU, whose home is another device.
#[derive(Debug)]
pub(crate) struct RouterCopy {
    /// `[1, n_embd]`: factors that turn what the home posts for this layer into the router's input.
    pub(crate) factors: Tensor,
    pub(crate) router: Affine<Tensor>,
    pub(crate) selection: Option<Tensor>,
    pub(crate) groups: Option<Tensor>,
}

impl Loader<'_> {
    /// The copy for layer `index`; `None` if the CPU does not guess for the layer after it.
    pub(super) fn next_router(
        &self,
        index: usize,
        placement: &Placement,
    ) -> Result<Option<RouterCopy>> {
        let paged = self.paged.is_some();
        let Some(next) = self.sizing.next_router(index, placement).filter(|_| paged) else {
            return Ok(None);
        };
        let (cpu, label) = (&self.sizing.devices[CPU], format!("blk.{}.guess", index + 1));
        let small = |rows: &Option<HostRows>| {
            rows.as_ref().map(|rows| self.import_unpaged(cpu, &label, rows)).transpose()
        };
        Ok(Some(RouterCopy {
            factors: self.import_unpaged(cpu, &label, &next.factors())?,
            router: Affine {
                w: self.import_whole(cpu, Owner::Model, &label, &next.router.w)?,
                bias: small(&next.router.bias)?,
            },
            selection: small(&next.frame.selection)?,
            groups: small(&next.frame.expert_groups)?,
        }))
    }
}
