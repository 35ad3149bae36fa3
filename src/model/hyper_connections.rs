//! Manifold-constrained hyper-connections (mHC, Xie et al. 2025): several residual streams, which
//! each mixer and feed-forward block reads and writes with its own weights. Generic over the
//! operand: host rows, tensors or shapes.

use hal::HostRows;
use hal::op::MAX_STREAMS;

use super::layer::MapOperand;
use super::layers::LayerReader;
use super::reader::f32_matrix;
use super::{Error, StreamEndKind};

/// The residual streams in one layer.
#[derive(Clone, Debug)]
pub struct HyperConnections<T = HostRows> {
    /// Number of streams.
    pub n_streams: usize,
    /// Epsilon of the weights of streams.
    pub eps: f32,
    /// How often the columns of the mixing matrix are divided by their sums.
    pub n_iterations: usize,
    /// How the mixer reads and writes the streams.
    pub mixer: StreamWeights<T>,
    /// How the feed-forward block reads and writes the streams.
    pub ffn: StreamWeights<T>,
    /// The residual after the last layer; `None` in other layers.
    pub end: Option<StreamEnd<T>>,
}

/// The residual after the last layer of `n` streams.
#[derive(Clone, Debug)]
pub enum StreamEnd<T = HostRows> {
    /// `[1, n]`, F32: the share of each stream.
    Shares(T),
    /// Shares from the streams: the first part of [`hal::op::HyperWeights`].
    ///
    /// Its product has `n` rows, its scale one value and its base `n` values.
    Weighted(StreamWeights<T>),
}

/// How a block reads and writes `n` residual streams: weights from the streams, see
/// [`hal::op::HyperWeights`].
#[derive(Clone, Debug)]
pub struct StreamWeights<T = HostRows> {
    /// `[n * (n + 2), n * n_embd]`: from the normed streams, one after the other.
    pub product: T,
    /// `[1, 3]`, F32: factors on the product.
    pub scale: T,
    /// `[1, n * (n + 2)]`, F32: summands.
    pub base: T,
}

impl<T> HyperConnections<T> {
    /// Applies `f` to every operand.
    pub(super) fn try_map<U, E>(
        &self,
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<HyperConnections<U>, E> {
        const OUTPUT: [&str; 3] = ["output_hc_fn", "output_hc_scale", "output_hc_base"];
        let mut block = |by: &StreamWeights<T>, [product, scale, base]: [&'static str; 3]| {
            Ok(StreamWeights {
                product: f(product, &by.product)?,
                scale: f(scale, &by.scale)?,
                base: f(base, &by.base)?,
            })
        };
        Ok(HyperConnections {
            n_streams: self.n_streams,
            eps: self.eps,
            n_iterations: self.n_iterations,
            mixer: block(&self.mixer, ["hc_attn_fn", "hc_attn_scale", "hc_attn_base"])?,
            ffn: block(&self.ffn, ["hc_ffn_fn", "hc_ffn_scale", "hc_ffn_base"])?,
            end: match &self.end {
                Some(StreamEnd::Shares(mean)) => Some(StreamEnd::Shares(f("stream_mean", mean)?)),
                Some(StreamEnd::Weighted(by)) => Some(StreamEnd::Weighted(block(by, OUTPUT)?)),
                None => None,
            },
        })
    }
}

impl LayerReader<'_> {
    /// Reads the tensors with which the layer reads and writes the streams; `None` in models with
    /// one stream.
    pub(super) fn hyper_connections(&self) -> Result<Option<Box<HyperConnections>>, Error> {
        const COUNT: &str = "hyper_connection.count";
        const ITERATIONS: &str = "hyper_connection.sinkhorn_iterations";
        const EPSILON: &str = "hyper_connection.epsilon";
        /// More iterations would change nothing.
        const MAX_ITERATIONS: usize = 1000;
        let Some(end) = self.layers.spec.hyper_connections else { return Ok(None) };
        let keys = self.keys();
        let n = keys.need(COUNT, "the number of residual streams")?;
        if n > MAX_STREAMS {
            return Err(keys.wrong_key(COUNT, format!("1 to {MAX_STREAMS}"), n));
        }
        let n_iterations =
            keys.need(ITERATIONS, "the number of iterations of the mixing matrix")?;
        if n_iterations > MAX_ITERATIONS {
            return Err(keys.wrong_key(ITERATIONS, format!("1 to {MAX_ITERATIONS}"), n_iterations));
        }
        let eps = match keys.f32(EPSILON)? {
            None => return Err(keys.missing(EPSILON, "the epsilon of the weights of streams")),
            Some(eps) if (0.0..1.0).contains(&eps) => eps,
            Some(eps) => return Err(keys.wrong_key(EPSILON, "at least 0 and below 1", eps)),
        };
        let n_weights = n * (n + 2);
        let vector = |tensor: String, n: usize| -> Result<HostRows, Error> {
            Ok(f32_matrix(1, &self.flat(&tensor, n)?))
        };
        let block = |name: &str| -> Result<StreamWeights, Error> {
            let product = format!("hc_{name}_fn.weight");
            Ok(StreamWeights {
                product: self.matrix(&product, n_weights, n * self.n_embd())?,
                scale: vector(format!("hc_{name}_scale.weight"), 3)?,
                base: vector(format!("hc_{name}_base.weight"), n_weights)?,
            })
        };
        let is_last = self.index() + 1 == self.n_layer();
        Ok(Some(Box::new(HyperConnections {
            n_streams: n,
            eps,
            n_iterations,
            mixer: block("attn")?,
            ffn: block("ffn")?,
            end: is_last.then(|| self.stream_end(end, n)).transpose()?,
        })))
    }

    /// Reads the residual after the last layer of `n` streams.
    fn stream_end(&self, kind: StreamEndKind, n: usize) -> Result<StreamEnd, Error> {
        let reader = &self.layers.reader;
        let vector = |tensor: &str, n: usize| -> Result<HostRows, Error> {
            Ok(f32_matrix(1, &reader.flat(tensor, n)?))
        };
        Ok(match kind {
            StreamEndKind::Mean => StreamEnd::Shares(self.constant((n as f32).recip(), n)),
            StreamEndKind::Weighted => StreamEnd::Weighted(StreamWeights {
                product: reader.matrix("output_hc_fn.weight", n, n * self.n_embd())?,
                scale: vector("output_hc_scale.weight", 1)?,
                base: vector("output_hc_base.weight", n)?,
            }),
        })
    }
}
