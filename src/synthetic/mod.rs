//! Seeded models of any size, for speed and format tests with no trained model at hand.
//!
//! A [`Spec`] says which (`1b:Q4_0:relu`); [`Spec::build`] makes it in memory, [`Spec::write`] in a file. The text
//! of such a model means nothing, but all else is as in a real one: a vocabulary that takes any text, logits of a
//! few units, attention that looks at few tokens, and a residual that grows with depth.
//!
//! How the activity is planted (`plant.rs`): the first channels of every embedding are the constant 1 and nothing
//! writes to them. A row of gate is a sum of 16 features, a little noise, and a weight on the constant channels
//! that lets the neuron fire with a probability of its own, from a power law. The predictor of PowerInfer's
//! container is made of the features alone, so it is nearly right. No model is run for that: the variance of the
//! residual is known at every depth, because each block's output is scaled to add a known share (`plan.rs`).
//!
//! Not here: running a model, quality of any kind.
//!
//! ```
//! use thermocline::synthetic::Spec;
//!
//! let mut spec = Spec::parse("128x2x256x4/2:Q8_0:relu")?;
//! spec.n_vocab = 512;
//! let file = spec.build(&mut |_done, _total| {})?;
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
