//! A model that does not exist, to compare machines: seven billion weights in the shape of Llama 2.

use std::sync::Arc;

use hal::Bytes;
use hal::format::Format;

use super::{
    Cut, DeviceFacts, LayerFacts, LayerReads, LayerSizes, PlanConstraints, Speed, Task, Uses,
};

const N_EMBD: usize = 4096;
const N_FF: usize = 11008;
const N_LAYER: usize = 32;
const N_VOCAB: usize = 32000;
const N_CTX: usize = 4096;
/// Tokens in the context while the speed is estimated.
const N_PAST: usize = 512;
/// Tokens of the prompt.
const N_PROMPT: usize = 512;
/// Ops of a layer: norms, projections, RoPE, cache, attention, feed-forward block, additions.
const N_OPS: usize = 16;
/// Batch and scratch of a micro-batch of [`N_PROMPT`] tokens.
const SCRATCH: Bytes = Bytes(256 << 20);

impl Task {
    /// The planner's input for a model of seven billion weights in `format`, with every neuron
    /// computed and a context of 4096 tokens. `devices` are the speeds and the usable memory of
    /// the devices, the CPU first. `None` for a format that a row of the model cannot have.
    #[must_use]
    pub fn of_7b_model(format: Format, devices: &[(Speed, Bytes)]) -> Option<Task> {
        let rows = |n: usize, n_cols: usize| Some((n * format.row_bytes(n_cols)?) as u64);
        let frame = rows(4 * N_EMBD, N_EMBD)?;
        let neurons = rows(2 * N_FF, N_EMBD)? + rows(N_EMBD, N_FF)?;
        let table = rows(N_VOCAB, N_EMBD)?;
        // Keys and values are F16.
        let cache_row = 2 * 2 * N_EMBD;
        let per_neuron = neurons as f64 / N_FF as f64;
        let reads = LayerReads {
            frame: frame as f64,
            cache: (cache_row * N_PAST) as f64,
            tested: per_neuron,
            used: 0.0,
            prompt: per_neuron,
            streams: None,
            n_ops: N_OPS,
        };
        let layer = LayerFacts::new(reads, Uses::Uniform(1.0), &Cut::new(N_FF, 1));
        let sizes = LayerSizes {
            frame: Bytes(frame),
            cache: Bytes((cache_row * N_CTX) as u64),
            shares: Arc::default(),
            whole: Some(Bytes(neurons)),
        };
        let device = |(speed, budget): &(Speed, Bytes)| DeviceFacts {
            budget: *budget,
            fixed: SCRATCH,
            hand_offs: Bytes(0),
            hand_off: Bytes(0),
            embed: Some(Bytes(table)),
            head: Some(Bytes(table)),
            shared: Bytes(0),
            layers: vec![sizes.clone(); N_LAYER],
            speed: *speed,
            stream: None,
            refused: Vec::new(),
        };
        Some(Task {
            layers: vec![layer; N_LAYER],
            devices: devices.iter().map(device).collect(),
            head: table as f64,
            buckets: vec![1, N_PROMPT],
            constraints: PlanConstraints::default(),
        })
    }

    /// Bytes of weights and KV cache of [`Task::of_7b_model`]; 0 for a format that a row of the
    /// model cannot have.
    #[must_use]
    pub fn size_of_7b_model(format: Format) -> Bytes {
        let task = Task::of_7b_model(format, &[(Speed::default(), Bytes(0))]);
        let device = task.into_iter().flat_map(|task| task.devices).next();
        device.map_or(Bytes(0), |device| {
            let layers = device
                .layers
                .iter()
                .map(|layer| layer.frame + layer.cache + layer.whole.unwrap_or_default());
            let ends = [device.embed, device.head].into_iter().flatten();
            layers.chain(ends).chain([device.fixed]).sum()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::*;

    fn speed(dense: f64) -> Speed {
        Speed { dense, sparse: dense, prompt: 10.0 * dense, ..Speed::default() }
    }

    #[test]
    fn memory_bandwidth_and_size_decide_the_rate() {
        let rate = |devices: &[(Speed, Bytes)]| {
            plan(&Task::of_7b_model(Format::Q4_0, devices).unwrap()).rate()
        };
        let cpu = (speed(40e9), Bytes(0));
        // The model has 3.7 GB of weights that a token reads, and 0.27 GB of KV cache.
        let alone = rate(&[cpu]);
        assert!((9.0..11.0).contains(&alone), "{alone}");
        let size = Task::size_of_7b_model(Format::Q4_0);
        assert!((Bytes(5 << 30)..Bytes(7 << 30)).contains(&size), "{size}");
        let card = |memory| (speed(400e9), memory);
        let whole = rate(&[cpu, card(size)]);
        assert!((90.0..110.0).contains(&whole), "{whole}");
        let half = rate(&[cpu, card(Bytes(size.0 / 2))]);
        assert!(half > 1.3 * alone && half < whole / 2.0, "{half}");
        assert_eq!(rate(&[cpu, card(Bytes(1 << 20))]), alone, "nothing fits");
    }
}
