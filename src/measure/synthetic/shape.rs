//! Sizes of a model, by name or written out.

use std::{fmt, str::FromStr};

use super::Error;

/// Sizes of a model, named as in its hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Width of the residual.
    pub n_embd: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// Neurons per layer.
    pub n_ff: usize,
    /// Number of query heads.
    pub n_head: usize,
    /// Number of key and value heads.
    pub n_head_kv: usize,
}

const fn shape(
    n_embd: usize,
    n_layer: usize,
    n_ff: usize,
    n_head: usize,
    n_head_kv: usize,
) -> Shape {
    Shape { n_embd, n_layer, n_ff, n_head, n_head_kv }
}

impl Shape {
    /// Named shapes: a test size, then the sizes of Llama 1, 2 and 3.
    pub const NAMED: &[(&str, Shape)] = &[
        ("tiny", shape(512, 4, 2048, 8, 8)),
        ("1b", shape(2048, 16, 8192, 32, 8)),
        ("3b", shape(3072, 28, 8192, 24, 8)),
        ("7b", shape(4096, 32, 11008, 32, 32)),
        ("8b", shape(4096, 32, 14336, 32, 8)),
        ("13b", shape(5120, 40, 13824, 40, 40)),
        ("70b", shape(8192, 80, 28672, 64, 8)),
    ];
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Shape::NAMED.iter().find(|(_, shape)| shape == self) {
            Some((name, _)) => f.pad(name),
            None => {
                let Shape { n_embd, n_layer, n_ff, n_head, n_head_kv } = self;
                write!(f, "{n_embd}x{n_layer}x{n_ff}x{n_head}/{n_head_kv}")
            }
        }
    }
}

impl FromStr for Shape {
    type Err = Error;

    /// Parses a name (in any case) or sizes.
    fn from_str(given: &str) -> Result<Shape, Error> {
        let named = Shape::NAMED.iter().find(|(name, _)| name.eq_ignore_ascii_case(given));
        if let Some((_, shape)) = named {
            return Ok(*shape);
        }
        let sizes: Option<Vec<usize>> =
            given.split(['x', 'X', '/']).map(|size| size.parse().ok()).collect();
        let slashes = given.matches('/').count() == 1;
        match sizes.as_deref() {
            Some(&[n_embd, n_layer, n_ff, n_head, n_head_kv])
                if slashes && given.rfind(['x', 'X']) < given.find('/') =>
            {
                Ok(shape(n_embd, n_layer, n_ff, n_head, n_head_kv))
            }
            _ => {
                let known: Vec<_> = Shape::NAMED.iter().map(|(name, _)| *name).collect();
                Err(Error::Shape { given: given.to_owned(), known: known.join(", ") })
            }
        }
    }
}
