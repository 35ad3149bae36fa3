//! What the counts of a profile mean, in words.

use model::Model;

/// Which neurons of a token a profile counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Neurons that are not zero; the others are skipped without any loss.
    Active,
    /// Neurons whose contribution is at least the mean of the token's neurons. With SiLU or GELU,
    /// none is exactly zero.
    AboveMean,
}

impl Counts {
    /// What profiles of `model` count.
    #[must_use]
    pub fn of(model: &Model) -> Counts {
        if model.is_exactly_sparse() { Counts::Active } else { Counts::AboveMean }
    }

    /// A sentence about the `share` of the neurons that count for a token.
    #[must_use]
    pub fn for_a_token(self, share: &str) -> String {
        match self {
            Counts::Active => format!("a token activates {share} of the neurons"),
            Counts::AboveMean => {
                format!("{share} of a token's neurons contribute at least the mean")
            }
        }
    }

    /// The counted events.
    #[must_use]
    pub fn events(self) -> &'static str {
        match self {
            Counts::Active => "activations",
            Counts::AboveMean => "contributions above the mean",
        }
    }

    /// Of a neuron that was never counted.
    #[must_use]
    pub fn never(self) -> &'static str {
        match self {
            Counts::Active => "never fired",
            Counts::AboveMean => "never reached the mean",
        }
    }
}
