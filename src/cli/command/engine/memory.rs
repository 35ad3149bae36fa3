//! Whether a model fits into the machine, before the first byte is loaded.

use super::machine::Machine;
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;
use crate::converted;
use crate::engine::{EngineOptions, to_convert};
use crate::model::Model;
use crate::placement::{DeviceBytes, Forecast};
use hal::format::Format;
use hal::{Bytes, Device, MemoryReport};

/// Memory that a run must have, by what needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Weights that are read for every token, as they are in the file.
    weights: Bytes,
    /// Weights laid out anew.
    copies: Bytes,
    /// Keys and values of one token.
    cache_per_token: Bytes,
    /// Keys and values of the whole context.
    cache: Bytes,
    /// Everything between the layers.
    scratch: Bytes,
}

impl Need {
    /// What `model` needs with these settings on the CPU.
    pub(crate) fn of(model: &Model, options: &EngineOptions, cpu: &Device) -> Need {
        let hyper = &model.hyper;
        let weights = to_convert(model, options, cpu);
        let copies = converted::size(&weights);
        let mut replaced: Bytes = weights.iter().map(converted::Weight::source_size).sum();
        // A predictor that is not used is not read.
        let unused = model.layers.iter().filter_map(|layer| layer.ffn.predictor.as_ref());
        for predictor in unused.filter(|_| !options.predicts(model)) {
            for rows in [&predictor.fc1, &predictor.fc2] {
                replaced += rows.desc().bytes().unwrap_or_default();
            }
        }
        let half = |format: Format, n_cols| format.row_bytes(n_cols).unwrap_or(0);
        let row =
            half(options.kv_formats.k, hyper.n_kv()) + half(options.kv_formats.v, hyper.n_value());
        let cache_per_token = product(&[hyper.n_layer, row]);
        let floats = |n: &[usize]| product(&[&[4], n].concat());
        // Of experts, those that a token uses.
        let n_ff =
            hyper.experts.map_or(hyper.n_ff, |experts| experts.n + experts.n_used * experts.n_ff);
        let body = 5 * hyper.n_embd + 2 * hyper.n_q() + 2 * hyper.n_kv() + 2 * n_ff;
        let head = 2 * hyper.n_embd + model.n_vocab();
        Need {
            // Pages of the file that were only read to copy them can go, and some are never read.
            weights: Bytes(model.file.size_bytes()) - replaced,
            copies,
            cache_per_token,
            cache: product(&[cache_per_token.0 as usize, options.n_ctx]),
            scratch: floats(&[options.n_ubatch, body]) + floats(&[options.max_out(), head]),
        }
    }

    /// The same without what `forecast` places in memory that is not the CPU's, too.
    pub(crate) fn less(self, forecast: &Forecast, machine: &Machine) -> Need {
        let others = machine.others.iter().zip(&forecast.devices[1..]);
        let apart = others.filter(|(other, _)| other.is_apart()).map(|(_, bytes)| *bytes);
        self.without(&apart.collect::<Vec<_>>())
    }

    fn without(self, all: &[DeviceBytes]) -> Need {
        let cache: Bytes = all.iter().map(|bytes| bytes.cache).sum();
        let weights: Bytes =
            all.iter().map(|bytes| bytes.frames + bytes.neurons + bytes.ends).sum();
        // Neurons are laid out anew or used as they are: either is gone from here.
        let beyond = weights - self.weights;
        Need {
            weights: self.weights - weights,
            copies: self.copies - beyond,
            cache: self.cache - cache,
            ..self
        }
    }

    /// Cache and scratch.
    pub(super) fn beside_weights(&self) -> Bytes {
        self.cache + self.scratch
    }

    /// All together.
    pub(crate) fn total(&self) -> Bytes {
        self.weights + self.copies + self.cache + self.scratch
    }

    /// Refuses what the machine can never hold; notes what does not fit beside all that runs now.
    ///
    /// # Errors
    /// [`Exit::Memory`].
    pub(crate) fn check(
        &self,
        memory: MemoryReport,
        n_ctx: usize,
        terminal: &Terminal,
    ) -> Result<(), Failure> {
        let wanted = self.total();
        if let Some(total) = memory.total.filter(|total| wanted > *total) {
            let message = format!("the model needs {wanted} of memory, this machine has {total}");
            let mut failure = Failure::new(Exit::Memory, message).help(self.cure(total));
            failure.causes = vec![self.parts(n_ctx)];
            return Err(failure);
        }
        if let Some(free) = memory.free.filter(|free| wanted > *free) {
            terminal.note(&format!(
                "the model needs {wanted} of memory and {free} are free: it may be slow ({})",
                self.parts(n_ctx)
            ));
        }
        Ok(())
    }

    fn parts(&self, n_ctx: usize) -> String {
        let copies = match self.copies {
            Bytes(0) => String::new(),
            copies => format!("laid out anew {copies}, "),
        };
        let Need { weights, cache, scratch, .. } = self;
        format!("weights {weights}, {copies}KV cache of {n_ctx} tokens {cache}, scratch {scratch}")
    }

    /// What would help, and that it would.
    fn cure(&self, total: Bytes) -> String {
        let rest = total - (self.weights + self.copies + self.scratch);
        let n_ctx = rest.0 / self.cache_per_token.0.max(1) / 32 * 32;
        match n_ctx {
            0 => "a file of the same model with fewer bits per weight needs less".to_owned(),
            n_ctx => format!("a context of at most {n_ctx} tokens fits: -c {n_ctx}"),
        }
    }
}

/// A product of sizes, which stops at the largest number there is.
fn product(sizes: &[usize]) -> Bytes {
    Bytes(sizes.iter().fold(1, |product: u64, &n| product.saturating_mul(n as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::ColorWhen;

    const GIB: u64 = 1 << 30;

    fn check(need: Need, total: u64) -> Result<(), Failure> {
        let memory = MemoryReport { total: Some(Bytes(total)), free: Some(Bytes(GIB)) };
        need.check(memory, 1024, &Terminal::new(ColorWhen::Off, true, 0))
    }

    #[test]
    fn a_model_too_large_names_its_parts_and_a_cure() {
        let need = Need {
            weights: Bytes(4 * GIB),
            copies: Bytes(GIB),
            cache_per_token: Bytes(1 << 20),
            cache: Bytes(GIB),
            scratch: Bytes(0),
        };
        assert!(check(need, 6 * GIB).is_ok());
        let failure = check(need, 11 * GIB / 2).unwrap_err();
        assert_eq!(failure.exit.code(), 4);
        assert!(failure.message.contains("6.00 GiB"), "{failure}");
        assert!(failure.causes[0].contains("weights 4.00 GiB"), "{failure:?}");
        assert!(failure.help.unwrap().contains("-c 512"));
        let failure = check(need, 3 * GIB).unwrap_err();
        assert!(failure.help.unwrap().contains("fewer bits"));
    }

    #[test]
    fn what_is_elsewhere_is_not_needed_here() {
        let (weights, copies, cache) = (Bytes(6 * GIB), Bytes(2 * GIB), Bytes(GIB));
        let need = Need { weights, copies, cache_per_token: Bytes(1), cache, scratch: Bytes(7) };
        let on = |neurons: u64, cache: u64| DeviceBytes {
            neurons: Bytes(neurons * GIB),
            cache: Bytes(cache * GIB),
            ..DeviceBytes::default()
        };
        assert_eq!(need.without(&[]).total(), need.total());
        assert_eq!(need.without(&[on(2, 1), on(3, 0)]).total(), Bytes(3 * GIB + 7));
        assert_eq!(need.without(&[on(7, 1)]).total(), Bytes(GIB + 7), "copies are not made either");
    }

    #[test]
    fn no_context_overflows() {
        let file = crate::embedded::file().unwrap();
        let model = Model::from_file(file, &crate::model::ModelOptions::default()).unwrap();
        let cpu = crate::devices::cpu(Some(1));
        let options = EngineOptions { n_ctx: u32::MAX as usize, ..EngineOptions::default() };
        let need = Need::of(&model, &options, &cpu);
        assert!(need.cache > Bytes(GIB) && need.copies > Bytes(0));
        assert_eq!(product(&[usize::MAX, usize::MAX]), Bytes::MAX);
    }
}
