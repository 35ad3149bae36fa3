//! The estimated time of a prompt, and from how many tokens on the CPU's neurons come to a device for it.
//!
//! With many tokens multiplying decides, not reading: `n` tokens take `n * bytes / prompt` of whatever they pass through.
//! A split layer takes the longer of its two sides, and a hand-off. One whose absent neurons come to its home takes
//! `bytes / upload` and the home's own time for all of them (of experts, all come and a token uses few; of what a predictor
//! lists, its rows come along and score again); that copies run beside work is left out of the account. All
//! of it is bounded from the side of doubt: what is estimated to be faster is.

use hal::Bytes;
use hal::op::MOST_COUNTED;

use super::estimate::{Choice, Spot};
use super::facts::Task;
use super::{CPU, DeviceIndex};

impl Task {
    /// Tokens of the prompts that are looked at: the longest step.
    pub(super) fn n_prompt(&self) -> usize {
        self.rungs.last().copied().unwrap_or(1)
    }

    /// Whether absent neurons could come to a device, and all speeds that decide it are known.
    pub(super) fn may_stream(&self, device: DeviceIndex) -> bool {
        let (facts, cpu) = (&self.devices[device], &self.devices[CPU]);
        let known = facts.speed.upload > 0.0 && facts.speed.prompt > 0.0 && cpu.speed.prompt > 0.0;
        device != CPU && facts.stream.is_some() && known
    }

    /// The same with what streaming takes set aside on these devices.
    pub(super) fn with_slots(&self, devices: &[DeviceIndex]) -> Task {
        let mut task = self.clone();
        for &device in devices {
            let facts = &mut task.devices[device];
            facts.fixed += facts.stream.map_or(Bytes(0), |stream| stream.bytes);
        }
        task
    }

    /// Seconds of `n` tokens in one layer at `spot`, whose absent neurons stream there or are computed by the CPU. `via` is
    /// where neurons stream: the home or, of a layer on the CPU, the device that computes all of its neurons.
    pub(super) fn prompt_layer(
        &self,
        layer: usize,
        spot: Spot,
        n: usize,
        via: Option<DeviceIndex>,
    ) -> f64 {
        let (speed, cpu) = (&self.devices[spot.home].speed, &self.devices[CPU].speed);
        let reads = &self.layers[layer].reads;
        let streamed = via.and_then(|to| self.streamed(layer, spot, n, to));
        let n_home = self.cut.neurons(spot.groups);
        let absent = (self.cut.n_ff - n_home) as f64;
        let tokens = n as f64;
        // A cached value is multiplied as often as a weight, by each token.
        let through = tokens * (reads.frame + reads.cache) / speed.prompt;
        let frame = through + reads.n_ops as f64 * speed.op;
        let own = tokens * n_home as f64 * reads.prompt / speed.prompt;
        match (absent > 0.0, streamed) {
            (false, None) => frame + own,
            (true, None) => {
                frame + own.max(tokens * absent * reads.prompt / cpu.prompt) + speed.hand_off
            }
            // Of a layer on the CPU, all neurons go.
            (false, Some(seconds)) => frame + seconds,
            (true, Some(seconds)) => frame + own + seconds,
        }
    }

    /// Seconds in which the neurons of a layer that are not on device `to` come there, and compute `n` tokens; `None`
    /// where they do not.
    fn streamed(&self, layer: usize, spot: Spot, n: usize, to: DeviceIndex) -> Option<f64> {
        let (facts, reads) = (&self.devices[to], self.layers[layer].reads.streams?);
        let (stream, speed) = (facts.stream?, &facts.speed);
        let (n_home, tokens) = (self.cut.neurons(spot.groups), n as f64);
        let (absent, carried) = match spot.home {
            CPU if n_home == self.cut.n_ff => {
                let bytes = tokens * reads.carried?;
                (self.cut.n_ff, bytes / speed.upload + 2.0 * speed.hand_off)
            }
            home if home == to && n_home < self.cut.n_ff => (self.cut.n_ff - n_home, 0.0),
            _ => return None,
        };
        let n_pieces = (absent as f64 / stream.piece.max(1) as f64).ceil();
        // A piece is started as a hand-off is.
        let pieces = n_pieces * (speed.op + speed.hand_off);
        let brought = absent as f64 * reads.brought / speed.upload;
        let bytes = absent as f64 * reads.multiplied + n_pieces * reads.per_piece;
        Some(carried + brought + tokens * bytes / speed.prompt + pieces)
    }

    /// Seconds of a prompt of `n` tokens; `None` where a speed that it needs is not known.
    pub(super) fn prompt(&self, choice: &Choice, n: usize, from: &[Option<usize>]) -> Option<f64> {
        let split = |spot: &Spot| spot.groups < self.cut.n_groups();
        let homes = choice.layers.iter().map(|spot| spot.home);
        let others = choice.layers.iter().any(split).then_some(CPU);
        if homes.chain(others).any(|device| self.devices[device].speed.prompt <= 0.0) {
            return None;
        }
        let layers = choice.layers.iter().enumerate();
        let streams: Vec<bool> =
            from.iter().map(|from| from.is_some_and(|from| n >= from)).collect();
        let layers =
            layers.map(|(i, spot)| self.prompt_layer(i, *spot, n, via(&streams, spot.home)));
        Some(layers.sum::<f64>() + self.head_time(choice.head) + self.carries(choice))
    }

    /// From how many tokens on it is faster that absent neurons come to each of the devices `there`; `None` where it never
    /// is, and where nothing else is on the device.
    pub(super) fn stream_from(&self, choice: &Choice, there: &[DeviceIndex]) -> Vec<Option<usize>> {
        let streams: Vec<bool> = (0..self.devices.len()).map(|d| there.contains(&d)).collect();
        let layers: Vec<(usize, Spot)> = choice.layers.iter().copied().enumerate().collect();
        let of = |device: DeviceIndex| {
            let used = [choice.embed, choice.head].contains(&device)
                || layers.iter().any(|(_, spot)| spot.home == device);
            if !streams[device] || !used || !self.may_stream(device) {
                return None;
            }
            let through = |spot: Spot| via(&streams, spot.home).filter(|&to| to == device);
            let seconds = |n: usize, streamed: bool| -> f64 {
                let layers = layers.iter().filter(|(_, spot)| through(*spot).is_some());
                let to = |spot| through(spot).filter(|_| streamed);
                layers.map(|(i, spot)| self.prompt_layer(*i, *spot, n, to(*spot))).sum()
            };
            let long = self.rungs.iter().rev().take_while(|n| **n > MOST_COUNTED);
            long.copied().take_while(|&n| seconds(n, true) < seconds(n, false)).last()
        };
        (0..self.devices.len()).map(of).collect()
    }
}

/// Where neurons of layers at `home` stream, given which devices they stream to: those of layers on the CPU to the first.
pub(super) fn via(streams: &[bool], home: DeviceIndex) -> Option<DeviceIndex> {
    match home {
        CPU => streams.iter().position(|streams| *streams),
        home => Some(home).filter(|&home| streams[home]),
    }
}
