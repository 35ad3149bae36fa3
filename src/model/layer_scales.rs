//! Reading the factors of a layer: on the residual after it, and on the input of its router.

use hal::HostRows;

use super::layer::InputScale;
use super::layers::LayerReader;
use super::reader::f32_matrix;
use super::{Error, Experts};

impl LayerReader<'_> {
    /// The factor on the residual after the layer; `None` without one.
    pub(super) fn out_scale(&self) -> Result<Option<HostRows>, Error> {
        let scale = self.tensor("layer_output_scale.weight");
        match self.layers.reader.optional_vector(&scale, 1)? {
            _ if self.layers.spec.embedding_skip => Ok(None),
            None if self.is_halved()? => Ok(Some(self.constant(0.5, 1))),
            scale => Ok(scale),
        }
    }

    /// Whether the residual is halved after the layer.
    fn is_halved(&self) -> Result<bool, Error> {
        let (spec, keys) = (self.layers.spec, self.keys());
        if !spec.halves {
            return Ok(false);
        }
        // Not halved with 0, of which only 0 is a multiple.
        let every = keys.metadata.u32(&keys.name("rescale_every_n_layers"))?.unwrap_or(0);
        Ok((self.index() + 1).is_multiple_of(every as usize))
    }

    /// What scales the input of the router of `experts`; `None` without a scale.
    pub(super) fn input_scale(&self, experts: Option<&Experts>) -> Option<InputScale> {
        let n = experts.filter(|_| self.layers.spec.routing.scales_input)?.n;
        let on_diagonal = |i: usize| f32::from(u8::from(i / n == i % n));
        let identity: Vec<f32> = (0..n * n).map(on_diagonal).collect();
        Some(InputScale { sum: self.constant(1.0, n), identity: f32_matrix(n, &identity) })
    }
}
