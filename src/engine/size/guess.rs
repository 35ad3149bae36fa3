//! The routers that the CPU keeps copies of, to guess which experts a layer of another device will
//! need from disk.
//!
//! Such a layer's home posts the normed input of the experts. The next layer's router reads nearly
//! the same residual under its own norm. So the posted input, times the ratio of the two norms'
//! weights, approximates the input of that router.

use hal::format::Format;
use hal::{Bytes, HostRows, PackDesc, Source};

use model::{Affine, Frame, RouterInput};
use placement::{CPU, Placement};

use super::Sizing;
use crate::ops::predict::vector;

/// The router of a layer, prepared for the posted input of the layer before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextRouter<'a> {
    /// The weights of the norms of the layer before and of the router's layer, `[1, n_embd]` each.
    norms: [&'a HostRows; 2],
    /// `[n_expert, n_embd]`: used where it is mapped.
    pub(crate) router: &'a Affine,
    /// The layer that the router belongs to.
    pub(crate) frame: &'a Frame,
}

impl NextRouter<'_> {
    /// `[1, n_embd]`: factors that turn the experts' input of the layer before into the router's.
    pub(crate) fn factors(&self) -> HostRows {
        ratios(self.norms)
    }

    /// The small rows of the router.
    pub(crate) fn small_rows(&self) -> impl Iterator<Item = &HostRows> {
        let frame = self.frame;
        self.router.bias.iter().chain(&frame.selection).chain(&frame.expert_groups)
    }
}

/// The values of the second of two rows of F32 divided by those of the first.
fn ratios(rows: [&HostRows; 2]) -> HostRows {
    let [before, own] = rows.map(|row| row.rows(0..1).unwrap_or_default());
    let pairs = own.as_chunks().0.iter().zip(before.as_chunks().0);
    let ratios = pairs.map(|(own, before)| {
        let ratio = f32::from_le_bytes(*own) / f32::from_le_bytes(*before);
        // A norm weight of 0 removes this value of the residual, so no ratio restores it.
        if ratio.is_finite() { ratio } else { 0.0 }
    });
    vector(&ratios.collect::<Vec<f32>>())
}

impl Sizing<'_> {
    /// The router with which the CPU guesses, from what the home of layer `index` posts, which
    /// experts on disk the next layer will need. `None` if the CPU has no experts on disk in one of
    /// the two layers or is the home of one, if the router reads anything but the normed residual,
    /// or if its matrix cannot be used where it is mapped.
    pub(crate) fn next_router(
        &self,
        index: usize,
        placement: &Placement,
    ) -> Option<NextRouter<'_>> {
        let model = self.model;
        let [before, next] = [index, index + 1].map(|at| self.posted_norm(at, placement));
        let (norms, frame) = ([before?, next?], &model.layers.get(index + 1)?.frame);
        let (router, cpu) = (frame.router.as_ref()?, &self.devices[CPU]);
        let pack = PackDesc::whole(router.w.desc());
        let mapped = matches!(router.w.source(), Source::Mapped(_));
        let in_place = mapped
            && cpu.pack_size(&pack, true) == Bytes(0)
            && cpu.stored_pack(&pack, &router.w).is_none();
        in_place.then_some(NextRouter { norms, router, frame })
    }

    /// The weight of the norm that produces the input which a layer's home posts to the CPU; `None`
    /// if a guess cannot use it, or if the CPU has no experts of the layer.
    fn posted_norm(&self, index: usize, placement: &Placement) -> Option<&HostRows> {
        let (layer, placed) = (self.model.layers.get(index)?, placement.layers.get(index)?);
        let frame = &layer.frame;
        let usual = self.model.spec.routing.input == RouterInput::Ffn
            && !frame.parallel
            && !frame.early_experts
            && frame.input_scale.is_none()
            && frame.residual_mix.is_none()
            && frame.listed_experts.is_none()
            && frame.latent.is_none();
        let (norm, n_ff) = (frame.ffn_norm.as_ref()?, layer.n_ff());
        let on_cpu = |share: &placement::Share| share.device == CPU && share.neurons.len(n_ff) > 0;
        let usual = usual
            && self.options.paging.is_some()
            && layer.experts().is_some()
            && placed.home != CPU
            && placed.shares.iter().any(on_cpu)
            && norm.bias.is_none()
            && norm.w.desc().format == Format::F32
            && norm.w.desc().n_cols == self.model.hyper.n_embd;
        usual.then_some(&norm.w)
    }

    /// Bytes that the CPU allocates for the guesses of `placement`; the routers' matrices are used
    /// where they are mapped.
    pub(crate) fn guess_bytes(&self, placement: &Placement) -> Bytes {
        let cpu = &self.devices[CPU];
        let routers = (0..placement.layers.len()).filter_map(|at| self.next_router(at, placement));
        let bytes = |router: NextRouter<'_>| -> Bytes {
            let size = |rows: &HostRows| {
                let mapped = matches!(rows.source(), Source::Mapped(_));
                cpu.pack_size(&PackDesc::whole(rows.desc()), mapped)
            };
            let factors = cpu.alloc_size(&self.f32(1, self.model.hyper.n_embd));
            router.small_rows().map(size).sum::<Bytes>() + factors
        };
        routers.map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_replace_one_norm_by_another() {
        let [before, own] = [[4.0, 0.0, 5.0, -0.5], [2.0, 3.0, 0.0, 1.0]].map(|row| vector(&row));
        let factors = ratios([&before, &own]);
        let expected: [f32; 4] = [0.5, 0.0, 0.0, -2.0];
        assert_eq!(*factors.rows(0..1).unwrap(), *bytemuck::cast_slice::<f32, u8>(&expected));
    }
}
