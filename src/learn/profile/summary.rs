//! Summary statistics of a profile.

use super::{LayerProfile, Profile};

/// Hot neurons account for this fraction of all activations.
const HOT_ACTIVATIONS: f64 = 0.8;

/// Densities and hot fractions of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Mean fraction of the neurons that fire for a token.
    pub density: f64,
    /// `density` of each layer.
    pub density_by_layer: Vec<f64>,
    /// Smallest fraction of the model's neurons that account for 80 % of its activations.
    pub hot: f64,
    /// `hot` of each layer.
    pub hot_by_layer: Vec<f64>,
    /// Fraction of the neurons that never fired.
    pub never_fired: f64,
}

impl Profile {
    /// Summarises the profile.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let all: Vec<u64> = self.layers.iter().flat_map(|layer| layer.fires.clone()).collect();
        let tokens = self.n_tokens.max(1) as f64;
        let share = |fires: &[u64]| {
            fires.iter().map(|&n| n as f64).sum::<f64>() / tokens / fires.len().max(1) as f64
        };
        let never = all.iter().filter(|&&n| n == 0).count();
        Summary {
            density: share(&all),
            density_by_layer: self.layers.iter().map(|layer| share(&layer.fires)).collect(),
            hot_by_layer: self
                .layers
                .iter()
                .map(|layer| hot_fraction(layer.fires.clone()))
                .collect(),
            never_fired: never as f64 / all.len().max(1) as f64,
            hot: hot_fraction(all),
        }
    }

    /// Fraction of all activations that these neurons of each layer account for.
    #[must_use]
    pub fn activation_share(&self, chosen: &[Vec<u32>]) -> f64 {
        let sum = |layer: &LayerProfile| layer.fires.iter().map(|&n| n as f64).sum::<f64>();
        let total: f64 = self.layers.iter().map(sum).sum();
        let chosen_sum = |(layer, chosen): (&LayerProfile, &Vec<u32>)| {
            chosen
                .iter()
                .filter_map(|&n| layer.fires.get(n as usize))
                .map(|&n| n as f64)
                .sum::<f64>()
        };
        self.layers.iter().zip(chosen).map(chosen_sum).sum::<f64>() / total.max(1.0)
    }

    /// Fraction of all activations that the hottest `n` neurons of the model account for.
    #[must_use]
    pub fn hottest_share(&self, n: usize) -> f64 {
        let mut fires: Vec<u64> =
            self.layers.iter().flat_map(|layer| layer.fires.clone()).collect();
        fires.sort_unstable_by(|a, b| b.cmp(a));
        let total: f64 = fires.iter().map(|&n| n as f64).sum();
        fires.iter().take(n).map(|&n| n as f64).sum::<f64>() / total.max(1.0)
    }
}

/// Fraction of the neurons, hottest first, that account for [`HOT_ACTIVATIONS`] of the activations.
fn hot_fraction(mut fires: Vec<u64>) -> f64 {
    fires.sort_unstable_by(|a, b| b.cmp(a));
    let hot_sum = HOT_ACTIVATIONS * fires.iter().map(|&n| n as f64).sum::<f64>();
    let mut sum = 0.0;
    let n = fires.iter().take_while(|&&n| {
        let more = sum < hot_sum;
        sum += n as f64;
        more
    });
    n.count() as f64 / fires.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_profile_has_the_expected_summary() {
        let layer = |fires: &[u64]| LayerProfile { fires: fires.to_vec(), ..Default::default() };
        let layers = vec![layer(&[10, 0, 5, 5]), layer(&[1, 1, 1, 1])];
        let source = "test".to_owned();
        let profile = Profile { source, n_tokens: 10, n_wanted: 10, stride: 0, layers };
        let summary = profile.summary();
        assert!((summary.density - 24.0 / 80.0).abs() < 1e-12);
        assert_eq!(summary.density_by_layer, [0.5, 0.1]);
        assert_eq!(summary.hot_by_layer, [0.75, 1.0]);
        assert_eq!((summary.hot, summary.never_fired), (3.0 / 8.0, 1.0 / 8.0));
        assert!((profile.activation_share(&[vec![0], vec![1, 2, 9]]) - 12.0 / 24.0).abs() < 1e-12);
        assert!((profile.hottest_share(2) - 15.0 / 24.0).abs() < 1e-12);
        assert_eq!(profile.probabilities()[0], [1.0, 0.0, 0.5, 0.5]);
    }
}
