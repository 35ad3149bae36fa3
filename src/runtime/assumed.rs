//! Speeds of assumed devices: given values, and for the others those of a mid-range card.

use measure::bench::Shape;
use placement::Speed;

/// Default bandwidth, in bytes per second.
const BANDWIDTH: f64 = 400e9;
/// Default bandwidth of single rows, as a share of the bandwidth.
const ROWS: f64 = 0.7;
/// Default time of a hand-off, in seconds.
const HAND_OFF: f64 = 20e-6;
const OP: f64 = 2e-6;
const REFILL: f64 = 5e-6;
/// Default prefill operations per byte of bandwidth: roughly what kernels reach on GPUs and CPUs
/// alike.
const OPERATIONS: f64 = 20.0;
/// A multiplication and an addition.
const PER_WEIGHT: f64 = 2.0;
/// Default upload of neurons, in bytes per second: limited by packing on the host, not by the bus.
const UPLOAD: f64 = 6e9;

/// A device to plan for that this machine does not have; defaults replace `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assumed {
    /// Its name; `cpu` is the CPU.
    pub name: Option<String>,
    /// Its memory in bytes.
    pub memory: Option<u64>,
    /// Bytes per second, read sequentially.
    pub bandwidth: Option<f64>,
    /// Bytes per second, of single rows.
    pub rows: Option<f64>,
    /// Seconds of a hand-off.
    pub hand_off: Option<f64>,
    /// Overhead of an op, in seconds.
    pub op: Option<f64>,
    /// Operations per second in prefill.
    pub flops: Option<f64>,
    /// Bytes of neurons per second that can be streamed to it.
    pub upload: Option<f64>,
}

/// The speed of an assumed device, for any model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AssumedSpeed {
    speed: Speed,
    /// Operations per second in prefill.
    flops: f64,
    /// Whether the user set `flops`, and the upload speed.
    is_told: [bool; 2],
}

impl AssumedSpeed {
    /// A device other than the CPU.
    pub(super) fn of_device(given: &Assumed) -> AssumedSpeed {
        let dense = given.bandwidth.unwrap_or(BANDWIDTH);
        AssumedSpeed {
            speed: Speed {
                dense,
                sparse: given.rows.unwrap_or(dense * ROWS).min(dense),
                hand_off: given.hand_off.unwrap_or(HAND_OFF),
                op: given.op.unwrap_or(OP),
                refill: REFILL,
                // Computed once the format is known.
                prompt: 0.0,
                upload: given.upload.unwrap_or(UPLOAD),
            },
            flops: given.flops.unwrap_or(dense * OPERATIONS),
            is_told: [given.flops.is_some(), given.upload.is_some()],
        }
    }

    /// The CPU, to which nothing is uploaded.
    pub(super) fn of_cpu(given: &Assumed) -> AssumedSpeed {
        let AssumedSpeed { speed, flops, is_told } = AssumedSpeed::of_device(given);
        let op = given.op.unwrap_or(0.0);
        let speed = Speed { hand_off: 0.0, op, upload: 0.0, ..speed };
        AssumedSpeed { speed, flops, is_told: [is_told[0], true] }
    }

    /// The speed with weights of `shape`.
    pub(super) fn with(&self, shape: &Shape) -> Speed {
        let row = shape.format.row_bytes(shape.n_embd).unwrap_or(4 * shape.n_embd);
        let per_weight = row as f64 / shape.n_embd.max(1) as f64;
        Speed { prompt: self.flops / PER_WEIGHT * per_weight, ..self.speed }
    }

    /// The defaults that the prefill estimate depends on, as text; `None` if the user set all.
    pub(super) fn guess(&self, name: &str) -> Option<String> {
        let flops =
            format!("{name} multiplies at {:.1} TFLOPS in prefill (tflops)", self.flops / 1e12);
        let upload = format!(
            "{:.1} GB/s of neurons can be uploaded to it (upload)",
            self.speed.upload / 1e9
        );
        Some(match self.is_told {
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
    fn operations_become_bytes_of_the_models_format() {
        let of = |given: &Assumed| AssumedSpeed::of_device(given);
        let prompt = |given: &Assumed, format| of(given).with(&Shape::usual(format)).prompt;
        let fast = Assumed { flops: Some(80e12), ..Assumed::default() };
        assert_eq!(prompt(&fast, Format::F16), 80e12);
        assert_eq!(prompt(&fast, Format::Q8_0), 80e12 / 2.0 * 34.0 / 32.0);
        let wide = Assumed { bandwidth: Some(1e12), ..Assumed::default() };
        assert_eq!(prompt(&wide, Format::F16), 20e12, "derived from the bandwidth");
        let uploads = Assumed { upload: Some(12e9), ..Assumed::default() };
        assert_eq!(of(&uploads).with(&Shape::usual(Format::F16)).upload, 12e9);
        let cpu = AssumedSpeed::of_cpu(&Assumed { bandwidth: Some(50e9), ..uploads });
        assert_eq!(cpu.with(&Shape::usual(Format::F16)).upload, 0.0);
    }

    #[test]
    fn what_is_guessed_is_reported() {
        let guess = |flops: Option<f64>, upload: Option<f64>| {
            let given = Assumed { bandwidth: Some(1e12), flops, upload, ..Assumed::default() };
            AssumedSpeed::of_device(&given).guess("card")
        };
        assert_eq!(guess(Some(80e12), Some(12e9)), None);
        let told = guess(None, None).unwrap();
        assert!(told.contains("20.0 TFLOPS") && told.contains("6.0 GB/s"), "{told}");
        assert!(!guess(None, Some(9e9)).unwrap().contains("GB/s"));
        assert!(!guess(Some(9e12), None).unwrap().contains("TFLOPS"));
    }
}
