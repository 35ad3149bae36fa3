//! Writes the container, a few megabytes of rows at a time on all threads.

use std::{io::Write, path::Path};

use hal::Bytes;
use rayon::prelude::*;

use super::{
    Error, Spec, metadata,
    plan::{Plan, Tensor},
    weights::Weights,
};
use gguf::{Container, DataWriter, File, Writer};

/// Bytes of rows per chunk: enough work for many threads, little memory.
const CHUNK: usize = 4 << 20;

impl Spec {
    /// Makes the model in memory. `progress` receives the bytes done and the bytes of all tensors,
    /// and returns whether to continue.
    ///
    /// # Errors
    /// Errors of [`Spec::check`], tensors too large for the container, [`Error::Stopped`].
    pub fn build(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<File, Error> {
        self.check()?;
        let plan = Plan::new(self);
        let tensors = plan.tensors(self.container);
        let mut data = self.header(self.container, &tensors)?.in_memory()?;
        fill(&plan, &tensors, &mut data, progress)?;
        Ok(File::from_vec(data.finish()?, &format!("synthetic {self}"))?)
    }

    /// Writes the model to `path`, in the container of [`Spec::container_for`]; the file appears
    /// only when it is complete. `progress` is as in [`Spec::build`].
    ///
    /// # Errors
    /// As [`Spec::build`], and an I/O error.
    pub fn write(
        &self,
        path: &Path,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(), Error> {
        self.check()?;
        let container = self.container_for(path);
        if container == Container::PowerInfer {
            self.check_predictable()?;
        }
        let plan = Plan::new(self);
        let tensors = plan.tensors(container);
        let mut data = self.header(container, &tensors)?.create(path)?;
        fill(&plan, &tensors, &mut data, progress)?;
        Ok(data.finish()?)
    }

    /// Bytes of all tensors of the model that [`Spec::build`] makes.
    ///
    /// # Errors
    /// Errors of [`Spec::check`].
    pub fn size(&self) -> Result<Bytes, Error> {
        self.check()?;
        Ok(Bytes(total(&Plan::new(self).tensors(self.container))))
    }

    /// The model without the values of its weights, for plans from shapes alone.
    ///
    /// # Errors
    /// Errors of [`Spec::check`], tensors too large for the container.
    pub fn shapes(&self) -> Result<File, Error> {
        self.check()?;
        let tensors = Plan::new(self).tensors(self.container);
        Ok(self.header(self.container, &tensors)?.shapes(&self.to_string())?)
    }

    fn header(&self, container: Container, tensors: &[Tensor]) -> Result<Writer, Error> {
        let mut writer = Writer::new(container);
        metadata::set(self, container, &mut writer)?;
        for tensor in tensors {
            let [cols, rows, n] = [tensor.cols, tensor.rows / tensor.n, tensor.n].map(|n| n as u64);
            let shape = [cols, rows, n];
            let n_dims = if n > 1 { 3 } else { 1 + usize::from(rows > 1) };
            let shape = &shape[..n_dims];
            writer.declare(&tensor.name, shape, tensor.format)?;
        }
        Ok(writer)
    }
}

fn total(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(|tensor| tensor.rows as u64 * tensor.row_bytes() as u64).sum()
}

fn fill<S: Write>(
    plan: &Plan<'_>,
    tensors: &[Tensor],
    data: &mut DataWriter<S>,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<(), Error> {
    let total = total(tensors);
    let mut done = 0;
    let mut weights = Weights::new(plan);
    let mut bytes = Vec::new();
    for tensor in tensors {
        weights.set_layer(tensor.layer);
        let row_bytes = tensor.row_bytes();
        let at_once = (CHUNK / row_bytes).max(1);
        for first in (0..tensor.rows).step_by(at_once) {
            let n_rows = at_once.min(tensor.rows - first);
            bytes.resize(n_rows * row_bytes, 0);
            bytes.par_chunks_exact_mut(row_bytes).enumerate().for_each_init(
                || (vec![0.0; tensor.cols], Vec::new()),
                |(values, scratch), (row, bytes)| {
                    weights.row(tensor.role, first + row, scratch, values);
                    tensor.format.quantize(values, bytes);
                },
            );
            data.write(&tensor.name, &bytes)?;
            done += bytes.len() as u64;
            if !progress(done, total) {
                return Err(Error::Stopped);
            }
        }
    }
    Ok(())
}
