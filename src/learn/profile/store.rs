//! Stores a profile in the side file.

use crate::learned::{Section, SectionContents, SideFile, SideFileError};
use gguf::TensorType;
use model::Model;

use super::{LayerProfile, MAX_SAMPLES, Profile};

const SECTION: Section = Section::Profile;
const VERSION: u64 = 1;

impl Profile {
    /// The profile of `model` in its side file; `None` if it has none.
    ///
    /// # Errors
    /// [`SideFileError`] for a profile that is inconsistent with the model or itself.
    pub fn read(file: &SideFile, model: &Model) -> Result<Option<Profile>, SideFileError> {
        if !file.has(SECTION) {
            return Ok(None);
        }
        let reader = Reader { file, model };
        let version = file.u64(SECTION, "version")?;
        if version != VERSION {
            return Err(reader.wrong_tensor("version", VERSION.to_string(), version.to_string()));
        }
        let (expected, found) = (model.ffn_function(), file.text(SECTION, "neurons")?);
        if found != expected {
            return Err(reader.wrong_tensor("neurons", expected, found.to_owned()));
        }
        let [n_tokens, n_wanted, stride] =
            ["tokens", "wanted", "stride"].map(|name| file.u64(SECTION, name));
        let (n_tokens, n_wanted, stride) = (n_tokens?, n_wanted?, stride?);
        let n_samples = if stride == 0 { 0 } else { n_tokens.div_ceil(stride) };
        if n_samples > MAX_SAMPLES as u64 {
            let expected = format!("at most {MAX_SAMPLES} samples");
            return Err(reader.wrong_tensor("stride", expected, n_samples.to_string()));
        }
        let layers = (0..model.hyper.n_layer).map(|layer| reader.layer(layer, n_tokens, n_samples));
        Ok(Some(Profile {
            source: file.text(SECTION, "source")?.to_owned(),
            n_tokens,
            n_wanted,
            stride,
            layers: layers.collect::<Result<_, _>>()?,
        }))
    }

    /// The section's contents for `model`.
    #[must_use]
    pub fn contents(&self, model: &Model) -> SectionContents {
        let mut contents = SectionContents::default();
        contents.set("version", VERSION);
        // The counts depend on the activation function, which a flag can set.
        contents.set("neurons", model.ffn_function());
        contents.set("source", self.source.as_str());
        contents.set("tokens", self.n_tokens);
        contents.set("wanted", self.n_wanted);
        contents.set("stride", self.stride);
        for (i, layer) in self.layers.iter().enumerate() {
            let LayerProfile { fires, size, input, routed, samples, order } = layer;
            // A layer without neurons has nothing to store.
            if fires.is_empty() {
                continue;
            }
            let name = |part: &str| format!("blk.{i}.{part}");
            let integers = |values: &[u64]| values.iter().map(|&n| n as i64).collect::<Vec<_>>();
            contents.i64s(&name("fires"), &[fires.len() as u64], &integers(fires));
            contents.f64s(&name("size"), &[size.len() as u64], size);
            if !input.is_empty() {
                contents.f64s(&name("input"), &[input.len() as u64], input);
            }
            if !routed.is_empty() {
                contents.i64s(&name("routed"), &[routed.len() as u64], &integers(routed));
            }
            if let Some(first) = samples.first() {
                let bytes = samples.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
                let shape = [first.len() as u64, samples.len() as u64];
                contents.tensor(&name("samples"), &shape, TensorType::I64, bytes);
            }
            if !order.is_empty() {
                let order: Vec<i32> = order.iter().map(|&neuron| neuron as i32).collect();
                contents.i32s(&name("order"), &[order.len() as u64], &order);
            }
        }
        contents
    }
}

struct Reader<'a> {
    file: &'a SideFile,
    model: &'a Model,
}

impl Reader<'_> {
    fn layer(
        &self,
        layer: usize,
        n_tokens: u64,
        n_samples: u64,
    ) -> Result<LayerProfile, SideFileError> {
        let weights = &self.model.layers[layer];
        let Some(ffn) = &weights.ffn else { return Ok(LayerProfile::default()) };
        let n_in = ffn.width() as u64;
        let (n_ff, n_words) = (weights.n_ff() as u64, weights.n_ff().div_ceil(64));
        let name = |part: &str| format!("blk.{layer}.{part}");
        let counts = |part: &str, n: u64| {
            let values = self.file.i64s(SECTION, &name(part), &[n])?;
            let count = |value: i64| u64::try_from(value).ok().filter(|&n| n <= n_tokens);
            let counts: Option<Vec<u64>> = values.into_iter().map(count).collect();
            let expected = || format!("counts from 0 to {n_tokens}");
            let found = "out of range".to_owned();
            counts.ok_or_else(|| self.wrong_tensor(&name(part), expected(), found))
        };
        let sums = |part: &str, n: u64| {
            let values = self.file.f64s(SECTION, &name(part), &[n])?;
            if values.iter().all(|value| value.is_finite() && *value >= 0.0) {
                Ok(values)
            } else {
                let expected = "sums of at least 0".to_owned();
                Err(self.wrong_tensor(&name(part), expected, "out of range".into()))
            }
        };
        let fires = counts("fires", n_ff)?;
        let has = |part: &str| self.file.has_tensor(SECTION, &name(part));
        let mut samples = Vec::new();
        if n_samples > 0 {
            let shape = [n_words as u64, n_samples];
            let words = self.file.i64s(SECTION, &name("samples"), &shape)?;
            samples.extend(
                words
                    .chunks_exact(n_words.max(1))
                    .map(|sample| sample.iter().map(|&word| word as u64).collect::<Vec<u64>>()),
            );
        }
        let mut order = Vec::new();
        if has("order") {
            let given = self.file.i32s(SECTION, &name("order"), &[n_ff])?;
            order = given.into_iter().map(|neuron| neuron as u32).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            if !sorted.iter().copied().eq(0..n_ff as u32) {
                let expected = "a list with each neuron once".to_owned();
                return Err(self.wrong_tensor(&name("order"), expected, "invalid".into()));
            }
        }
        Ok(LayerProfile {
            fires,
            size: sums("size", n_ff)?,
            input: if has("input") { sums("input", n_in)? } else { Vec::new() },
            routed: match weights.experts() {
                Some(experts) if has("routed") => counts("routed", experts.n as u64)?,
                Some(_) | None => Vec::new(),
            },
            samples,
            order,
        })
    }

    fn wrong_tensor(&self, name: &str, expected: String, found: String) -> SideFileError {
        let name = format!("{}.{name}", SECTION.name());
        SideFileError::Wrong { file: self.file.name().to_owned(), name, expected, found }
    }
}
