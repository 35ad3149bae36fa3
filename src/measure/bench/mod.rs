//! Measures how fast a model runs on real text, and how close that is to the memory bandwidth.
//!
//! [`measure`] times one [`Test`] on a loaded engine. [`Traffic`] computes the bytes read per
//! generated token, and [`read_bandwidth`] measures the memory bandwidth, so that a rate can be
//! judged without another engine. [`difference`] compares the logits of two runs of a model. The
//! command line parses options, loads the model and formats the output.

mod bandwidth;
mod check;
mod measure;
mod speed;
mod text;
mod traffic;

pub use bandwidth::{probe_size, read_bandwidth, usual_probe_size};
pub use check::{Difference, N_REPEATED, difference, logits, rounding_bound};
pub use measure::{Measurement, Settings, Test, mean, measure, standard_deviation};
pub use speed::{Shape, dense_from, round_to_two_digits, speed};
pub use text::{STORY, Text};
pub use traffic::{SkippingFfn, Traffic};
