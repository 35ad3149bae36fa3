//! Checks whether a model fits into the machine, before it is loaded.

use engine::{EngineOptions, converted, index_format, scratch_width, state_bytes, to_repack};
use hal::format::Format;
use hal::{Bytes, Device, KV_BLOCK, KvRows, MemoryReport};
use model::{Attention, Ffn, Model};
use placement::{DeviceBytes, Forecast};

use crate::devices::memory_beside;
use crate::error::MemoryLimit;
use crate::machine::Machine;
use crate::notice::{Notice, Observer};
use crate::options::Computation;
use crate::{Error, Result};

/// Memory of this machine for all that a run of `model` needs, which is open already. The limits of
/// this process count its file as used, and `more` bytes of what the need includes.
#[must_use]
pub fn memory_for(model: &Model, more: Bytes) -> MemoryReport {
    memory_beside(Bytes(model.file.size_bytes()) + more)
}

/// Host memory that a run needs, itemised.
#[derive(Clone, Copy, Debug)]
pub struct MemoryNeed {
    /// Weights that are read from the file as they are.
    weights: Bytes,
    /// Weights with merged adapters, which stay in memory.
    merged: Bytes,
    /// Repacked weights.
    copies: Bytes,
    /// Whether the repacked weights are a mapped file.
    copies_are_mapped: bool,
    /// Keys and values of one token.
    cache_per_token: Bytes,
    /// KV cache of the whole context, and recurrent states.
    cache: Bytes,
    /// Scratch of the layers and of the head.
    scratch: Bytes,
}

impl MemoryNeed {
    /// The memory that `model` needs with these settings, if everything is on the CPU.
    #[must_use]
    pub fn new(model: &Model, options: &EngineOptions, cpu: &Device) -> MemoryNeed {
        let hyper = &model.hyper;
        let weights = to_repack(model, options, cpu);
        let copies = converted::size(&weights);
        // Merged weights stay in memory even if they are repacked.
        let mapped = weights.iter().filter(|weight| !model.file.is_overlay(&weight.source));
        let mut replaced: Bytes = mapped.map(converted::Weight::source_size).sum();
        // An unused predictor is not read.
        let unused = model.blocks().filter_map(|(_, ffn)| ffn.predictor.as_ref());
        for predictor in unused.filter(|_| !options.predicts(model)) {
            for rows in [&predictor.fc1, &predictor.fc2] {
                replaced += rows.desc().bytes().unwrap_or_default();
            }
        }
        // Of a table of n-grams, tokens read a few rows.
        let table = model.ngrams.as_ref().and_then(|by| by.table.desc().bytes());
        replaced += table.unwrap_or_default();
        let half = |format: Format, n_cols| format.row_bytes(n_cols).unwrap_or(0);
        let row = |by: &Attention| {
            let KvRows { k, v } = by.sizes.cached();
            let index = by
                .indexer()
                .map_or(0, |indexer| half(index_format(options.kv_formats.k), indexer.d_head));
            // Compressed keys have a row for each block.
            let blocks = by.blocks().map_or(0, |by| {
                let width = by.indexer.as_ref().map_or(0, |indexer| indexer.d_head);
                let index = half(index_format(options.kv_formats.k), width);
                (half(options.kv_formats.k, k) + index) / by.ratio.min(KV_BLOCK)
            });
            index
                + blocks
                + half(options.kv_formats.k, k)
                + v.map_or(0, |v| half(options.kv_formats.v, v))
        };
        // Layers that use an earlier layer's keys and values have no cache.
        let own = model.layers.iter().filter(|layer| layer.frame.mixer.kv_source().is_none());
        let own = own.filter_map(|layer| layer.attention());
        let cache_per_token = Bytes(own.map(row).sum::<usize>() as u64);
        let state: Bytes = model.layers.iter().map(state_bytes).sum();
        let state = product(&[state.0 as usize, options.n_seq + options.n_checkpoint]);
        let floats = |n: &[usize]| product(&[&[4], n].concat());
        // Counts only the experts that a token uses.
        let n_ff = |ffn: &Ffn| match &ffn.experts {
            Some(experts) => experts.n + experts.n_used * experts.n_ff,
            None => ffn.n_ff(),
        };
        let n_ff = model.blocks().map(|(_, ffn)| n_ff(ffn)).max().unwrap_or(0);
        // Scratch values per token, including an op's workspace and a row of the residual.
        let body = scratch_width(model, options.n_blocks() * KV_BLOCK) + 2 * n_ff + hyper.n_embd;
        let head = 2 * hyper.n_embd + model.n_logits();
        MemoryNeed {
            // The system can drop pages that were only read to repack them, and pages of an
            // unused predictor are never read.
            weights: Bytes(model.file.size_bytes() - model.file.overlay_bytes()) - replaced,
            merged: Bytes(model.file.overlay_bytes()),
            copies,
            copies_are_mapped: options.converted.is_some(),
            cache_per_token,
            cache: product(&[cache_per_token.0 as usize, options.n_ctx]) + state,
            scratch: floats(&[options.n_ubatch, body]) + floats(&[options.max_out(), head]),
        }
    }

    /// The need without the weights and caches that `forecast` places in other devices' memory.
    #[must_use]
    pub fn without_devices(self, forecast: &Forecast, machine: &Machine) -> MemoryNeed {
        let others = machine.others.iter().zip(&forecast.devices[1..]);
        let apart = others.filter(|(other, _)| other.has_own_memory()).map(|(_, bytes)| *bytes);
        self.minus(&apart.collect::<Vec<_>>())
    }

    fn minus(self, all: &[DeviceBytes]) -> MemoryNeed {
        let cache: Bytes = all.iter().map(|bytes| bytes.cache).sum();
        let weights: Bytes =
            all.iter().map(|bytes| bytes.frames + bytes.neurons + bytes.embed_and_head).sum();
        // Neurons on devices need no repacked copy on the CPU either.
        let beyond = weights - self.weights;
        MemoryNeed {
            weights: self.weights - weights,
            copies: self.copies - beyond,
            cache: self.cache - cache,
            ..self
        }
    }

    /// Bytes of KV cache, recurrent states and scratch.
    pub(crate) fn without_weights(&self) -> Bytes {
        self.cache + self.scratch
    }

    /// Sum of all items.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.weights + self.merged + self.copies + self.cache + self.scratch
    }

    /// The need if repacked copies are or are not kept in a mapped file.
    pub(crate) fn with_copies_mapped(self, copies_are_mapped: bool) -> MemoryNeed {
        MemoryNeed { copies_are_mapped, ..self }
    }

    /// The need if only `weights` bytes of the weights have to be in memory at once. The system can
    /// drop and read again pages of mapped copies.
    pub(crate) fn at_once(self, weights: Bytes) -> MemoryNeed {
        let copies = if self.copies_are_mapped { Bytes(0) } else { self.copies };
        MemoryNeed { weights, copies, ..self }
    }

    /// The error that `total` bytes are too few for these items and `other` bytes of code and
    /// buffers. If these are the items with weights on disk, `in_memory` is the need without.
    pub(crate) fn error(
        &self,
        (limit, total): (MemoryLimit, Bytes),
        n_ctx: usize,
        other: Bytes,
        in_memory: Option<&MemoryNeed>,
    ) -> Error {
        let fitting = |need: &MemoryNeed| need.fitting_context(total - need.weights - other);
        Error::Memory {
            wanted: self.total() + other,
            total,
            limit,
            items: format!("{}, code and buffers {other}", self.items(n_ctx)),
            n_ctx: fitting(self),
            n_ctx_in_memory: in_memory.and_then(fitting),
        }
    }

    /// Sum of the items that have to stay in memory. The system can drop and read again pages of
    /// mapped files.
    pub(crate) fn unmapped(&self) -> Bytes {
        let copies = if self.copies_are_mapped { Bytes(0) } else { self.copies };
        self.merged + copies + self.cache + self.scratch
    }

    /// Compares the need with the machine's memory. Sends a notice if the need exceeds the free
    /// memory, or exceeds the total memory but fits without the mapped weights.
    ///
    /// # Errors
    /// [`Error::Memory`] if the need exceeds the total memory, and also does so without the mapped
    /// weights or [`Computation::must_fit`] is set.
    pub fn check(
        &self,
        memory: MemoryReport,
        n_ctx: usize,
        computation: &Computation,
        observer: &dyn Observer,
    ) -> Result<()> {
        let wanted = self.total();
        if let Some(total) = memory.total.filter(|total| wanted > *total) {
            let items = self.items(n_ctx);
            let may_page = computation.mmap && !computation.must_fit;
            if may_page && self.unmapped() <= total {
                observer.notice(&Notice::LargerThanMemory { wanted, total, items });
                return Ok(());
            }
            let weights = if may_page { Bytes(0) } else { self.weights };
            let n_ctx = self.fitting_context(total - weights);
            let limit = MemoryLimit::Machine;
            let n_ctx_in_memory = None;
            return Err(Error::Memory { wanted, total, limit, items, n_ctx, n_ctx_in_memory });
        }
        if let Some(free) = memory.free.filter(|free| wanted > *free) {
            let items = self.items(n_ctx);
            observer.notice(&Notice::LittleMemory { wanted, free, items });
        }
        Ok(())
    }

    fn items(&self, n_ctx: usize) -> String {
        let copies = match self.copies {
            Bytes(0) => String::new(),
            copies => format!("repacked copies {copies}, "),
        };
        let merged = match self.merged {
            Bytes(0) => String::new(),
            merged => format!("weights with adapters {merged}, "),
        };
        let MemoryNeed { weights, cache, scratch, .. } = self;
        format!(
            "weights {weights}, {merged}{copies}KV cache of {n_ctx} tokens {cache}, scratch {scratch}"
        )
    }

    /// The largest context that fits into `total` bytes beside copies and scratch, in whole cache
    /// blocks; `None` if none fits. Recurrent states are not counted.
    fn fitting_context(&self, total: Bytes) -> Option<usize> {
        let rest = total - (self.merged + self.copies + self.scratch);
        let n_ctx = rest.0 / self.cache_per_token.0.max(1) / 32 * 32;
        usize::try_from(n_ctx).ok().filter(|n_ctx| *n_ctx > 0)
    }
}

/// A saturating product of sizes.
fn product(sizes: &[usize]) -> Bytes {
    Bytes(sizes.iter().fold(1, |product: u64, &n| product.saturating_mul(n as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::SilentObserver;

    const GIB: u64 = 1 << 30;

    fn check(need: MemoryNeed, total: u64) -> Result<()> {
        let memory = MemoryReport { total: Some(Bytes(total)), free: Some(Bytes(GIB)) };
        let computation = Computation { must_fit: true, ..Computation::default() };
        need.check(memory, 1024, &computation, &SilentObserver)
    }

    #[test]
    fn mapped_weights_may_exceed_the_memory() {
        #[derive(Default)]
        struct Kept(std::sync::Mutex<Vec<Notice>>);
        impl Observer for Kept {
            fn notice(&self, notice: &Notice) {
                self.0.lock().unwrap().push(notice.clone());
            }
        }
        let need = MemoryNeed {
            weights: Bytes(40 * GIB),
            merged: Bytes(0),
            copies: Bytes(2 * GIB),
            copies_are_mapped: true,
            cache_per_token: Bytes(1 << 20),
            cache: Bytes(GIB),
            scratch: Bytes(0),
        };
        let check = |need: MemoryNeed, computation: &Computation| {
            let memory = MemoryReport { total: Some(Bytes(2 * GIB)), free: Some(Bytes(GIB)) };
            let kept = Kept::default();
            let checked = need.check(memory, 1024, computation, &kept);
            let notices = kept.0.into_inner().unwrap();
            checked.map(|()| notices)
        };
        let mapped = Computation::default();
        let notices = check(need, &mapped).unwrap();
        assert!(matches!(notices[..], [Notice::LargerThanMemory { .. }]), "{notices:?}");
        for refusing in [
            Computation { must_fit: true, ..mapped.clone() },
            Computation { mmap: false, ..mapped.clone() },
        ] {
            assert!(check(need, &refusing).is_err());
        }
        // The KV cache, merged weights and copies in memory cannot be dropped.
        assert!(check(MemoryNeed { copies_are_mapped: false, ..need }, &mapped).is_err());
        assert!(check(MemoryNeed { merged: Bytes(2 * GIB), ..need }, &mapped).is_err());
        let long = MemoryNeed { cache: Bytes(3 * GIB), copies: Bytes(0), ..need };
        let Err(Error::Memory { n_ctx, .. }) = check(long, &mapped) else { panic!("{long:?}") };
        assert_eq!(n_ctx, Some(2048));
    }

    #[test]
    fn the_error_has_the_items_and_a_context_that_fits() {
        let need = MemoryNeed {
            weights: Bytes(4 * GIB),
            merged: Bytes(0),
            copies: Bytes(GIB),
            copies_are_mapped: false,
            cache_per_token: Bytes(1 << 20),
            cache: Bytes(GIB),
            scratch: Bytes(0),
        };
        assert!(check(need, 6 * GIB).is_ok());
        let error = check(need, 11 * GIB / 2).unwrap_err();
        assert!(error.to_string().contains("6.00 GiB"), "{error}");
        let Error::Memory { items, n_ctx, .. } = error else { panic!("{error}") };
        assert!(items.contains("weights 4.00 GiB") && n_ctx == Some(512), "{items}");
        let error = check(need, 3 * GIB).unwrap_err();
        assert!(matches!(error, Error::Memory { n_ctx: None, .. }), "{error}");
    }

    #[test]
    fn the_error_of_a_budget_adds_up() {
        let need = MemoryNeed {
            weights: Bytes(4 * GIB),
            merged: Bytes(0),
            copies: Bytes(GIB),
            copies_are_mapped: true,
            cache_per_token: Bytes(1 << 20),
            cache: Bytes(GIB),
            scratch: Bytes(0),
        };
        let budget = (MemoryLimit::Budget, Bytes(2 * GIB));
        let error = need.at_once(Bytes(GIB)).error(budget, 1024, Bytes(GIB / 2), Some(&need));
        let says = "the model needs 2.50 GiB of memory, but the budget is 2.00 GiB";
        assert_eq!(error.to_string(), says);
        let Error::Memory { items, n_ctx, n_ctx_in_memory, .. } = error else { panic!("{error}") };
        assert!(!items.contains("copies") && items.contains("buffers 512.00 MiB"), "{items}");
        assert_eq!((n_ctx, n_ctx_in_memory), (Some(512), None));
        let budget = (MemoryLimit::Budget, Bytes(6 * GIB));
        let long = MemoryNeed { cache: Bytes(8 * GIB), ..need };
        let error = long.at_once(Bytes(GIB)).error(budget, 8192, Bytes(GIB / 2), Some(&long));
        let Error::Memory { n_ctx, n_ctx_in_memory, .. } = error else { panic!("{error}") };
        assert_eq!((n_ctx, n_ctx_in_memory), (Some(4608), Some(512)));
    }

    #[test]
    fn weights_on_devices_need_no_host_memory() {
        let (weights, copies, cache) = (Bytes(6 * GIB), Bytes(2 * GIB), Bytes(GIB));
        let need = MemoryNeed {
            weights,
            merged: Bytes(0),
            copies,
            copies_are_mapped: false,
            cache_per_token: Bytes(1),
            cache,
            scratch: Bytes(7),
        };
        let on = |neurons: u64, cache: u64| DeviceBytes {
            neurons: Bytes(neurons * GIB),
            cache: Bytes(cache * GIB),
            ..DeviceBytes::default()
        };
        assert_eq!(need.minus(&[]).total(), need.total());
        assert_eq!(need.minus(&[on(2, 1), on(3, 0)]).total(), Bytes(3 * GIB + 7));
        assert_eq!(need.minus(&[on(7, 1)]).total(), Bytes(GIB + 7), "no repacked copies");
    }

    #[test]
    fn huge_contexts_do_not_overflow() {
        let file = crate::embedded::file().unwrap();
        let model = Model::from_file(file, &model::ModelOptions::default()).unwrap();
        let cpu = crate::devices::cpu(Some(1));
        let options = EngineOptions { n_ctx: u32::MAX as usize, ..EngineOptions::default() };
        let need = MemoryNeed::new(&model, &options, &cpu);
        assert!(need.cache > Bytes(GIB) && need.copies > Bytes(0));
        assert_eq!(product(&[usize::MAX, usize::MAX]), Bytes::MAX);
    }
}
