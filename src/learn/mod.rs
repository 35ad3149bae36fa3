//! Data measured by running a model: activation profiles ([`profile`]), predictors and thresholds
//! ([`predictor`]), and the side file that stores them ([`learned`]).
//!
//! No other crate uses faer (linear algebra). Placing neurons belongs to `placement`, skipping them
//! to `engine`.

pub mod learned;
pub mod predictor;
pub mod profile;
