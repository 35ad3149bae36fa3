//! The tiers below the devices for a placement, as loading it would make them: which weights of the
//! CPU are pinned, and what a token reads from disk.

use hal::{Bytes, Device, HostRows, PackDesc, Source};

use model::Model;
use placement::{CPU, Neurons, Placement};

use super::Sizing;
use crate::error::Result;
use crate::ops::embed::Embedding;
use crate::ops::ffn::PackedFfn;
use crate::options::EngineOptions;
use crate::paging::{Owner, PagedMatrix, Parts, Plan, Tiers, row_count};

/// The tiers of a run with `options` and `placement`, whose paging options have the memory that the
/// CPU may use. `copies_mapped` says whether repacked weights are a mapped file. Nothing is
/// allocated or read; the first of `devices` is the CPU.
///
/// # Errors
/// [`store::Error::Capacity`] if what must be in memory at once does not fit.
pub fn planned_tiers(
    model: &Model,
    devices: &[Device],
    options: &EngineOptions,
    placement: &Placement,
    copies_mapped: bool,
) -> Result<Tiers> {
    let sizing = Sizing::new(model, devices, options);
    let mut weights = CpuWeights::new(&sizing, copies_mapped);
    weights.collect(placement);
    let host = sizing.host_bytes(placement).total.total();
    let allocated = host - weights.in_place + sizing.paging_bytes(placement);
    let budget = options.paging.as_ref().map_or(Bytes(0), |paging| paging.budget);
    if allocated > budget {
        return Err(store::Error::Capacity { needed: allocated, capacity: budget }.into());
    }
    let parts = Parts {
        matrices: &weights.matrices,
        model,
        uses: &|layer, neuron| options.placing.use_of(layer, neuron),
        on_cpu: &|layer| placement.layers[layer].home == CPU,
        has_expert: &|layer, expert| sizing.has_expert(layer, &placement.layers[layer], expert),
        by_neuron: &|layer| sizing.reads_neurons(layer),
        density: options.placing.density,
        adapts: sizing.counts_rows(),
        n_prompt: options.n_ubatch,
    };
    let tiers = Plan::tiers(&parts, budget - allocated)?;
    let (devices, copies) =
        (sizing.bytes_on_devices(placement), sizing.copied_bytes(placement, copies_mapped));
    Ok(Tiers { devices, copies, ..tiers })
}

impl Sizing<'_> {
    /// Bytes of the CPU that only a model with weights on disk has: the workspace, which is reserved
    /// before weights are loaded, and the guesses of the next layers' experts.
    fn paging_bytes(&self, placement: &Placement) -> Bytes {
        let n_words = self.workspace(CPU).0.div_ceil(4) as usize;
        let cpu = &self.devices[CPU];
        let size = |n: usize, cols| {
            if n * cols > 0 { cpu.alloc_size(&self.f32(n, cols)) } else { Bytes(0) }
        };
        let guess = size(self.options.n_ubatch, self.model.max_experts());
        size(1, n_words) + guess + self.guess_bytes(placement)
    }
}

/// The weights that the CPU uses where they are mapped, as loading them would find them.
struct CpuWeights<'a> {
    sizing: &'a Sizing<'a>,
    copies_mapped: bool,
    matrices: Vec<PagedMatrix>,
    /// Bytes of all of them: they are not allocated.
    in_place: Bytes,
    /// Length of the mapped file of repacked weights so far.
    copies: u64,
}

impl<'a> CpuWeights<'a> {
    fn new(sizing: &'a Sizing<'a>, copies_mapped: bool) -> CpuWeights<'a> {
        let (matrices, in_place, copies) = (Vec::new(), Bytes(0), 0);
        CpuWeights { sizing, copies_mapped, matrices, in_place, copies }
    }

    fn collect(&mut self, placement: &Placement) {
        let Sizing { model, devices, mode, .. } = *self.sizing;
        for (index, placed) in placement.layers.iter().enumerate() {
            let layer = &model.layers[index];
            if placed.home == CPU {
                layer
                    .frame
                    .for_each(&mut |_, rows| self.add_whole(Some(Owner::Frame(index)), rows));
            }
            let options = self.sizing.options;
            let data = mode.predictor(model, options, index).filter(|_| placed.home == CPU);
            for rows in data.iter().flat_map(|data| data.fc1.into_iter().chain([data.fc2])) {
                self.add_whole(Some(Owner::Predictor(index)), rows);
            }
            if let Some(next) = self.sizing.next_router(index, placement) {
                // A copy is not in the need of the placement.
                let before = self.in_place;
                self.add_whole(Some(Owner::Model), &next.router.w);
                self.in_place = before;
            }
            let here = placed.shares.iter().find(|share| share.device == CPU);
            if let Some((share, ffn)) = here.zip(layer.ffn.as_ref()) {
                let held = self.sizing.holds_experts(index, placed, share);
                let neurons = if held { &Neurons::All } else { &share.neurons };
                let before = self.in_place;
                for PackedFfn { rows, pack, .. } in mode.packs(&devices[CPU], ffn, neurons) {
                    self.add(Some(Owner::Neurons(index)), &pack, &rows);
                }
                if held {
                    // Of the matrices of all experts, the need has the CPU's part.
                    self.in_place = before + self.sizing.share_bytes(ffn, &share.neurons);
                }
            }
        }
        let (embed, head) = (placement.embed == CPU, placement.head == CPU);
        if embed {
            let mut add = |label: &'static str, rows: &HostRows| {
                // Steps read a few rows of a table; the head reads all of a tied one.
                let paged = label == "token_embd" && model.is_tied();
                self.add_whole(paged.then_some(Owner::Model), rows);
                Ok::<_, std::convert::Infallible>(rows.desc())
            };
            let Ok(_) = Embedding::new(model, &mut add);
        }
        if head {
            if !(embed && model.is_tied()) {
                model.output.iter().for_each(|rows| self.add_whole(Some(Owner::Model), rows));
            }
            let norm = model.output_norm.iter();
            let norm = norm.flat_map(|norm| [&norm.w].into_iter().chain(&norm.bias));
            norm.chain(&model.output_bias)
                .for_each(|rows| self.add_whole(Some(Owner::Model), rows));
        }
    }

    fn add_whole(&mut self, owner: Option<Owner>, rows: &HostRows) {
        self.add(owner, &PackDesc::whole(rows.desc()), rows);
    }

    /// Adds a weight if the CPU uses it where it is mapped. Without an owner it stays mapped.
    fn add(&mut self, owner: Option<Owner>, pack: &PackDesc, rows: &HostRows) {
        let (cpu, file) = (&self.sizing.devices[CPU], &self.sizing.model.file);
        if self.copies_mapped
            && let Some(stored) = cpu.stored_pack(pack, rows)
        {
            let mapped = matches!(rows.source(), Source::Mapped(_));
            self.in_place += cpu.pack_size(pack, mapped);
            let range = self.copies..self.copies + stored.len as u64;
            self.copies = range.end;
            let piece = store::Piece { file: file.paths().len(), range };
            let n_rows = row_count(pack).unwrap_or(1);
            self.matrices.extend(owner.map(|owner| PagedMatrix::new(owner, piece, n_rows)));
            return;
        }
        let Source::Mapped(bytes) = rows.source() else { return };
        if cpu.pack_size(pack, true) > Bytes(0) {
            return;
        }
        self.in_place += rows.desc().bytes().unwrap_or_default();
        if let (Some(owner), Some((file, range))) = (owner, file.locate((**bytes).as_ref())) {
            let (piece, n_rows) = (store::Piece { file, range }, rows.desc().n_rows);
            self.matrices.push(PagedMatrix::new(owner, piece, n_rows));
        }
    }
}
