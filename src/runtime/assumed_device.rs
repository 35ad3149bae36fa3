//! Speeds of assumed devices: the user's values, and defaults of a mid-range card for values that
//! the user does not set.

use hal::Bytes;
use measure::bench::Shape;
use placement::Speed;

/// Default bandwidth, in bytes per second.
const BANDWIDTH: f64 = 400e9;
/// Default bandwidth of scattered single rows, as a fraction of the sequential bandwidth.
const ROW_FRACTION: f64 = 0.7;
/// Default time of a hand-off, in seconds.
const HAND_OFF: f64 = 20e-6;
/// Default overhead of an op, in seconds.
const OP: f64 = 2e-6;
/// Time to write a neuron's row to a device, in seconds.
const REFILL: f64 = 5e-6;
/// Default prefill operations per byte of bandwidth. Kernels reach roughly this ratio on GPUs and
/// on CPUs.
const OPERATIONS_PER_BYTE: f64 = 20.0;
/// Operations per weight: a multiplication and an addition.
const OPERATIONS_PER_WEIGHT: f64 = 2.0;
/// Default upload speed of neurons, in bytes per second: limited by packing on the host, not by the
/// bus.
const UPLOAD: f64 = 6e9;

/// A device to plan for that this machine does not have; defaults replace `None`, except in
/// `memory`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AssumedDevice {
    /// Name of the device; `cpu`, in any case, is the CPU.
    pub name: Option<String>,
    /// Device memory in bytes; required, except for the CPU, whose default is this machine's memory.
    pub memory: Option<u64>,
    /// Bandwidth of sequential reads, in bytes per second.
    pub bandwidth: Option<f64>,
    /// Bandwidth of scattered single rows, in bytes per second.
    pub rows: Option<f64>,
    /// Time of a hand-off, in seconds.
    pub hand_off: Option<f64>,
    /// Overhead of an op, in seconds.
    pub op: Option<f64>,
    /// Operations per second in prefill.
    pub flops: Option<f64>,
    /// Speed of streaming neurons to the device, in bytes per second.
    pub upload: Option<f64>,
    /// Speed of the machine's disk, in bytes per second; only for the CPU.
    pub disk: Option<f64>,
}

/// An assumed CPU with its memory and disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AssumedHost {
    /// `None` for this machine's.
    pub(super) speed: Option<AssumedSpeed>,
    /// `None` for this machine's memory.
    pub(super) memory: Option<Bytes>,
    /// Bytes per second of the disk; `None` for this machine's.
    pub(super) disk: Option<f64>,
}

impl AssumedHost {
    pub(super) fn new(given: &AssumedDevice) -> AssumedHost {
        let rates = [given.bandwidth, given.rows, given.op, given.flops];
        let speed = rates.iter().any(Option::is_some).then(|| AssumedSpeed::of_cpu(given));
        AssumedHost { speed, memory: given.memory.map(Bytes), disk: given.disk }
    }
}

/// The speed of an assumed device, for any model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AssumedSpeed {
    speed: Speed,
    /// Operations per second in prefill.
    flops: f64,
    /// Whether the user set `flops`, and whether the user set the upload speed.
    is_given: [bool; 2],
}

impl AssumedSpeed {
    /// The speed of an assumed device other than the CPU.
    pub(super) fn of_device(given: &AssumedDevice) -> AssumedSpeed {
        let dense = given.bandwidth.unwrap_or(BANDWIDTH);
        AssumedSpeed {
            speed: Speed {
                dense,
                sparse: given.rows.unwrap_or(dense * ROW_FRACTION).min(dense),
                hand_off: given.hand_off.unwrap_or(HAND_OFF),
                op: given.op.unwrap_or(OP),
                refill: REFILL,
                // Set by `for_shape`, because it depends on the format.
                prompt: 0.0,
                upload: given.upload.unwrap_or(UPLOAD),
            },
            flops: given.flops.unwrap_or(dense * OPERATIONS_PER_BYTE),
            is_given: [given.flops.is_some(), given.upload.is_some()],
        }
    }

    /// The speed of an assumed CPU, to which nothing is uploaded.
    fn of_cpu(given: &AssumedDevice) -> AssumedSpeed {
        let AssumedSpeed { speed, flops, is_given } = AssumedSpeed::of_device(given);
        let op = given.op.unwrap_or(0.0);
        let speed = Speed { hand_off: 0.0, op, upload: 0.0, ..speed };
        AssumedSpeed { speed, flops, is_given: [is_given[0], true] }
    }

    /// The speed with weights in the format of `shape`.
    pub(super) fn for_shape(&self, shape: &Shape) -> Speed {
        let row = shape.format.row_bytes(shape.n_embd).unwrap_or(4 * shape.n_embd);
        let per_weight = row as f64 / shape.n_embd.max(1) as f64;
        Speed { prompt: self.flops / OPERATIONS_PER_WEIGHT * per_weight, ..self.speed }
    }

    /// The defaults that the prefill estimate depends on, as text; `None` if the user set both.
    pub(super) fn defaults(&self, name: &str) -> Option<String> {
        let flops =
            format!("{name} multiplies at {:.1} TFLOPS in prefill (tflops)", self.flops / 1e12);
        let upload =
            format!("neurons are uploaded to it at {:.1} GB/s (upload)", self.speed.upload / 1e9);
        Some(match self.is_given {
            [false, false] => format!("{flops}, {upload}"),
            [false, true] => flops,
            [true, false] => format!("{name}: {upload}"),
            [true, true] => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal::format::Format;

    #[test]
    fn prefill_speed_is_in_bytes_of_the_models_format() {
        let of = |given: &AssumedDevice| AssumedSpeed::of_device(given);
        let prompt =
            |given: &AssumedDevice, format| of(given).for_shape(&Shape::of_7b_model(format)).prompt;
        let fast = AssumedDevice { flops: Some(80e12), ..AssumedDevice::default() };
        assert_eq!(prompt(&fast, Format::F16), 80e12);
        assert_eq!(prompt(&fast, Format::Q8_0), 80e12 / 2.0 * 34.0 / 32.0);
        let wide = AssumedDevice { bandwidth: Some(1e12), ..AssumedDevice::default() };
        assert_eq!(prompt(&wide, Format::F16), 20e12, "derived from the bandwidth");
        let uploads = AssumedDevice { upload: Some(12e9), ..AssumedDevice::default() };
        assert_eq!(of(&uploads).for_shape(&Shape::of_7b_model(Format::F16)).upload, 12e9);
        let cpu = AssumedSpeed::of_cpu(&AssumedDevice { bandwidth: Some(50e9), ..uploads });
        assert_eq!(cpu.for_shape(&Shape::of_7b_model(Format::F16)).upload, 0.0);
    }

    #[test]
    fn assumed_defaults_are_reported() {
        let defaults = |flops: Option<f64>, upload: Option<f64>| {
            let given =
                AssumedDevice { bandwidth: Some(1e12), flops, upload, ..AssumedDevice::default() };
            AssumedSpeed::of_device(&given).defaults("card")
        };
        assert_eq!(defaults(Some(80e12), Some(12e9)), None);
        let text = defaults(None, None).unwrap();
        assert!(text.contains("20.0 TFLOPS") && text.contains("6.0 GB/s"), "{text}");
        assert!(!defaults(None, Some(9e9)).unwrap().contains("GB/s"));
        assert!(!defaults(Some(9e12), None).unwrap().contains("TFLOPS"));
    }
}
