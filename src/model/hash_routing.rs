//! Hash routing (DeepSeek-V4): in the first layers, a table lists the experts of each token.

use hal::HostRows;

use super::Error;
use super::experts::Experts;
use super::layers::LayerReader;
use super::reader::f32_matrix;

/// The table of a layer.
const TABLE: &str = "ffn_gate_tid2eid.weight";

impl LayerReader<'_> {
    /// Whether a table lists the experts of the layer's tokens.
    ///
    /// # Errors
    /// [`Error`]: a missing or wrong key.
    pub(super) fn lists_experts(&self) -> Result<bool, Error> {
        const COUNT: &str = "hash_layer_count";
        if !self.layers.spec.hash_routing {
            return Ok(false);
        }
        let keys = self.keys();
        let count = keys.metadata.u32(&keys.name(COUNT))?;
        let count = count
            .ok_or_else(|| keys.missing(COUNT, "the number of layers with a table of experts"))?;
        Ok(self.index() < count as usize)
    }

    /// Reads the experts of each token, `[n_vocab, n_used]`; `None` in a layer whose router selects
    /// them.
    ///
    /// # Errors
    /// [`Error`]: a missing or wrong key, and a table of unknown or repeated experts.
    pub(super) fn listed_experts(
        &self,
        experts: Option<&Experts>,
    ) -> Result<Option<HostRows>, Error> {
        let Some(experts) = experts.filter(|_| self.layers.spec.hash_routing) else {
            return Ok(None);
        };
        if !self.lists_experts()? {
            return Ok(None);
        }
        let n_vocab = self.layers.reader.n_rows("token_embd.weight", self.n_embd(), "tokens")?;
        let table = self.tensor(TABLE);
        let ids = self.layers.reader.i32_matrix(&table, n_vocab, experts.n_used)?;
        // The last token that listed each expert.
        let mut listed = vec![usize::MAX; experts.n];
        for (token, row) in ids.chunks_exact(experts.n_used).enumerate() {
            let mut is_new = |id: i32| {
                let last = usize::try_from(id).ok().and_then(|id| listed.get_mut(id));
                last.is_some_and(|last| std::mem::replace(last, token) != token)
            };
            if let Some(id) = row.iter().copied().find(|&id| !is_new(id)) {
                return Err(Error::Values {
                    file: self.keys().file.to_owned(),
                    tensor: table,
                    expected: "distinct experts for each token, from 0 up to the number of experts",
                    found: format!("{id} for token {token} of {} experts", experts.n),
                });
            }
        }
        let ids: Vec<f32> = ids.into_iter().map(|id| id as f32).collect();
        Ok(Some(f32_matrix(n_vocab, &ids)))
    }
}
