//! Seeded models of any size, for speed and format tests without a trained model.
//!
//! A [`Spec`] describes the model (`1b:Q4_0:relu`); [`Spec::build`] makes it in memory,
//! [`Spec::write`] in a file. The output text of such a model is meaningless, but everything else
//! is realistic: a vocabulary that can encode any text, logits of a few units, attention focused
//! on a few tokens, and a residual that grows with depth.
//!
//! `plant.rs` gives every neuron a firing rate. The first channels of every embedding are the
//! constant 1, and no layer writes to them. A row of gate is a sum of 16 features, a little noise,
//! and a weight on the constant channels that gives the neuron its own probability of firing, from
//! a power law. The predictor of PowerInfer's container uses the features alone, so it is nearly
//! exact. This needs no run of a model: the variance of the residual is known at every depth,
//! because each block's output is scaled to add a known variance (`plan.rs`).
//!
//! Other modules run the models and measure quality, which synthetic models do not have.
//!
//! ```
//! use thermocline_measure::synthetic::Spec;
//!
//! let mut spec = Spec::parse("128x2x256x4/2:Q8_0:relu")?;
//! spec.n_vocab = 512;
//! let file = spec.build(&mut |_done, _total| true)?;
//! assert_eq!(file.metadata().str("llama.hidden_activation")?, Some("relu"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod metadata;
mod plan;
mod plant;
mod random;
mod shape;
mod spec;
mod weights;
mod write;

pub use error::Error;
pub use shape::Shape;
pub use spec::{Rope, Spec};
