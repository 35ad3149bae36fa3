//! Linear layers after the last layer of a model, computed on the host.

use hal::HostRows;

use super::Error;
use super::reader::Reader;

/// A matrix with an optional bias.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[n_out, n_in]`, in the file's format.
    w: HostRows,
    /// `n_out` values; empty without a bias.
    bias: Vec<f32>,
}

impl Linear {
    pub(super) fn read(
        reader: &Reader<'_>,
        name: &str,
        n_out: usize,
        n_in: usize,
    ) -> Result<Linear, Error> {
        let bias = reader.optional_floats(&format!("{name}.bias"), n_out)?;
        let w = reader.matrix(&format!("{name}.weight"), n_out, n_in)?;
        Ok(Linear { w, bias: bias.unwrap_or_default() })
    }

    /// The projections of a pooled embedding, in order (`dense_2`, `dense_3`, from the modules of
    /// Sentence Transformers); empty if the file has none.
    pub(super) fn projections(reader: &Reader<'_>, n_embd: usize) -> Result<Vec<Linear>, Error> {
        let (mut all, mut width) = (Vec::new(), n_embd);
        for name in ["dense_2", "dense_3"] {
            let tensor = format!("{name}.weight");
            if reader.has(&tensor) {
                let n_out = reader.n_rows(&tensor, width, "the size of the embedding")?;
                all.push(Linear::read(reader, name, n_out, width)?);
                width = n_out;
            }
        }
        Ok(all)
    }

    /// Number of values of the result.
    pub(super) fn n_out(&self) -> usize {
        self.w.desc().n_rows
    }

    pub(super) fn apply(&self, x: &[f32]) -> Vec<f32> {
        let desc = self.w.desc();
        let mut row = vec![0.0; desc.n_cols];
        let mut product = |i: usize| {
            let bytes = self.w.rows(i..i + 1).expect("mapped rows are in memory");
            desc.format.dequantize(&bytes, &mut row);
            let sum: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            sum as f32 + self.bias.get(i).copied().unwrap_or(0.0)
        };
        (0..desc.n_rows).map(&mut product).collect()
    }
}
