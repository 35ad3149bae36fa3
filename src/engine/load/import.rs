//! Loads weights onto a device: from the repack cache, used in place in the model file, or packed
//! now.

use hal::{Bytes, Device, DeviceKind, HostRows, PackDesc, Source, Tensor};

use model::Model;
use placement::Neurons;

use super::Loader;
use crate::converted::Weight;
use crate::error::Result;
use crate::ops::ffn::{FfnMode, PackedFfn};
use crate::options::EngineOptions;
use crate::paging::{Owner, PagedWeights};

impl Loader<'_> {
    /// Loads a pack onto `device`. Pages of the model file that were read only to copy them are
    /// dropped from memory. What the CPU would use in place is paged, if the model's weights are
    /// partly on disk.
    pub(crate) fn import(
        &self,
        device: &Device,
        owner: Owner,
        label: &str,
        pack: &PackDesc,
        rows: &HostRows,
    ) -> Result<Tensor> {
        let converted = self.sizing.options.converted.as_ref();
        let paged = self.paged.filter(|_| device.info().kind == DeviceKind::Cpu);
        let kept = device
            .stored_pack(pack, rows)
            .and_then(|stored| converted.and_then(|packs| packs.find(label, pack, stored)));
        if let Some(bytes) = kept {
            let adopt = |bytes, table| match table {
                Some(table) => Ok(device.adopt_rows(pack, bytes, table)?),
                None => Ok(device.adopt(pack, bytes)?),
            };
            let paged = paged.and_then(|paged| paged.page_pack(owner, pack, &bytes, adopt));
            return paged.unwrap_or_else(|| adopt(bytes, None));
        }
        let mapped = matches!(rows.source(), Source::Mapped(_));
        let in_place = device.pack_size(pack, mapped) == Bytes(0);
        let paged = paged.filter(|_| in_place).and_then(|paged| paged.page(owner, rows));
        let tensor = device.import(label, pack, paged.as_ref().unwrap_or(rows))?;
        if !in_place {
            self.sizing.model.file.release_rows(rows);
        }
        Ok(tensor)
    }

    /// As [`Loader::import`], for a whole matrix, not transposed.
    pub(crate) fn import_whole(
        &self,
        device: &Device,
        owner: Owner,
        label: &str,
        rows: &HostRows,
    ) -> Result<Tensor> {
        self.import(device, owner, label, &PackDesc::whole(rows.desc()), rows)
    }

    /// As [`Loader::import_whole`], for a vector or for a table of which steps read a few rows. It
    /// is never paged.
    pub(crate) fn import_unpaged(
        &self,
        device: &Device,
        label: &str,
        rows: &HostRows,
    ) -> Result<Tensor> {
        let paged: Option<&PagedWeights<'_>> = None;
        Loader { paged, ..*self }.import_whole(device, Owner::Model, label, rows)
    }

    /// Loads a per-neuron vector, or a vector for each expert. On the CPU it is copied, not used in
    /// place, if neurons are exchanged: an exchange writes to it.
    pub(crate) fn vector(&self, device: &Device, label: &str, rows: &HostRows) -> Result<Tensor> {
        if device.info().kind != DeviceKind::Cpu || !self.sizing.counts_rows() {
            return self.import_unpaged(device, label, rows);
        }
        let tensor = device.alloc(label, rows.desc())?;
        device.queue("import")?.write(&tensor, &rows.rows(0..rows.desc().n_rows)?)?;
        Ok(tensor)
    }
}

/// The weights that belong in the repack cache of `device`, if the whole model is on that device.
#[must_use]
pub fn to_repack(model: &Model, options: &EngineOptions, device: &Device) -> Vec<Weight> {
    let mode = FfnMode::new(model, options);
    let mut weights = Vec::new();
    let mut add = |label: String, pack: PackDesc, source: &HostRows| {
        if let Some(stored) = device.stored_pack(&pack, source) {
            weights.push(Weight { label, pack, source: source.clone(), stored });
        }
    };
    for (i, layer) in model.layers.iter().enumerate() {
        layer.frame.for_each(&mut |part, rows| {
            add(format!("blk.{i}.{part}"), PackDesc::whole(rows.desc()), rows);
        });
        let packs = layer.ffn.iter().flat_map(|ffn| mode.packs(device, ffn, &Neurons::All));
        for PackedFfn { matrix, rows, pack, .. } in packs {
            add(format!("blk.{i}.{}", matrix.label()), pack, &rows);
        }
    }
    let ends = [("token_embd", Some(&model.token_embd)), ("output", model.output.as_ref())];
    for (label, rows) in ends.into_iter().filter_map(|(label, rows)| Some((label, rows?))) {
        add(label.to_owned(), PackDesc::whole(rows.desc()), rows);
    }
    if let Some(by) = &model.per_layer {
        for (label, rows) in
            [("per_layer_token_embd", &by.table), ("per_layer_model_proj", &by.proj.w)]
        {
            add(label.to_owned(), PackDesc::whole(rows.desc()), rows);
        }
    }
    weights
}
