//! Which experts of split layers the CPU uses in place (`load/held.rs`).

use hal::op::Down;
use hal::{Bytes, Source};

use placement::{CPU, LayerPlacement, Neurons, Share};

use super::{Sizing, adding_device};
use crate::ops::ffn::PackedFfn;

impl Sizing<'_> {
    /// Whether the CPU uses the experts of a share in the file's matrices of all experts; false for
    /// a share that is copied, or that is all of the layer.
    pub(crate) fn holds_experts(
        &self,
        index: usize,
        placed: &LayerPlacement,
        share: &Share,
    ) -> bool {
        let Some(ffn) = &self.model.layers[index].ffn else { return false };
        let is_list = matches!(share.neurons, Neurons::List(_)) && ffn.experts.is_some();
        // The weights of the home's own share are the router's.
        let remote = share.device == CPU && placed.home != CPU;
        let whole = self.mode.orientation(ffn) == Down::AcrossNeurons;
        // The bias of each expert is added by one device for all of them.
        let adds = adding_device(placed, ffn.n_ff()) == Some(CPU) && ffn.down.bias.is_some();
        if !is_list || !remote || !whole || adds || self.options.locked {
            return false;
        }
        let cpu = &self.devices[CPU];
        let in_place = |PackedFfn { rows, pack, .. }: &PackedFfn| {
            let mapped = matches!(rows.source(), Source::Mapped(_));
            mapped && cpu.pack_size(pack, mapped) == Bytes(0)
        };
        self.mode.packs(cpu, ffn, &Neurons::All).iter().all(in_place)
    }

    /// Whether the CPU has this expert of a layer.
    pub(crate) fn has_expert(&self, index: usize, placed: &LayerPlacement, expert: usize) -> bool {
        let n_ff = self.model.layers[index].n_ff();
        let n = self.model.layers[index].experts().map_or(1, |experts| experts.n);
        let first = expert * (n_ff / n.max(1));
        placed.shares.iter().filter(|share| share.device == CPU).any(|share| match &share.neurons {
            Neurons::All => true,
            Neurons::List(list) => list.binary_search(&(first as u32)).is_ok(),
        })
    }
}
