//! What a device that is not there does: what the user says of it, and for the rest a card of the middle class.

use crate::bench::Shape;
use crate::cli::parse::Assumed;
use crate::placement::Speed;

/// Bytes a second of a device of which nothing is said.
const BANDWIDTH: f64 = 400e9;
/// Share of the bandwidth that single rows get.
const ROWS: f64 = 0.7;
/// Seconds.
const HAND_OFF: f64 = 20e-6;
const OP: f64 = 2e-6;
const REFILL: f64 = 5e-6;
/// Operations in prompts for each byte of the bandwidth: what kernels reach on cards and processors alike, roughly.
const OPERATIONS: f64 = 20.0;
/// A multiplication and an addition.
const PER_WEIGHT: f64 = 2.0;
/// Bytes of neurons a second: what a host packs, which is less than a bus takes.
const UPLOAD: f64 = 6e9;

/// The speed of a device that is not there, whatever the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AssumedSpeed {
    speed: Speed,
    /// Operations a second in prompts.
    flops: f64,
    /// Whether the user said that, and how fast neurons get there.
    is_told: [bool; 2],
}

impl AssumedSpeed {
    /// A device beside the CPU.
    pub(super) fn of_device(given: &Assumed) -> AssumedSpeed {
        let dense = given.bandwidth.unwrap_or(BANDWIDTH);
        AssumedSpeed {
            speed: Speed {
                dense,
                sparse: given.rows.unwrap_or(dense * ROWS).min(dense),
                hand_off: given.hand_off.unwrap_or(HAND_OFF),
                op: given.op.unwrap_or(OP),
                refill: REFILL,
                // Known where the format is.
                prompt: 0.0,
                upload: given.upload.unwrap_or(UPLOAD),
            },
            flops: given.flops.unwrap_or(dense * OPERATIONS),
            is_told: [given.flops.is_some(), given.upload.is_some()],
        }
    }

    /// The CPU, to which nothing is brought.
    pub(super) fn of_cpu(given: &Assumed) -> AssumedSpeed {
        let AssumedSpeed { speed, flops, is_told } = AssumedSpeed::of_device(given);
        let op = given.op.unwrap_or(0.0);
        let speed = Speed { hand_off: 0.0, op, upload: 0.0, ..speed };
        AssumedSpeed { speed, flops, is_told: [is_told[0], true] }
    }

    /// With weights of `shape`.
    pub(super) fn with(&self, shape: &Shape) -> Speed {
        let row = shape.format.row_bytes(shape.n_embd).unwrap_or(4 * shape.n_embd);
        let per_weight = row as f64 / shape.n_embd.max(1) as f64;
        Speed { prompt: self.flops / PER_WEIGHT * per_weight, ..self.speed }
    }

    /// What was not said and decides how fast prompts are; `None` where all was.
    pub(super) fn guess(&self, name: &str) -> Option<String> {
        let flops =
            format!("{name} multiplies at {:.1} TFLOPS in prompts (tflops)", self.flops / 1e12);
        let upload =
            format!("{:.1} GB/s of neurons can be brought there (upload)", self.speed.upload / 1e9);
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
    use crate::cli::parse::assumed;
    use hal::format::Format;

    #[test]
    fn operations_become_bytes_of_the_models_format() {
        let of = |text: &str| AssumedSpeed::of_device(&assumed(text).unwrap());
        let prompt = |text: &str, format| of(text).with(&Shape::usual(format)).prompt;
        assert_eq!(prompt("tflops=80", Format::F16), 80e12);
        assert_eq!(prompt("tflops=80", Format::Q8_0), 80e12 / 2.0 * 34.0 / 32.0);
        assert_eq!(prompt("bandwidth=1TB/s", Format::F16), 20e12, "told by the bandwidth");
        assert_eq!(of("upload=12GB/s").with(&Shape::usual(Format::F16)).upload, 12e9);
        let cpu = AssumedSpeed::of_cpu(&assumed("cpu,bandwidth=50,upload=3").unwrap());
        assert_eq!(cpu.with(&Shape::usual(Format::F16)).upload, 0.0);
    }

    #[test]
    fn what_is_guessed_is_said() {
        let guess = |text: &str| AssumedSpeed::of_device(&assumed(text).unwrap()).guess("card");
        assert_eq!(guess("tflops=80,upload=12"), None);
        let told = guess("bandwidth=1TB/s").unwrap();
        assert!(told.contains("20.0 TFLOPS") && told.contains("6.0 GB/s"), "{told}");
        assert!(!guess("upload=9").unwrap().contains("GB/s"));
        assert!(!guess("tflops=9").unwrap().contains("TFLOPS"));
    }
}
