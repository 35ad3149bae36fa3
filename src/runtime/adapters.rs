//! LoRA adapters of the options, merged into a model's file before the model is read.

use std::fmt;
use std::path::PathBuf;

use hal::Bytes;
use model::{Adapter, AdapterError, AdapterMerge};

use crate::notice::{Notice, Observer, Task};
use crate::{Error, Result};

/// A LoRA adapter to merge into the model.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFile {
    /// Path of the GGUF file.
    pub path: PathBuf,
    /// Factor on the adapter's contribution, besides its own `alpha / rank`.
    pub scale: f32,
}

/// LoRA adapters that are merged into the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterNotice {
    /// The adapters.
    pub adapters: Vec<AdapterFile>,
    /// Number of matrices that change; 0 if all scales are 0.
    pub n_matrices: usize,
    /// Bytes of the merged matrices, which stay in memory.
    pub size: Bytes,
    /// Bytes of the same matrices in the model's file.
    pub size_before: Bytes,
    /// Number of norms in the adapters, which are not applied.
    pub n_ignored: usize,
}

impl fmt::Display for AdapterNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AdapterNotice { adapters, n_matrices, size, size_before, n_ignored } = self;
        let names = adapters.iter().map(|adapter| {
            let name = adapter.path.file_name().unwrap_or(adapter.path.as_os_str());
            format!("{} (scale {})", name.to_string_lossy(), adapter.scale)
        });
        let names: Vec<String> = names.collect();
        if *n_matrices == 0 {
            return write!(f, "LoRA: {} changes nothing", names.join(", "));
        }
        write!(
            f,
            "LoRA: {} merged into {n_matrices} matrices, which take {size} of memory (Q8_0 where the file is quantised; {size_before} in the file)",
            names.join(", ")
        )?;
        match n_ignored {
            0 => Ok(()),
            n => write!(f, "; {n} norms of the adapters are not applied, as in llama.cpp"),
        }
    }
}

/// Merges `adapters` into `file`, and sends a notice about them. The merged matrices stay in
/// memory.
pub(crate) fn merge(
    file: gguf::File,
    adapters: &[AdapterFile],
    observer: &dyn Observer,
) -> Result<gguf::File> {
    if adapters.is_empty() {
        return Ok(file);
    }
    let open = |adapter: &AdapterFile| {
        let file = gguf::File::open(&adapter.path).map_err(AdapterError::from)?;
        Ok(Adapter { file, scale: adapter.scale })
    };
    let opened: Vec<Adapter> = adapters.iter().map(open).collect::<Result<_>>()?;
    let merge = AdapterMerge::new(&file, &opened)?;
    let memory = crate::devices::cpu(Some(1)).memory().ok();
    let total = memory.and_then(|memory| memory.total);
    if let Some(total) = total.filter(|total| merge.size() > *total) {
        return Err(Error::AdaptersTooLarge { size: merge.size(), total });
    }
    observer.notice(&Notice::Adapters(AdapterNotice {
        adapters: adapters.to_vec(),
        n_matrices: merge.n_matrices(),
        size: merge.size(),
        size_before: merge.size_before(),
        n_ignored: merge.n_ignored(),
    }));
    let progress = |done: Bytes, total: Bytes| observer.progress(Task::Merge, done, total);
    Ok(merge.apply(file, &progress)?)
}
